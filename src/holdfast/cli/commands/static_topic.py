"""The verbs of `holdfast topic` that are about static topics: grow, make-static, move; and creating one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
import typer

from holdfast.admin.cluster_access import Broker, NotAllowed, PartlyDone
from holdfast.admin.operations import Admin, now_ms
from holdfast.admin.previews import preview_queues
from holdfast.admin.static_changes import NotShown
from holdfast.admin.static_topics import ClusterMappings, StaticTopic
from holdfast.admin.topic_plans import TopicPlan, convert_plan, create_plan, grow_plan, share_of_keys_that_stay
from holdfast.cli.arguments import BrokersOption, TopicArgument
from holdfast.cli.completion import complete_broker
from holdfast.cli.move_output import EvenIfAliveOption, ForceOption, NoWaitOption, carry_out, preview_parts, split_names
from holdfast.cli.progress import show_progress
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command
from holdfast.model.errors import BrokerRefused, ConfigError, HoldfastError
from holdfast.model.scope import GLOBAL, SHOWN_GLOBAL, overlap, to_shown_scope, to_wire_scope
from holdfast.model.topic import BATCH_QUEUE, QUEUE_TYPE, READ_WRITE, SIMPLE_QUEUE, TopicConfig, find_name_fault
from holdfast.wire.frames.codes import ResponseCode

LogicalQueuesOption = Annotated[int, typer.Option(min=1, metavar="N", help="Logical queues in all.")]
ScopeOption = Annotated[
    str | None,
    typer.Option(
        metavar="global|CLUSTER", help="Where its logical queues are fixed.", show_default="global, or --unit"
    ),
]

# One poll of Java's clients: by then everybody knows that nothing may be written.
_POLL_S: Final = 30.0


def register(app: typer.Typer) -> None:
    """Add these verbs to those of topics."""
    cluster_command(app, "grow")(grow)
    cluster_command(app, "make-static")(make_static)
    cluster_command(app, "move")(move)


def find_scope(session: Session, scope: str | None) -> str:
    """Return where a topic shall be fixed: as it is said, in the unit that is looked at, or globally."""
    if scope == "":
        raise ConfigError("--scope is empty: name a cluster, or 'global'")
    return scope or session.unit or SHOWN_GLOBAL


def create_static(
    session: Session, config: TopicConfig, total: int, *, scope: str, brokers: list[str], exist_ok: bool, dry_run: bool
) -> None:
    """Create a topic of logical queues, whose number does not depend on brokers."""

    async def work(admin: Admin) -> TopicPlan | None:
        await admin.static.require_support()
        fixed = to_wire_scope(scope)
        await _require_new(admin, config.name, None if fixed == GLOBAL else fixed)
        view = await admin.static.read()
        for known in view.find(config.name):
            if known.merged.scope == fixed:
                if not exist_ok:
                    raise _exists(known)
                _refuse_other_index(known, config.attributes.get(QUEUE_TYPE))
                return None
        plan = create_plan(view, config, total, targets=brokers, scope=fixed, now_ms=now_ms())
        if not dry_run:
            await admin.changes.apply(plan)
        return plan

    if fault := find_name_fault(config.name):
        raise ConfigError(fault)
    plan = session.ask(work)
    if plan is None:
        value = {"topic": config.name, "created": False, "dry_run": dry_run}
        session.show(value, f"static topic {config.name} exists already")
        return
    leaders = ", ".join(sorted({queue.leader.broker for queue in plan.after}))
    verb = "would be created" if dry_run else "created"
    text = f"static topic {config.name} {verb}: {total} logical queues on {leaders}"
    _show(session, plan, text, created=not dry_run, dry_run=dry_run)


def other_index(topic: str, broker: str, wanted: str) -> NotAllowed:
    """Say that a topic has one kind of index where another is wanted, and what can be done."""
    to = "batch" if wanted == BATCH_QUEUE else "simple"
    return NotAllowed(
        f"a topic keeps its kind of index while it is served: stop {broker} and run "
        f"`holdfast index convert {topic} --to {to} --store DIR` on its folder"
    )


def _refuse_other_index(topic: StaticTopic, wanted: str | None) -> None:
    """See that a topic that exists is indexed as it would be if it did not; *wanted* is None if nothing was said."""
    for broker, config in sorted(topic.configs.items()):
        if wanted is not None and config.attributes.get(QUEUE_TYPE, SIMPLE_QUEUE) != wanted:
            raise other_index(topic.name, broker, wanted)


def grow(
    session: Session,
    *,
    topic: TopicArgument,
    logical_queues: LogicalQueuesOption,
    brokers: BrokersOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Give a static topic more logical queues. No broker is needed for it; what is there stays where it is.

    Keys go to queues by their hash over the number of queues: with another number some keys go elsewhere, and order
    per key holds over the change only once consumers have caught up.

    Example: holdfast topic grow orders --logical-queues 16 --dry-run
    """

    async def work(admin: Admin) -> TopicPlan:
        await admin.static.require_support()
        view = await admin.static.read()
        plan = grow_plan(view, view.get_topic(topic), logical_queues, targets=split_names(brokers), now_ms=now_ms())
        if not dry_run:
            await admin.changes.apply(plan)
        return plan

    plan = session.ask(work)
    stay = share_of_keys_that_stay(len(plan.before), plan.total)
    text = f"{topic} {'would have' if dry_run else 'has'} {plan.total} logical queues, {len(plan.before)} before"
    order = (
        f"order per key: {stay:.0%} of all keys keep their queue. What was sent before for the others waits in their"
        " old queue while new messages go to another: let consumers catch up first where that matters"
    )
    _show(session, plan, text, order, grown=not dry_run, dry_run=dry_run)


