"""Transactional messages and the answers to transaction checks.

    half message stored ── block ends normally ──> commit ────> delivered
                        ── block raises ─────────> roll back ─> never delivered
                        ── we crash ──> the broker asks (39) a producer of the group ─> its checker decides

The latest decisions are remembered: a broker that did not receive one asks again and gets the same answer.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import IntEnum
from types import TracebackType
from typing import Final, Self

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.messages.unpacking import read_messages
from holdfast.client.produce.sender import Receipt
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError, LocalProtocolError
from holdfast.model.message import ReceivedMessage, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.requests.offsets import CheckTransactionFields, EndTransactionFields

log = logging.getLogger("holdfast.client")

_REMEMBERED_MAX: Final = 10_000


class TransactionOutcome(IntEnum):
    """The outcome of a transaction. The numbers are the wire's."""

    UNKNOWN = 0
    COMMIT = 8
    ROLL_BACK = 12


Checker = Callable[[ReceivedMessage], TransactionOutcome | Awaitable[TransactionOutcome]]
"""Decides the outcome of a transaction, given its half message. A plain function runs in a thread."""


class ProducerTransactions:
    """The transactions of one producer, and the answers to brokers that check them.

    Args:
        client: The connection to the cluster.
        group: The producer group, as the wire knows it.
        checker: Decides transactions that this process does not remember.
        namespace: Removed from the topics that the checker sees.
    """

    def __init__(
        self, client: ClusterClient, group: str, *, checker: Checker | None = None, namespace: str | None = None
    ) -> None:
        self._client = client
        self._group = group
        self._checker = checker
        self._namespace = namespace
        self._outcomes: OrderedDict[str, TransactionOutcome] = OrderedDict()

    def begin(self, message_id: str) -> None:
        """Remember a transaction whose outcome is not known yet."""
        self._remember(message_id, TransactionOutcome.UNKNOWN)

    async def end(self, receipt: Receipt, topic: str, outcome: TransactionOutcome) -> None:
        """Send the outcome to the broker.

        Raises:
            HoldfastError: the broker did not confirm. It will check the transaction and then get the same answer.
        """
        result = receipt.result
        self._remember(result.message_id, outcome)
        stored = parse_message_id(result.offset_id)
        fields = EndTransactionFields(
            producer_group=self._group,
            tran_state_table_offset=result.offset,
            commit_log_offset=stored.position,
            commit_or_rollback=outcome,
            msg_id=result.message_id,
            transaction_id=receipt.transaction_id,
            topic=topic,
        )
        command = Command(code=RequestCode.END_TRANSACTION, fields=to_fields(fields))
        address, broker = receipt.address, result.queue.broker_name
        if is_mock_broker(broker):
            # The broker that answered may have relayed the message to the queue's leader; the id names where it is.
            holder = self._client.routes.find_broker(stored.address)
            address = receipt.address if holder is None else stored.address
            broker = holder or self._client.routes.find_broker(address) or broker
        command.fields["bname"] = broker
        await self._client.invoke(address, command)

    async def check(self, request: ServerRequest) -> None:
        """Answer a broker that checks the outcome of a transaction (39)."""
        check_fields = request.header_as(CheckTransactionFields)
        (message,) = read_messages(request.command.body, None, namespace=self._namespace)
        if message.properties.get(names.PRODUCER_GROUP) != self._group:
            return
        message_id = message.message_id
        outcome = self._outcomes.get(message_id)
        if outcome is None:
            outcome = await self._run_checker(message)
        fields = EndTransactionFields(
            producer_group=self._group,
            tran_state_table_offset=check_fields.tran_state_table_offset,
            commit_log_offset=check_fields.commit_log_offset,
            commit_or_rollback=outcome,
            from_transaction_check=True,
            msg_id=message_id,
            transaction_id=check_fields.transaction_id,
            topic=check_fields.topic,
        )
        answer = Command(code=RequestCode.END_TRANSACTION, fields=to_fields(fields))
        if check_fields.broker_name:
            answer.fields["bname"] = check_fields.broker_name
        await self._client.send_one_way(request.address, answer)

    async def _run_checker(self, message: ReceivedMessage) -> TransactionOutcome:
        checker = self._checker
        if checker is None:
            log.warning(
                "transaction %s is unknown here and there is no checker: it stays undecided", message.message_id
            )
            return TransactionOutcome.UNKNOWN
        try:
            if inspect.iscoroutinefunction(checker):
                return TransactionOutcome(await checker(message))
            found = await asyncio.to_thread(checker, message)
            return TransactionOutcome(await found if inspect.isawaitable(found) else found)
        except Exception:  # application code: whatever it raises, the broker checks again later
            log.exception("the transaction checker failed on %s", message.message_id)
            return TransactionOutcome.UNKNOWN

    def _remember(self, message_id: str, outcome: TransactionOutcome) -> None:
        self._outcomes[message_id] = outcome
        self._outcomes.move_to_end(message_id)
        if len(self._outcomes) > _REMEMBERED_MAX:
            self._outcomes.popitem(last=False)


class Transaction:
    """One transactional message: `async with producer.transaction(message) as transaction: ...`.

    Entering stores the half message, which no consumer sees. Leaving normally commits it; leaving with an exception
    rolls it back and re-raises the exception. `commit` and `roll_back` decide earlier.
    """

    def __init__(self, transactions: ProducerTransactions, send: Callable[[], Awaitable[Receipt]], topic: str) -> None:
        self._transactions = transactions
        self._send = send
        self._topic = topic
        self._receipt: Receipt | None = None
        self._is_decided = False

    @property
    def message_id(self) -> str:
        """The id of the message, which consumers see, too."""
        return self._require_receipt().result.message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue to which the message is delivered."""
        return self._require_receipt().result.queue

    async def __aenter__(self) -> Self:
        """Store the half message.

        Raises:
            SendFailed: the half message could not be sent; the block is not entered.
            LocalProtocolError: the transaction has begun already.
        """
        if self._receipt is not None:
            raise LocalProtocolError("the transaction has begun already: create a new one for each message")
        self._receipt = await self._send()
        return self

    async def commit(self) -> SendResult:
        """Let the message be delivered.

        Raises:
            HoldfastError: the broker did not confirm. It will check again and get the answer to commit, as long as this
                producer, or another of its group with a checker, is running.
        """
        await self._decide(TransactionOutcome.COMMIT)
        return self._require_receipt().result

    async def roll_back(self) -> None:
        """Discard the message: it is never delivered.

        Raises:
            HoldfastError: the broker did not confirm. It will check again and get the answer to roll back.
        """
        await self._decide(TransactionOutcome.ROLL_BACK)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or roll back if the block raised."""
        if self._is_decided:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.roll_back()
        except HoldfastError:
            # The block's own exception matters more; the broker will check and get the answer.
            log.warning("roll-back of %s was not confirmed", self.message_id, exc_info=True)

    async def _decide(self, outcome: TransactionOutcome) -> None:
        if self._is_decided:
            raise LocalProtocolError("this transaction is decided already")
        receipt = self._require_receipt()
        self._is_decided = True
        await self._transactions.end(receipt, self._topic, outcome)

    def _require_receipt(self) -> Receipt:
        if self._receipt is None:
            raise LocalProtocolError("the transaction has not begun: use `async with producer.transaction(message)`")
        return self._receipt
