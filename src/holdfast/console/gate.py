"""Refuses what comes from foreign pages, and adds the headers that keep foreign content out of ours.

A page of another site can make a browser send requests here. It is refused by its `Origin`; if it made its own name
point to this machine (DNS rebinding), by the name in `Host`. What a message contains cannot run in a page of ours:
nothing is loaded from elsewhere, and no script is made from text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.console.problems import ForeignRequest
from holdfast.runtime.address import is_loopback

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Gate:
    """Around the application.

    Args:
        app: What answers the requests that pass.
        refuse: Makes the answer to a request that does not.
    """

    def __init__(self, app: ASGIApp, refuse: Callable[[Exception], Response]) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, text in HEADERS.items():
                    headers[name] = text
            await send(message)

        refusal = find_refusal(Headers(scope=scope), scope["method"])
        handler = self._app if refusal is None else self._refuse(ForeignRequest(refusal))
        await handler(scope, receive, send_with_headers)


def find_refusal(headers: Headers, method: str) -> str | None:
    """Return why a request is refused, by its headers; None if it may pass."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_own_host(hosts[0]):
        return f"the host {', '.join(hosts) or 'of the request is missing'!r} is not this console"
    origins = headers.getlist("origin")
    if any(origin not in {f"http://{hosts[0]}", f"https://{hosts[0]}"} for origin in origins):
        return f"the page of the request is from {', '.join(origins)!r}, not from this console"
    if method == "POST" and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        # The types that a form of a foreign page can send without asking are refused whatever its origin.
        return "the content type of a change is not application/json"
    return None


def is_own_host(text: str) -> bool:
    """Return whether a `Host` header names this machine, by a name that no other site can have."""
    host, _, port = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "")
    if port and not port.isdecimal():
        return False
    return is_loopback(host.removeprefix("[").removesuffix("]").lower())
