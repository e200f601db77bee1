"""`holdfast topic`: create, list, describe, route, stats, update, delete; `static_topic` has the other verbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from holdfast.admin.cluster_access import NotAllowed
from holdfast.admin.combined.route_view import RouteName, view_route
from holdfast.admin.combined.topic_view import find_problems, read_topic
from holdfast.admin.operations import Admin
from holdfast.admin.static_topics import ClusterMappings
from holdfast.admin.tables import Facts, Printable, Table, left, right, size_text, spare, time_text, whole
from holdfast.admin.topics import (
    QueueState,
    TopicChange,
    TopicDescription,
    TopicHost,
    Topics,
    TopicSummary,
    permission_from,
)
from holdfast.cli.arguments import BrokersOption, TopicArgument
from holdfast.cli.commands import static_topic
from holdfast.cli.commands.queue import printed_mapping, segment_table, static_facts
from holdfast.cli.commands.static_topic import ScopeOption, create_static, find_scope, wrong_index_error
from holdfast.cli.move_output import split_names
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command, parse_pairs
from holdfast.model.errors import ConfigError
from holdfast.model.topic import QUEUE_TYPE, QUEUE_TYPES, IndexName, TopicConfig, find_queue_type

app = typer.Typer(no_args_is_help=True, help="Create, inspect, change and delete topics.")

ClusterOption = Annotated[str | None, typer.Option(help="On the brokers of this cluster only.")]
PermissionOption = Annotated[str | None, typer.Option(metavar="rw|r|w|-", help="What clients may do.")]
BatchesOption = Annotated[
    bool, typer.Option("--batches", help="Keep a batch as one record with one index entry; see docs/batches.md.")
]
QueueTypeOption = Annotated[
    IndexName | None,
    typer.Option(
        "--queue-type",
        help="What an index entry stands for: a message, or a record (--batches).",
        show_default="simple",
    ),
]
AttributeOption = Annotated[
    list[str] | None, typer.Option("--attribute", metavar="NAME=VALUE", help="Set an attribute; can be repeated.")
]


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="topic")


static_topic.register(app)


@cluster_command(app, "create")
def create(
    session: Session,
    *,
    topic: TopicArgument,
    queues: Annotated[int | None, typer.Option(min=1, help="Queues on each broker.", show_default="8")] = None,
    logical_queues: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Make it static: N logical queues on any number of brokers.")
    ] = None,
    scope: ScopeOption = None,
    brokers: BrokersOption = None,
    cluster: ClusterOption = None,
    permission: PermissionOption = None,
    order: Annotated[bool, typer.Option("--order", help="Mark it as an ordered topic.")] = False,
    batches: BatchesOption = False,
    queue_type: QueueTypeOption = None,
    attribute: AttributeOption = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if it exists already.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Create a topic: --queues N gives every broker N queues, --logical-queues N gives the whole topic N fixed queues.

    Example: holdfast topic create orders --logical-queues 8
    """
    attributes = parse_pairs(attribute or [], option="--attribute") | _index_attribute(queue_type, batches=batches)
    if logical_queues is not None:
        if queues is not None or cluster is not None or order:
            raise ConfigError(
                "--logical-queues cannot be combined with --queues, --cluster or --order: its queues are fixed anyway"
            )
        config = TopicConfig(name=topic, permission=permission_from(permission or "rw"), attributes=attributes)
        names = split_names(brokers)
        scope = find_scope(session, scope)
        create_static(session, config, logical_queues, scope=scope, brokers=names, exist_ok=exist_ok, dry_run=dry_run)
        return
    if scope is not None:
        raise ConfigError("--scope is for static topics: add --logical-queues N")
    count = queues or 8

    async def work(admin: Admin) -> tuple[list[TopicChange], bool]:
        # Topics with this name in other clusters do not matter here.
        unit_access = admin.access.for_unit(cluster or admin.access.unit)
        existed = await unit_access.find_route(topic) is not None
        if existed and not exist_ok:
            raise NotAllowed(f"topic {topic!r} exists already; change it with `holdfast topic update {topic}`")
        changes = await admin.topics.plan(
            topic,
            queues=count,
            permission=None if permission is None else permission_from(permission),
            order=order or None,
            attributes=attributes,
            cluster=cluster,
            brokers=split_names(brokers),
        )
        if existed:
            _refuse_index_change(topic, changes)
        elif not dry_run:
            await Topics(unit_access).apply(topic, changes)
        return changes, existed

    changes, existed = session.execute(work)
    total = sum(change.after.write_queues for change in changes)
    verb = "exists already" if existed else "would be created" if dry_run else "created"
    broker_names = ", ".join(change.broker for change in changes)
    session.show(
        {"topic": topic, "created": not existed and not dry_run, "dry_run": dry_run, "hosts": _hosts_after(changes)},
        f"topic {topic} {verb}: {count} queues on each of {broker_names} ({total} in all)"
        if not existed
        else f"topic {topic} {verb}",
    )


