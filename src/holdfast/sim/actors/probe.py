"""Sends one message to every queue of a quiet cluster, to measure how soon each is consumed."""

from __future__ import annotations

from random import Random

from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import LogicalQueueId, MessageQueue
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.producer import read_log_positions
from holdfast.sim.checkers.ledger import Ack, Ledger
from holdfast.sim.checkers.offset_identity import QueueOffset
from holdfast.sim.checkers.progress import ProgressChecker
from holdfast.sim.world.workload import PLAIN_TOPIC, PRODUCER_GROUP, Kind, PlannedMessage, Workload
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
        rng: Random,
        *,
        workload: Workload,
        ledger: Ledger,
        progress_checker: ProgressChecker,
        group: str,
        unit: str = "",
    ) -> None:
        super().__init__(f"prober{unit}", name_servers, rng, unit=unit)
        self.remaining = 1  # until the route is known
        self._workload = workload
        self._ledger = ledger
        self._progress_checker = progress_checker
        self._group = group
        self._uids: list[str] = []

    @property
    def is_sent(self) -> bool:
        """Whether every message was acknowledged."""
        return not self.remaining

    @property
    def unconsumed(self) -> list[str]:
        """The messages that the group has not consumed yet."""
        return [uid for uid in self._uids if not self._progress_checker.is_finished(self._group, uid)]

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
            if queue.broker_name not in self._progress_checker.tainted:
                uid = f"probe-{queue.broker_name}-{queue.queue_id}"
                self._uids.append(uid)
                self._send(self._workload.add(PlannedMessage(uid=uid, topic=topic, kind=Kind.PLAIN, size=40)), queue)
        self.remaining = len(self._uids)

    def _send(self, planned: PlannedMessage, queue: MessageQueue) -> None:
        address = self.find_address(queue)
        assert address is not None
        requested_ms = self.now_ms
        self._ledger.attempted(planned, requested_ms)
        fields = SendFields(
            producer_group=PRODUCER_GROUP,
            topic=planned.topic,
            queue_id=LogicalQueueId(queue.queue_id),
            born_timestamp=self.now_ms,
            properties=format_properties({names.UNIQUE_KEY: planned.uid}),
        )

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                queue_offset = QueueOffset(
                    queue.broker_name, planned.topic, queue.queue_id, int(answer.fields["queueOffset"])
                )
                self._ledger.acknowledged(planned, Ack(queue_offset, read_log_positions(answer)[0]), requested_ms)
                self.remaining -= 1
            else:
                self._ledger.failed(planned, str(answer if isinstance(answer, HoldfastError) else answer.remark))
                self.after(_PAUSE_MS, lambda: self._send(planned, queue))

        self.request(
            address, Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=planned.body), answered
        )
