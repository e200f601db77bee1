"""Names of queues."""

import msgspec

from holdfast.model.queue import MessageQueue


def test_queues_sort_as_every_client_sorts_them():
    """By topic, broker name, number: clients of one group must agree without asking each other."""
    queues = [
        MessageQueue("t", "b", 0),
        MessageQueue("t", "a", 10),
        MessageQueue("s", "z", 5),
        MessageQueue("t", "a", 9),
    ]

    assert sorted(queues) == [queues[2], queues[3], queues[1], queues[0]]


def test_a_queue_is_a_value():
    """Equal queues are one key; on the wire it has upstream's names."""
    assert len({MessageQueue("t", "b", 0), MessageQueue("t", "b", 0)}) == 1
    assert msgspec.json.decode(b'{"brokerName":"b","queueId":3,"topic":"t"}', type=MessageQueue) == MessageQueue(
        "t", "b", 3
    )
