"""Sends one message to every queue of a quiet cluster, to measure how soon each is consumed."""

from __future__ import annotations

from random import Random

from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import MessageQueue
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.producer import read_spots
from holdfast.sim.checkers.ledger import Ack, Ledger
from holdfast.sim.checkers.offset_identity import Place
from holdfast.sim.checkers.progress import Progress
from holdfast.sim.world.workload import PLAIN_TOPIC, PRODUCER_GROUP, Job, Kind, Orders
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.properties import format_properties
from holdfast.wire.requests.send import SendFields

_PAUSE_MS = 300


class Prober(SimClient):
    """Sends one message to every queue of the plain topic."""

    def __init__(
        self,
        name_servers: str,
        chance: Random,
        *,
        orders: Orders,
        ledger: Ledger,
        progress: Progress,
        group: str,
        unit: str = "",
    ) -> None:
        super().__init__(f"prober{unit}", name_servers, chance, unit=unit)
        self.left = 1  # until the route is known
        self._orders = orders
        self._ledger = ledger
        self._progress = progress
        self._group = group
        self._uids: list[str] = []

    @property
    def is_sent(self) -> bool:
        """Whether every message was acknowledged."""
        return not self.left

    @property
    def unconsumed(self) -> list[str]:
        """The messages that the group has not consumed yet."""
        return [uid for uid in self._uids if not self._progress.is_finished(self._group, uid)]

    @property
    def is_consumed(self) -> bool:
        """Whether the group has consumed every message."""
        return not self.unconsumed

    def started(self) -> None:
        """Request the route."""
        self.route(PLAIN_TOPIC)

    def route_changed(self, topic: str) -> None:
        """Send one message to every queue."""
        route = self.routes.find(topic)
        assert route is not None
        if self._uids:
            return
        for queue in route.publishable:
            if queue.broker_name not in self._progress.tainted:
                uid = f"probe-{queue.broker_name}-{queue.queue_id}"
                self._uids.append(uid)
                self._send(self._orders.add(Job(uid=uid, topic=topic, kind=Kind.PLAIN, size=40)), queue)
        self.left = len(self._uids)

    def _send(self, job: Job, queue: MessageQueue) -> None:
        address = self.find_address(queue)
        assert address is not None
        asked_ms = self.now_ms
        self._ledger.attempted(job, asked_ms)
        fields = SendFields(
            producer_group=PRODUCER_GROUP,
            topic=job.topic,
            queue_id=queue.queue_id,
            born_timestamp=self.now_ms,
            properties=format_properties({names.UNIQUE_KEY: job.uid}),
        )

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                place = Place(queue.broker_name, job.topic, queue.queue_id, int(answer.fields["queueOffset"]))
                self._ledger.acknowledged(job, Ack(place, read_spots(answer)[0]), asked_ms)
                self.left -= 1
            else:
                self._ledger.failed(job, str(answer if isinstance(answer, HoldfastError) else answer.remark))
                self.after(_PAUSE_MS, lambda: self._send(job, queue))

        self.ask(address, Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=job.body), answered)
