"""Headers and bodies of the requests that manage users and rules: those of ACL 2.0 in RocketMQ 5.

    3001 create, 3002 update a user      username      body {"username","password","userType","userStatus"}
    3003 delete, 3004 return a user      username
    3005 list users                      filter        answer [{...}, ...]
    3006, 3007 add rules                 subject       body {"subject","policies":[{"policyType","entries":[{...}]}]}
    3008 delete rules                    subject, policyType, resource
    3009 return, 3010 list rules         subject; subjectFilter, resourceFilter

A subject is `User:NAME`. An answer without users or rules has an empty body. Passwords are in an answer only if the
caller asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.model.access.directory import RULES_MAX
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.rule import Effect, ResourcePattern, Rule, Tier, list_actions, parse_actions
from holdfast.model.access.source_address import parse_source
from holdfast.model.access.user import User, UserKind
from holdfast.wire.frames import java_json

_T = TypeVar("_T")

_SUBJECT_PREFIX: Final = "User:"
_ENABLED: Final = "enable"
_DISABLED: Final = "disable"


class UserNameFields(msgspec.Struct, frozen=True):
    """Header of 3001, 3003 and 3004. Upstream's tools may leave the name out; then it is blank."""

    username: str = ""


class UpdateUserFields(msgspec.Struct, frozen=True, rename={"keeps_old": "hf.keepOld"}):
    """Header of 3002.

    Attributes:
        username: The user.
        keeps_old: Ours: see `Directory.update_user`.
    """

    username: str = ""
    keeps_old: bool | None = None


class ListUsersFields(msgspec.Struct, frozen=True):
    """Header of 3005. Names contain *filter*."""

    filter: str = ""


class SubjectFields(msgspec.Struct, frozen=True):
    """Header of 3006, 3007 and 3009."""

    subject: str = ""


class DeleteRulesFields(msgspec.Struct, frozen=True, rename="camel"):
    """Header of 3008. Without a resource, all rules of the subject are deleted."""

    subject: str = ""
    policy_type: str = ""
    resource: str = ""


class ListRulesFields(msgspec.Struct, frozen=True, rename="camel"):
    """Header of 3010. Subjects and resources contain these texts."""

    subject_filter: str = ""
    resource_filter: str = ""


class UserBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A user. In an update, an absent field leaves its value unchanged. The text form hides the password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserBody({self.username!r})"

    @property
    def kind(self) -> UserKind | None:
        """The kind of the user, if the body has one.

        Raises:
            DirectoryRefused: the text is no kind.
        """
        return _parse_word(self.user_type, {each.value: each for each in UserKind}, "user type")

    @property
    def is_enabled(self) -> bool | None:
        """Whether the user is accepted, if the body says so.

        Raises:
            DirectoryRefused: the text is no status.
        """
        return _parse_word(self.user_status, {_ENABLED: True, _DISABLED: False}, "user status")

    def to_user(self, name: str) -> User:
        """Return the user *name* as the body describes it, for 3001. Its name and secret are not checked.

        Raises:
            DirectoryRefused: the type or the status is unknown.
        """
        return User(name, (self.password or "",), self.kind or UserKind.NORMAL, is_enabled=self.is_enabled is not False)


class _Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One rule."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class _Policy(msgspec.Struct, frozen=True, rename="camel"):
    """The rules of one tier."""

    policy_type: str | None = None
    entries: list[_Entry] | None = None


class RulesBody(msgspec.Struct, frozen=True, rename="camel"):
    """All rules of one user."""

    subject: str | None = None
    policies: list[_Policy] | None = None

    def to_rules(self) -> list[Rule]:
        """Return the rules.

        Raises:
            DirectoryRefused: there is none, or one of them cannot be used.
        """
        if not self.policies:
            raise DirectoryRefused("The policies is empty.")
        if any(not policy.entries for policy in self.policies):
            raise DirectoryRefused("The policy entries is empty.")
        entries = [(policy.policy_type, entry) for policy in self.policies for entry in policy.entries or ()]
        if len(entries) > RULES_MAX:
            raise DirectoryRefused(f"{len(entries)} rules are given, at most {RULES_MAX} are allowed: use prefixes")
        return [_to_rule(tier, entry) for tier, entry in entries]


def decode_user(body: bytes) -> UserBody:
    """Decode the body of 3001 or 3002, or of the answer to 3004.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    return java_json.decode(body, UserBody)


def decode_users(body: bytes) -> list[UserBody]:
    """Decode the body of the answer to 3005.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    return java_json.decode(body, list[UserBody]) if body else []


