"""`holdfast acl`: grant, revoke, list, explain, import. What users may do."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from holdfast.access.acl_file_reader import FILE_SIZE_MAX, read_acl_files
from holdfast.admin.access_control import Explanation, ImportedAccount, RuleDescription
from holdfast.admin.operations import Admin
from holdfast.admin.table_layout import Column
from holdfast.admin.tables import Cell, Printable, Table, left, right, spare, whole
from holdfast.cli.commands.user import report_change
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command
from holdfast.model.access.acl_file import AclFile
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.resource import Action, Resource
from holdfast.model.access.rule import Effect, NameMatch, ResourcePattern, Rule, parse_actions
from holdfast.model.access.source_address import NO_ADDRESS, parse_source
from holdfast.model.access.user import UserKind
from holdfast.model.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="What users may do, in a cluster with access control.")

_Text = TypeVar("_Text")
_Value = TypeVar("_Value")

_UPSTREAM_WORDS: Final = re.compile(r"^The [\w ]+ is (null|invalid)\. ")
_LOCAL: Final = "127.0.0.1"
_DIFFERS: Final = "differs"
_WHITE_ADVICE: Final = (
    "A white address lets requests in without a signature; there is no rule for that. Give these clients a user and a"
    " secret, or let the servers follow the files with acl_file until they have one."
)
_STATES: Final = {
    "new": "created",
    "exists": "existed; has these rules now",
    _DIFFERS: "left alone: exists with another secret or kind",
}

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]
ResourceArgument = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Topic:orders, Topic:orders*, Group:*, Cluster:* or *.")
]
ActionsArgument = Annotated[
    str, typer.Argument(metavar="ACTIONS", help="Pub, Sub, Create, Update, Delete, Get, List or All; commas between.")
]


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="acl")


@cluster_command(app, "grant")
def grant(
    session: Session,
    user: UserArgument,
    resource: ResourceArgument,
    actions: ActionsArgument,
    *,
    deny: Annotated[bool, typer.Option("--deny", help="Forbid the actions instead.")] = False,
    sources: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ADDRESSES", help="Only from these IP addresses or CIDR blocks; commas between."
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Permit a user to do something, or forbid it.

    A user has one rule for each resource: more actions are added to it.

    A rule with another effect or other addresses is replaced.

    Example: holdfast acl grant alice Topic:orders Pub
    Example: holdfast acl grant alice 'Topic:orders*' Pub,Sub --from 10.0.0.0/8
    """
    addresses = () if sources is None else tuple(_typed(parse_source, text) for text in sources.split(","))
    effect = Effect.DENY if deny else Effect.ALLOW
    wanted = Rule(_typed(ResourcePattern.parse, resource), _typed(parse_actions, actions.split(",")), effect, addresses)

    async def find(admin: Admin) -> Rule | None:
        await admin.access_control.get_user(user)
        return await admin.access_control.find_rule(user, wanted.resource)

    before = session.execute(find)
    rule, replaced = _add_to(before, wanted)
    if not dry_run:
        report_change(session, session.execute(lambda admin: admin.access_control.put_rules(user, [rule])))
    verb = "would have" if dry_run else "has"
    texts = [f"{user} {verb} the rule: {rule}"]
    texts += [f"it replaces the rule: {replaced}"] if replaced is not None else []
    session.show({"user": user, "rule": RuleDescription.of(rule), "before": _describe(before)}, *texts)


