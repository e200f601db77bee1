"""Finds out which brokers store the batches of a topic whole: both the broker and the topic must support it.

    answer to a heartbeat   capabilities=innerBatch,...     the broker supports it
    answer to 351           queue.type=BatchCQ              the topic is indexed by batch

All other brokers get batches in the form that every broker accepts. The first batch of a topic to a broker waits for
these answers, but not for long: without an answer the producer assumes no support until the answer arrives. Only this
module decides. Senders ask it before each attempt, because another attempt may go to another broker.
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
    """The support for whole batches, as one producer knows it, by topic and broker.

    Args:
        client: The connection to the cluster; knows the capabilities of brokers.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], bool] = {}  # by topic and address
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def find_out(self, topic: str, address: str) -> bool:
        """Return whether the broker at *address* stores batches of *topic* whole. Ask it first if that is unknown."""
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
        """Record that a broker refused a whole batch: it gets no more of them."""
        self._kinds[topic, address] = False

    def forget(self, topics: Iterable[str]) -> None:
        """Discard the state of *topics*."""
        gone = {*topics}
        self._kinds = {place: known for place, known in self._kinds.items() if place[0] not in gone}

    def forget_broker(self, address: str) -> None:
        """Discard the state of a broker that disconnected: a different broker may return at its address.

        Answers of the old one that are still in flight are ignored.
        """
        self._kinds = {place: known for place, known in self._kinds.items() if place[1] != address}
        self._asking = {place: asking for place, asking in self._asking.items() if place[1] != address}

    async def _ask(self, topic: str, address: str) -> None:
        place = (topic, address)
        is_whole = await self._query(topic, address)
        if self._asking.get(place) is not asyncio.current_task():
            return  # The broker that was asked has disconnected.
        del self._asking[place]
        if is_whole is None:
            self._kinds.pop(place, None)
        else:
            self._kinds[place] = is_whole

    async def _query(self, topic: str, address: str) -> bool | None:
        """Ask the broker at *address* whether it stores batches whole; return None if it may know later."""
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
