"""Who keeps a batch whole: brokers that say so, in topics that are indexed by batch.

    answer to a heartbeat   capabilities=innerBatch,...     the broker can
    answer to 351           queue.type=BatchCQ              the topic is made for it

Whoever does not say so gets batches that any broker takes. The first batch of a topic to a broker waits for its
answers, but not for long: one that does not answer does not keep it whole, until it does. This is the only place that
decides; senders ask it before each attempt, because another attempt may go to another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.model.errors import BrokerRefused, HoldfastError
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.heartbeat import KEEPS_BATCHES_WHOLE

_PATIENCE_S: Final = 1.0


class WholeBatches:
    """What one producer knows about brokers and topics.

    Args:
        client: The way to them; it heard what they can.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], bool] = {}  # by topic and address
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def find_out(self, topic: str, address: str) -> bool:
        """Say whether the broker at *address* keeps batches of *topic* whole; asks, and waits, if nobody knows."""
        place = (topic, address)
        if place not in self._kinds:
            asking = self._asking.get(place)
            if asking is None:
                asking = self._asking[place] = self._client.spawn(self._ask(topic, address))
            await asyncio.wait({asking}, timeout=_PATIENCE_S)
            if not asking.done():
                self._kinds[place] = False
        return self._kinds.get(place, False)

    def refused(self, topic: str, address: str) -> None:
        """Take note that a broker did not take a whole batch: it gets no more of them."""
        self._kinds[topic, address] = False

    def forget(self, topics: Iterable[str]) -> None:
        """Keep nothing about *topics*."""
        gone = {*topics}
        self._kinds = {place: known for place, known in self._kinds.items() if place[0] not in gone}

    def forget_broker(self, address: str) -> None:
        """Keep nothing about a broker that went away: another one may come back.

        Answers of the old one that are still on their way to us count for nothing.
        """
        self._kinds = {place: known for place, known in self._kinds.items() if place[1] != address}
        self._asking = {place: asking for place, asking in self._asking.items() if place[1] != address}

    async def _ask(self, topic: str, address: str) -> None:
        place = (topic, address)
        is_whole = await self._hear(topic, address)
        if self._asking.get(place) is not asyncio.current_task():
            return  # The broker that was asked is gone.
        del self._asking[place]
        if is_whole is None:
            self._kinds.pop(place, None)
        else:
            self._kinds[place] = is_whole

    async def _hear(self, topic: str, address: str) -> bool | None:
        """Ask the broker at *address*; None when it may know later."""
        command = Command(code=RequestCode.GET_TOPIC_CONFIG, fields={"topic": topic})
        try:
            if not self._client.capabilities_of(address):
                await self._client.beat_one(address)
            if KEEPS_BATCHES_WHOLE not in self._client.capabilities_of(address):
                return False
            answer = await self._client.invoke(address, command)
            return java_json.decode(answer.body, TopicConfig).has_batch_index
        except BrokerRefused as error:
            return None if error.code == ResponseCode.TOPIC_NOT_EXIST else False
        except HoldfastError:
            return None