@cluster_command(app, "revoke")
def revoke(
    session: Session,
    user: UserArgument,
    resource: ResourceArgument,
    actions: Annotated[
        str | None, typer.Argument(metavar="[ACTIONS]", help="Only these actions of the rule.", show_default="all")
    ] = None,
    *,
    yes: YesOption = False,
) -> None:
    """Delete the rule of a user for a resource, or remove actions from it. It takes effect within a second.

    Example: holdfast acl revoke alice Topic:orders
    Example: holdfast acl revoke alice Topic:orders Sub
    """
    pattern = _typed(ResourcePattern.parse, resource)
    removed = None if actions is None else _typed(parse_actions, actions.split(","))

    async def find(admin: Admin) -> tuple[Rule | None, list[Rule]]:
        await admin.access_control.get_user(user)
        return await admin.access_control.find_rule(user, pattern), await admin.access_control.rules_of(user)

    before, rules = session.execute(find)
    if before is None:
        known = ", ".join(str(rule.resource) for rule in rules) or "none"
        raise ConfigError(f"{user} has no rule for {pattern}; its rules are for: {known}")
    left_actions = frozenset() if removed is None else before.actions - removed
    if left_actions == before.actions:
        raise ConfigError(f"the rule of {user} for {pattern} has none of these actions: {before}")
    session.confirm(f"Remove {'the rule' if not left_actions else actions} of {user}: {before}?", yes=yes)
    after = before._replace(actions=left_actions) if left_actions else None
    if after is None:
        change = session.execute(lambda admin: admin.access_control.delete_rules(user, pattern))
    else:
        change = session.execute(lambda admin: admin.access_control.put_rules(user, [after]))
    report_change(session, change)
    text = f"{user} has no rule for {pattern} any more" if after is None else f"{user} has the rule: {after}"
    session.show({"user": user, "rule": _describe(after), "before": RuleDescription.of(before)}, text)


@cluster_command(app, "list")
def list_rules(
    session: Session,
    *,
    user: Annotated[str, typer.Option(metavar="USER", help="Only rules of users whose names contain this.")] = "",
    resource: Annotated[
        str, typer.Option(metavar="RESOURCE", help="Only rules for resources that contain this text.")
    ] = "",
) -> None:
    """List the rules. Of those that match a request, the first one decides; without one, it is refused.

    Example: holdfast acl list --user alice
    """
    found = session.execute(lambda admin: admin.access_control.rules(user, resource))
    rows = [(each.user, *_cells(rule)) for each in found for rule in each.rules]
    table = Table([*left("USER"), *_rule_columns()], rows, empty="no rule: only administrators may do anything")
    session.show(found, table)


@cluster_command(app, "explain")
def explain(
    session: Session,
    user: UserArgument,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="Pub, Sub, Create, Update, Delete, Get or List.")],
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="Topic:orders, Group:billing or Cluster:NAME.")],
    *,
    source: Annotated[str, typer.Option("--from", metavar="IP", help="The address of the client.")] = _LOCAL,
) -> None:
    """Say whether a user may do something, and which rule decides. Exit status 0 either way.

    Example: holdfast acl explain alice Sub Topic:orders --from 10.1.2.3
    """
    wanted, one = _parse_resource(resource), _parse_action(action)
    address = _parse_ip(source)
    found = session.execute(lambda admin: admin.access_control.explain(user, one, wanted, address))
    session.show(found, *_explanation(found, user, one, wanted, address))


