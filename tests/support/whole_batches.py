"""Batches as our producer sends them to brokers that keep them whole, put into a real cluster one by one.

A producer decides by itself when a batch is closed. Here a test says what is in it, how it is compressed and where it
goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.support.inner_batches import BATCH_ATTRIBUTES, Item

from holdfast import ClusterClient
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items
from holdfast.wire.requests.send import SendFields

ATTRIBUTES = "".join(f"+{name}={value}" for name, value in BATCH_ATTRIBUTES.items())


def an_inner_batch(topic: str, batch: Sequence[Item], *, codec: Codec | None = None, queue: int = 0) -> Command:
    """Return the request that sends *batch* as one record. The ids of its messages must follow each other."""
    body = encode_items([(item.flag, item.body, item.properties) for item in batch])
    keys = [item.keys for item in batch if item.keys]
    tags = [item.tags for item in batch]
    batch_id = f"{int(batch[0].unique_key, 16) - 1:032X}"
    record = wrap_items(body, len(batch), batch_id, keys=keys, tags=tags, codec=codec, has_sequential_ids=True)
    fields = SendFields(
        producer_group="batches",
        topic=topic,
        queue_id=queue,
        sys_flag=record.sys_flag,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=record.properties,
    )
    return Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=record.body)


def send_commands(namesrv: str, address: str, commands: Sequence[Command]) -> list[Command]:
    """Send requests to a broker, one after the other; return the answers."""

    async def send() -> list[Command]:
        async with ClusterClient(namesrv) as client:
            return [await client.invoke(address, command) for command in commands]

    return asyncio.run(send())
