"""The plan of a run, drawn from its seed: how large the cluster is, which messages are sent, and which faults occur.

Every run is different. Some are calm, so that no fault can excuse a failure. The others draw only a few kinds of
faults, because a run in which everything breaks at once makes no progress.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal

import msgspec

from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC, MessageMix

FAULTS: Final = (
    "kill",
    "power",
    "stop",
    "relapse",
    "partition",
    "break",
    "weather",
    "slow disk",
    "disk error",
    "clock",
    "name server",
    "client",
)
MOVE_FAULTS: Final = ("ambush", "ambush", "break peers", "force", "detour")
"""Faults that occur only where queues move: they strike the brokers of a move, the messages between brokers and to name
servers, and a leader that is declared dead."""
UNIT_FAULTS: Final = ("sever", "lose unit")
"""Faults that occur only where there are units: they are cut off from each other, or one is lost and comes back."""
DURABILITY_FAULTS: Final = ("power", "slow disk", "kill", "slow disk", "relapse")


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        faults: The kinds of faults; listing a kind twice doubles its frequency. Empty in a calm run.
        fault_pause_ms: The average pause between two faults.
        static: The topics that have logical queues, *queues* of them at first.
        operators: How many operators move queues concurrently.
        operator_pause_ms: The average pause of an operator between two orders.
        old_producers: How many producers do not support mappings.
        old_consumers: How many members of each group do not support mappings.
        growth_enabled: Whether static topics get more queues.
        leases_enabled: Whether leaders of logical queues need leases, and are replaced automatically when these expire.
        resets_enabled: Whether an operator resets the offsets of a group in static topics, forward and back.
        units: The clusters, each with its own static topics, to which brokers and clients are assigned. Empty: all
            brokers form one cluster.
        switch_pause_ms: The average pause of the operator that opens units to each other and closes them.
        auth: Whether servers have access control. Then clients log in; those that support no mappings sign requests.
    """

    name_servers: int = 1
    brokers: int = 2
    flush: Literal["sync", "async"] = "sync"
    queues: int = 2
    log_file_size: int = 64 * 1024
    queue_file_entries: int = 50
    hot_window: int = 1 << 40
    checkpoint_interval_ms: int = 3_000
    producers: int = 2
    concurrent_consumers: int = 2
    ordered_consumers: int = 2
    messages: int = 150
    storm_ms: int = 60_000
    faults: tuple[str, ...] = ()
    fault_pause_ms: int = 4_000
    message_mix: MessageMix = MessageMix()
    static: tuple[str, ...] = ()
    operators: int = 0
    operator_pause_ms: int = 3_000
    old_producers: int = 0
    old_consumers: int = 0
    growth_enabled: bool = False
    leases_enabled: bool = False
    resets_enabled: bool = False
    units: tuple[str, ...] = ()
    switch_pause_ms: int = 6_000
    auth: bool = False


def draw_plan(rng: Random) -> RunPlan:
    """Draw the plan of a run."""
    faults = _draw_faults(rng)
    plan = RunPlan(
        name_servers=rng.choice((1, 1, 2)),
        brokers=rng.choice((1, 2, 2, 3)),
        flush="sync" if rng.random() < 0.75 else "async",
        queues=rng.randint(1, 4),
        log_file_size=rng.choice((16, 32, 64, 256)) * 1024,
        queue_file_entries=rng.choice((10, 50, 300)),
        hot_window=rng.choice((0, 8 * 1024, 1 << 40)),
        producers=rng.randint(1, 3),
        concurrent_consumers=rng.randint(1, 3),
        ordered_consumers=rng.randint(1, 3),
        messages=rng.choice((60, 150, 300, 500)),
        storm_ms=rng.choice((20_000, 40_000, 80_000)),
        faults=faults,
        fault_pause_ms=rng.choice((1_500, 4_000, 8_000)),
        message_mix=MessageMix(
            delayed=rng.choice((0.0, 0.15)),
            transactions=rng.choice((0.0, 0.2)),
            failing=rng.choice((0.0, 0.1)),
            poisoned=rng.choice((0.0, 0.02)),
            batches=rng.choice((0.0, 0.1)),
            size_max=rng.choice((100, 600, 2000)),
        ),
    )
    if rng.random() < 0.5:
        plan = _draw_leases(_draw_static(plan, rng), rng)
        plan = msgspec.structs.replace(plan, resets_enabled=rng.random() < 0.3)
    plan = _draw_units(_draw_inner_batches(plan, rng), rng)
    return msgspec.structs.replace(plan, auth=rng.random() < 0.2)


