"""The table of the kinds of index. A new kind is a module with a subclass of `QueueIndex`, and an entry in `KINDS`.

    queue.type    folder               entries
    SimpleCQ      consumequeue         by message: the default
    BatchCQ       batchconsumequeue    by record

A topic has one kind, chosen by its attribute `queue.type`. `model.topic.QUEUE_TYPES` has the names that users give.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from holdfast.store.queues.batch_consume_queue import RecordIndex
from holdfast.store.queues.consume_queue import MessageIndex
from holdfast.store.queues.queue_index import QueueIndex

IndexKind: TypeAlias = type[QueueIndex]

KINDS: Final[tuple[IndexKind, ...]] = (MessageIndex, RecordIndex)
"""The default comes first."""
DEFAULT_KIND: Final = KINDS[0]
_BY_TYPE: Final = {kind.queue_type: kind for kind in KINDS}


def find_kind(queue_type: str | None) -> IndexKind:
    """Return the kind that a topic's attribute `queue.type` selects: the default if the type is missing or unknown."""
    return DEFAULT_KIND if queue_type is None else _BY_TYPE.get(queue_type, DEFAULT_KIND)
