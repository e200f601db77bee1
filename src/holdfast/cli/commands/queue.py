"""`holdfast queue`: list, migrate, set, unset, abandon, repair."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from holdfast.admin.combined.topic_view import describe_segment, find_problems
from holdfast.admin.moves import get_leader
from holdfast.admin.operations import Admin, now_ms
from holdfast.admin.previews import preview_queues
from holdfast.admin.static_topics import ClusterMappings, StaticTopic
from holdfast.admin.tables import Facts, Printable, Table, count_text, left, right, spare, time_text, whole
from holdfast.admin.topic_plans import RepairPlan, TopicPlan, assign_plan, leaderless_queues, repair_plan
from holdfast.cli.arguments import TopicArgument
from holdfast.cli.completion import complete_broker
from holdfast.cli.move_output import (
    EvenIfAliveOption,
    ForceOption,
    NoWaitOption,
    carry_out,
    mapping_table,
    preview_parts,
)
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command
from holdfast.model.mapping import LogicalQueue, MergedTopic, mapping_rows
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalQueueId
from holdfast.model.scope import shown_broker, to_shown_scope

app = typer.Typer(no_args_is_help=True, help="Inspect, move and repair the logical queues of a static topic.")

QueueArgument = Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="The logical queue.")]


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="queue")


@cluster_command(app, "list")
def list_queues(
    session: Session,
    *,
    topic: TopicArgument,
    by_broker: Annotated[bool, typer.Option("--by-broker", help="Sort by broker and physical queue.")] = False,
) -> None:
    """Show every segment of the logical queues of a static topic, past and present, with its offsets and status.

    Example: holdfast queue list orders
    """

    async def work(admin: Admin) -> ClusterMappings:
        return await admin.static_topics.read(topic=topic)

    view = session.execute(work)
    found = view.get_topic(topic)
    queues = [queue for _, queue in sorted(found.merged.queues.items())]
    shown = mapping_table(mapping_rows(queues)) if by_broker else segment_table(queues)
    moves = [move for move in view.moves if move.topic == topic]
    value = {"topic": topic, "mapping": printed_mapping(found.merged), "rows": mapping_rows(queues), "moves": moves}
    session.show(value, static_facts(found), shown, *find_problems(view, found))


@cluster_command(app, "migrate")
def migrate(
    session: Session,
    *,
    topic: TopicArgument,
    queue: QueueArgument,
    to: Annotated[str, typer.Option("--to", metavar="BROKER", help="The new leader.", autocompletion=complete_broker)],
    force: ForceOption = False,
    even_if_alive: EvenIfAliveOption = False,
    no_wait: NoWaitOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Move one logical queue to another broker. Clients do not notice: no send fails, offsets continue.

    No message is copied.

    Example: holdfast queue migrate orders 3 --to broker-b --dry-run
    """
    carry_out(
        session,
        lambda admin: (
            admin.forced_moves.plan_queue(topic, LogicalQueueId(queue), to, even_if_alive=even_if_alive)
            if force
            else admin.moves.plan_queue(topic, LogicalQueueId(queue), to)
        ),
        goal=f"{to} leads it",
        dry_run=dry_run,
        forced=force,
        yes=yes,
        no_wait=no_wait,
    )


