"""All users and rules, as versioned records that servers merge.

    user/alice    version 1700000000000   User(...)
    rules/alice   version 1700000000001   (Rule(...), Rule(...))
    user/bob      version 1700000000002   None: deleted

Every server of a name-server domain has a directory. A change gives its records higher versions, and servers send each
other their records: of two records with the same key the higher version counts everywhere. A deleted record stays, so
that a server that was down cannot bring it back. Pure: storing and sending is the caller's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast.model.access.refusal import SUPER_NEEDED, DirectoryRefused
from holdfast.model.access.rule import SOURCES_MAX, ResourcePattern, Rule, Tier, list_actions
from holdfast.model.access.user import User, UserKind, check_secret, check_user, check_user_name

RECORDS_MAX: Final = 10_000
"""Limit for the records that changes create. Deleted ones count."""
RULES_MAX: Final = 256
"""Limit for the rules of one user."""
SIZE_MAX: Final = 8 * 1024 * 1024
"""Limit for the bytes that changes create: all records are sent in one frame."""
VERSION_MAX: Final = (1 << 53) - 1  # JSON readers of other languages know no larger whole number.

USER_PREFIX: Final = "user/"
RULES_PREFIX: Final = "rules/"


class Record(msgspec.Struct, frozen=True):
    """One versioned value.

    Attributes:
        key: `user/NAME` or `rules/NAME`.
        version: Rises with every change; about the time of the change in milliseconds.
        value: A user, or the rules of a user; None: deleted.
    """

    key: str
    version: int
    value: User | tuple[Rule, ...] | None

    @property
    def user_name(self) -> str:
        """The user that the record is about."""
        return self.key.partition("/")[2]

    def encode(self) -> bytes:
        """Return bytes that are equal for equal records, for comparing them. They contain secrets."""
        value = self.value
        if isinstance(value, User):
            plain: object = [value.kind.value, value.is_enabled, value.secrets]
        else:
            plain = value and [
                [
                    rule.tier.value,
                    str(rule.resource),
                    list_actions(rule.actions),
                    rule.effect.value,
                    [str(source) for source in rule.sources],
                ]
                for rule in value
            ]
        return msgspec.json.encode([self.key, self.version, plain])


class Directory:
    """The users and rules of a server.

    Every method that changes something returns the records that it changed: the caller persists them and sends them to
    the other servers. An empty list means that nothing had to be changed.

    Args:
        records: What the directory contains at first.

    Attributes:
        changes: How often the directory changed: a decision that was made at an older count is outdated.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.changes = 0
        self._records: dict[str, Record] = {}
        self._encoded: dict[str, bytes] = {}
        self._size = 0
        self._digest: str | None = None
        self.merge(records)

    @property
    def records(self) -> list[Record]:
        """All records, deleted ones included, ordered by key."""
        return [self._records[key] for key in sorted(self._records)]

    @property
    def digest(self) -> str:
        """A text that is equal in two directories if and only if their records are. It reveals no secret."""
        if self._digest is None:
            encoded = (self._encoded[key] for key in sorted(self._encoded))
            self._digest = hashlib.sha256(b"\n".join(encoded)).hexdigest()
        return self._digest

    @property
    def users(self) -> list[User]:
        """All users, ordered by name."""
        return [record.value for record in self.records if isinstance(record.value, User)]

    def find_user(self, name: str) -> User | None:
        """Return the user with this name, if there is one."""
        record = self._records.get(USER_PREFIX + name)
        return record.value if record is not None and isinstance(record.value, User) else None

    def rules_of(self, name: str) -> tuple[Rule, ...]:
        """Return the rules of a user, ordered by tier and resource; none if there is no such user."""
        record = self._records.get(RULES_PREFIX + name)
        if record is None or not isinstance(record.value, tuple) or self.find_user(name) is None:
            return ()
        return record.value

    # Between servers.

    def merge(self, records: Iterable[Record]) -> list[Record]:
        """Adopt every record that is newer than ours, and return these records.

        Of two records with one version, all servers choose the same. Limits do not apply: the records come from a
        server of the domain, and without a part of them the directories would differ for ever.
        """
        return [record for record in records if self._adopt(record)]

    def find_missing(self, records: Iterable[Record]) -> list[Record]:
        """Return our records that are newer than those of *records*, or absent there: what their owner lacks."""
        encoded = {record.key: (record.version, record.encode()) for record in records}
        return [
            record
            for record in self.records
            if (record.version, self._encoded[record.key]) > encoded.get(record.key, (-1, b""))
        ]

    def _adopt(self, record: Record) -> bool:
        encoded = record.encode()
        known = self._records.get(record.key)
        if known is not None and (known.version, self._encoded[record.key]) >= (record.version, encoded):
            return False
        self._size += len(encoded) - len(self._encoded.get(record.key, b""))
        self._records[record.key] = record
        self._encoded[record.key] = encoded
        self._digest = None
        self.changes += 1
        return True

    # Changes by administrators.

    def create_user(self, user: User, now_ms: int) -> list[Record]:
        """Add a user, without rules. A user that exists with the same content is no error: nothing changes.

        Raises:
            DirectoryRefused: it exists with another content, its name or secret cannot be used, or there are too many.
        """
        check_user(user)
        existing = self.find_user(user.name)
        if existing == user:
            return []
        if existing is not None:
            raise DirectoryRefused("The user is existed")
        # Rules that another server stored while the previous user of this name was deleted must not come back to life.
        return self._put({USER_PREFIX + user.name: user, **self._rules_to_delete(user.name)}, now_ms)

    def update_user(
        self,
        name: str,
        now_ms: int,
        *,
        secret: str | None = None,
        keeps_old: bool | None = None,
        kind: UserKind | None = None,
        is_enabled: bool | None = None,
    ) -> list[Record]:
        """Change a user. An argument that is None leaves its value unchanged.

        Args:
            name: The user.
            now_ms: The time.
            secret: The new secret.
            keeps_old: True: the present newest secret stays valid beside the new one. False: only the newest secret
                stays valid, which ends a rotation if no new one is given. None: like False if there is a new secret.
            kind: Whether rules apply to the user.
            is_enabled: Whether the user is accepted.

        Raises:
            DirectoryRefused: there is no such user, or the secret cannot be used.
        """
        user = self._existing(name)
        if secret is not None:
            check_secret(secret)
            old = [each for each in user.secrets if each != secret][:1] if keeps_old else []
            user = msgspec.structs.replace(user, secrets=(secret, *old))
        elif keeps_old is False:
            user = msgspec.structs.replace(user, secrets=user.secrets[:1])
        user = msgspec.structs.replace(
            user,
            kind=user.kind if kind is None else kind,
            is_enabled=user.is_enabled if is_enabled is None else is_enabled,
        )
        return [] if user == self.find_user(name) else self._put({USER_PREFIX + name: user}, now_ms)

    def delete_user(self, name: str, now_ms: int) -> list[Record]:
        """Delete a user with its rules. If there is none, nothing changes."""
        if not name.strip():
            check_user_name(name)
        deleted = self._rules_to_delete(name)
        if self.find_user(name) is not None:
            deleted[USER_PREFIX + name] = None
        return self._put(deleted, now_ms)

    def put_rules(self, name: str, rules: Sequence[Rule], now_ms: int) -> list[Record]:
        """Add rules to a user. A rule replaces that of the same tier and resource pattern; the other rules stay.

        Raises:
            DirectoryRefused: there is no such user or no rule, or there are too many.
        """
        if self.find_user(name) is None:
            raise DirectoryRefused(f"The subject of User:{name} is not exist.")
        if not rules:
            raise DirectoryRefused("The policies is empty.")
        if any(len(rule.sources) > SOURCES_MAX for rule in rules):
            raise DirectoryRefused(f"a rule has more than {SOURCES_MAX} source addresses: use CIDR blocks")
        by_place = {(rule.tier.value, str(rule.resource)): rule for rule in (*self.rules_of(name), *rules)}
        if len(by_place) > RULES_MAX:
            raise DirectoryRefused(
                f"User:{name} would have {len(by_place)} rules, at most {RULES_MAX} are allowed: use prefixes"
            )
        merged = tuple(by_place[place] for place in sorted(by_place))
        return [] if merged == self.rules_of(name) else self._put({RULES_PREFIX + name: merged}, now_ms)

    def delete_rules(
        self, name: str, now_ms: int, *, resource: ResourcePattern | None = None, tier: Tier = Tier.CUSTOM
    ) -> list[Record]:
        """Delete the rule of a user for one resource pattern and tier; without a pattern all rules.

        To delete a rule again is no error: tools send a deletion to every broker in turn.

        Raises:
            DirectoryRefused: there is no such user, or it never had a rule.
        """
        if self.find_user(name) is None:
            raise DirectoryRefused("The subject is not exist.")
        if RULES_PREFIX + name not in self._records:
            raise DirectoryRefused("The acl is not exist.")
        if resource is None:
            return self._put(self._rules_to_delete(name), now_ms)
        rules = self.rules_of(name)
        kept = tuple(rule for rule in rules if (rule.tier, rule.resource) != (tier, resource))
        return [] if kept == rules else self._put({RULES_PREFIX + name: kept or None}, now_ms)

    def check_caller(self, caller: str | None, name: str, kind: UserKind | None = None) -> None:
        """Accept a change of the user *name* by *caller*: only a Super user may create, change or delete Super users.

        Args:
            caller: The user who changes something; None if the caller may do everything, such as a server.
            name: The user who is changed.
            kind: The kind that the user gets, if it is given.

        Raises:
            DirectoryRefused: the caller is not a Super user, but the change needs one.
        """
        user = self.find_user(name)
        sender = None if caller is None else self.find_user(caller)
        if caller is None or (sender is not None and sender.is_super):
            return
        if user is not None and user.is_super:
            raise DirectoryRefused("The super user can only be update by super user", SUPER_NEEDED)
        if kind is UserKind.SUPER:
            verb = "create" if user is None else "update"
            raise DirectoryRefused(f"The super user can only be {verb} by super user", SUPER_NEEDED)

    def _existing(self, name: str) -> User:
        if not name.strip():
            check_user_name(name)
        user = self.find_user(name)
        if user is None:
            raise DirectoryRefused("The user is not exist")
        return user

    def _rules_to_delete(self, name: str) -> dict[str, User | tuple[Rule, ...] | None]:
        record = self._records.get(RULES_PREFIX + name)
        return {} if record is None or record.value is None else {record.key: None}

    def _put(self, values: dict[str, User | tuple[Rule, ...] | None], now_ms: int) -> list[Record]:
        """Store changed values. All get versions that are higher than their old ones, even if the clock went back."""
        changed = []
        for key, value in values.items():
            known = self._records.get(key)
            changed.append(Record(key, max(now_ms, 1 if known is None else known.version + 1), value))
        self._check_limits(changed)
        return self.merge(changed)

    def _check_limits(self, changed: list[Record]) -> None:
        added = [record for record in changed if record.key not in self._records]
        if added and len(self._records) + len(added) > RECORDS_MAX:
            raise DirectoryRefused(
                f"the directory has {len(self._records)} records, deleted ones included, and {RECORDS_MAX} are the "
                "maximum: use the names of deleted users again"
            )
        growth = sum(len(record.encode()) - len(self._encoded.get(record.key, b"")) for record in changed)
        if growth > 0 and self._size + growth > SIZE_MAX:
            raise DirectoryRefused(
                f"users and rules would need {self._size + growth} bytes, {SIZE_MAX} are the maximum: replace rules by "
                "fewer ones with prefixes"
            )
