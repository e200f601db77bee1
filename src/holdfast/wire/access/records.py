"""The records of a directory as JSON: in its file, and between servers.

{"records": [{"key": "user/alice", "version": 17, "user": {"secrets": ["..."], "kind": "Super", "enabled": true}},
             {"key": "rules/alice", "version": 18, "rules": [{"resource": "Topic:*", "actions": ["Sub"], ...}]},
             {"key": "user/bob", "version": 19}]}                                                  deleted

7062  hf.digest, body: records      server ─> server: merge these; the digest is that of the sender's directory
      ─> hf.digest, body: records   what the sender lacks
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from holdfast.model.access.directory import (
    RECORDS_MAX,
    RULES_MAX,
    RULES_PREFIX,
    USER_PREFIX,
    VERSION_MAX,
    Record,
)
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.rule import SOURCES_MAX, Effect, ResourcePattern, Rule, Tier, list_actions, parse_actions
from holdfast.model.access.source_address import parse_source
from holdfast.model.access.user import User, UserKind, check_user, check_user_name
from holdfast.model.errors import RemoteProtocolError

# Several servers that could not reach each other may each have created as many as one may.
_RECORDS_MAX: Final = 8 * RECORDS_MAX


class SyncAccessFields(msgspec.Struct, frozen=True, rename={"digest": "hf.digest"}):
    """Header of 7062 and of its answer."""

    digest: str = ""


class _User(msgspec.Struct, frozen=True):
    secrets: tuple[str, ...]
    kind: UserKind
    enabled: bool


class _Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    resource: str
    actions: list[str]
    effect: Effect
    sources: Annotated[list[str], msgspec.Meta(max_length=SOURCES_MAX)] = []
    tier: Tier = Tier.CUSTOM


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str
    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)]
    user: _User | None = None
    rules: Annotated[list[_Rule], msgspec.Meta(max_length=RULES_MAX)] | None = None


class _Records(msgspec.Struct, frozen=True):
    records: Annotated[list[_Record], msgspec.Meta(max_length=_RECORDS_MAX)]


_decode = msgspec.json.Decoder(_Records).decode


def encode_records(records: Iterable[Record]) -> bytes:
    """Return the bytes of *records*, for a file or for another server. They contain secrets."""
    return msgspec.json.encode(_Records([_to_json(record) for record in records]))


def decode_records(data: bytes | memoryview) -> list[Record]:
    """Decode records. No error contains a secret.

    Raises:
        RemoteProtocolError: they cannot be read, or one of them could not be in a directory.
    """
    try:
        return [_from_json(record) for record in _decode(data).records]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DirectoryRefused) as error:
        raise RemoteProtocolError(f"the records of users and rules cannot be read: {error}") from error


def _to_json(record: Record) -> _Record:
    value = record.value
    if isinstance(value, User):
        return _Record(record.key, record.version, user=_User(value.secrets, value.kind, value.is_enabled))
    if value is None:
        return _Record(record.key, record.version)
    rules = [
        _Rule(
            str(rule.resource), list_actions(rule.actions), rule.effect, [str(each) for each in rule.sources], rule.tier
        )
        for rule in value
    ]
    return _Record(record.key, record.version, rules=rules)


def _from_json(record: _Record) -> Record:
    kind, _, name = record.key.partition("/")
    check_user_name(name)
    if kind + "/" == USER_PREFIX and record.rules is None:
        if record.user is None:
            return Record(record.key, record.version, None)
        user = User(name, record.user.secrets, record.user.kind, record.user.enabled)
        check_user(user)
        return Record(record.key, record.version, user)
    if kind + "/" == RULES_PREFIX and record.user is None:
        rules = None if record.rules is None else tuple(_to_rule(rule) for rule in record.rules)
        return Record(record.key, record.version, rules)
    raise DirectoryRefused(f"the record {record.key[:80]!r} is neither a user nor the rules of one")


def _to_rule(rule: _Rule) -> Rule:
    sources = tuple(parse_source(source) for source in rule.sources)
    return Rule(ResourcePattern.parse(rule.resource), parse_actions(rule.actions), rule.effect, sources, rule.tier)