def _draw_static(plan: RunPlan, rng: Random) -> RunPlan:
    """Return the plan with logical queues, and operators that move them."""
    faults = plan.faults
    if faults:
        faults += tuple(rng.sample(MOVE_FAULTS, rng.randint(0, 3)))
    old_producers = rng.choice((0, 0, 0, 1, plan.producers))
    old_consumers = rng.choice((0, 0, 0, 1))
    message_mix = plan.message_mix
    if old_producers:
        # The leader of a queue stores its half messages, and only that broker can ask their sender.
        message_mix = msgspec.structs.replace(message_mix, transactions=0.0)
    if old_consumers:
        message_mix = msgspec.structs.replace(message_mix, failing=0.0, poisoned=0.0)
    return msgspec.structs.replace(
        plan,
        brokers=max(2, plan.brokers),
        # Async flush permits losses that would hide the losses of a move.
        flush="sync" if rng.random() < 0.7 else plan.flush,
        faults=faults,
        static=rng.choice(((PLAIN_TOPIC, ORDERED_TOPIC), (PLAIN_TOPIC, ORDERED_TOPIC), (ORDERED_TOPIC,))),
        queues=rng.randint(2, 6),
        operators=rng.choice((1, 1, 2)),
        operator_pause_ms=rng.choice((800, 2_000, 5_000)),
        old_producers=old_producers,
        old_consumers=old_consumers,
        growth_enabled=rng.random() < 0.3,
        message_mix=message_mix,
    )


def _draw_inner_batches(plan: RunPlan, rng: Random) -> RunPlan:
    """Return the plan, in some runs with batches that are kept whole and consumers that cannot unpack them."""
    if not plan.message_mix.batches or rng.random() < 0.6:
        return plan
    message_mix = msgspec.structs.replace(plan.message_mix, uses_inner_batches=True, batches=rng.choice((0.1, 0.4)))
    old_consumers = plan.old_consumers if plan.static else rng.choice((0, 1))
    return msgspec.structs.replace(plan, message_mix=message_mix, old_consumers=old_consumers)


def _draw_units(plan: RunPlan, rng: Random) -> RunPlan:
    """Return the plan, in some runs with static topics split into two units: each has brokers and clients."""
    units = rng.choice(((), ("east", "west"), (), ()))
    if not plan.static or not units:
        return plan
    return msgspec.structs.replace(
        plan,
        units=units,
        switch_pause_ms=rng.choice((3_000, 6_000, 12_000)),
        static=(PLAIN_TOPIC, ORDERED_TOPIC),
        brokers=rng.choice((2, 3, 4)),
        faults=plan.faults + UNIT_FAULTS[: rng.randint(0, 2)] if plan.faults else (),
        producers=max(2, plan.producers),
        concurrent_consumers=max(2, plan.concurrent_consumers),
        ordered_consumers=max(2, plan.ordered_consumers),
        # Old consumers do not unregister: a queue would wait for them longer than a run.
        old_consumers=0,
        resets_enabled=False,
    )


def _draw_leases(plan: RunPlan, rng: Random) -> RunPlan:
    """Return the plan, in some runs with leases, and often with enough name servers that a majority is not all."""
    if rng.random() < 0.7:
        return plan
    return msgspec.structs.replace(plan, leases_enabled=True, name_servers=rng.choice((1, 2, 3, 3)))


def _draw_faults(rng: Random) -> tuple[str, ...]:
    """Return the kinds of faults of a run: none, those that threaten durability, or a few of any kind."""
    draw = rng.random()
    if draw < 0.1:
        return ()
    if draw < 0.4:
        return (*DURABILITY_FAULTS, *rng.sample(FAULTS, rng.randint(0, 2)))
    return tuple(rng.sample(FAULTS, rng.randint(1, 5)))
