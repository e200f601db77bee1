"""What holds a broker, and its removal."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.cluster_access import NotAllowed
from holdfast.admin.draining import Draining, RemovalBlocker, blocker_text, latest_end_ms
from holdfast.admin.static_topics import StaticTopics
from holdfast.admin.topics import Topics
from holdfast.model.mapping import new_logical_queue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.moves import Move

HOUR_MS = 3_600_000


async def no_pause(seconds: float) -> None:
    """Do not wait."""
    del seconds


def draining_of(cluster: ScriptedTopics) -> Draining:
    return Draining(cluster, StaticTopics(cluster), Topics(cluster), sleep=no_pause)


async def holds(cluster: ScriptedTopics, broker: str = "a") -> list[RemovalBlocker]:
    return await draining_of(cluster).find_blockers(broker)


def a_drained_cluster(*, end: int = 50) -> ScriptedTopics:
    """Queue 0 was on a, with 50 records until hour 10, and is on b now."""
    cluster = ScriptedTopics()
    moved = new_logical_queue(0, "a", 0).prepare("b", 0).seal(end, 10 * HOUR_MS).open_next()
    cluster.put_queues("t", [moved])
    return cluster


async def test_an_empty_broker_is_removable():
    """It leads nothing, nothing of its own is readable, nothing waits."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "b"})

    assert await holds(cluster) == []