@cluster_command(app, "list")
def list_topics(
    session: Session,
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include system, retry and dead-letter topics.")
    ] = False,
) -> None:
    """List topics.

    Example: holdfast topic list
    """
    topics = session.execute(lambda admin: admin.topics.summaries(with_system=everything))
    rows = [
        (topic.name, _kind_text(topic), topic.queues, topic.permission, ", ".join(topic.brokers)) for topic in topics
    ]
    columns = [*left("TOPIC", "KIND"), *right("QUEUES"), *left("ALLOWS", "BROKERS")]
    empty = "no topics yet; create one with `holdfast topic create NAME`"
    session.show({"topics": topics}, Table(columns, rows, empty=empty))


@cluster_command(app, "describe")
def describe(session: Session, *, topic: TopicArgument) -> None:
    """Show the brokers, queue ranges and consumer groups of a topic.

    Example: holdfast topic describe orders
    """
    found, view = session.execute(lambda admin: read_topic(admin, topic))
    messages = sum(state.messages for state in found.queues)
    if view is not None:
        static = view.get_topic(topic)
        facts = static_facts(static)
        extra_facts: list[tuple[str, str | int | float | None]] = [
            ("batches", "kept whole" if found.batches else "split"),
            ("messages", messages),
            ("groups", ", ".join(found.groups) or "none"),
        ]
        queues = [queue for _, queue in sorted(static.merged.queues.items())]
        session.show(
            {**msgspec.to_builtins(found), "kind": "static", "mapping": printed_mapping(static.merged)},
            Facts([*facts.pairs, *extra_facts]),
            segment_table(queues, title="Logical queues by segment"),
            _queue_table(found.queues, title="Physical queues"),
            *find_problems(view, static),
        )
        return
    facts = Facts(
        [
            ("topic", found.name),
            ("kind", _kind_text(found)),
            ("messages", messages),
            ("groups", ", ".join(found.groups) or "none"),
        ]
    )
    session.show(found, facts, _host_table(found.hosts), _queue_table(found.queues))


@cluster_command(app, "route")
def route(session: Session, *, topic: TopicArgument) -> None:
    """Show the route of a topic that the name server returns to clients; with --unit, to clients of that unit.

    Example: holdfast topic route orders
    """
    found = session.execute(lambda admin: admin.access.get_client_route(topic))
    view = view_route(topic, found)
    rows = [
        (
            broker.broker,
            broker.cluster,
            broker.read_queues,
            broker.write_queues,
            broker.permission,
            None if broker.addresses is None else ", ".join(f"{id_}: {at}" for id_, at in broker.addresses.items()),
        )
        for broker in view.brokers
    ]
    columns = [
        *left("BROKER"),
        *spare(1, left("CLUSTER")),
        *right("READ", "WRITE"),
        *left("ALLOWS", "ADDRESSES BY ID"),
    ]
    logical = _logical_parts(view.logical)
    table = Table(columns, rows, title="Brokers" if logical else "")
    session.show({"topic": topic, **msgspec.to_builtins(found, str_keys=True)}, *logical, table)


@cluster_command(app, "stats")
def stats(session: Session, *, topic: TopicArgument) -> None:
    """Show the size of a topic and its growth in the last minute.

    Example: holdfast topic stats orders
    """
    found = session.execute(lambda admin: admin.topics.stats(topic))
    facts: list[tuple[str, str | int | float | None]] = [
        ("topic", found.name),
        ("messages", found.messages),
        ("puts per second", found.puts_per_second),
        ("bytes per second", f"{size_text(found.put_bytes_per_second)}/s"),
    ]
    session.show(found, Facts(facts), _queue_table(found.queues))


