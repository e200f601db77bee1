"""Topic configuration, and the names of system topics.

The JSON names are upstream's, because the same value is stored in `topics.json`, registered and returned to tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntFlag
from functools import lru_cache
from typing import Final, Literal

import msgspec

from holdfast.model.numbers import Int32

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
MAPPING_TOPIC = "SYS_HOLDFAST_MAPPING"
FORWARD_TOPIC = "SYS_HOLDFAST_FORWARDS"
"""The journal of forwarded messages, as `MAPPING_TOPIC` is of logical queues. Not registered; clients read neither."""

# Clients may read these but never write to them: only the broker gives their records meaning.
NOT_SENDABLE_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        MAPPING_TOPIC,
        FORWARD_TOPIC,
    }
)
MIXED_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TOPIC, MAPPING_TOPIC, FORWARD_TOPIC}
)
"""Where the broker keeps messages of all topics."""
SYSTEM_PREFIX = "rmq_sys_"

QUEUE_TYPE = "queue.type"
"""The attribute that selects the index of a topic's queues."""
SIMPLE_QUEUE = "SimpleCQ"
"""One index entry per message: the default."""
BATCH_QUEUE = "BatchCQ"
"""One index entry per record, which may hold a batch."""
IndexName = Literal["simple", "batch"]
QUEUE_TYPES: Final[dict[IndexName, str]] = {"simple": SIMPLE_QUEUE, "batch": BATCH_QUEUE}
"""The kinds of index by the name that users give, the default first. The store lists them in its `index_kinds`."""

LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_LENGTH_MAX = 127
RETRY_TOPIC_LENGTH_MAX = 255


class Permission(IntFlag):
    """The permission for a topic's queues. INHERIT marks the template of automatic creation."""

    INHERIT = 1
    WRITE = 2
    READ = 4


READ_WRITE = Permission.READ | Permission.WRITE


class TopicConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "name": "topicName",
        "read_queues": "readQueueNums",
        "write_queues": "writeQueueNums",
        "permission": "perm",
        "filter_type": "topicFilterType",
        "sys_flag": "topicSysFlag",
    },
):
    """One broker's configuration of a topic."""

    name: str
    read_queues: Int32 = 16
    write_queues: Int32 = 16
    permission: Int32 = int(READ_WRITE)
    filter_type: str = "SINGLE_TAG"
    sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def queue_type(self) -> str:
        """The kind of index of its queues."""
        return find_queue_type(self.attributes)

    @property
    def accepts_batches(self) -> bool:
        """Whether a record of its queues may hold a batch."""
        return self.queue_type == BATCH_QUEUE


def find_queue_type(attributes: Mapping[str, str]) -> str:
    """Return the kind of index that a topic's attributes select."""
    return attributes.get(QUEUE_TYPE, SIMPLE_QUEUE)


def find_index_name(queue_type: str) -> IndexName:
    """Return the name that users give to a kind of index; the default's if there is no such kind."""
    return next((name for name, each in QUEUE_TYPES.items() if each == queue_type), "simple")


def retry_topic(group: str) -> str:
    """Return the topic from which *group* receives the messages that it failed to consume."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic for messages that *group* failed to consume too often."""
    return DEAD_LETTER_PREFIX + group


@lru_cache(maxsize=1024)  # A producer checks the same few names with every message.
def find_name_fault(name: str) -> str | None:
    """Return why *name* cannot be a topic, or None if it can."""
    longest = RETRY_TOPIC_LENGTH_MAX if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else TOPIC_LENGTH_MAX
    if not name:
        return "the name is empty"
    if len(name) > longest:
        return f"the name has {len(name)} characters, at most {longest} are allowed"
    if not LEGAL_NAME.fullmatch(name):
        return f"the name {name!r} may only contain letters, digits, '%', '|', '_' and '-'"
    return None
