"""A simulated producer: sends the messages of its lanes until all are acknowledged, despite every fault."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.client.cluster.heartbeat import heartbeat_command
from holdfast.client.cluster.send_plan import (
    RoundRobin,
    backoff_ms,
    is_not_leader,
    is_retryable,
    is_route_stale,
    queue_for_key,
)
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.messages.packing import Outgoing, Packing, pack
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Message
from holdfast.model.queue import LogicalQueueId, MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.sim.actors.client import SimClient, refusal
from holdfast.sim.checkers.ledger import Ack, Ledger
from holdfast.sim.checkers.offset_identity import LogPosition, QueueOffset
from holdfast.sim.checkers.unit_isolation import UnitIsolationChecker
from holdfast.sim.world.workload import (
    PRODUCER_GROUP,
    TRANSACTIONAL,
    Kind,
    PlannedMessage,
    SendSequence,
    Workload,
    uid_of,
)
from holdfast.sim.world.world import Violation
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, decode_record
from holdfast.wire.requests.offsets import CheckTransactionFields, EndTransactionFields
from holdfast.wire.requests.send import SendFields

_NO_ROUTE_PAUSE_MS: Final = 300
_INNER_BATCH_SIZE_MAX: Final = 10_000  # Brokers accept records of this size; larger batches are sent to be split.
_PACKING: Final = Packing(compress_over=None)


class Producer(SimClient):
    """Sends the lanes of one producer.

    Args:
        key_queues: The queue of each key, chosen once: an application that needs order chooses the queue of a key
            itself.
    """

    def __init__(  # noqa: PLR0913 - one name for each option
        self,
        name: str,
        name_servers: str,
        rng: Random,
        *,
        workload: Workload,
        ledger: Ledger,
        key_queues: dict[str, MessageQueue],
        unit_checker: UnitIsolationChecker,
        is_old: bool = False,
        unit: str = "",
    ) -> None:
        super().__init__(name, name_servers, rng, is_old=is_old, unit=unit)
        self._unit_checker = unit_checker
        self._sequences = workload.sequences[name]
        self._workload = workload
        self._ledger = ledger
        self._key_queues = key_queues
        self._round_robin = RoundRobin(rng)

    def started(self) -> None:
        """Continue where the previous process stopped."""
        for sequence in self._sequences:
            sequence.requeue_in_flight()
            self.after(self.rng.randrange(1000), lambda sequence=sequence: self._send_next(sequence))  # type: ignore[misc]

    def heartbeat(self) -> Command | None:
        """Return the heartbeat of a group member that brokers may ask about transactions."""
        return heartbeat_command(self.name, producer=PRODUCER_GROUP)

    # Sending.

    def _send_next(self, sequence: SendSequence) -> None:
        """Send one message, and schedule the next."""
        planned = sequence.begin_next()
        if planned is not None:
            self._attempt(planned, sequence, 1, None)
        if not sequence.is_done:
            self.after(self.rng.randrange(2 * sequence.pause_ms + 2), lambda: self._send_next(sequence))

    def _attempt(self, planned: PlannedMessage, sequence: SendSequence, attempt: int, avoid: str | None) -> None:
        queue = self._choose(planned, avoid)
        address = self.find_address(queue) if queue is not None else None
        if queue is None or address is None:
            self.after(_NO_ROUTE_PAUSE_MS, lambda: self._attempt(planned, sequence, attempt, avoid))
            return
        requested_ms = self.now_ms
        for single in planned.stored_messages:
            self._ledger.attempted(single, requested_ms)
            self._unit_checker.attempted(single.uid, self.unit, queue)

        def answered(answer: Command | HoldfastError) -> None:
            error = answer if isinstance(answer, HoldfastError) else None
            if isinstance(answer, Command) and answer.code != ResponseCode.SUCCESS:
                error = refusal(answer, address)
            if error is not None:
                self._retry(planned, sequence, attempt, queue, error)
            elif isinstance(answer, Command):
                self._acknowledged(planned, sequence, queue, address, answer, requested_ms)

        self.request(address, self._command(planned, queue), answered)

    def _choose(self, planned: PlannedMessage, avoid: str | None) -> MessageQueue | None:
        route = self.route(planned.topic)
        if route is None or not route.publishable:
            return None
        if planned.key is None:
            # If no leader is up, try any queue: one leader will be back before the others.
            queues = route.sendable or route.publishable
            other_queues = tuple(queue for queue in queues if route.broker_of(queue) != avoid)
            return self._round_robin.choose(planned.topic, other_queues or queues)
        pinned = self._key_queues.get(planned.key)
        if pinned is None:
            pinned = self._key_queues[planned.key] = queue_for_key(planned.key, route.publishable)
        return pinned

    def _command(self, planned: PlannedMessage, queue: MessageQueue) -> Command:
        is_half = planned.kind in TRANSACTIONAL
        fields = SendFields(
            producer_group=PRODUCER_GROUP,
            topic=planned.topic,
            queue_id=LogicalQueueId(queue.queue_id),
            sys_flag=TRANSACTION_PREPARED if is_half else 0,
            born_timestamp=self.now_ms,
            broker_name=queue.broker_name,
            batch=bool(planned.parts),
        )
        packed = [_pack(single) for single in planned.stored_messages]
        if planned.parts:
            body = encode_items([(0, item.body, item.properties.encode()) for item in packed])
            if self._workload.uses_inner_batches and len(body) < _INNER_BATCH_SIZE_MAX:
                return self._inner_batch_command(planned, body, fields)
            return Command(code=RequestCode.SEND_BATCH_MESSAGE, fields=to_fields(fields), body=body)
        fields.properties = packed[0].properties
        return Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=packed[0].body)

    def _inner_batch_command(self, planned: PlannedMessage, items: bytes, fields: SendFields) -> Command:
        """Return a batch that stays one record. Its messages have unrelated ids, which are keys of the batch."""
        keys, codec = [single.uid for single in planned.parts], self.rng.choice((None, Codec.LZ4))
        inner_batch = wrap_items(items, len(keys), planned.uid, keys=keys, tags={"t"}, codec=codec)
        fields.sys_flag, fields.properties, fields.batch = inner_batch.sys_flag, inner_batch.properties, False
        return Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=inner_batch.body)

    def _retry(
        self, planned: PlannedMessage, sequence: SendSequence, attempt: int, queue: MessageQueue, error: HoldfastError
    ) -> None:
        if not is_retryable(error):
            raise Violation("a valid message is accepted", f"{planned.uid}: {error}")
        self._ledger.failed(planned, str(error))
        route = self.routes.find(planned.topic)
        avoid = queue.broker_name if route is None else route.broker_of(queue)
        if route is not None and route.leaders and is_route_stale(error):
            self.refresh_leaders(planned.topic)
        elif is_route_stale(error):
            self.refresh_route(planned.topic)
        self.after(
            backoff_ms(attempt),
            lambda: self._attempt(planned, sequence, attempt + 1, None if is_not_leader(error) else avoid),
        )

    def _acknowledged(
        self,
        planned: PlannedMessage,
        sequence: SendSequence,
        queue: MessageQueue,
        address: str,
        answer: Command,
        requested_ms: int,
    ) -> None:
        offset = int(answer.fields["queueOffset"])
        log_positions = read_log_positions(answer)
        if self._workload.uses_inner_batches and len(log_positions) == 1:
            log_positions *= len(planned.stored_messages)
        queue_id = int(answer.fields["queueId"])
        if len(log_positions) != len(planned.stored_messages) or queue_id != queue.queue_id:
            raise Violation("an answer matches its request", f"{planned.uid}: {answer.fields}")
        for step, (single, log_position) in enumerate(zip(planned.stored_messages, log_positions, strict=True)):
            queue_offset = QueueOffset(queue.broker_name, planned.topic, queue_id, offset + step)
            self._ledger.acknowledged(single, Ack(queue_offset, log_position), requested_ms)
        sequence.finish(planned)
        if planned.kind in TRANSACTIONAL and not planned.is_silent:
            fields = EndTransactionFields(
                producer_group=PRODUCER_GROUP,
                tran_state_table_offset=offset,
                commit_log_offset=log_positions[0].position,
                commit_or_rollback=_outcome(planned),
                msg_id=planned.uid,
                transaction_id=answer.fields.get("transactionId"),
            )
            # The broker that answered may only have relayed it; the storing broker decides. Old clients ignore that.
            storing_broker = (
                log_positions[0].address if is_mock_broker(queue.broker_name) and not self.is_old else address
            )
            self.after(self.rng.randrange(300), lambda: self._end_transaction(storing_broker, fields))

    # Transactions.

    def _end_transaction(self, address: str, fields: EndTransactionFields) -> None:
        self.send_one_way(address, Command(code=RequestCode.END_TRANSACTION, fields=to_fields(fields)))

    def handle_request(self, request: ServerRequest) -> None:
        """Answer a broker that asks for the outcome of a transaction; any member of the group can."""
        check = request.header
        if not isinstance(check, CheckTransactionFields):
            return
        planned = self._workload.messages[uid_of(bytes(decode_record(request.command.body).body))]
        self._end_transaction(
            request.address,
            EndTransactionFields(
                producer_group=PRODUCER_GROUP,
                tran_state_table_offset=check.tran_state_table_offset,
                commit_log_offset=check.commit_log_offset,
                commit_or_rollback=_outcome(planned),
                from_transaction_check=True,
                msg_id=planned.uid,
                transaction_id=check.transaction_id,
            ),
        )


def read_log_positions(answer: Command) -> list[LogPosition]:
    """Return the positions of the messages of a successful send, as its answer lists them."""
    ids = [parse_message_id(text) for text in answer.fields["msgId"].split(",")]
    return [LogPosition(found.address, found.position) for found in ids]


def _pack(planned: PlannedMessage) -> Outgoing:
    """Return one message in wire form."""
    extra = {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: PRODUCER_GROUP}
    message = Message(planned.topic, planned.body, tags="t", key=planned.key, delay_level=planned.delay_level)
    return pack(message, planned.uid, _PACKING, extra if planned.kind in TRANSACTIONAL else None)


def _outcome(planned: PlannedMessage) -> int:
    return TRANSACTION_COMMIT if planned.kind is Kind.COMMITTED else TRANSACTION_ROLLBACK