@cluster_command(app, "update")
def update(
    session: Session,
    *,
    topic: TopicArgument,
    queues: Annotated[int | None, typer.Option(min=1, help="Queues on each broker.")] = None,
    permission: PermissionOption = None,
    order: Annotated[bool | None, typer.Option("--order/--no-order", help="Mark it as an ordered topic.")] = None,
    attribute: AttributeOption = None,
    brokers: BrokersOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Change a topic. Settings without an option stay unchanged. Fewer queues hide messages in the removed queues.

    Example: holdfast topic update orders --queues 16 --dry-run
    """

    async def work(admin: Admin) -> list[TopicChange]:
        if queues is not None and await admin.access.find_route_reports(topic):
            raise NotAllowed(
                f"{topic} is static: `holdfast topic grow {topic} --logical-queues N` gives it more queues"
            )
        names = split_names(brokers) or [broker.name for broker in await admin.topics.hosts(topic)]
        changes = await admin.topics.plan(
            topic,
            queues=queues,
            permission=None if permission is None else permission_from(permission),
            order=order,
            attributes=parse_pairs(attribute or [], option="--attribute"),
            brokers=names,
        )
        _refuse_index_change(topic, changes)
        if not dry_run:
            await admin.topics.apply(topic, changes)
        return changes

    if queues is None and permission is None and order is None and not attribute:
        raise ConfigError("nothing to change: give --queues, --permission, --order or --attribute")
    changes = session.execute(work)
    session.show(
        {"topic": topic, "dry_run": dry_run, "changes": changes},
        f"topic {topic} {'would change' if dry_run else 'changed'}",
        _change_table(changes),
    )


@cluster_command(app, "delete")
def delete(
    session: Session,
    *,
    topic: TopicArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete a static topic even if one of its brokers does not answer.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a topic with all of its messages. Asks first when run at a terminal.

    Example: holdfast topic delete orders --yes
    """
    found, view = session.execute(lambda admin: read_topic(admin, topic))
    hosts, messages = [host.broker for host in found.hosts], sum(state.messages for state in found.queues)
    consumed = f", consumed by {', '.join(found.groups)}," if found.groups else ""
    description = f"topic {topic} with {messages:,} messages{consumed} on {', '.join(hosts)}"
    if not dry_run:
        session.confirm(f"Delete {description}?", yes=yes)
        session.execute(lambda admin: _delete(admin, topic, view, force=force))
    session.show(
        {"topic": topic, "deleted": not dry_run, "dry_run": dry_run, "messages": messages, "brokers": hosts},
        f"would delete {description}" if dry_run else f"deleted {description}",
    )


async def _delete(admin: Admin, topic: str, view: ClusterMappings | None, *, force: bool) -> None:
    """Delete a normal or static topic; a static one is also recorded on brokers that have no queue of it."""
    if view is None:
        await admin.topics.delete(topic)
    else:
        await admin.static_changes.delete(view, view.get_topic(topic), force=force)


def _refuse_index_change(topic: str, changes: Sequence[TopicChange]) -> None:
    """Check that a topic keeps its kind of index: before a broker refuses the change, and also in a dry run.

    Raises:
        NotAllowed: the changes would give it another kind.
    """
    for change in changes:
        requested_type = find_queue_type(change.after.attributes)
        if change.before is not None and find_queue_type(change.before.attributes) != requested_type:
            raise wrong_index_error(topic, change.broker, requested_type)


def _index_attribute(queue_type: IndexName | None, *, batches: bool) -> dict[str, str]:
    """Return the attribute for the kind of index of a new topic; empty if no option gives it."""
    if batches and queue_type not in {None, "batch"}:
        raise ConfigError("--batches means --queue-type batch: give only one of them")
    if queue_type is None and not batches:
        return {}
    return {QUEUE_TYPE: QUEUE_TYPES[queue_type or "batch"]}


def _kind_text(topic: TopicSummary | TopicDescription) -> str:
    return f"{topic.kind}, batches" if topic.batches else topic.kind


def _hosts_after(changes: Sequence[TopicChange]) -> list[TopicHost]:
    return [change.after for change in changes]


def _host_table(hosts: Sequence[TopicHost]) -> Printable:
    rows = [
        (
            host.broker,
            host.address,
            host.read_queues,
            host.write_queues,
            host.permission,
            host.order,
            ", ".join(f"{name}={value}" for name, value in sorted(host.attributes.items())) or None,
        )
        for host in hosts
    ]
    columns = [
        *left("BROKER"),
        *spare(2, whole("ADDRESS")),
        *right("READ", "WRITE"),
        *left("ALLOWS"),
        *spare(1, left("ORDER")),
        *left("ATTRIBUTES"),
    ]
    return Table(columns, rows)


def _logical_parts(names: Sequence[RouteName]) -> list[Printable]:
    """Return the logical queues of a route under the broker names that clients see; empty for a normal topic."""
    rows = [(each.shown_to_clients_as, each.read_queues, each.write_queues, each.permission) for each in names]
    columns = [*left("SHOWN TO CLIENTS AS"), *right("READ", "WRITE"), *left("ALLOWS")]
    return [Table(columns, rows, title="Logical queues")] if rows else []


def _queue_table(states: Sequence[QueueState], title: str = "") -> Printable:
    rows = [
        (state.broker, state.queue, state.offset_min, state.offset_max, state.messages, time_text(state.last_stored_ms))
        for state in states
    ]
    columns = [*left("BROKER"), *right("QUEUE", "FIRST", "END", "MESSAGES"), *spare(1, whole("LAST STORED"))]
    return Table(columns, rows, title=title, empty="no queues")


def _change_table(changes: Sequence[TopicChange]) -> Printable:
    rows = []
    for change in changes:
        before = [None] * 4 if change.before is None else _host_cells(change.before)
        rows.append(
            (change.broker, *(_change_text(*pair) for pair in zip(before, _host_cells(change.after), strict=True)))
        )
    return Table(left("BROKER", "QUEUES", "ALLOWS", "ORDER", "ATTRIBUTES"), rows)


def _host_cells(host: TopicHost) -> list[str]:
    attributes = ", ".join(f"{name}={value}" for name, value in host.attributes.items())
    return [str(host.write_queues), host.permission, "yes" if host.order else "no", attributes or "none"]


def _change_text(before: str | None, after: str) -> str:
    return after if before == after else f"{before or 'none'} -> {after}"
