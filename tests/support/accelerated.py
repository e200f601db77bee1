"""Accelerated functions: in Python, and compiled where the extension is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from holdfast import native

_MISSING = pytest.mark.skipif(native.EXTENSION is None, reason=f"holdfast runs in {native.DESCRIPTION}")
KINDS = ["python", pytest.param("native", marks=_MISSING)]


def implementation(name: str, kind: str) -> Any:
    """Return the function *name* in Python or compiled."""
    return native.REFERENCES[name] if kind == "python" else getattr(native.EXTENSION, name)


def for_each_kind(*places: tuple[ModuleType, str]) -> Callable[..., Iterator[str]]:
    """Return a fixture that runs every test of a file once with each kind of the functions in *places*."""

    @pytest.fixture(name="kind", autouse=True, scope="module", params=KINDS)
    def kind(request: pytest.FixtureRequest) -> Iterator[str]:
        with pytest.MonkeyPatch.context() as patch:
            for module, name in places:
                patch.setattr(module, name, implementation(name, request.param))
            yield request.param

    return kind


def needs_native() -> pytest.MarkDecorator:
    """Skip a comparison where there is no compiled function."""
    return _MISSING
