"""Builds the requests that announce a client to brokers, every 30 seconds and on every change, and unregister it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.model.group import Subscription
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
    ProducerData,
    UnregisterFields,
)

INTERVAL_MS: Final = 30_000


def heartbeat_command(client_id: str, *, producer: str | None = None, consumer: ConsumerData | None = None) -> Command:
    """Return the heartbeat that announces this client to a broker."""
    beat = Heartbeat(
        client_id=client_id,
        producer_data_set=[] if producer is None else [ProducerData(producer)],
        consumer_data_set=[] if consumer is None else [consumer],
    )
    return Command(code=RequestCode.HEART_BEAT, fields={MAPPING_FIELD: "1"}, body=java_json.encode(beat))


def unregister_command(client_id: str, *, producer: str | None = None, consumer: str | None = None) -> Command:
    """Return the request that unregisters this client at a broker."""
    fields = UnregisterFields(client_id=client_id, producer_group=producer, consumer_group=consumer)
    return Command(code=RequestCode.UNREGISTER_CLIENT, fields=to_fields(fields))


def consumer_data(
    group: str,
    subscriptions: Iterable[Subscription],
    *,
    is_push: bool,
    is_broadcast: bool,
    start: ConsumeFromWhere,
) -> ConsumerData:
    """Return the part of a heartbeat that describes a consumer."""
    kind = ConsumeType.CONSUME_PASSIVELY if is_push else ConsumeType.CONSUME_ACTIVELY
    model = MessageModel.BROADCASTING if is_broadcast else MessageModel.CLUSTERING
    return ConsumerData(
        group_name=group,
        consume_type=kind.name,
        message_model=model.name,
        consume_from_where=start.name,
        subscription_data_set=list(subscriptions),
    )