@cluster_command(app, "import")
def import_files(
    session: Session,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="plain_acl.yml, or files of conf/acl.")],
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Make the accounts of RocketMQ's ACL 1.0 files users with rules. Run it again after a change: it only adds.

    Example: holdfast acl import conf/plain_acl.yml --dry-run
    """
    acl = read_acl_files((str(file), _read(file)) for file in files)
    for text in acl.warnings:
        session.warn(text)
    done = session.execute(lambda admin: admin.access_control.import_accounts(acl, dry_run=dry_run))
    session.show({"accounts": done, "not_imported": _white_addresses(acl)}, *_import_parts(done, acl, dry_run=dry_run))
    if any(account.state == _DIFFERS for account in done):
        raise typer.Exit(1)


# Rules.


def _typed(parse: Callable[[_Text], _Value], text: _Text) -> _Value:
    """Return the value of what the user typed.

    Raises:
        ConfigError: it has none. The text is that of servers, without the words that RocketMQ's clients look for.
    """
    try:
        return parse(text)
    except DirectoryRefused as refused:
        raise ConfigError(_UPSTREAM_WORDS.sub("", str(refused))) from None


def _add_to(before: Rule | None, wanted: Rule) -> tuple[Rule, Rule | None]:
    """Return the rule to store, and the rule that it replaces instead of extending it."""
    if before is None:
        return wanted, None
    if (before.effect, set(before.sources)) == (wanted.effect, set(wanted.sources)):
        return before._replace(actions=before.actions | wanted.actions), None
    return wanted, before


def _describe(rule: Rule | None) -> RuleDescription | None:
    return None if rule is None else RuleDescription.of(rule)


def _rule_columns() -> list[Column]:
    return [*left("EFFECT"), *whole("RESOURCE"), *left("ACTIONS"), *spare(1, left("FROM")), *spare(2, left("TIER"))]


def _cells(rule: RuleDescription) -> tuple[Cell, ...]:
    return (rule.effect, rule.resource, ", ".join(rule.actions), ", ".join(rule.sources) or "anywhere", rule.tier)


def _explanation(found: Explanation, user: str, action: Action, resource: Resource, ip: str) -> list[Printable]:
    verdict = "allowed" if found.is_allowed else "refused"
    parts: list[Printable] = [f"{verdict}: {action.value} on {resource} for {user} from {ip}; {_why(found)}"]
    rows = [("decides" if number == 0 else "outranked", *_cells(rule)) for number, rule in enumerate(found.matches)]
    rows += [("does not match", *_cells(rule)) for rule in found.others]
    if rows:
        parts.append(Table([*left(""), *_rule_columns()], rows, title="Rules, in their order"))
    return parts


def _why(found: Explanation) -> str:
    if found.matches:
        first = found.matches[0]
        return f"the first rule that matches {'allows' if first.effect == Effect.ALLOW.value else 'denies'} it"
    return "no rule matches" if "no matched policies" in found.reason else found.reason


def _parse_action(text: str) -> Action:
    actions = _typed(parse_actions, [text])
    if len(actions) != 1:
        raise ConfigError(f"{text} is more than one action: ask for one of {', '.join(each.value for each in Action)}")
    return next(iter(actions))


def _parse_resource(text: str) -> Resource:
    pattern = _typed(ResourcePattern.parse, text)
    if pattern.type is None or pattern.match is not NameMatch.LITERAL:
        raise ConfigError(f"{text!r} is a pattern: ask for one resource, such as Topic:orders")
    return Resource(pattern.type, pattern.name)


def _parse_ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ConfigError(f"--from {text!r} is not an IP address") from None


# ACL 1.0.


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(FILE_SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None


def _white_addresses(acl: AclFile) -> list[dict[str, str]]:
    """Return the white addresses, which no rule can express; without a user for the global ones."""
    found = [{"address": str(address)} for address in acl.global_white if address is not NO_ADDRESS]
    return found + [
        {"user": account.access_key, "address": str(account.white_address)}
        for account in acl.accounts.values()
        if account.white_address != NO_ADDRESS
    ]


def _import_parts(done: list[ImportedAccount], acl: AclFile, *, dry_run: bool) -> list[Printable]:
    states = {**_STATES, "new": "would be created", "exists": "exists; would get these rules"} if dry_run else _STATES
    rows = [
        (
            account.user,
            "administrator" if account.kind is UserKind.SUPER else "normal",
            len(account.rules),
            states[account.state],
        )
        for account in done
    ]
    columns = [*whole("USER"), *left("KIND"), *right("RULES"), *left("RESULT")]
    parts: list[Printable] = [Table(columns, rows, empty="no account in these files")]
    if dry_run and any(account.rules for account in done):
        rules = [(account.user, *_cells(rule)) for account in done for rule in account.rules]
        parts.append(Table([*left("USER"), *_rule_columns()], rules, title="Rules"))
    white = _white_addresses(acl)
    if white:
        addresses = [(each.get("user", "everybody"), each["address"]) for each in white]
        parts += [
            Table([*left("WHO"), *whole("WHITE ADDRESS")], addresses, title="Not imported: white addresses"),
            _WHITE_ADVICE,
        ]
    return parts
