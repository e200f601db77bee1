"""The signature of a request: HMAC-SHA1 over the values of its fields and its body, as every RocketMQ client signs.

    fields  {"topic": "t", "AccessKey": "ak"}, body "hi"
    content akthi                                values by the order of their keys, then the body
    fields  + {"Signature": base64(HMAC-SHA1(secret, content))}

The code, the correlation number and the flag are not signed, and nothing makes a signed request unique: without TLS it
can be repeated and altered within these limits.
"""

from __future__ import annotations

import functools
import hmac
from binascii import b2a_base64
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from holdfast.model.access.credentials import Credentials
from holdfast.wire.frames.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field

_NOTHING: Final[frozenset[str]] = frozenset()
# Clients of RocketMQ 5 add these fields after they signed.
_ZONE: Final = frozenset({"__ZONE_NAME", "__ZONE_MODE"})
# Clients up to this version (4.9.3) do not sign this field.
_UNIQUE_KEY_QUERY: Final = frozenset({"_UNIQUE_KEY_QUERY"})
_VERSION_4_9_3: Final = 399
_KEYED_MAX: Final = 1_024  # secrets
_ORDERS_MAX: Final = 256
_ORDER_SIZE_MAX: Final = 1_024  # characters

_orders: Final[dict[tuple[str, ...], tuple[str, ...]]] = {}
"""By the names of the fields of a request, as they were sent: those that are signed, in the order of the signature."""


def sign(fields: Mapping[str, str], body: bytes | memoryview, credentials: Credentials) -> dict[str, str]:
    """Return *fields* with the fields that prove that the owner of *credentials* sent them with *body*."""
    signed = {**fields, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        signed[SECURITY_TOKEN] = credentials.security_token
    signed[SIGNATURE] = _sign(content(signed, body), credentials.secret_key.encode()).decode()
    return signed


def content(fields: Mapping[str, str], body: bytes | memoryview, excluded: Collection[str] = _NOTHING) -> bytes:
    """Return the bytes that are signed: all values except the signature, ordered by their keys, and the body."""
    names = tuple(fields)
    keys: Sequence[str] = _orders.get(names) or _find_order(names)
    if excluded:
        keys = [key for key in keys if key not in excluded]
    values = "".join(map(fields.__getitem__, keys))
    # Java replaces half a surrogate pair, too.
    return b"".join((values.encode("utf-8", "replace"), body))


def _find_order(names: tuple[str, ...]) -> Sequence[str]:
    """Return the names whose values are signed, in their order, and remember it: a client sends the same names again.

    Names may come from an unproven peer, so neither their number nor their size makes the memory of orders large.
    """
    ordered = sorted(names)
    if not "".join(ordered).isascii():
        ordered.sort(key=_utf16)
    keys = tuple(name for name in ordered if name != SIGNATURE)
    if sum(map(len, names)) <= _ORDER_SIZE_MAX:
        if len(_orders) >= _ORDERS_MAX:
            _orders.clear()
        _orders[names] = keys
    return keys


def verify_fields(
    fields: Mapping[str, str],
    body: bytes | memoryview,
    secret: bytes,
    excluded: Collection[str] = _NOTHING,
) -> bool:
    """Return whether the signature among *fields* was made with *secret*. Takes the same time for every wrong one."""
    signature = fields.get(SIGNATURE)
    if signature is None or not secret:
        return False
    return hmac.compare_digest(_sign(content(fields, body, excluded), secret), signature.encode("utf-8", "replace"))


def verify(command: Command, secrets: Sequence[bytes]) -> bool:
    """Return whether one of *secrets* signed a request, of whatever version its client is."""
    fields, body = command.fields, command.body
    unsigned = _UNIQUE_KEY_QUERY if command.version <= _VERSION_4_9_3 else _NOTHING
    if any(verify_fields(fields, body, secret, unsigned) for secret in secrets):
        return True
    if _ZONE.isdisjoint(fields):
        return False
    return any(verify_fields(fields, body, secret, unsigned | _ZONE) for secret in secrets)


def _sign(data: bytes, secret: bytes) -> bytes:
    keyed = _keyed(secret).copy()
    keyed.update(data)
    return b2a_base64(keyed.digest(), newline=False)


@functools.lru_cache(maxsize=_KEYED_MAX)
def _keyed(secret: bytes) -> hmac.HMAC:
    """Return an HMAC with the key *secret*, only to be copied: to make one takes longer than to sign 1 KiB with it."""
    return hmac.new(secret, digestmod="sha1")


def _utf16(text: str) -> bytes:
    """The order of Java's strings."""
    return text.encode("utf-16-be", "surrogatepass")
