"""The numbers of a broker, read from its rooms when somebody asks.

Labels are names of topics and groups: as many series as a broker has of them, never one per queue or per client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.broker.assembly import Rooms
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.stats import GROUP_GET_NUMS, GROUP_GET_SIZE, SEND_BACK_NUMS, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from holdfast.machine.sample import Sample
from holdfast.store.message_store import MessageStore

# Counter of the statistics -> name and meaning of the metric. Keys with a group in them are `topic@group`.
_BY_TOPIC: Final = {
    TOPIC_PUT_NUMS: ("broker_topic_puts", "Messages taken, by topic."),
    TOPIC_PUT_SIZE: ("broker_topic_put_bytes", "Bytes taken, by topic."),
}
_BY_GROUP: Final = {
    GROUP_GET_NUMS: ("broker_group_gets", "Messages handed out, by topic and group."),
    GROUP_GET_SIZE: ("broker_group_get_bytes", "Bytes handed out, by topic and group."),
    SEND_BACK_NUMS: ("broker_group_send_backs", "Messages that a group failed to consume, by topic and group."),
}


def broker_samples(options: BrokerOptions, store: MessageStore, rooms: Rooms) -> Iterator[Sample]:
    """Return every number of the broker as it is now."""
    labels = {"broker": options.name, "cluster": options.cluster, "flush": options.flush}
    yield Sample("broker_info", "gauge", "Always 1; the labels say who this is.", 1, labels)
    yield from _traffic(rooms)
    yield from _store(store)
    yield from _tables(rooms)
    yield from rooms.replication.samples()
    yield from _lag(rooms)


def _traffic(rooms: Rooms) -> Iterator[Sample]:
    stats = rooms.stats
    yield Sample("broker_puts", "counter", "Messages taken.", stats.puts.value)
    yield Sample("broker_gets", "counter", "Messages handed out.", stats.gets.value)
    yield Sample("broker_pulls_found", "counter", "Pulls that brought something.", stats.pulls_found.value)
    yield Sample("broker_pulls_missed", "counter", "Pulls that brought nothing.", stats.pulls_missed.value)
    yield from _opened(rooms)
    for name, key, counter in stats.all_named():
        if name in _BY_TOPIC:
            metric, about = _BY_TOPIC[name]
            yield Sample(metric, "counter", about, counter.value, {"topic": key})
        elif name in _BY_GROUP:
            metric, about = _BY_GROUP[name]
            topic, _, group = key.partition("@")
            yield Sample(metric, "counter", about, counter.value, {"topic": topic, "group": group})


def _opened(rooms: Rooms) -> Iterator[Sample]:
    """Batches that were opened here: nothing for clients that open them themselves."""
    opened = rooms.opened
    for metric, about, counts in (
        ("broker_batches_opened", "Batches opened here for those who cannot, by reason.", opened.opened),
        ("broker_inflations", "Batches that were uncompressed for that, by reason.", opened.inflated),
        ("broker_batches_unreadable", "Batches that could not be opened, by reason.", opened.unreadable),
    ):
        for reason, count in counts.items():
            yield Sample(metric, "counter", about, count, {"reason": reason})


def _store(store: MessageStore) -> Iterator[Sample]:
    yield Sample("broker_log_start_position", "gauge", "Where the oldest record begins.", store.start)
    yield Sample("broker_log_end_position", "gauge", "Where the next record will begin.", store.written)
    yield Sample("broker_log_unconfirmed_bytes", "gauge", "Written, but not yet confirmed.", store.unconfirmed)
    yield Sample("broker_index_behind_bytes", "gauge", "Not yet seen by the key index.", store.index_behind)
    about = "Behind the checkpoint: read again after a crash."
    yield Sample("broker_checkpoint_behind_bytes", "gauge", about, store.checkpoint_behind)
    yield Sample("broker_disk_used_percent", "gauge", "How full the disk of the store is.", store.disk_use.percent)
    yield Sample(
        "broker_disk_full", "gauge", "1 while writes are refused: the disk is full, or nearly.", store.disk_full
    )
    yield Sample("broker_writable", "gauge", "0 after a disk error, until a restart.", store.writable)


def _tables(rooms: Rooms) -> Iterator[Sample]:
    producing, consuming = rooms.clients.counts()
    yield Sample("broker_topics", "gauge", "Topics, the system's own among them.", len(rooms.topics.all()))
    yield Sample("broker_groups", "gauge", "Consumer groups, the system's own among them.", len(rooms.groups.all()))
    yield Sample("broker_producers", "gauge", "Connections that produce.", producing)
    yield Sample("broker_consumers", "gauge", "Connections that consume.", consuming)
    about = "Configuration files that the disk has no space for."
    yield Sample("broker_unwritten_files", "gauge", about, len(rooms.unwritten))
    yield Sample("broker_parked_pulls", "gauge", "Pulls that wait for messages.", len(rooms.pulls.holds))
    about = "Bytes of unfinished requests and of answers not taken, where a connection holds many."
    yield Sample("broker_held_bytes", "gauge", about, rooms.pressure.held)
    held = sum(
        rooms.relaying.is_held((topic, number))
        for topic in rooms.mappings.topics()
        for number in rooms.mappings.led(topic)
    )
    yield Sample("broker_static_queues_held", "gauge", "Logical queues led here that take nothing just now.", held)
    about = "Sends passed on to the leaders of their logical queues."
    yield Sample("broker_relayed_sends", "counter", about, rooms.relaying.sends_passed_on)
    registered = rooms.registration.is_registered()
    yield Sample("broker_registered", "gauge", "1 while a name server knows this broker.", registered)


def _lag(rooms: Rooms) -> Iterator[Sample]:
    """Return the lag of every group, in the queues that this broker leads and of which it is sure that it does.

    A queue whose lead is being handed over, or has yet to be confirmed after a start, may have its series elsewhere
    already: no two brokers report one queue. A replica reports none.
    """
    if rooms.options.is_replica:
        return
    about = "Messages that a group has not consumed, by topic and group."
    for topic, group in rooms.lags.pairs():
        if rooms.mappings.is_static(topic):
            led = [number for number in rooms.mappings.led(topic) if _is_leader(rooms, topic, number)]
            if not led:
                continue
            found = rooms.lags.logical_queues(group, topic, led)
        else:
            found = rooms.lags.queues(group, topic)
        lag = sum(queue.lag for queue in found)
        yield Sample("broker_group_lag", "gauge", about, lag, {"topic": topic, "group": group})


def _is_leader(rooms: Rooms, topic: str, number: int) -> bool:
    return rooms.mappings.place(topic, number).state == "open" and not rooms.relaying.is_held((topic, number))
