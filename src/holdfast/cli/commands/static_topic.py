"""The verbs of `holdfast topic` for static topics: grow, make-static, move; and the creation of one."""

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
from holdfast.admin.topic_plans import TopicPlan, convert_plan, create_plan, grow_plan, stable_key_share
from holdfast.cli.arguments import BrokersOption, TopicArgument
from holdfast.cli.completion import complete_broker
from holdfast.cli.move_output import EvenIfAliveOption, ForceOption, NoWaitOption, carry_out, preview_parts, split_names
from holdfast.cli.progress import show_progress
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command
from holdfast.model.errors import BrokerRefused, ConfigError, HoldfastError
from holdfast.model.scope import GLOBAL, SHOWN_GLOBAL, overlap, to_shown_scope, to_wire_scope
from holdfast.model.topic import QUEUE_TYPE, READ_WRITE, TopicConfig, find_index_name, find_name_fault
from holdfast.wire.frames.codes import ResponseCode

LogicalQueuesOption = Annotated[int, typer.Option(min=1, metavar="N", help="Logical queues in total.")]
ScopeOption = Annotated[
    str | None,
    typer.Option(
        metavar="global|CLUSTER", help="Where its logical queues are fixed.", show_default="global, or --unit"
    ),
]

# One poll interval of Java clients: after it, every client knows that the topic is read-only.
_POLL_S: Final = 30.0


def register(app: typer.Typer) -> None:
    """Add these verbs to those of topics."""
    cluster_command(app, "grow")(grow)
    cluster_command(app, "make-static")(make_static)
    cluster_command(app, "move")(move)


def find_scope(session: Session, scope: str | None) -> str:
    """Return the scope of a new static topic: the value of `--scope`, else the session's unit, else global."""
    if scope == "":
        raise ConfigError("--scope is empty: name a cluster, or 'global'")
    return scope or session.unit or SHOWN_GLOBAL


def create_static(
    session: Session, config: TopicConfig, total: int, *, scope: str, brokers: list[str], exist_ok: bool, dry_run: bool
) -> None:
    """Create a static topic: its number of logical queues does not depend on brokers."""

    async def work(admin: Admin) -> TopicPlan | None:
        await admin.static_topics.require_support()
        wire_scope = to_wire_scope(scope)
        await _require_new(admin, config.name, None if wire_scope == GLOBAL else wire_scope)
        view = await admin.static_topics.read()
        for existing in view.find(config.name):
            if existing.merged.scope == wire_scope:
                if not exist_ok:
                    raise _exists_error(existing)
                _refuse_index_change(existing, config.attributes.get(QUEUE_TYPE))
                return None
        plan = create_plan(view, config, total, targets=brokers, scope=wire_scope, now_ms=now_ms())
        if not dry_run:
            await admin.static_changes.apply(plan)
        return plan

    if fault := find_name_fault(config.name):
        raise ConfigError(fault)
    plan = session.execute(work)
    if plan is None:
        value = {"topic": config.name, "created": False, "dry_run": dry_run}
        session.show(value, f"static topic {config.name} exists already")
        return
    leaders = ", ".join(sorted({queue.leader.broker for queue in plan.after}))
    verb = "would be created" if dry_run else "created"
    text = f"static topic {config.name} {verb}: {total} logical queues on {leaders}"
    _show(session, plan, text, created=not dry_run, dry_run=dry_run)


def wrong_index_error(topic: str, broker: str, requested_type: str) -> NotAllowed:
    """Return the error for a topic whose kind of index differs from the wanted one, with the remedy."""
    to = find_index_name(requested_type)
    return NotAllowed(
        f"the kind of a topic's index cannot change while it is served: stop {broker} and run "
        f"`holdfast index convert {topic} --to {to} --store DIR` on its folder"
    )


def _refuse_index_change(topic: StaticTopic, requested_type: str | None) -> None:
    """Check that an existing topic has the *requested_type* of index; None accepts every kind.

    Raises:
        NotAllowed: it has another kind.
    """
    for broker, config in sorted(topic.configs.items()):
        if requested_type is not None and config.queue_type != requested_type:
            raise wrong_index_error(topic.name, broker, requested_type)


