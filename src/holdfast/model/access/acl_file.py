"""RocketMQ's older ACL 1.0: the accounts of its files, as users and rules.

    topicPerms: [orders=PUB]     Custom   Allow Topic:orders Pub
    groupPerms: [g=DENY]         Custom   Deny Group:g All
    defaultTopicPerm: PUB|SUB    Default  Allow Topic:* Pub,Sub,Get
                                 Default  Deny Topic:orders Sub,Get       because a listed topic gets no default

In ACL 1.0, requests that only read about topics and groups need no permission. Here consumers need Get for some of
them, so SUB becomes Sub and Get.

A request from a *global* white address needs no user at all. A request from the white address of an account needs no
signature, but its permissions are checked. Rules cannot express either, so both stay values that the server asks for.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.access.directory import RULES_PREFIX, USER_PREFIX, Directory, Record
from holdfast.model.access.resource import Action, ResourceType
from holdfast.model.access.rule import ALL_ACTIONS, Effect, NameMatch, ResourcePattern, Rule, Tier
from holdfast.model.access.source_address import NO_ADDRESS, SourcePattern
from holdfast.model.access.user import User, UserKind
from holdfast.model.topic import RETRY_PREFIX

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Every account may send traces."""
KEY_LENGTH_MIN: Final = 7
"""The fewest characters of an access key and of a secret key."""

_NOTHING: Final[frozenset[Action]] = frozenset()
_PUB: Final = frozenset({Action.PUB})
_SUB: Final = frozenset({Action.SUB, Action.GET})
_BY_ADMINS: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST})


class Perm(msgspec.Struct, frozen=True):
    """A permission of ACL 1.0; neither: DENY."""

    pub: bool = False
    sub: bool = False

    @classmethod
    def parse(cls, text: str) -> Perm | None:
        """Return the permission with this name; None for another text, which RocketMQ reads as DENY."""
        return _PERMS.get(text.strip())

    @property
    def actions(self) -> frozenset[Action]:
        """The actions that it allows."""
        return (_PUB if self.pub else _NOTHING) | (_SUB if self.sub else _NOTHING)


DENY: Final = Perm()
_PERMS: Final = {
    "DENY": DENY,
    "PUB": Perm(pub=True),
    "SUB": Perm(sub=True),
    "PUB|SUB": Perm(pub=True, sub=True),
    "SUB|PUB": Perm(pub=True, sub=True),
}


class AclAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One account. The text form hides the secret.

    Attributes:
        access_key: The name of the user.
        secret_key: Its secret.
        white_address: The addresses from which its requests need no signature.
        is_admin: Whether it may send administrative requests.
        default_topic: For topics that are not listed.
        default_group: For groups that are not listed.
        topics: The listed topics.
        groups: The listed groups, by their names without `%RETRY%`.
    """

    access_key: str
    secret_key: str
    white_address: SourcePattern = NO_ADDRESS
    is_admin: bool = False
    default_topic: Perm = DENY
    default_group: Perm = DENY
    topics: dict[str, Perm] = {}
    groups: dict[str, Perm] = {}

    def __repr__(self) -> str:
        return f"AclAccount({self.access_key!r})"

    __str__ = __repr__

    def to_user(self) -> User:
        """Return the account as a user. An administrator without listed topics and groups may do everything."""
        is_super = self.is_admin and not self.topics and not self.groups
        return User(self.access_key, (self.secret_key,), UserKind.SUPER if is_super else UserKind.NORMAL)

    def to_rules(self) -> tuple[Rule, ...]:
        """Return what the account may do, as rules; none for a Super user."""
        if self.to_user().is_super:
            return ()
        retries = {name.removeprefix(RETRY_PREFIX): perm for name, perm in self.topics.items() if _is_retry(name)}
        topics = {name: perm.actions for name, perm in self.topics.items() if not _is_retry(name)}
        topics[TRACE_TOPIC] = topics.get(TRACE_TOPIC, _NOTHING) | _PUB
        groups = {name: perm.actions for name, perm in {**self.groups, **retries}.items()}
        rules = [
            *self._rules_for(ResourceType.TOPIC, topics, self.default_topic),
            *self._rules_for(ResourceType.GROUP, groups, self.default_group),
        ]
        if self.is_admin:
            rules.append(Rule(ResourcePattern(ResourceType.CLUSTER, "", NameMatch.ANY), ALL_ACTIONS))
        return tuple(sorted(rules, key=lambda rule: (rule.tier.value, str(rule.resource))))

    def _rules_for(self, type_: ResourceType, listed: dict[str, frozenset[Action]], default: Perm) -> list[Rule]:
        extra = _BY_ADMINS if self.is_admin else _NOTHING
        by_default = default.actions | extra
        rules = []
        for name, granted in listed.items():
            pattern = ResourcePattern(type_, name, NameMatch.LITERAL)
            allowed = granted | extra
            if not allowed:
                rules.append(Rule(pattern, ALL_ACTIONS, Effect.DENY))
                continue
            rules.append(Rule(pattern, allowed))
            if by_default - allowed:
                rules.append(Rule(pattern, by_default - allowed, Effect.DENY, tier=Tier.DEFAULT))
        if by_default:
            rules.append(Rule(ResourcePattern(type_, "", NameMatch.ANY), by_default, tier=Tier.DEFAULT))
        return rules


class AclFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one or more ACL 1.0 files.

    Attributes:
        global_white: Addresses from which every request is allowed, even without a user.
        accounts: All accounts by access key.
        warnings: What was ignored, for the log; names no secret.
    """

    global_white: tuple[SourcePattern, ...] = ()
    accounts: dict[str, AclAccount] = {}
    warnings: tuple[str, ...] = ()

    def allows_everything(self, ip: str) -> bool:
        """Return whether requests from *ip* need neither a user nor a permission."""
        return any(pattern.matches(ip) for pattern in self.global_white)

    def needs_no_signature(self, access_key: str, ip: str) -> bool:
        """Return whether requests in the name of an account are accepted from *ip* without a signature."""
        account = self.accounts.get(access_key)
        return account is not None and account.white_address.matches(ip)

    def to_directory(self) -> Directory:
        """Return the accounts as a separate directory, for decisions. Its records are never sent to other servers."""
        users = (Record(USER_PREFIX + each.access_key, 1, each.to_user()) for each in self.accounts.values())
        rules = (Record(RULES_PREFIX + each.access_key, 1, each.to_rules()) for each in self.accounts.values())
        return Directory([*users, *rules])


def _is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)
