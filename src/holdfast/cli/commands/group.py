"""`holdfast group`: list, describe, create, delete, lag, reset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from holdfast.admin.cluster_access import NotAllowed
from holdfast.admin.groups import Member, QueueLag
from holdfast.admin.offsets import OffsetChange
from holdfast.admin.operations import Admin
from holdfast.admin.tables import Facts, Table, count_text, left, right, spare, time_text, whole
from holdfast.cli.arguments import TopicArgument
from holdfast.cli.completion import complete_group, complete_topic
from holdfast.cli.queue_position_text import local_now, parse_target
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command
from holdfast.model.group import GroupConfig
from holdfast.model.scope import to_shown_broker, to_wire_broker
from holdfast.wire.frames.versions import version_text

app = typer.Typer(no_args_is_help=True, help="Inspect and change consumer groups, their lag and offsets.")

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=complete_group)]


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="group")


@cluster_command(app, "list")
def list_groups(
    session: Session,
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include system groups.")] = False,
) -> None:
    """List consumer groups and their number of online members.

    Example: holdfast group list
    """
    groups = session.execute(lambda admin: admin.groups.summaries(with_system=everything))
    rows = [(group.name, group.members, group.kind, group.model, ", ".join(group.topics) or None) for group in groups]
    columns = [*left("GROUP"), *right("MEMBERS"), *spare(1, left("KIND", "MODEL")), *left("TOPICS")]
    empty = "no groups yet; a group appears when its first consumer starts"
    session.show({"groups": groups}, Table(columns, rows, empty=empty))


@cluster_command(app, "describe")
def describe(session: Session, *, group: GroupArgument) -> None:
    """Show a group's settings, members, subscriptions and lag.

    Example: holdfast group describe billing
    """
    found = session.execute(lambda admin: admin.groups.describe(group))
    facts: list[tuple[str, str | int | float | None]] = [
        ("group", found.name),
        ("brokers", ", ".join(found.brokers)),
        ("kind", found.kind),
        ("model", found.model),
        ("lag", found.lag),
        ("waiting for a retry", found.retry_lag),
        ("may consume", found.config.consume_enable),
        ("retries", found.config.retry_max_times),
    ]
    facts += [(f"subscribes {topic}", tags) for topic, tags in found.subscriptions.items()]
    session.show(found, Facts(facts), _member_table(found.members))


@cluster_command(app, "create")
def create(
    session: Session,
    *,
    group: GroupArgument,
    retry_max: Annotated[int, typer.Option(min=-1, help="Retry a failing message this many times.")] = 16,
    retry_queues: Annotated[int, typer.Option(min=0, help="Queues of the retry topic.")] = 1,
    consume: Annotated[bool, typer.Option("--consume/--no-consume", help="Whether it may consume.")] = True,
    broadcast: Annotated[bool, typer.Option("--broadcast/--no-broadcast", help="Whether it may broadcast.")] = True,
    cluster: Annotated[str | None, typer.Option(help="On the brokers of this cluster only.")] = None,
) -> None:
    """Create a consumer group, or change the settings of one.

    Example: holdfast group create billing --retry-max 5
    """
    config = GroupConfig(
        group_name=group,
        retry_max_times=retry_max,
        retry_queue_nums=retry_queues,
        consume_enable=consume,
        consume_broadcast_enable=broadcast,
    )
    brokers = session.execute(lambda admin: admin.groups.put(config, cluster=cluster))
    session.show({"group": group, "brokers": brokers}, f"group {group} is on {', '.join(brokers)}")


@cluster_command(app, "delete")
def delete(
    session: Session,
    *,
    group: GroupArgument,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep its committed offsets.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if members are online.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a group, its offsets and its retry topic. Dead letters stay. Asks first when run at a terminal.

    Example: holdfast group delete billing --yes
    """
    found = session.execute(lambda admin: admin.groups.describe(group))
    if found.members and not force:
        raise NotAllowed(f"group {group!r} has {len(found.members)} members online; stop them first, or add --force")
    description = f"group {group} on {', '.join(found.brokers)}"
    if not dry_run:
        lag_text = "an unknown lag" if found.lag is None else f"a lag of {found.lag:,} messages"
        session.confirm(f"Delete {description}, with {lag_text}?", yes=yes)
        session.execute(lambda admin: admin.groups.delete(group, keep_offsets=keep_offsets))
    session.show(
        {"group": group, "deleted": not dry_run, "dry_run": dry_run, "brokers": found.brokers},
        f"would delete {description}" if dry_run else f"deleted {description}",
    )