def decode_rules(body: bytes) -> RulesBody:
    """Decode the body of 3006 or 3007, or of the answer to 3009.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    return java_json.decode(body, RulesBody)


def decode_rule_lists(body: bytes) -> list[RulesBody]:
    """Decode the body of the answer to 3010.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    return java_json.decode(body, list[RulesBody]) if body else []


def encode_user(user: User, *, has_secret: bool) -> bytes:
    """Return the body of a user, with its newest secret only if *has_secret*."""
    return java_json.encode(_user_body(user, has_secret=has_secret))


def encode_user_change(
    name: str, *, secret: str | None = None, kind: UserKind | None = None, is_enabled: bool | None = None
) -> bytes:
    """Return the body of 3002. What is None stays unchanged."""
    status = None if is_enabled is None else _ENABLED if is_enabled else _DISABLED
    return java_json.encode(UserBody(name, secret, None if kind is None else kind.value, status))


def encode_users(users: Iterable[User], *, has_secret: bool) -> bytes:
    """Return the body of the answer to 3005, with secrets only if *has_secret*; empty if there are no users."""
    bodies = [_user_body(user, has_secret=has_secret) for user in users]
    return java_json.encode(bodies) if bodies else b""


def encode_rules(user_name: str, rules: Sequence[Rule]) -> bytes:
    """Return the body of all rules of a user; empty if it has none."""
    return java_json.encode(_rules_body(user_name, rules)) if rules else b""


def encode_rule_lists(rules: Iterable[tuple[str, Sequence[Rule]]]) -> bytes:
    """Return the body of the answer to 3010: the rules of each user by name. Users without rules are left out."""
    bodies = [_rules_body(name, its_rules) for name, its_rules in rules if its_rules]
    return java_json.encode(bodies) if bodies else b""


def subject_of(user_name: str) -> str:
    """Return the subject that stands for a user."""
    return _SUBJECT_PREFIX + user_name


def parse_subject(subject: str | None) -> str:
    """Return the name of the user in a subject.

    Raises:
        DirectoryRefused: the subject is blank or no user.
    """
    if not subject or not subject.strip():
        raise DirectoryRefused("The subject is null.")
    prefix, name = subject[: len(_SUBJECT_PREFIX)], subject[len(_SUBJECT_PREFIX) :]
    if prefix.lower() != _SUBJECT_PREFIX.lower() or not name:
        raise DirectoryRefused(f"The subject type is null. {subject[:80]!r} is no user: write User:NAME.")
    return name


def parse_tier(policy_type: str | None) -> Tier:
    """Return the tier of a policy type. Without one it is Custom.

    Raises:
        DirectoryRefused: the text is no policy type.
    """
    return _parse_word(policy_type or None, {each.value: each for each in Tier}, "policy type") or Tier.CUSTOM


def _to_rule(policy_type: str | None, entry: _Entry) -> Rule:
    effect = _parse_word(entry.decision, {each.value: each for each in Effect}, "decision")
    if effect is None:
        raise DirectoryRefused("The decision is null or illegal.")
    return Rule(
        ResourcePattern.parse(entry.resource or ""),
        parse_actions(entry.actions or ()),
        effect,
        tuple(parse_source(source) for source in entry.source_ips or ()),
        parse_tier(policy_type),
    )


def _parse_word(text: str | None, known: dict[str, _T], what: str) -> _T | None:
    """Return the meaning of a word, in any case; None if there is none."""
    if text is None:
        return None
    for word, meaning in known.items():
        if word.lower() == text.strip().lower():
            return meaning
    raise DirectoryRefused(f"the {what} {text[:40]!r} is unknown: write {' or '.join(known)}")


def _user_body(user: User, *, has_secret: bool) -> UserBody:
    return UserBody(
        user.name,
        user.secrets[0] if has_secret else None,
        user.kind.value,
        _ENABLED if user.is_enabled else _DISABLED,
    )


def _rules_body(user_name: str, rules: Sequence[Rule]) -> RulesBody:
    policies = [
        _Policy(tier.value, [_to_entry(rule) for rule in rules if rule.tier is tier])
        for tier in Tier
        if any(rule.tier is tier for rule in rules)
    ]
    return RulesBody(subject_of(user_name), policies)


def _to_entry(rule: Rule) -> _Entry:
    return _Entry(
        str(rule.resource), list_actions(rule.actions), [str(each) for each in rule.sources] or None, rule.effect.value
    )
