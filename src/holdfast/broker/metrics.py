"""The metrics of a broker, read at each scrape. Each component yields its own (`metrics()`).

Here are only those of the store and of the process, and the lag of groups, which several components know together.

Labels are names of topics and groups: one series per topic or group, never one per queue or per client.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.broker.assembly import Components
from holdfast.broker.mapping.queue_view import QueueView
from holdfast.broker.options import BrokerOptions
from holdfast.machine.sample import Sample
from holdfast.native import DESCRIPTION
from holdfast.store.message_store import MessageStore


def broker_samples(options: BrokerOptions, store: MessageStore, components: Components) -> Iterator[Sample]:
    """Yield every metric of the broker with its present value."""
    labels = {
        "broker": options.name,
        "cluster": options.cluster,
        "flush": options.flush,
        "accelerator": DESCRIPTION.split()[0],
    }
    yield Sample("broker_info", "gauge", "Always 1; the labels identify the broker.", 1, labels)
    yield from _store(store)
    about = "Bytes of unfinished requests and unread answers, counted on connections that hold many."
    yield Sample("broker_held_bytes", "gauge", about, components.pressure.held)
    yield from components.metrics()
    yield from _lag(components)


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


def _lag(components: Components) -> Iterator[Sample]:
    """Yield the lag of every group, summed over the queues that this broker certainly leads.

    While the lead of a queue is being handed over, or not yet confirmed after a start, another broker may report the
    queue already. Skipping it here ensures that no two brokers report one queue. A replica reports none.
    """
    if components.options.is_replica:
        return
    about = "Messages that a group has not consumed, by topic and group."
    for topic, group in components.lag_calculator.pairs():
        led = [view for view in components.queues.readable(topic) if _is_leader(components, view)]
        if not led:
            continue
        lag = sum(components.lag_calculator.compute(group, view).lag for view in led)
        yield Sample("broker_group_lag", "gauge", about, lag, {"topic": topic, "group": group})


def _is_leader(components: Components, view: QueueView) -> bool:
    return components.queues.is_settled(view) and not components.relay.is_held((view.topic, view.number))
