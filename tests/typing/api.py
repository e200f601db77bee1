"""Uses of the public API that must type-check: `mypy --strict` reads this, nothing runs it."""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime

import holdfast
from holdfast import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, SendResult, blocking

NAMESRV = "127.0.0.1:9876"


def use(*values: object) -> None:
    """Do something with *values*."""


async def send() -> None:
    """Every way to send."""
    async with Producer(NAMESRV, group="shop", compress_over=None, codec=holdfast.Codec.ZSTD) as producer:
        result: SendResult = await producer.send("orders", b"body", key="k", tags="paid", delay_level=3)
        result = await producer.send(Message("orders", b"body", keys=("a", "b")), timeout_s=1.5)
        results: list[SendResult] = await producer.send_many(Message("orders", b"x") for _ in range(10))
        await producer.send_oneway(Message("orders", b"x"))
        future: asyncio.Future[SendResult] = producer.send_nowait(Message("orders", b"x"))
        future = await producer.send_soon(Message("orders", b"x", key="k"))
        await producer.flush()
        result = await future
        async with producer.transaction(Message("orders", b"x")) as transaction:
            identity: str = transaction.message_id
        reply: ReceivedMessage = await producer.request(Message("questions", b"?"), timeout_s=3)
        use(result.queue.queue_id, result.status is holdfast.SendStatus.OK, results, identity, reply.body)


def check(message: ReceivedMessage) -> holdfast.TransactionOutcome:
    """A plain checker."""
    return holdfast.TransactionOutcome.COMMIT if message.key else holdfast.TransactionOutcome.UNKNOWN


async def check_later(message: ReceivedMessage) -> holdfast.TransactionOutcome:
    """An async checker."""
    return check(message)


CHECKED = Producer(NAMESRV, transaction_checker=check)
CHECKED_LATER = Producer(NAMESRV, transaction_checker=check_later)


async def on_message(message: ReceivedMessage) -> None:
    """An async listener."""
    if message.reconsume_times > 3:
        raise holdfast.RetryLater(delay_level=-1)
    use(message.topic, message.user_properties, message.offset, message.stored_ms)


def on_message_in_thread(message: ReceivedMessage) -> None:
    """A plain listener."""
    use(message.body.decode(), message.keys)


def on_message_indirectly(message: ReceivedMessage) -> Awaitable[None]:
    """A plain function that returns something to await."""
    return on_message(message)


async def consume() -> None:
    """Every way to consume in a group."""
    listeners: list[holdfast.Listener] = [on_message, on_message_in_thread, on_message_indirectly]
    for listener in listeners:
        consumer = PushConsumer(NAMESRV, "billing", listener=listener, ordered=True, start="earliest")
        consumer.subscribe("orders", "paid || shipped")
        async with consumer:
            await consumer.run()
    async with PushConsumer(NAMESRV, "billing", start=datetime(2026, 1, 1, tzinfo=UTC)) as consumer:
        consumer.subscribe("orders")
        async for message in consumer:
            await consumer.retry(message, delay_level=3)
            consumer.ack(message)
    broadcasting = PushConsumer(NAMESRV, "cache", listener=on_message, broadcast=True, offset_file="offsets.json")
    use(broadcasting.assignment, broadcasting.client_id)


async def pull() -> None:
    """Every way to read on demand."""
    async with PullConsumer(NAMESRV, "report", auto_commit=False) as consumer:
        queues: list[holdfast.MessageQueue] = await consumer.queues("orders")
        await consumer.assign(queues, tags="paid")
        for queue in queues:
            await consumer.seek(queue, 100)
            await consumer.seek(queue, "latest")
            await consumer.seek(queue, datetime.now(UTC))
            consumer.pause(queue)
            consumer.resume(queue)
            position: int = consumer.position(queue)
            committed: int | None = await consumer.committed(queue)
            use(position, committed)
        messages: list[ReceivedMessage] = await consumer.poll(timeout_s=5, messages_max=100)
        await consumer.commit()
        await consumer.commit({messages[0].queue: messages[0].offset + 1})
        async for message in consumer:
            use(message.message_id)


def block() -> None:
    """The same without asyncio."""
    with blocking.Producer(NAMESRV, group="shop", retries=5) as producer:
        result: SendResult = producer.send("orders", b"x", key="k")
        with producer.transaction(Message("orders", b"x")) as transaction:
            use(transaction.message_id, result)
            result = transaction.commit()
        undecided: blocking.Transaction = producer.transaction(Message("orders", b"x"), timeout_s=1)
        with undecided:
            undecided.roll_back()
        result = producer.send(Message("orders", b"x"), queue=undecided.queue)
        name: str = producer.client_id
        use(result, name, holdfast.__version__)
    with blocking.PushConsumer(NAMESRV, "billing", start="earliest", ordered=True) as pushed:
        pushed.subscribe("orders")
        for message in pushed:
            use(message.body)
    with blocking.PullConsumer(NAMESRV, "report", start="latest") as pulled:
        pulled.assign(pulled.queues("orders"))
        use(pulled.poll(timeout_s=1), [pulled.offset_of(queue, "earliest") for queue in pulled.assignment])
        pulled.unsubscribe("orders")


async def fail() -> None:
    """What goes wrong has types, too."""
    async with Producer(NAMESRV) as producer:
        try:
            await producer.send_many([Message("orders", b"x")])
        except holdfast.SendManyFailed as error:
            use(error.results, error.maybe_stored, error.code, error.cause)
        except holdfast.ForkedClient as error:
            use(error)
        except holdfast.HoldfastError as error:
            use(error)
