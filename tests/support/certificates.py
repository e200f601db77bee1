"""Certificates of an authority that only the tests trust."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop

from holdfast.cli.certificates import Authority
from holdfast.model.access.client_tls import ClientTls

HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_DAY: Final = dt.timedelta(days=1)

Run = Callable[[Coroutine[Any, Any, None]], None]


class Certificates:
    """The files of a server: authority, certificate and key, as `holdfast tls init` names them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.ca, self.cert, self.key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
        self._authority = Authority.create(_DAY)
        Path(self.ca).write_bytes(self._authority.encode_certificate())
        Path(self.key).touch(mode=0o600)
        self.renew()

    def renew(self, *hosts: str, parts: tuple[str, ...] = ("cert", "key")) -> None:
        """Replace certificate and key by new ones for *hosts*, or only one of them."""
        signed = self._authority.sign(hosts or HOSTS, _DAY)
        if "key" in parts:
            Path(self.key).write_bytes(signed.key)
        if "cert" in parts:
            Path(self.cert).write_bytes(signed.certificate)

    @property
    def options(self) -> dict[str, str]:
        """The options of a role that uses these files."""
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_ca": self.ca}

    def client(self, **parts: Any) -> ClientTls:
        """Return how a client trusts the authority."""
        return ClientTls(ca=self.ca, **parts)


RUNNERS: Final = [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop.run, id="uvloop")]
"""Event loops, each of which has its own implementation of TLS transports."""
