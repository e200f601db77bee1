"""Names of queues."""

import msgspec

from holdfast.model.queue import MessageQueue


def test_queues_sort_as_every_client_sorts_them():
    """By topic, broker name, number: clients of one group must agree without asking each other."""
    parts = [("t", "b", 0), ("t", "a", 10), ("s", "z", 5), ("t", "a", 9)]

    assert sorted(MessageQueue(*part) for part in parts) == [MessageQueue(*part) for part in sorted(parts)]


def test_a_queue_is_a_value():
    """Equal queues are one key; on the wire it has upstream's names."""
    assert len({MessageQueue("t", "b", 0), MessageQueue("t", "b", 0)}) == 1
    body = b'{"brokerName":"b","queueId":3,"topic":"t"}'
    assert msgspec.json.decode(body, type=MessageQueue) == MessageQueue("t", "b", 3)
