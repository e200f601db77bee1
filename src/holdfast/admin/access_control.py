"""Users and their rules: list, create, change, delete, explain, and import from ACL 1.0 files.

    change ─> every name server ─┬─ one does not answer: it catches up, because servers exchange their records
                                 └─ it does not know the request (Java's): to the masters of all brokers instead

In RocketMQ users and rules live on brokers, each with a copy of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster_access import (
    ClusterAccess,
    Header,
    NameServerUnreachable,
    NotFound,
    PartlyDone,
    gather,
)
from holdfast.model.access.acl_file import AclFile
from holdfast.model.access.decision import decide, find_matches
from holdfast.model.access.directory import RULES_PREFIX, USER_PREFIX, Directory, Record
from holdfast.model.access.resource import Action, Permission, Resource, ResourceType
from holdfast.model.access.rule import ResourcePattern, Rule, Tier, list_actions
from holdfast.model.access.user import User, UserKind, check_user
from holdfast.model.errors import BrokerRefused, ConnectionLost, RequestTimeout
from holdfast.model.spelling_hint import hint_suffix
from holdfast.wire.access.bodies import (
    DeleteRulesFields,
    ListRulesFields,
    ListUsersFields,
    SubjectFields,
    UpdateUserFields,
    UserBody,
    UserNameFields,
    decode_rule_lists,
    decode_rules,
    decode_users,
    encode_rules,
    encode_user,
    encode_user_change,
    parse_subject,
    subject_of,
)
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.permissions import for_topic

_UNKNOWN_SECRET: Final = ("*" * 8,)
"""Stands for secrets in a directory that only makes decisions: servers return none to most callers."""


class AccessChange(msgspec.Struct, frozen=True):
    """Where a change of users or rules was made.

    Attributes:
        servers: The addresses of the servers that made it.
        missed: Servers that did not answer, and why. They catch up.
        is_on_brokers: Whether brokers keep users and rules, because the name servers are Java's.
    """

    servers: list[str]
    missed: dict[str, str] = {}
    is_on_brokers: bool = False


class UserSummary(msgspec.Struct, frozen=True):
    """A user, without its secrets.

    Attributes:
        name: The access key.
        kind: Whether rules apply to the user.
        is_enabled: A disabled user is refused.
        rules: How many rules it has.
    """

    name: str
    kind: UserKind
    is_enabled: bool
    rules: int = 0


class RuleDescription(msgspec.Struct, frozen=True):
    """A rule as texts, as in RocketMQ's ACL 2.0.

    Attributes:
        effect: `Allow` or `Deny`.
        resource: A pattern such as `Topic:orders*`.
        actions: Their names.
        sources: The addresses from which it applies; none: from every address.
        tier: `Custom`, or `Default`: counts only if no Custom rule matches.
    """

    effect: str
    resource: str
    actions: list[str]
    sources: list[str]
    tier: str

    @classmethod
    def of(cls, rule: Rule) -> RuleDescription:
        """Return the texts of a rule."""
        sources = [str(source) for source in rule.sources]
        return cls(rule.effect.value, str(rule.resource), list_actions(rule.actions), sources, rule.tier.value)


class UserRules(msgspec.Struct, frozen=True):
    """The rules of a user."""

    user: str
    rules: list[RuleDescription]


class Explanation(msgspec.Struct, frozen=True):
    """Why a user may do something, or may not.

    Attributes:
        is_allowed: Whether it may.
        reason: Why, as the text of a refusal says it.
        matches: All rules that match, in their order: the first one decides.
        others: The rules of the user that do not match.
    """

    is_allowed: bool
    reason: str
    matches: list[RuleDescription]
    others: list[RuleDescription]


class ImportedAccount(msgspec.Struct, frozen=True):
    """An account of an ACL 1.0 file, as a user.

    Attributes:
        user: The name.
        kind: Whether rules apply to it.
        rules: Its rules.
        state: `new`, `exists`, or `differs`: another user with its name exists, and stays unchanged.
    """

    user: str
    kind: UserKind
    rules: list[RuleDescription]
    state: str


class AccessControl:
    """Operations on users and rules."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    # Users.

    async def users(self, part: str = "") -> list[UserSummary]:
        """Return the users whose names contain *part*."""
        answer = await self._read(RequestCode.AUTH_LIST_USER, ListUsersFields(part))
        rules = {each.user: len(each.rules) for each in await self.rules()}
        return sorted(
            (_summary(body, rules) for body in decode_users(answer.body) if body.username), key=lambda user: user.name
        )

    async def get_user(self, name: str) -> UserSummary:
        """Return one user.

        Raises:
            NotFound: there is none; the text has the closest name.
        """
        users = {user.name: user for user in await self.users()}
        if name not in users:
            hint = hint_suffix(name, list(users)) or "; `holdfast user list` shows those that exist"
            raise NotFound(f"there is no user {name!r}{hint}")
        return users[name]

    async def create_user(self, user: User) -> AccessChange:
        """Create a user with its newest secret. One that exists with the same content is no error.

        Raises:
            DirectoryRefused: its name or secret cannot be used.
            BrokerRefused: another user has this name, or we may not create it.
        """
        check_user(user)
        body = encode_user(user, has_secret=True)
        return await self._write(RequestCode.AUTH_CREATE_USER, UserNameFields(user.name), body)

    async def update_user(
        self,
        name: str,
        *,
        secret: str | None = None,
        keeps_old: bool | None = None,
        kind: UserKind | None = None,
        is_enabled: bool | None = None,
    ) -> AccessChange:
        """Change a user, see `Directory.update_user`. An argument that is None leaves its value unchanged.

        Raises:
            NotFound: there is no such user.
            BrokerRefused: the secret cannot be used, or we may not change the user.
        """
        await self.get_user(name)
        body = encode_user_change(name, secret=secret, kind=kind, is_enabled=is_enabled)
        return await self._write(RequestCode.AUTH_UPDATE_USER, UpdateUserFields(name, keeps_old), body)

    async def delete_user(self, name: str) -> AccessChange:
        """Delete a user with its rules.

        Raises:
            NotFound: there is no such user.
        """
        await self.get_user(name)
        return await self._write(RequestCode.AUTH_DELETE_USER, UserNameFields(name))

    # Rules.

    async def rules(self, user_part: str = "", resource_part: str = "") -> list[UserRules]:
        """Return the rules of users whose names contain one text, for resources that contain another one."""
        answer = await self._read(RequestCode.AUTH_LIST_ACL, ListRulesFields("", resource_part))
        found = [(parse_subject(body.subject), body.to_rules()) for body in decode_rule_lists(answer.body)]
        return [
            UserRules(name, [RuleDescription.of(rule) for rule in sorted(rules, key=lambda rule: rule.rank)])
            for name, rules in sorted(found, key=lambda each: each[0])
            if user_part in name
        ]

    async def rules_of(self, name: str) -> list[Rule]:
        """Return all rules of one user."""
        answer = await self._read(RequestCode.AUTH_GET_ACL, SubjectFields(subject_of(name)))
        return decode_rules(answer.body).to_rules() if answer.body else []

    async def find_rule(self, name: str, resource: ResourcePattern, tier: Tier = Tier.CUSTOM) -> Rule | None:
        """Return the rule of a user for exactly this pattern; None if it has none."""
        rules = await self.rules_of(name)
        return next((rule for rule in rules if (rule.resource, rule.tier) == (resource, tier)), None)

    async def put_rules(self, name: str, rules: Sequence[Rule]) -> AccessChange:
        """Add rules to a user. A rule replaces the one for the same pattern.

        Raises:
            NotFound: there is no such user.
        """
        await self.get_user(name)
        return await self._put_rules(name, rules)

    async def delete_rules(
        self, name: str, resource: ResourcePattern | None = None, tier: Tier = Tier.CUSTOM
    ) -> AccessChange:
        """Delete the rule of a user for one pattern, or all its rules."""
        await self.get_user(name)
        fields = DeleteRulesFields(subject_of(name), tier.value, "" if resource is None else str(resource))
        return await self._write(RequestCode.AUTH_DELETE_ACL, fields)

    async def explain(self, name: str, action: Action, resource: Resource, ip: str) -> Explanation:
        """Return whether a user may do something, and which rule decides.

        A retry topic belongs to its group, so the rules for the group decide.

        Raises:
            NotFound: there is no such user.
        """
        summary = await self.get_user(name)
        rules = await self.rules_of(name)
        user = User(name, _UNKNOWN_SECRET, summary.kind, summary.is_enabled)
        directory = Directory([Record(USER_PREFIX + name, 1, user), Record(RULES_PREFIX + name, 1, tuple(rules))])
        wanted = frozenset({action})
        is_topic = resource.type is ResourceType.TOPIC
        permission = for_topic(resource.name, wanted) if is_topic else Permission(resource, wanted)
        matches = list(find_matches(directory, name, permission, ip, ""))
        others = sorted((rule for rule in rules if rule not in matches), key=lambda rule: rule.rank)
        decision = decide(directory, name, permission, ip, "")
        return Explanation(
            decision.is_allowed,
            decision.reason,
            [RuleDescription.of(rule) for rule in matches],
            [RuleDescription.of(rule) for rule in others],
        )

    # ACL 1.0.

    async def import_accounts(self, acl: AclFile, *, dry_run: bool) -> list[ImportedAccount]:
        """Create the accounts of ACL 1.0 files as users with rules; with *dry_run*, only return what would be done.

        A user that exists with another secret or kind stays unchanged, with its rules.
        """
        known = {user.name: user for user in await self.users()}
        imported = []
        for account in acl.accounts.values():
            user, rules = account.to_user(), account.to_rules()
            existing = known.get(user.name)
            state = "new" if existing is None else "exists" if existing.kind is user.kind else "differs"
            if state != "differs" and not dry_run:
                state = await self._import_account(user, rules, state)
            described = [RuleDescription.of(rule) for rule in rules]
            imported.append(ImportedAccount(user.name, user.kind, described, state))
        return imported

    async def _import_account(self, user: User, rules: Sequence[Rule], state: str) -> str:
        try:
            await self.create_user(user)
        except BrokerRefused:
            if state == "new":
                raise
            return "differs"  # Secrets can be compared only by trying.
        if rules:
            await self._put_rules(user.name, rules)
        return state

    # Requests.

    async def _put_rules(self, name: str, rules: Sequence[Rule]) -> AccessChange:
        return await self._write(
            RequestCode.AUTH_CREATE_ACL, SubjectFields(subject_of(name)), encode_rules(name, rules)
        )

    async def _read(self, code: RequestCode, header: Header) -> Command:
        """Return the answer of a name server, or of a broker if name servers know no users."""
        try:
            return await self._access.invoke_name_server(code, header)
        except BrokerRefused as refused:
            if refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        masters = await self._access.all_masters()
        return await self._access.invoke(masters[0].address, code, header)

    async def _write(self, code: RequestCode, header: Header, body: bytes = b"") -> AccessChange:
        """Send a change to all name servers, or to the masters of all brokers if name servers know no users.

        Raises:
            NameServerUnreachable: no name server answers.
            BrokerRefused: it was refused.
            PartlyDone: some servers made the change, others refused it.
        """
        done, missed, refused = await self._send(self._access.name_servers, code, header, body)
        not_supported = {name for name, each in refused.items() if each.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
        if not done and not_supported and not_supported == refused.keys():
            masters = [broker.address for broker in await self._access.all_masters()]
            done, missed, refused = await self._send(masters, code, header, body)
            return _to_change(done, missed, refused, is_on_brokers=True)
        return _to_change(done, missed, refused, is_on_brokers=False)

    async def _send(
        self, servers: Sequence[str], code: RequestCode, header: Header, body: bytes
    ) -> tuple[list[str], dict[str, str], dict[str, BrokerRefused]]:
        """Return the servers that made a change, those that did not answer, and those that refused it."""

        async def attempt(address: str) -> BrokerRefused | str | None:
            try:
                await self._access.invoke(address, code, header, body)
            except BrokerRefused as refused:
                return refused
            except (ConnectionLost, RequestTimeout) as error:
                return str(error)
            return None

        results = dict(zip(servers, await gather(servers, attempt), strict=True))
        done = [address for address, result in results.items() if result is None]
        missed = {address: result for address, result in results.items() if isinstance(result, str)}
        return done, missed, {name: result for name, result in results.items() if isinstance(result, BrokerRefused)}


def _to_change(
    done: list[str], missed: dict[str, str], refused: dict[str, BrokerRefused], *, is_on_brokers: bool
) -> AccessChange:
    if refused and not done:
        raise next(iter(refused.values()))
    if refused:
        reasons = "; ".join(f"{address}: {error}" for address, error in refused.items())
        raise PartlyDone(
            f"changed at {', '.join(done)}, but refused by {reasons}. Run the command again when servers agree: "
            "`holdfast user list --namesrv HOST:PORT` shows what one of them has"
        )
    if not done:
        raise NameServerUnreachable("; ".join(missed.values()) or "there is none")
    return AccessChange(done, missed, is_on_brokers)


def _summary(body: UserBody, rules: dict[str, int]) -> UserSummary:
    name = body.username or ""
    return UserSummary(name, body.kind or UserKind.NORMAL, body.is_enabled is not False, rules.get(name, 0))
