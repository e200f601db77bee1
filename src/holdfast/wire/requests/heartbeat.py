"""Client liveness and groups: heartbeats (34), unregistration (35), membership (38, 40), subscription checks (46)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.group import Subscription
from holdfast.wire.frames import java_json

CAPABILITIES_FIELD: Final = "capabilities"
"""In the answer to a heartbeat: optional features that the broker supports, joined with commas."""
INNER_BATCH_CAPABILITY: Final = "innerBatch"
"""The feature of storing a batch as one record, in topics that are indexed by batch."""


class ConsumeType(IntEnum):
    """How a group receives its messages. The order is upstream's: some clients send the number."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class MessageModel(IntEnum):
    """Whether each message goes to one member or to all. The order is upstream's."""

    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(IntEnum):
    """Where a group without committed offsets begins. The order is upstream's."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


class ProducerData(msgspec.Struct, frozen=True, rename="camel"):
    """A producer group of the client."""

    group_name: str


class ConsumerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A consumer group of the client. Enum values are sent by name."""

    group_name: str
    consume_type: str = ConsumeType.CONSUME_PASSIVELY.name
    message_model: str = MessageModel.CLUSTERING.name
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET.name
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A client with all of its groups."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class UnregisterFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 35. Names one of the groups; the other is absent or empty."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 38, 40, 203 and others that name a group."""

    consumer_group: str


class ConsumerList(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 38."""

    consumer_id_list: list[str]


class ClientConfigCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of 46: asks whether this subscription is valid."""

    client_id: str
    group: str
    subscription_data: Subscription
    namespace: str | None = None


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Decode a heartbeat of any client: enums may be names or numbers, members may be absent.

    Raises:
        RemoteProtocolError: the body does not have the shape of a heartbeat.
    """
    data = java_json.loads(body)
    if not isinstance(data, dict):
        raise RemoteProtocolError("a heartbeat must be an object")
    for consumer in _objects(data.get("consumerDataSet")):
        _name_enums(consumer)
    try:
        return msgspec.convert({key: item for key, item in data.items() if item is not None}, Heartbeat, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"heartbeat cannot be read: {error}") from error


def _name_enums(consumer: dict[str, Any]) -> None:
    """Replace the enum numbers that C++ clients send by the names that Java sends."""
    kinds: tuple[tuple[str, type[IntEnum]], ...] = (
        ("consumeType", ConsumeType),
        ("messageModel", MessageModel),
        ("consumeFromWhere", ConsumeFromWhere),
    )
    for key, kind in kinds:
        number = consumer.get(key)
        if isinstance(number, int):
            if number not in set(kind):
                raise RemoteProtocolError(f"{key} {number} is unknown")
            consumer[key] = kind(number).name
    for subscription in _objects(consumer.get("subscriptionDataSet")):
        for key in [key for key, item in subscription.items() if item is None]:
            del subscription[key]


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; the decoder refuses any other value later."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
