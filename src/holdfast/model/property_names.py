"""Names of the message properties that the system uses. The texts are upstream's.

Users may choose any other name for theirs. They may not set these, because brokers and consumers act on them.
"""

from __future__ import annotations

from typing import Final

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
UNIQUE_KEY: Final = "UNIQ_KEY"
SHARDING_KEY: Final = "__SHARDINGKEY"
CLUSTER: Final = "CLUSTER"

RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"

TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TIME_TO_LIVE: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"

INNER_COUNT: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_IDS: Final = "INNER_IDS"
"""Ours: says whether the ids of a batch's messages follow the batch's id, one by one, or do not exist."""

RESERVED: Final = frozenset(
    {
        KEYS,
        TAGS,
        WAIT,
        DELAY,
        UNIQUE_KEY,
        SHARDING_KEY,
        CLUSTER,
        RETRY_TOPIC,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        ORIGIN_MESSAGE_ID,
        RECONSUME_TIME,
        MAX_RECONSUME_TIMES,
        TRANSACTION_PREPARED,
        PRODUCER_GROUP,
        TRANSACTION_ID,
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TIME_TO_LIVE,
        MESSAGE_TYPE,
        INNER_COUNT,
        INNER_BASE,
        INNER_IDS,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "MSG_REGION",
        "TRACE_ON",
        "EXTEND_UNIQ_INFO",
        "CONSUME_START_TIME",
        "DUP_INFO",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "INSTANCE_ID",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
    }
)
