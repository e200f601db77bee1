"""The files of the pages. They are read once and served from memory, and browsers ask whether theirs is the newest."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.console.problems import NoSuchPath

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def _read_all() -> dict[str, tuple[bytes, str, str]]:
    """Return content, type and tag of each file by name. Only these names can be asked for."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return found


def serve_file(name: str, request: Request) -> Response:
    """Return a file, or that the browser's one is the newest.

    Raises:
        NoSuchPath: there is no such file.
    """
    if name not in _read_all():
        raise NoSuchPath(f"there is no file {name!r}")
    content, kind, tag = _read_all()[name]
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers | {"content-type": kind})