async def test_queues_that_it_leads_hold_it():
    """And moves that are not over."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a", 1: "a"})
    cluster.moves["a"] = [Move(id="m", topic="t", queues=[1], source="a", target="b", state="planned")]

    assert [(hold.kind, hold.count) for hold in await holds(cluster)] == [("leads", 2), ("move", 1)]


async def test_old_homes_hold_it_until_retention_ends():
    """72 hours after the last record, as its settings say."""
    (hold,) = await holds(a_drained_cluster())

    assert (hold.kind, hold.count, hold.until_ms) == ("records", 50, 82 * HOUR_MS)
    assert latest_end_ms([hold]) == 82 * HOUR_MS


async def test_an_end_that_nobody_knows_holds_it():
    """Retention does not help there: the remedy is another."""
    cluster = ScriptedTopics()
    cluster.put_queues("t", [new_logical_queue(0, "a", 0).force("b", 0)])

    (hold,) = await holds(cluster)

    assert (hold.until_ms, latest_end_ms([hold])) == (None, None)
    assert "holdfast queue abandon t" in hold.remedy


async def test_what_waits_inside_holds_it():
    """Delayed, half, retried and dead-lettered messages, each counted from where it was taken care of."""
    cluster = ScriptedTopics(delays={3: 7})
    cluster.put_normal("%RETRY%g", {"a": 1})
    cluster.put_normal("%DLQ%g", {"a": 1})
    cluster.stats["a", "SCHEDULE_TOPIC_XXXX"] = [(2, 0, 10), (4, 5, 6)]
    cluster.stats["a", "RMQ_SYS_TRANS_HALF_TOPIC"] = [(0, 0, 9)]
    cluster.offsets["a", "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0] = 5
    cluster.stats["a", "%RETRY%g"] = [(0, 2, 12)]
    cluster.offsets["a", "g", "%RETRY%g", 0] = 11
    cluster.stats["a", "%DLQ%g"] = [(0, 0, 3)]

    found = {hold.kind: hold.count for hold in await holds(cluster)}

    assert found == {"delayed": 4, "half": 4, "retry": 1, "dead-letter": 3}


async def test_a_normal_topic_holds_it():
    """While it may be written; then until its records are gone; an empty read-only one does not."""
    cluster = ScriptedTopics()
    cluster.put_normal("plain", {"a": 4})
    writable = await holds(cluster)
    cluster.configs["a"]["plain"] = msgspec.structs.replace(cluster.configs["a"]["plain"], permission=4)
    empty = await holds(cluster)
    cluster.stats["a", "plain"] = [(0, 0, 8)]
    full = await holds(cluster)

    assert [(hold.kind, hold.until_ms) for hold in writable] == [("topic", None)]
    assert "--permission r" in writable[0].remedy
    assert empty == []
    assert [(hold.count, hold.until_ms) for hold in full] == [(8, 5000 + 72 * HOUR_MS)]


async def test_waiting_ends_when_nothing_holds_it():
    """Each change is told once."""
    cluster = a_drained_cluster()
    told: list[int] = []

    def tell(now: Sequence[RemovalBlocker]) -> None:
        told.append(len(now))
        record = cluster.records["b"]["t"]
        expired = record.queues[0].expire(0, 0)
        cluster.records["b"]["t"] = record.with_queues(expired)

    await draining_of(cluster).wait_until_removable("a", tell)

    assert told == [1, 0]


async def test_what_groups_consume_while_somebody_waits_is_discarded():
    """Nobody waits for the retention because a group was a little behind when the waiting began."""
    cluster = a_drained_cluster()
    told: list[int] = []

    def tell(now: Sequence[RemovalBlocker]) -> None:
        told.append(len(now))
        cluster.offsets["b", "slow", "t", 0] = 50

    dropped = await draining_of(cluster).wait_until_removable("a", tell, groups=["slow"])

    assert told == [1, 0]
    assert [(home.topic, home.queue, home.last) for home in dropped] == [("t", 0, 50)]


async def test_consumed_homes_are_discarded_at_the_leader_first():
    """Then clients read them no more before the records go; what a group still needs is kept, with the reason."""
    cluster = a_drained_cluster()
    cluster.offsets["b", "fast", "t", 0] = 60
    cluster.offsets["b", "slow", "t", 0] = 49

    assert await draining_of(cluster).discard_consumed("a", []) == ([], [])
    _, kept = await draining_of(cluster).discard_consumed("a", ["fast", "slow"])
    _, unknown = await draining_of(cluster).discard_consumed("a", ["never"])
    foreseen, _ = await draining_of(cluster).discard_consumed("a", ["fast"], dry_run=True)
    assert cluster.requests_of(RequestCode.DISCARD_SEGMENTS) == []
    dropped, _ = await draining_of(cluster).discard_consumed("a", ["fast"])

    assert (kept[0].kept_for, unknown[0].kept_for) == (
        "slow is at 49, the segment ends at 50",
        "never has not consumed it",
    )
    assert foreseen == dropped
    assert [asked.address for asked in cluster.requests_of(RequestCode.DISCARD_SEGMENTS)] == ["b:1", "a:1"]
    assert await holds(cluster) == []


async def test_a_broker_that_is_needed_is_not_removed():
    """The text says for what, and which command ends it."""
    with pytest.raises(NotAllowed, match=r"still needed: 50 messages of t .*holdfast broker drain a --wait"):
        await draining_of(a_drained_cluster()).remove("a")


async def test_a_removed_broker_is_forgotten_everywhere():
    """By the others first, then by the name servers. It keeps its own records: stale clients may still ask it."""
    cluster = a_drained_cluster()
    for name in ("a", "b"):
        record = cluster.records[name]["t"]
        cluster.records[name]["t"] = record.with_queues(record.queues[0].expire(0, 0))

    forgot = await draining_of(cluster).remove("a")

    assert forgot == ["b"]
    assert [home.broker for home in cluster.records["b"]["t"].queues[0].segments] == ["b"]
    assert cluster.records["a"].keys() == {"t"}  # it still passes on what stale clients send
    order = [asked.code for asked in cluster.requests][-2:]
    assert order == [RequestCode.FORGET_BROKER, RequestCode.UNREGISTER_BROKER]


async def test_a_dead_broker_is_removed_only_by_force():
    """What waited in it is given up; what others know of it still counts."""
    cluster = a_drained_cluster()
    cluster.kill("a")

    with pytest.raises(NotAllowed, match="give them up with --force"):
        await draining_of(cluster).remove("a")
    with pytest.raises(NotAllowed, match="50 messages of t"):
        await draining_of(cluster).remove("a", force=True)
    with pytest.raises(NotAllowed, match="is unknown"):
        await holds(cluster)


async def test_the_last_broker_is_not_removed():
    """Though nothing holds it."""
    with pytest.raises(NotAllowed, match="only broker"):
        await draining_of(ScriptedTopics(brokers_by_name={"a": "a:1"})).remove("a")


@pytest.mark.parametrize("kind", ["leads", "move", "records", "delayed", "half", "retry", "dead-letter", "topic"])
def test_every_hold_has_words(kind: str):
    """A number and a name."""
    text = blocker_text(RemovalBlocker(kind=kind, name="x", count=1234, remedy=""))

    assert "1,234" in text
    assert "x" in text
