"""Who watches what, and what is left when they go."""

import pytest

from holdfast.machine.events import ChannelId
from holdfast.nameserver.push.watches import Watches

A, B = ChannelId(1), ChannelId(2)


def some_watches(sights: dict[str, int] | None = None, *, per_channel_max: int = 100, total_max: int = 1000) -> Watches:
    """Return watches of topics that look as *sights* say; others do not exist."""
    known = sights if sights is not None else {}
    return Watches(lambda topic, _: known.get(topic, 0), per_channel_max=per_channel_max, total_max=total_max)


def test_watchers_of_a_topic_are_those_who_asked():
    """Each of them once, however often it asks."""
    watches = some_watches()

    for channel, topic in ((A, "orders"), (B, "orders"), (A, "orders"), (A, "bills")):
        assert watches.watch(channel, topic)

    assert set(watches.watchers("orders")) == {A, B}
    assert set(watches.watchers("bills")) == {A}
    assert set(watches.watchers("nothing")) == set()
    assert (len(watches), watches.channel_count, watches.topic_count) == (3, 2, 2)


def test_a_closed_channel_leaves_no_trace():
    """Neither in what it watched with others nor in what it watched alone."""
    watches = some_watches()
    for channel, topic in ((A, "orders"), (B, "orders"), (A, "bills")):
        watches.watch(channel, topic)

    watches.channel_closed(A)

    assert set(watches.watchers("orders")) == {B}
    assert (len(watches), watches.channel_count, list(watches.topics())) == (1, 1, ["orders"])
    watches.channel_closed(B)
    watches.channel_closed(B)
    assert (len(watches), watches.channel_count, watches.topic_count) == (0, 0, 0)


def test_unwatching_takes_away_what_was_watched_and_nothing_else():
    """Names that it does not watch, or nobody does, do not matter."""
    watches = some_watches()
    for channel, topic in ((A, "orders"), (A, "bills"), (B, "mails")):
        watches.watch(channel, topic)

    watches.unwatch(A, ["orders", "mails", "nothing", "orders"])

    assert (set(watches.watchers("orders")), set(watches.watchers("bills"))) == (set(), {A})
    assert set(watches.watchers("mails")) == {B}
    watches.unwatch(A, ["bills"])
    assert (len(watches), watches.channel_count, watches.topic_count) == (1, 1, 1)


def test_a_channel_may_watch_so_many_topics_and_others_are_not_concerned():
    """What it watches already it may ask for again; room is there again when it watches less."""
    watches = some_watches(per_channel_max=2)

    assert [watches.watch(A, topic) for topic in ("t1", "t2", "t3", "t1")] == [True, True, False, True]
    assert watches.watch(B, "t3")
    watches.unwatch(A, ["t1"])
    assert watches.watch(A, "t3")


def test_all_channels_together_may_watch_so_many_topics():
    """Memory has an end, however many connections there are."""
    watches = some_watches(total_max=3)

    assert [watches.watch(ChannelId(number), "orders") for number in range(5)] == [True] * 3 + [False] * 2
    watches.channel_closed(ChannelId(0))
    assert watches.watch(ChannelId(4), "orders")


@pytest.mark.parametrize("topic", ["", "a;b", "x" * 256, "y" * 1_000_000])
def test_what_cannot_be_the_name_of_a_topic_is_not_watched(topic: str):
    """It could not be told, or would be kept for nothing."""
    watches = some_watches()

    assert not watches.watch(A, topic)

    assert (len(watches), watches.channel_count, watches.topic_count) == (0, 0, 0)


def test_only_topics_that_look_different_are_told_and_each_once():
    """A change that alters nothing is none; the second look at the same change is not one either."""
    sights = {"orders": 1, "bills": 1}
    watches = some_watches(sights)
    for topic in ("orders", "bills", "missing"):
        watches.watch(A, topic)
    sights["orders"] = 2
    sights["missing"] = 7
    sights["unwatched"] = 1

    changed = ["orders", "bills", "missing", "unwatched"]

    assert [(topic, set(who)) for topic, who in watches.find_changed(changed)] == [("orders", {A}), ("missing", {A})]
    assert list(watches.find_changed(changed)) == []


def test_a_topic_is_seen_when_its_first_watcher_comes():
    """What changed before that is in the answer that it got."""
    sights = {"orders": 1}
    watches = some_watches(sights)
    watches.watch(A, "orders")
    watches.channel_closed(A)
    sights["orders"] = 2
    watches.watch(B, "orders")

    assert list(watches.find_changed(["orders"])) == []


def test_a_name_is_kept_once_however_many_watch_it():
    """Every request brings a text of its own; ten thousand clients must not keep ten thousand of them."""
    watches = some_watches()
    for number in range(3):
        watches.watch(ChannelId(number), b"orders".decode())

    (name,) = watches.topics()

    assert all(next(iter(mine)) is name for mine in watches._by_channel.values())