@cluster_command(app, "abandon")
def abandon(
    session: Session,
    *,
    topic: TopicArgument,
    queue: QueueArgument,
    end: Annotated[
        int | None,
        typer.Option(
            min=0, help="The end of the dead broker's segment.", show_default="a replica's end, or the last consumed"
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Give up messages of a queue that only a dead broker may have, so that consumers continue. Asks at a terminal.

    Example: holdfast queue abandon orders 3
    """
    chosen = None if end is None else LogicalOffset(end)
    plan = session.execute(lambda admin: admin.forced_moves.plan_abandon(topic, LogicalQueueId(queue), end=chosen))
    description = f"messages of {topic} {queue} from offset {plan.end} on that {plan.broker} may still have"
    if not dry_run:
        session.confirm(f"Give up {description}? Consumers cannot read them even if {plan.broker} returns.", yes=yes)
        session.execute(lambda admin: admin.forced_moves.abandon(plan))
    session.show(
        {"dry_run": dry_run, "abandoned": plan},
        f"would give up {description}" if dry_run else f"gave up {description}; consumers continue",
    )


@cluster_command(app, "set")
def set_queue(
    session: Session,
    *,
    topic: TopicArgument,
    queue: QueueArgument,
    broker: Annotated[str, typer.Option(metavar="BROKER", help="Its leader.", autocompletion=complete_broker)],
    physical: Annotated[
        int | None, typer.Option(min=0, help="Its physical queue there.", show_default="a new one")
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(min=0, help="The logical offset of its first message.", show_default="the first unused one"),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Brokers that do not answer are dead: begin a gap above all offsets they may have."
        ),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Assign a logical queue that has no leader to a broker. It continues above every offset that it ever used.

    To move a queue that has a leader, use `queue migrate`.

    Example: holdfast queue set orders 3 --broker broker-b
    """

    async def make_plan(admin: Admin) -> tuple[TopicPlan, list[str]]:
        await admin.static_topics.require_support()
        view = await admin.static_topics.read()
        found = view.get_topic(topic)
        number = LogicalQueueId(queue)
        start = (await admin.static_changes.find_starts(view, found, [number]))[number]
        plan = assign_plan(
            view,
            found,
            number,
            broker,
            start=start,
            queue_id=None if physical is None else PhysicalQueueId(physical),
            first=None if first is None else LogicalOffset(first),
            force=force,
            now_ms=now_ms(),
        )
        return plan, start.silent

    plan, silent = session.execute(make_plan)
    (segment,) = next(each for each in plan.after if each.queue == queue).segments
    if not dry_run:
        if silent:
            session.confirm(
                f"Open logical queue {queue} of {topic} at offset {segment.first}, though {', '.join(silent)} does not"
                " answer? It must be dead for good.",
                yes=yes,
            )
        session.execute(lambda admin: admin.static_changes.apply(plan))
    preview = preview_queues(topic, plan.before, plan.after)
    text = (
        f"{broker} {'would lead' if dry_run else 'leads'} logical queue {queue} of {topic}, from offset {segment.first}"
    )
    session.show({"dry_run": dry_run, "tables": [preview], "first": segment.first}, text, *preview_parts([preview]))


@cluster_command(app, "unset")
def unset_queue(
    session: Session,
    *,
    topic: TopicArgument,
    queue: QueueArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete the mapping of a logical queue. Its messages become unreachable and sends to it fail. Asks at a terminal.

    Example: holdfast queue unset orders 3 --dry-run
    """
    number = LogicalQueueId(queue)

    async def read_queue(admin: Admin) -> tuple[ClusterMappings, StaticTopic, int]:
        view = await admin.static_topics.read(topic=topic)
        get_leader(view, topic, number)
        found = view.get_topic(topic)
        start = (await admin.static_changes.find_starts(view, found, [number]))[number]
        return view, found, start.floor.offset

    view, found, floor = session.execute(read_queue)
    queues = found.merged.queues.values()
    preview = preview_queues(topic, queues, [each for each in queues if each.queue != queue])
    if not dry_run:
        session.confirm(f"Forget logical queue {queue} of {topic}? Its messages become unreachable.", yes=yes)
        session.execute(lambda admin: admin.static_changes.unset(view, found, number))
    text = f"{'would forget' if dry_run else 'forgot'} logical queue {queue} of {topic}"
    set_command = f"`holdfast queue set {topic} {queue} --broker BROKER`"
    hint = f"give it a new leader with {set_command}; it continues there at offset {floor} or above"
    session.show({"dry_run": dry_run, "tables": [preview], "floor": floor}, text, hint, *preview_parts([preview]))


@cluster_command(app, "repair")
def repair(
    session: Session,
    *,
    topic: TopicArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Brokers that do not answer are dead: open queues without a leader elsewhere."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Make the records of all brokers agree after a change that only some of them applied.

    Example: holdfast queue repair orders --dry-run
    """

    async def make_plan(admin: Admin) -> tuple[ClusterMappings, RepairPlan]:
        await admin.static_topics.require_support()
        view = await admin.static_topics.read()
        found = view.get_topic(topic)
        starts = await admin.static_changes.find_starts(view, found, leaderless_queues(found))
        return view, repair_plan(view, found, starts=starts, force=force, now_ms=now_ms())

    view, plan = session.execute(make_plan)
    if plan.is_needed and not dry_run:
        if force:
            session.confirm(
                f"Repair {topic} although some of its brokers do not answer? They must be dead for good.", yes=yes
            )
        session.execute(lambda admin: admin.static_changes.repair(plan, view))
    value = {
        "topic": topic,
        "dry_run": dry_run,
        "given_homes": plan.opened_queues,
        "brought_up": sorted(plan.stamps),
        "faults": plan.faults,
    }
    session.show(value, *_repair_parts(plan, dry_run=dry_run))
    if plan.faults:
        raise typer.Exit(1)


def _repair_parts(plan: RepairPlan, *, dry_run: bool) -> list[Printable]:
    """Return the repairs that were made, or would be, and the problems that remain."""
    parts: list[Printable] = []
    if plan.new_segments is not None:
        verb = "would give" if dry_run else "gave"
        parts.append(f"{verb} a leader to {count_text(len(plan.opened_queues), 'queue')} that had none")
        parts += preview_parts([preview_queues(plan.topic, plan.new_segments.before, plan.new_segments.after)])
    if plan.stamps:
        parts.append(f"{'would bring' if dry_run else 'brought'} up to date: {', '.join(sorted(plan.stamps))}")
    if not plan.is_needed and not plan.faults:
        parts.append(f"{plan.topic} is complete: there is nothing to repair")
    return parts + [f"not repaired: {fault}" for fault in plan.faults]


def static_facts(topic: StaticTopic) -> Facts:
    """Return the facts about a static topic, without its queues."""
    merged = topic.merged
    return Facts(
        [
            ("topic", topic.name),
            ("kind", "static"),
            ("logical queues", merged.total),
            ("scope", to_shown_scope(merged.scope)),
            ("shown to clients as", shown_broker(merged.scope)),
            ("leaders", ", ".join(sorted(set(merged.leaders.values()))) or "none"),
            ("whole", merged.is_complete),
        ]
    )


def printed_mapping(merged: MergedTopic) -> dict[str, object]:
    """Return a mapping as `--json` prints it: an unknown offset or time of a segment is -1."""
    printed: dict[str, Any] = msgspec.to_builtins(merged)
    for queue in printed["queues"].values():
        for segment in queue["segments"]:
            segment.update({name: -1 for name in ("first", "end", "first_ms", "last_ms") if segment[name] is None})
    return printed


def segment_table(queues: list[LogicalQueue], title: str = "") -> Table:
    """Return a table with every segment of every queue, the oldest first."""
    rows = [
        (
            queue.queue,
            segment.generation,
            segment.broker,
            segment.queue_id,
            segment.first,
            segment.logical_end,
            str(queue.status_of(segment)),
            time_text(segment.last_ms),
            describe_segment(queue, segment),
        )
        for queue in queues
        for segment in queue.segments
    ]
    columns = [
        *right("QUEUE"),
        *spare(2, right("SEGMENT")),
        *left("BROKER"),
        *spare(1, right("PHYSICAL")),
        *right("FIRST", "END"),
        *left("STATUS"),
        *spare(3, whole("LAST STORED")),
        *left("NOTE"),
    ]
    return Table(columns, rows, title=title, empty="no logical queues")