@cluster_command(app, "lag")
def lag(
    session: Session,
    *,
    group: GroupArgument,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="This topic only.", autocompletion=complete_topic)
    ] = None,
) -> None:
    """Show the lag of a group, by queue.

    Example: holdfast group lag billing
    """
    found = session.execute(lambda admin: admin.groups.lag(group, topic)).with_shown_brokers()
    facts: list[tuple[str, str | int | float | None]] = [
        ("group", found.group),
        ("lag", "unknown" if found.lag is None else found.lag),
        ("waiting for a retry", found.retry_lag),
        ("consumes per second", found.consumes_per_second),
    ]
    retries = [_lag_table(found.retries)] if found.retry_lag else []
    down = [
        f"not counted: queue {each.queue} of {each.topic}, whose leader {each.leader} is down" for each in found.unknown
    ]
    down += [
        f"not counted: {count_text(each.count, 'queue')} of {each.topic} on {each.broker}, which is down"
        for each in found.down
    ]
    if found.lag is None:
        names = ", ".join(sorted({each.broker for each in found.down}))
        down.append(f"no broker that is up knows {group}: start {names}")
    session.show(found, Facts(facts), _lag_table(found.queues), *retries, *down)


def _lag_table(queues: Sequence[QueueLag]) -> Table:
    has_gap = any(each.gap for each in queues)
    rows = [
        (
            each.topic,
            each.broker,
            each.queue,
            each.committed,
            each.end,
            each.lag,
            *([each.gap] if has_gap else []),
            time_text(each.consumed_ms),
        )
        for each in queues
    ]
    numbers = ("QUEUE", "COMMITTED", "END", "LAG", *(["GAP"] if has_gap else []))
    columns = [*left("TOPIC", "BROKER"), *right(*numbers), *spare(1, whole("LAST CONSUMED"))]
    return Table(columns, rows, empty="it consumes nothing yet")


@cluster_command(app, "reset")
def reset(
    session: Session,
    *,
    group: GroupArgument,
    topic: TopicArgument,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="earliest, latest, a time, or an offset.")],
    queue: Annotated[int | None, typer.Option(min=0, help="Only the queues with this number.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only the queues of this broker.")] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Reset the offsets of a group: to an end, a time or an offset. Works while its members run.

    A time is 2026-11-15T17:50, 17:50 (today), 10m (ago) or @MILLISECONDS; a bare number is an offset.

    Example: holdfast group reset billing orders --to 10m --dry-run
    """
    target = parse_target(to, local_now())

    async def plan(admin: Admin) -> list[OffsetChange]:
        await admin.groups.check_exists(group)
        wire_broker = to_wire_broker(broker) if broker else None
        found = await admin.offsets.plan_reset(group, topic, target, queue=queue, broker=wire_broker)
        return [msgspec.structs.replace(change, broker=to_shown_broker(change.broker)) for change in found]

    changes = session.execute(plan)
    if not dry_run:
        session.confirm(f"Move {group} in {len(changes)} queues of {topic} to {to}?", yes=yes)
        session.execute(lambda admin: admin.offsets.apply_reset(group, target, changes))
    rows = [(change.broker, change.queue, change.before, change.after, change.end, change.lag) for change in changes]
    columns = [*left("BROKER"), *right("QUEUE", "BEFORE", "AFTER", "END", "LAG")]
    session.show(
        {"group": group, "topic": topic, "dry_run": dry_run, "changes": changes},
        f"{group} {'would continue' if dry_run else 'continues'} in {topic} at {to}",
        Table(columns, rows),
    )


def _member_table(members: list[Member]) -> Table:
    rows = [(member.client_id, member.address, member.language, version_text(member.version)) for member in members]
    columns = [*whole("MEMBER"), *spare(1, whole("ADDRESS")), *spare(3, left("LANGUAGE")), *spare(2, left("PROTOCOL"))]
    return Table(columns, rows, empty="no member is online")
