"""Who keeps a batch whole: brokers that say so, in topics that are indexed by batch.

    answer to a heartbeat   capabilities=innerBatch,...     the broker can
    answer to 351           queue.type=BatchCQ              the topic is made for it

Whoever does not say so gets batches that any broker takes, and so does everybody until they have been asked: only who
sends much at once waits for the answer (`find_out`). This is the only place that decides; senders ask it before each
attempt, because another attempt may go to another broker.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.client.cluster_client import ClusterClient
from holdfast.model.errors import BrokerRefused, HoldfastError
from holdfast.model.topic import TopicConfig
from holdfast.wire import java_json
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import Command
from holdfast.wire.heartbeat import KEEPS_BATCHES_WHOLE


class WholeBatches:
    """What one producer knows about brokers and topics.

    Args:
        client: The way to them; it heard what they can.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], bool] = {}  # topic and address; False also while it is being asked

    def takes(self, topic: str, address: str) -> bool:
        """Say whether the broker at *address* keeps batches of *topic* whole; asks if nobody knows."""
        if KEEPS_BATCHES_WHOLE not in self._client.capabilities_of(address):
            return False
        place = (topic, address)
        known = self._kinds.get(place)
        if known is None:
            self._kinds[place] = known = False
            self._client.spawn(self._ask(topic, address))
        return known

    async def find_out(self, topic: str, address: str) -> bool:
        """Say the same, and wait for the answers if the broker has to be asked. One that gives none does not."""
        place = (topic, address)
        if place not in self._kinds:
            if not self._client.capabilities_of(address):
                await self._client.beat_one(address)
            if KEEPS_BATCHES_WHOLE in self._client.capabilities_of(address):
                await self._ask(topic, address)
            else:
                self._kinds[place] = False
        return self.takes(topic, address)

    def refused(self, topic: str, address: str) -> None:
        """Take note that a broker did not take a whole batch: it gets no more of them."""
        self._kinds[topic, address] = False

    def forget(self, topics: Iterable[str]) -> None:
        """Keep nothing about *topics*."""
        gone = {*topics}
        self._kinds = {place: known for place, known in self._kinds.items() if place[0] not in gone}

    def forget_broker(self, address: str) -> None:
        """Keep nothing about a broker that went away: another one may come back."""
        self._kinds = {place: known for place, known in self._kinds.items() if place[1] != address}

    async def _ask(self, topic: str, address: str) -> None:
        command = Command(code=RequestCode.GET_TOPIC_CONFIG, fields={"topic": topic})
        try:
            answer = await self._client.invoke(address, command)
            self._kinds[topic, address] = java_json.decode(answer.body, TopicConfig).has_batch_index
        except HoldfastError as error:
            if not isinstance(error, BrokerRefused) or error.code == ResponseCode.TOPIC_NOT_EXIST:
                self._kinds.pop((topic, address), None)  # It may know later.