def make_static(
    session: Session,
    *,
    topic: TopicArgument,
    logical_queues: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Logical queues.", show_default="as many as it has")
    ] = None,
    scope: ScopeOption = None,
    pause: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long nobody may write.")] = _POLL_S,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Turn a normal topic into a static one in place. Its messages stay where they are and readable.

    Writing is withdrawn, one poll of the clients later the logical queues take over: sends fail in that time. Asks
    first, when it runs at a terminal.

    Example: holdfast topic make-static orders --dry-run
    """
    job = session.ask(lambda admin: _plan_conversion(admin, topic, logical_queues, find_scope(session, scope)))
    plan = job.plan
    writable = sum(config.write_queues for config in job.configs.values())
    order = (
        f"order per key: a key went to one of {writable} queues of the brokers, and goes to one of {plan.total} logical"
        " queues by its hash: often another one. Consumers that catch up during the pause see every key in order"
    )
    if not dry_run:
        session.confirm(f"Stop writing to {topic} for {pause:g} s and make it static?", yes=yes)
        session.note(f"nobody may write to {topic} now; its logical queues open in {pause:g} s")
        _convert(session, job, pause)
    text = f"{topic} {'would become' if dry_run else 'is'} static: {plan.total} logical queues, no message copied"
    would = f"sends would be refused for {pause:g} s" if dry_run else f"sends were refused for {pause:g} s"
    _show(session, plan, text, would, order, converted=not dry_run, dry_run=dry_run, pause_s=pause)


def move(
    session: Session,
    *,
    topic: TopicArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="BROKER[,BROKER]", help="The new leaders.", autocompletion=complete_broker)
    ],
    force: ForceOption = False,
    even_if_alive: EvenIfAliveOption = False,
    no_wait: NoWaitOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Let these brokers, and nobody else, lead a static topic, with the fewest moves. With --force only from the dead.

    Example: holdfast topic move orders --to broker-c,broker-d --dry-run
    """
    targets = split_names(to)
    if not targets:
        raise ConfigError("--to needs the name of a broker")
    carry_out(
        session,
        lambda admin: (
            admin.forcing.plan_topic(topic, targets, even_if_alive=even_if_alive)
            if force
            else admin.moves.plan_topic(topic, targets)
        ),
        what=f"{to} leads {topic} already",
        dry_run=dry_run,
        forced=force,
        yes=yes,
        no_wait=no_wait,
    )


class _Conversion(msgspec.Struct, frozen=True):
    """A topic that becomes static: what it is now, and what it will be."""

    plan: TopicPlan
    view: ClusterMappings
    hosts: dict[str, Broker]
    configs: dict[str, TopicConfig]
    groups: list[str]


