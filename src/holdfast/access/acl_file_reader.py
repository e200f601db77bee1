"""Reads RocketMQ's ACL 1.0 files: `plain_acl.yml` and those in `conf/acl/`.

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
    - accessKey: RocketMQ
      secretKey: 12345678
      whiteRemoteAddress: 192.168.0.*
      admin: false
      defaultTopicPerm: DENY
      defaultGroupPerm: SUB
      topicPerms: [topicA=DENY, topicB=PUB|SUB]
      groupPerms: [groupA=DENY, groupB=SUB]

Reading is all or nothing: an error names the file, the account and the field, and the caller keeps the previous
content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import yaml

from holdfast.model.access.acl_file import DENY, KEY_LENGTH_MIN, AclAccount, AclFile, Perm
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.rule import NAME_LENGTH_MAX
from holdfast.model.access.source_address import TEXT_MAX, SourcePattern, parse_white_address
from holdfast.model.access.user import check_secret, check_user_name
from holdfast.model.errors import ConfigError
from holdfast.model.topic import RETRY_PREFIX

FILE_SIZE_MAX: Final = 1024 * 1024
ACCOUNTS_MAX: Final = 5_000
LIST_MAX: Final = 1_000
"""Limit for the topics or groups of an account, and for global white addresses."""

_DEPTH_MAX: Final = 16
_INTEGER_BITS_MAX: Final = 1_024

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Fault(Exception):
    """Why a file cannot be used, without the name of the file."""


def read_acl_files(files: Iterable[tuple[str, bytes]]) -> AclFile:
    """Return what the files contain together.

    Args:
        files: The name and the content of each file, in their order: the first definition of an account counts.

    Raises:
        ConfigError: a file cannot be used.
    """
    global_white: list[SourcePattern] = []
    accounts: dict[str, AclAccount] = {}
    warnings: list[str] = []
    for name, data in files:
        try:
            document = _parse(data)
            global_white += _read_white_list(document)
            notes: list[str] = []
            for account in _read_accounts(document, notes):
                if account.access_key in accounts:
                    notes.append(f"the account {account.access_key} is defined before; this one is ignored")
                else:
                    accounts[account.access_key] = account
            warnings += [f"{name}: {note}" for note in notes]
        except _Fault as fault:
            raise ConfigError(f"the ACL file {name} cannot be used: {fault}") from None
    return AclFile(global_white=tuple(global_white), accounts=accounts, warnings=tuple(warnings))


def _parse(data: bytes) -> dict[str, Any]:
    if len(data) > FILE_SIZE_MAX:
        raise _Fault(f"it has {len(data)} bytes, at most {FILE_SIZE_MAX} are read")
    try:
        text = data.decode()
        _check_structure(text)
        document = yaml.load(text, _Loader)  # noqa: S506 - it is the safe loader
    except yaml.constructor.ConstructorError as error:  # Its text has the tag, which may be a part of a secret.
        where = _line(error.problem_mark)
        raise _Fault(f"{where} has a tag or an unusable key; put a value that begins with '!' in quotes") from None
    except yaml.MarkedYAMLError as error:
        raise _Fault(f"it is no YAML: {_line(error.problem_mark or error.context_mark)}: {error.problem}") from None
    # The loader also lets through what its conversions of tagged values raise. Their texts may contain secrets.
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
        raise _Fault("it is no YAML that can be read") from None
    if document is None:
        raise _Fault("it is empty; a file that shall define nothing contains 'accounts: []'")
    if not isinstance(document, dict):
        raise _Fault("it has no fields such as 'accounts'")
    return document


def _check_structure(text: str) -> None:
    """Refuse what the loader cannot bound.

    Nesting ends in a crash of the C code, aliases can fill any memory, and a long `1:59:59` is a number to the base of
    60, whose conversion takes minutes.
    """
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            raise _Fault(f"{_line(event.start_mark)} has an alias; write the value again, or put it in quotes")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > TEXT_MAX:
            raise _Fault(f"{_line(event.start_mark)} has a value of more than {TEXT_MAX} characters")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEPTH_MAX:
            raise _Fault(f"{_line(event.start_mark)} is nested deeper than {_DEPTH_MAX}")


def _line(mark: Any) -> str:
    return "a line" if mark is None else f"line {mark.line + 1}"


def _read_white_list(document: dict[str, Any]) -> list[SourcePattern]:
    field = "globalWhiteRemoteAddresses"
    return [_parse_white(text, field) for text in _texts(document, field, field)]


def _read_accounts(document: dict[str, Any], warnings: list[str]) -> list[AclAccount]:
    entries = document.get("accounts")
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > ACCOUNTS_MAX:
        raise _Fault(f"the field accounts is no list of at most {ACCOUNTS_MAX} accounts")
    accounts: dict[str, AclAccount] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise _Fault(f"account {number} has no fields such as 'accessKey'")
        account = _read_account(entry, f"account {number}", warnings)
        if accounts.setdefault(account.access_key, account) is not account:
            key = account.access_key
            warnings.append(f"the account {key} is defined before; this one, number {number}, is ignored")
    return list(accounts.values())


def _read_account(entry: dict[str, Any], label: str, warnings: list[str]) -> AclAccount:
    access_key = _key(entry, "accessKey", label, check_user_name)
    label = f"account {access_key}"
    return AclAccount(
        access_key=access_key,
        secret_key=_key(entry, "secretKey", label, check_secret),
        white_address=_parse_white(_text(entry, "whiteRemoteAddress", label), f"{label}, field whiteRemoteAddress"),
        is_admin=_flag(entry, "admin", label),
        default_topic=_perm(_text(entry, "defaultTopicPerm", label), f"{label}, field defaultTopicPerm", warnings),
        default_group=_perm(_text(entry, "defaultGroupPerm", label), f"{label}, field defaultGroupPerm", warnings),
        topics=_perms(entry, "topicPerms", label, warnings),
        groups={
            name.removeprefix(RETRY_PREFIX): it for name, it in _perms(entry, "groupPerms", label, warnings).items()
        },
    )


def _key(entry: dict[str, Any], field: str, label: str, check: Callable[[str], None]) -> str:
    key = _text(entry, field, label)
    if len(key) < KEY_LENGTH_MIN:
        raise _Fault(f"{label}, field {field}: it has {len(key)} characters, at least {KEY_LENGTH_MIN} are needed")
    try:
        check(key)
    except DirectoryRefused as refusal:
        raise _Fault(f"{label}, field {field}: {refusal}") from None
    return key


def _perms(entry: dict[str, Any], field: str, label: str, warnings: list[str]) -> dict[str, Perm]:
    """Return the listed names with their permissions; of several for one name the last counts, as in RocketMQ."""
    where = f"{label}, field {field}"
    perms = {}
    for text in _texts(entry, field, where):
        name, _, perm = (part.strip() for part in text.partition("="))
        if not name or not perm or "=" in perm:
            raise _Fault(f"{where}: {text[:80]!r} is not NAME=PERM")
        if "*" in name:
            raise _Fault(
                f"{where}: {name[:80]!r} has a '*', but ACL 1.0 knows whole names only: use the default of the account"
            )
        if len(name) > NAME_LENGTH_MAX:
            raise _Fault(f"{where}: a name has {len(name)} characters, at most {NAME_LENGTH_MAX} are allowed")
        perms[name] = _perm(perm, f"{where}, {name}", warnings)
    return perms


def _perm(text: str, where: str, warnings: list[str]) -> Perm:
    perm = Perm.parse(text) if text else DENY
    if perm is None:
        warnings.append(f"{where}: {text[:40]!r} is no permission and counts as DENY; write DENY, PUB, SUB or PUB|SUB")
    return perm or DENY


def _parse_white(text: str, where: str) -> SourcePattern:
    try:
        return parse_white_address(text)
    except DirectoryRefused as refusal:
        raise _Fault(f"{where}: {refusal}") from None


def _text(entry: dict[str, Any], field: str, label: str) -> str:
    """Return a text. A whole number counts as its digits: a secret may be 12345678. No error contains the value."""
    value = entry.get(field)
    if value is None:
        return ""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _INTEGER_BITS_MAX
    if not is_number and not isinstance(value, str):
        raise _Fault(f"{label}, field {field}: the value is no text; put it in quotes")
    return str(value).strip()


def _texts(entry: dict[str, Any], field: str, where: str) -> list[str]:
    values = entry.get(field)
    if values is None:
        return []
    if not isinstance(values, list) or len(values) > LIST_MAX or not all(isinstance(value, str) for value in values):
        raise _Fault(f"{where}: the value is no list of at most {LIST_MAX} texts")
    return values


def _flag(entry: dict[str, Any], field: str, label: str) -> bool:
    value = entry.get(field)
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in {"true", "false", ""}:
        return value.strip().lower() == "true"
    raise _Fault(f"{label}, field {field}: write true or false")
