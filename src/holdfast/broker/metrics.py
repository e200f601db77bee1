"""The metrics of a broker, read from its components at each scrape.

Labels are names of topics and groups: one series per topic or group, never one per queue or per client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.broker.assembly import Components
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.stats import GROUP_GET_NUMS, GROUP_GET_SIZE, SEND_BACK_NUMS, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from holdfast.machine.sample import Sample
from holdfast.store.message_store import MessageStore

# Counter of the statistics -> name and help text of the metric. Keys that contain a group have the form `topic@group`.
_BY_TOPIC: Final = {
    TOPIC_PUT_NUMS: ("broker_topic_puts", "Messages stored, by topic."),
    TOPIC_PUT_SIZE: ("broker_topic_put_bytes", "Bytes stored, by topic."),
}
_BY_GROUP: Final = {
    GROUP_GET_NUMS: ("broker_group_gets", "Messages delivered, by topic and group."),
    GROUP_GET_SIZE: ("broker_group_get_bytes", "Bytes delivered, by topic and group."),
    SEND_BACK_NUMS: ("broker_group_send_backs", "Messages that a group failed to consume, by topic and group."),
}


def broker_samples(options: BrokerOptions, store: MessageStore, components: Components) -> Iterator[Sample]:
    """Yield every metric of the broker with its present value."""
    labels = {"broker": options.name, "cluster": options.cluster, "flush": options.flush}
    yield Sample("broker_info", "gauge", "Always 1; the labels identify the broker.", 1, labels)
    yield from _traffic(components)
    yield from _store(store)
    yield from _tables(components)
    yield from components.replica_report.samples()
    yield from _lag(components)


def _traffic(components: Components) -> Iterator[Sample]:
    stats = components.stats
    yield Sample("broker_puts", "counter", "Messages stored.", stats.puts.value)
    yield Sample("broker_gets", "counter", "Messages delivered.", stats.gets.value)
    yield Sample("broker_pulls_found", "counter", "Pulls that returned messages.", stats.pulls_found.value)
    yield Sample("broker_pulls_missed", "counter", "Pulls that returned no message.", stats.pulls_missed.value)
    yield from _unpacked_batches(components)
    for name, key, counter in stats.all_named():
        if name in _BY_TOPIC:
            metric, about = _BY_TOPIC[name]
            yield Sample(metric, "counter", about, counter.value, {"topic": key})
        elif name in _BY_GROUP:
            metric, about = _BY_GROUP[name]
            topic, _, group = key.partition("@")
            yield Sample(metric, "counter", about, counter.value, {"topic": topic, "group": group})


def _unpacked_batches(components: Components) -> Iterator[Sample]:
    """Yield the counts of batches that this broker unpacked for clients that cannot."""
    batch_cache = components.batch_cache
    for metric, about, counts in (
        (
            "broker_batches_opened",
            "Batches unpacked by the broker for clients that cannot, by reason.",
            batch_cache.unpacked,
        ),
        ("broker_inflations", "Batches decompressed in order to unpack them, by reason.", batch_cache.inflated),
        ("broker_batches_unreadable", "Batches that could not be unpacked, by reason.", batch_cache.unreadable),
    ):
        for reason, count in counts.items():
            yield Sample(metric, "counter", about, count, {"reason": reason})


def _store(store: MessageStore) -> Iterator[Sample]:
    yield Sample("broker_log_start_position", "gauge", "Position of the oldest record.", store.start)
    yield Sample("broker_log_end_position", "gauge", "Position of the next record.", store.written)
    yield Sample(
        "broker_log_unconfirmed_bytes", "gauge", "Bytes written but not yet confirmed.", store.unconfirmed_bytes
    )
    yield Sample(
        "broker_index_behind_bytes",
        "gauge",
        "Bytes of the log that the key index has yet to process.",
        store.index_lag_bytes,
    )
    about = "Bytes of the log after the checkpoint: a start after a crash reads them again."
    yield Sample("broker_checkpoint_behind_bytes", "gauge", about, store.checkpoint_lag_bytes)
    yield Sample(
        "broker_disk_used_percent", "gauge", "Used space on the disk of the store, in percent.", store.disk_use.percent
    )
    yield Sample(
        "broker_disk_full",
        "gauge",
        "1 while writes are refused because the disk is full or nearly full.",
        store.is_disk_full,
    )
    yield Sample("broker_writable", "gauge", "0 after a disk error, until a restart.", store.is_writable)


def _tables(components: Components) -> Iterator[Sample]:
    producing, consuming = components.clients.count_channels()
    yield Sample("broker_topics", "gauge", "Topics, including system topics.", len(components.topics.all()))
    yield Sample("broker_groups", "gauge", "Consumer groups, including system groups.", len(components.groups.all()))
    yield Sample("broker_producers", "gauge", "Producer connections.", producing)
    yield Sample("broker_consumers", "gauge", "Consumer connections.", consuming)
    about = "Configuration files that could not be written because the disk is full."
    yield Sample("broker_unwritten_files", "gauge", about, len(components.unwritten_files))
    yield Sample(
        "broker_parked_pulls", "gauge", "Pulls parked until messages arrive.", len(components.pull_handler.parked_pulls)
    )
    about = "Bytes of unfinished requests and unread answers, counted on connections that hold many."
    yield Sample("broker_held_bytes", "gauge", about, components.pressure.held)
    held = sum(
        components.relay.is_held((topic, number))
        for topic in components.mappings.topics()
        for number in components.mappings.led_queues(topic)
    )
    yield Sample(
        "broker_static_queues_held", "gauge", "Logical queues led here that accept no sends at the moment.", held
    )
    about = "Sends relayed to the leaders of their logical queues."
    yield Sample("broker_relayed_sends", "counter", about, components.relay.relayed_sends)
    registered = components.registration.is_registered()
    yield Sample("broker_registered", "gauge", "1 while this broker is registered at a name server.", registered)


def _lag(components: Components) -> Iterator[Sample]:
    """Yield the lag of every group, summed over the queues that this broker certainly leads.

    While the lead of a queue is being handed over, or not yet confirmed after a start, another broker may report the
    queue already. Skipping it here ensures that no two brokers report one queue. A replica reports none.
    """
    if components.options.is_replica:
        return
    about = "Messages that a group has not consumed, by topic and group."
    for topic, group in components.lag_calculator.pairs():
        if components.mappings.is_static(topic):
            led = [number for number in components.mappings.led_queues(topic) if _is_leader(components, topic, number)]
            if not led:
                continue
            found = components.lag_calculator.logical_queues(group, topic, led)
        else:
            found = components.lag_calculator.queues(group, topic)
        lag = sum(queue.lag for queue in found)
        yield Sample("broker_group_lag", "gauge", about, lag, {"topic": topic, "group": group})


def _is_leader(components: Components, topic: str, number: int) -> bool:
    return components.mappings.placement(topic, number).state == "open" and not components.relay.is_held(
        (topic, number)
    )