async def _plan_conversion(admin: Admin, topic: str, total: int | None, scope: str) -> _Conversion:
    await admin.static.require_support()
    view = await admin.static.read()
    if any(overlap(known.merged.scope, to_wire_scope(scope)) for known in view.find(topic)):
        raise NotAllowed(f"{topic} is static already; `holdfast topic grow` gives it more logical queues")
    described = await admin.topics.describe(topic)
    if described.kind != "normal":
        raise NotAllowed(f"{topic} is a {described.kind} topic: only topics of users become static")
    hosts = {broker.name: broker for broker in await admin.topics.hosts(topic)}
    found = {name: await admin.topics.find_config(broker, topic) for name, broker in hosts.items()}
    configs = {name: config for name, config in found.items() if config is not None}
    counts = {name: max(config.read_queues, config.write_queues) for name, config in configs.items()}
    # An earlier attempt that was cut off may have left it without writers.
    config = msgspec.structs.replace(next(iter(configs.values())), order=False, permission=int(READ_WRITE))
    plan = convert_plan(view, config, counts, total=total, scope=to_wire_scope(scope), now_ms=now_ms())
    return _Conversion(plan, view, {name: hosts[name] for name in configs}, configs, described.groups)


def _convert(session: Session, job: _Conversion, pause_s: float) -> None:
    session.ask(lambda admin: admin.changes.withdraw_writes(job.hosts, job.configs))
    try:
        _pause(session, pause_s)

        async def enable(admin: Admin) -> None:
            committed = await admin.changes.read_committed(job.plan, job.view, job.groups)
            await admin.topics.forget_order(job.plan.topic)
            late: NotShown | None = None
            try:
                await admin.changes.apply(job.plan)
            except NotShown as error:
                late = error
            await admin.changes.write_committed(job.plan, job.view, committed)
            if late is not None:
                raise late

        session.ask(enable)
    except (PartlyDone, NotShown):
        raise  # It is static where it was taken: there is no way back, and a repair leads on.
    except (HoldfastError, KeyboardInterrupt):
        session.ask(lambda admin: admin.changes.restore(job.hosts, job.configs))
        session.note(f"{job.plan.topic} is a normal topic as before, and may be written again")
        raise


def _pause(session: Session, seconds: float) -> None:
    async def wait() -> None:
        with show_progress("waiting for clients", int(seconds), quiet=session.as_json) as advance:
            left = seconds
            while left > 0:
                step = min(1.0, left)
                await asyncio.sleep(step)
                left -= step
                advance(1)

    session.run(wait())


def _exists(topic: StaticTopic) -> NotAllowed:
    if topic.merged.complete:
        return NotAllowed(f"static topic {topic.name!r} exists already; `holdfast topic grow` adds queues")
    return NotAllowed(
        f"static topic {topic.name!r} exists already, and is not whole: `holdfast queue repair {topic.name}` mends it,"
        f" `holdfast topic delete {topic.name}` removes what is there"
    )


async def _require_new(admin: Admin, topic: str, unit: str | None) -> None:
    """Do nothing when no normal topic has that name in *unit*, or anywhere.

    Raises:
        NotAllowed: one has.
    """
    try:
        found = await admin.reach.find_route_and_rows(topic, unit=unit)
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.SYSTEM_BUSY:
            raise
        return  # A static topic that is not whole: who records it says more.
    if found is not None and not found[1]:
        raise NotAllowed(f"a normal topic {topic!r} exists; `holdfast topic make-static {topic}` turns it into one")


def _show(session: Session, plan: TopicPlan, *texts: str, dry_run: bool, **value: object) -> None:
    preview = preview_queues(plan.topic, plan.before, plan.after)
    skipped = [f"{name} was not told: {reason}" for name, reason in plan.skipped.items()]
    session.show(
        {
            "topic": plan.topic,
            "logical_queues": plan.total,
            "scope": to_shown_scope(plan.scope),
            "epoch": plan.epoch,
            **value,
            "dry_run": dry_run,
            "tables": [preview],
            "skipped": plan.skipped,
        },
        *texts,
        *skipped,
        *(preview_parts([preview]) if dry_run else []),
    )
