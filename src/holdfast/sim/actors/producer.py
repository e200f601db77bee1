"""A simulated producer: sends the messages of its lanes until all are acknowledged, despite every fault."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.client.cluster.heartbeat import heartbeat_command
from holdfast.client.cluster.send_plan import (
    RoundRobin,
    backoff_ms,
    is_moved,
    is_retryable,
    is_route_stale,
    queue_for_key,
)
from holdfast.client.messages.packing import Outgoing, Packing, pack
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Message
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.sim.actors.client import SimClient, refusal
from holdfast.sim.checkers.ledger import Ack, Ledger
from holdfast.sim.checkers.offset_identity import Place, Spot
from holdfast.sim.checkers.unit_isolation import Borders
from holdfast.sim.world.workload import PRODUCER_GROUP, TRANSACTIONAL, Job, Kind, Lane, Orders, uid_of
from holdfast.sim.world.world import Violation
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, decode_record
from holdfast.wire.requests.offsets import CheckTransactionFields, EndTransactionFields
from holdfast.wire.requests.send import SendFields

_NO_ROUTE_PAUSE_MS: Final = 300
_WHOLE_SIZE_MAX: Final = 10_000  # Brokers accept records of this size; larger batches are sent to be split.
_PACKING: Final = Packing(compress_over=None)


class Producer(SimClient):
    """Sends the lanes of one producer.

    Args:
        pins: The queue of each key, chosen once: an application that needs order chooses the queue of a key itself.
    """

    def __init__(  # noqa: PLR0913 - one name for each option
        self,
        name: str,
        name_servers: str,
        chance: Random,
        *,
        orders: Orders,
        ledger: Ledger,
        pins: dict[str, MessageQueue],
        borders: Borders,
        is_old: bool = False,
        unit: str = "",
    ) -> None:
        super().__init__(name, name_servers, chance, is_old=is_old, unit=unit)
        self._borders = borders
        self._lanes = orders.lanes[name]
        self._orders = orders
        self._ledger = ledger
        self._pins = pins
        self._turn = RoundRobin(chance)

    def started(self) -> None:
        """Continue where the previous process stopped."""
        for lane in self._lanes:
            lane.resume()
            self.after(self.chance.randrange(1000), lambda lane=lane: self._pump(lane))  # type: ignore[misc]

    def heartbeat(self) -> Command | None:
        """Return the heartbeat of a group member that brokers may ask about transactions."""
        return heartbeat_command(self.name, producer=PRODUCER_GROUP)

    # Sending.

    def _pump(self, lane: Lane) -> None:
        """Send one message, and schedule the next."""
        job = lane.take()
        if job is not None:
            self._attempt(job, lane, 1, None)
        if not lane.is_done:
            self.after(self.chance.randrange(2 * lane.pause_ms + 2), lambda: self._pump(lane))

    def _attempt(self, job: Job, lane: Lane, attempt: int, avoid: str | None) -> None:
        queue = self._choose(job, avoid)
        address = self.find_address(queue) if queue is not None else None
        if queue is None or address is None:
            self.after(_NO_ROUTE_PAUSE_MS, lambda: self._attempt(job, lane, attempt, avoid))
            return
        asked_ms = self.now_ms
        for single in job.singles:
            self._ledger.attempted(single, asked_ms)
            self._borders.attempted(single.uid, self.unit, queue)

        def answered(answer: Command | HoldfastError) -> None:
            error = answer if isinstance(answer, HoldfastError) else None
            if isinstance(answer, Command) and answer.code != ResponseCode.SUCCESS:
                error = refusal(answer, address)
            if error is not None:
                self._retry(job, lane, attempt, queue, error)
            elif isinstance(answer, Command):
                self._acknowledged(job, lane, queue, address, answer, asked_ms)

        self.ask(address, self._command(job, queue), answered)

    def _choose(self, job: Job, avoid: str | None) -> MessageQueue | None:
        route = self.route(job.topic)
        if route is None or not route.publishable:
            return None
        if job.key is None:
            # If no leader is up, try any queue: one leader will be back before the others.
            queues = route.sendable or route.publishable
            others = tuple(queue for queue in queues if route.broker_of(queue) != avoid)
            return self._turn.choose(job.topic, others or queues)
        pinned = self._pins.get(job.key)
        if pinned is None:
            pinned = self._pins[job.key] = queue_for_key(job.key, route.publishable)
        return pinned

    def _command(self, job: Job, queue: MessageQueue) -> Command:
        is_half = job.kind in TRANSACTIONAL
        fields = SendFields(
            producer_group=PRODUCER_GROUP,
            topic=job.topic,
            queue_id=queue.queue_id,
            sys_flag=TRANSACTION_PREPARED if is_half else 0,
            born_timestamp=self.now_ms,
            broker_name=queue.broker_name,
            batch=bool(job.parts),
        )
        packed = [_pack(single) for single in job.singles]
        if job.parts:
            body = encode_items([(0, item.body, item.properties.encode()) for item in packed])
            if self._orders.keeps_batches and len(body) < _WHOLE_SIZE_MAX:
                return self._whole(job, body, fields)
            return Command(code=RequestCode.SEND_BATCH_MESSAGE, fields=to_fields(fields), body=body)
        fields.properties = packed[0].properties
        return Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=packed[0].body)

    def _whole(self, job: Job, items: bytes, fields: SendFields) -> Command:
        """Return a batch that stays one record. Its messages have unrelated ids, which are keys of the batch."""
        keys, codec = [single.uid for single in job.parts], self.chance.choice((None, Codec.LZ4))
        whole = wrap_items(items, len(keys), job.uid, keys=keys, tags={"t"}, codec=codec)
        fields.sys_flag, fields.properties, fields.batch = whole.sys_flag, whole.properties, False
        return Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=whole.body)

    def _retry(self, job: Job, lane: Lane, attempt: int, queue: MessageQueue, error: HoldfastError) -> None:
        if not is_retryable(error):
            raise Violation("a valid message is accepted", f"{job.uid}: {error}")
        self._ledger.failed(job, str(error))
        route = self.routes.find(job.topic)
        avoid = queue.broker_name if route is None else route.broker_of(queue)
        if route is not None and route.leaders and is_route_stale(error):
            self.refresh_leaders(job.topic)
        elif is_route_stale(error):
            self.look_up(job.topic)
        self.after(
            backoff_ms(attempt), lambda: self._attempt(job, lane, attempt + 1, None if is_moved(error) else avoid)
        )

    def _acknowledged(
        self, job: Job, lane: Lane, queue: MessageQueue, address: str, answer: Command, asked_ms: int
    ) -> None:
        offset = int(answer.fields["queueOffset"])
        spots = read_spots(answer)
        if self._orders.keeps_batches and len(spots) == 1:
            spots *= len(job.singles)
        queue_id = int(answer.fields["queueId"])
        if len(spots) != len(job.singles) or queue_id != queue.queue_id:
            raise Violation("an answer matches its request", f"{job.uid}: {answer.fields}")
        for step, (single, spot) in enumerate(zip(job.singles, spots, strict=True)):
            place = Place(queue.broker_name, job.topic, queue_id, offset + step)
            self._ledger.acknowledged(single, Ack(place, spot), asked_ms)
        lane.finish(job)
        if job.kind in TRANSACTIONAL and not job.is_silent:
            fields = EndTransactionFields(
                producer_group=PRODUCER_GROUP,
                tran_state_table_offset=offset,
                commit_log_offset=spots[0].position,
                commit_or_rollback=_outcome(job),
                msg_id=job.uid,
                transaction_id=answer.fields.get("transactionId"),
            )
            # The broker that answered may only have relayed it; the storing broker decides. Old clients ignore that.
            holder = spots[0].home if is_mock_broker(queue.broker_name) and not self.is_old else address
            self.after(self.chance.randrange(300), lambda: self._decide(holder, fields))

    # Transactions.

    def _decide(self, address: str, fields: EndTransactionFields) -> None:
        self.tell(address, Command(code=RequestCode.END_TRANSACTION, fields=to_fields(fields)))

    def requested(self, address: str, command: Command) -> None:
        """Answer a broker that asks for the outcome of a transaction; any member of the group can."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        asked = from_fields(CheckTransactionFields, command.fields)
        job = self._orders.jobs[uid_of(bytes(decode_record(command.body).body))]
        self._decide(
            address,
            EndTransactionFields(
                producer_group=PRODUCER_GROUP,
                tran_state_table_offset=asked.tran_state_table_offset,
                commit_log_offset=asked.commit_log_offset,
                commit_or_rollback=_outcome(job),
                from_transaction_check=True,
                msg_id=job.uid,
                transaction_id=asked.transaction_id,
            ),
        )


def read_spots(answer: Command) -> list[Spot]:
    """Return the positions of the messages of a successful send, as its answer lists them."""
    ids = [parse_message_id(text) for text in answer.fields["msgId"].split(",")]
    return [Spot(found.address, found.position) for found in ids]


def _pack(job: Job) -> Outgoing:
    """Return one message in wire form."""
    extra = {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: PRODUCER_GROUP}
    message = Message(job.topic, job.body, tags="t", key=job.key, delay_level=job.delay_level)
    return pack(message, job.uid, _PACKING, extra if job.kind in TRANSACTIONAL else None)


def _outcome(job: Job) -> int:
    return TRANSACTION_COMMIT if job.kind is Kind.COMMITTED else TRANSACTION_ROLLBACK
