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
from holdfast.wire.requests.heartbeat import INNER_BATCH_CAPABILITY

_PATIENCE_S: Final = 1.0


class InnerBatchSupport:
    """The support for whole batches, as one producer knows it, by topic and broker.

    Args:
        client: The connection to the cluster; knows the capabilities of brokers.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._supported: dict[tuple[str, str], bool] = {}  # by topic and address
        self._queries: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def is_supported(self, topic: str, address: str) -> bool:
        """Return whether the broker at *address* stores batches of *topic* whole. Ask it first if that is unknown."""
        key = (topic, address)
        if key not in self._supported:
            query = self._queries.get(key)
            if query is None:
                query = self._queries[key] = self._client.spawn(self._update(topic, address))
            await asyncio.wait({query}, timeout=_PATIENCE_S)
            if not query.done():
                self._supported[key] = False
        return self._supported.get(key, False)

    def mark_unsupported(self, topic: str, address: str) -> None:
        """Record that a broker refused a whole batch: it gets no more of them."""
        self._supported[topic, address] = False

    def forget(self, topics: Iterable[str]) -> None:
        """Discard the state of *topics*."""
        gone = {*topics}
        self._supported = {key: supported for key, supported in self._supported.items() if key[0] not in gone}

    def forget_broker(self, address: str) -> None:
        """Discard the state of a broker that disconnected: a different broker may return at its address.

        Answers of the old one that are still in flight are ignored.
        """
        self._supported = {key: supported for key, supported in self._supported.items() if key[1] != address}
        self._queries = {key: query for key, query in self._queries.items() if key[1] != address}

    async def _update(self, topic: str, address: str) -> None:
        key = (topic, address)
        is_supported = await self._query(topic, address)
        if self._queries.get(key) is not asyncio.current_task():
            return  # The broker that was asked has disconnected.
        del self._queries[key]
        if is_supported is None:
            self._supported.pop(key, None)
        else:
            self._supported[key] = is_supported

    async def _query(self, topic: str, address: str) -> bool | None:
        """Ask the broker at *address* whether it stores batches whole; return None if it may know later."""
        command = Command(code=RequestCode.GET_TOPIC_CONFIG, fields={"topic": topic})
        try:
            if not self._client.capabilities_of(address):
                await self._client.beat_one(address)
            if INNER_BATCH_CAPABILITY not in self._client.capabilities_of(address):
                return False
            answer = await self._client.invoke(address, command)
            return java_json.decode(answer.body, TopicConfig).accepts_batches
        except BrokerRefused as error:
            return None if error.code == ResponseCode.TOPIC_NOT_EXIST else False
        except HoldfastError:
            return None
