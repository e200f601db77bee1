"""How a program that opens connections uses TLS: which authority it trusts, and how much it verifies."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from holdfast.model.errors import ConfigError

Verification = Literal["full", "chain", "none"]
"""`full`: a trusted authority signed the certificate, and it names the host that was dialled. `chain`: only the first
of these. `none`: neither, so the peer can be anyone."""

_VERIFICATIONS: Final = get_args(Verification)


class ClientTls(msgspec.Struct, frozen=True):
    """TLS for every connection that a client opens.

    Attributes:
        ca: A PEM file with the certificates of trusted authorities; None for those of the system.
        cert: A PEM file with the certificate to present, for servers that ask for one.
        key: The PEM file with its private key.
        verify: What to verify of a server.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: Verification = "full"

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            file = getattr(self, name)
            if file is not None and (not isinstance(file, str) or not file):
                raise ConfigError(f"tls {name} is {file!r}: give the path of a PEM file, or leave it out")
        if self.verify not in _VERIFICATIONS:
            raise ConfigError(f"tls verify is {self.verify!r}: it must be one of {', '.join(_VERIFICATIONS)}")
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a tls certificate needs its key, and a key its certificate: give both or none")