def grow(
    session: Session,
    *,
    topic: TopicArgument,
    logical_queues: LogicalQueuesOption,
    brokers: BrokersOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Give a static topic more logical queues. This needs no new broker; existing queues and messages stay unchanged.

    The hash of a key modulo the number of queues chooses its queue: with another number some keys go to another queue,
    and order per key holds across the change only if consumers catch up first.

    Example: holdfast topic grow orders --logical-queues 16 --dry-run
    """

    async def work(admin: Admin) -> TopicPlan:
        await admin.static_topics.require_support()
        view = await admin.static_topics.read()
        plan = grow_plan(view, view.get_topic(topic), logical_queues, targets=split_names(brokers), now_ms=now_ms())
        if not dry_run:
            await admin.static_changes.apply(plan)
        return plan

    plan = session.execute(work)
    stable_share = stable_key_share(len(plan.before), plan.total)
    text = f"{topic} {'would have' if dry_run else 'has'} {plan.total} logical queues, {len(plan.before)} before"
    order_note = (
        f"order per key: {stable_share:.0%} of all keys keep their queue. Older messages of the other keys stay in "
        "their old"
        " queue while new messages go to another: let consumers catch up first if order matters"
    )
    _show(session, plan, text, order_note, grown=not dry_run, dry_run=dry_run)


def make_static(
    session: Session,
    *,
    topic: TopicArgument,
    logical_queues: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Logical queues.", show_default="as many as it has")
    ] = None,
    scope: ScopeOption = None,
    pause: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long sends are refused.")] = _POLL_S,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Turn a normal topic into a static one in place. Its messages are not copied and stay readable.

    The topic becomes read-only; one poll interval of the clients later its logical queues open. Sends fail meanwhile.
    Asks first when run at a terminal.

    Example: holdfast topic make-static orders --dry-run
    """
    conversion = session.execute(
        lambda admin: _plan_conversion(admin, topic, logical_queues, find_scope(session, scope))
    )
    plan = conversion.plan
    writable = sum(config.write_queues for config in conversion.configs.values())
    order_note = (
        f"order per key: a key went to one of {writable} queues of the brokers, and now goes to one of {plan.total}"
        " logical queues by its hash, often a different one. Consumers that catch up during the pause see every key in"
        " order"
    )
    if not dry_run:
        session.confirm(f"Stop writing to {topic} for {pause:g} s and make it static?", yes=yes)
        session.note(f"sends to {topic} are refused now; its logical queues open in {pause:g} s")
        _convert(session, conversion, pause)
    text = f"{topic} {'would become' if dry_run else 'is'} static: {plan.total} logical queues, no message copied"
    pause_text = f"sends would be refused for {pause:g} s" if dry_run else f"sends were refused for {pause:g} s"
    _show(session, plan, text, pause_text, order_note, converted=not dry_run, dry_run=dry_run, pause_s=pause)


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
    """Make these brokers the only leaders of a static topic, with the fewest moves. --force replaces only dead leaders.

    Example: holdfast topic move orders --to broker-c,broker-d --dry-run
    """
    targets = split_names(to)
    if not targets:
        raise ConfigError("--to needs the name of a broker")
    carry_out(
        session,
        lambda admin: (
            admin.forced_moves.plan_topic(topic, targets, even_if_alive=even_if_alive)
            if force
            else admin.moves.plan_topic(topic, targets)
        ),
        goal=f"{to} leads {topic} already",
        dry_run=dry_run,
        forced=force,
        yes=yes,
        no_wait=no_wait,
    )


class _Conversion(msgspec.Struct, frozen=True):
    """The plan to convert a normal topic, with its current brokers, configurations and groups."""

    plan: TopicPlan
    view: ClusterMappings
    hosts: dict[str, Broker]
    configs: dict[str, TopicConfig]
    groups: list[str]


async def _plan_conversion(admin: Admin, topic: str, total: int | None, scope: str) -> _Conversion:
    await admin.static_topics.require_support()
    view = await admin.static_topics.read()
    if any(overlap(existing.merged.scope, to_wire_scope(scope)) for existing in view.find(topic)):
        raise NotAllowed(f"{topic} is static already; `holdfast topic grow` gives it more logical queues")
    described = await admin.topics.describe(topic)
    if described.kind != "normal":
        raise NotAllowed(f"{topic} is a {described.kind} topic: only normal topics can become static")
    hosts = {broker.name: broker for broker in await admin.topics.hosts(topic)}
    found = {name: await admin.topics.find_config(broker, topic) for name, broker in hosts.items()}
    configs = {name: config for name, config in found.items() if config is not None}
    counts = {name: max(config.read_queues, config.write_queues) for name, config in configs.items()}
    # An earlier, interrupted attempt may have left it read-only.
    config = msgspec.structs.replace(next(iter(configs.values())), order=False, permission=int(READ_WRITE))
    plan = convert_plan(view, config, counts, total=total, scope=to_wire_scope(scope), now_ms=now_ms())
    return _Conversion(plan, view, {name: hosts[name] for name in configs}, configs, described.groups)


def _convert(session: Session, conversion: _Conversion, pause_s: float) -> None:
    session.execute(lambda admin: admin.static_changes.withdraw_writes(conversion.hosts, conversion.configs))
    try:
        _pause(session, pause_s)

        async def enable(admin: Admin) -> None:
            committed = await admin.static_changes.read_committed(conversion.plan, conversion.view, conversion.groups)
            await admin.topics.forget_order(conversion.plan.topic)
            not_shown: NotShown | None = None
            try:
                await admin.static_changes.apply(conversion.plan)
            except NotShown as error:
                not_shown = error
            await admin.static_changes.write_committed(conversion.plan, conversion.view, committed)
            if not_shown is not None:
                raise not_shown

        session.execute(enable)
    except (PartlyDone, NotShown):
        raise  # It is static on the brokers that applied the change: restoring is impossible, a repair completes it.
    except (HoldfastError, KeyboardInterrupt):
        session.execute(lambda admin: admin.static_changes.restore(conversion.hosts, conversion.configs))
        session.note(f"{conversion.plan.topic} is a normal topic as before, and accepts sends again")
        raise


def _pause(session: Session, seconds: float) -> None:
    async def wait() -> None:
        with show_progress("waiting for clients", int(seconds), quiet=session.as_json) as advance:
            remaining_s = seconds
            while remaining_s > 0:
                step = min(1.0, remaining_s)
                await asyncio.sleep(step)
                remaining_s -= step
                advance(1)

    session.run(wait())


def _exists_error(topic: StaticTopic) -> NotAllowed:
    if topic.merged.is_complete:
        return NotAllowed(f"static topic {topic.name!r} exists already; `holdfast topic grow` adds queues")
    return NotAllowed(
        f"static topic {topic.name!r} exists already, but is incomplete: `holdfast queue repair {topic.name}` completes"
        f" it, `holdfast topic delete {topic.name}` deletes it"
    )


async def _require_new(admin: Admin, topic: str, unit: str | None) -> None:
    """Check that no normal topic has the name *topic* in *unit*, or anywhere if *unit* is None.

    Raises:
        NotAllowed: a normal topic has it.
    """
    try:
        found = await admin.access.find_route_and_reports(topic, unit=unit)
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.SYSTEM_BUSY:
            raise
        return  # An incomplete static topic: the caller reports it from the brokers' records.
    if found is not None and not found[1]:
        raise NotAllowed(f"a normal topic {topic!r} exists; `holdfast topic make-static {topic}` turns it into one")


def _show(session: Session, plan: TopicPlan, *texts: str, dry_run: bool, **value: object) -> None:
    preview = preview_queues(plan.topic, plan.before, plan.after)
    skipped = [f"{name} did not get the change: {reason}" for name, reason in plan.skipped.items()]
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
