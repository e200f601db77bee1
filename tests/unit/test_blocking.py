"""The client library for programs that are not asyncio."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from tests.support.scripted_group import ScriptedGroup
from tests.support.scripted_server import ScriptedServer

from holdfast import blocking
from holdfast.client.produce.batch_lines import MESSAGE_OVERHEAD_BYTES, Batching
from holdfast.model.errors import LocalProtocolError, ProducerFull, SendFailed
from holdfast.model.message import Message, ReceivedMessage, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode

QUEUE = MessageQueue("t", "broker-a", 0)
STORED = {"msgId": "0A00000200002A9F0000000000000400", "queueId": "0", "queueOffset": "7"}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A broker that lives on the loop of the blocking clients."""
    server = blocking._wait(blocking._call(ScriptedServer))
    blocking._wait(server.listen(0))
    yield server
    blocking._wait(server.stop())


def test_a_producer_sends(server: ScriptedServer):
    """One, many, one-way, in a transaction; from any thread."""
    server.serve_topic("t")
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.END_TRANSACTION):
        server.on(code, **STORED)

    with blocking.Producer(server.namesrv, "p", retries=0) as producer:
        assert producer.queues("t") == [QUEUE]
        assert producer.send("t", b"one", key="k").offset == 7
        assert [result.offset for result in producer.send_many([Message("t", b"x")] * 2)] == [7, 8]
        producer.send_oneway(Message("t", b"one way"))
        with producer.transaction(Message("t", b"x")) as transaction:
            assert transaction.message_id
        with pytest.raises(ValueError, match="mine"), producer.transaction(Message("t", b"x")):
            raise ValueError("mine")
        thread = threading.Thread(target=producer.send, args=("t", b"from a thread"))
        thread.start()
        thread.join()

    bodies = [command.body for command in server.requests_of(RequestCode.SEND_MESSAGE_V2)]
    assert {b"one", b"one way", b"from a thread"} <= set(bodies)
    outcomes = [command.fields["commitOrRollback"] for command in server.requests_of(RequestCode.END_TRANSACTION)]
    assert outcomes == ["8", "12"]


def test_threads_hand_messages_over(server: ScriptedServer):
    """Any of them, without waiting: each message has a future that any thread may wait for."""
    server.serve_topic("t")
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        server.on(code, **STORED)
    futures: list[Future[SendResult]] = []

    def give() -> None:
        futures.extend(producer.send_nowait(Message("t", b"%d" % number, key="k")) for number in range(500))

    with blocking.Producer(server.namesrv, "p", batching=Batching(messages_max=32_000)) as producer:
        threads = [threading.Thread(target=give) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        futures.append(producer.send_soon(Message("t", b"soon")))
        nothing = producer.send_nowait(Message("t", b""))
        producer.flush()

        assert len(futures) == 2001
        assert all(future.done() and future.result().offset >= 7 for future in futures)
        assert isinstance(nothing.exception(), LocalProtocolError)
    with pytest.raises(LocalProtocolError, match="not open"):
        producer.send_nowait(Message("t", b"late"))


def test_threads_are_told_that_there_is_no_room(server: ScriptedServer):
    """At once, before the loop has seen anything of it."""
    server.serve_topic("t")
    server.on(RequestCode.SEND_BATCH_MESSAGE, **STORED)
    with blocking.Producer(server.namesrv, "p", batching=Batching(waiting_bytes_max=4000)) as producer:

        def give_too_much() -> list[Future[SendResult]]:
            futures = [producer.send_nowait(Message("t", bytes(1000))) for _ in range(2)]
            with pytest.raises(ProducerFull):
                producer.send_nowait(Message("t", bytes(1000)))
            return futures

        # On the loop itself, so that it takes nothing meanwhile.
        futures = blocking._wait(blocking._call(give_too_much))
        assert [future.result().offset for future in futures] == [7, 8]


def test_what_was_taken_from_a_thread_is_not_refused_later(server: ScriptedServer):
    """There was room for its body when it was taken; its properties come on top of that."""
    server.serve_topic("t")
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        server.on(code, **STORED)
    room = 10 * (1000 + MESSAGE_OVERHEAD_BYTES)
    with blocking.Producer(server.namesrv, "p", batching=Batching(waiting_bytes_max=room)) as producer:

        def give() -> list[Future[SendResult]]:
            return [producer.send_nowait(Message("t", bytes(1000), tags="t" * 100)) for _ in range(10)]

        futures = blocking._wait(blocking._call(give))
        assert all(future.result().offset >= 7 for future in futures)


def test_errors_come_out_as_they_are(server: ScriptedServer):
    """With their types."""
    server.serve_topic("t")
    server.refuse(RequestCode.SEND_MESSAGE_V2, 13)
    with blocking.Producer(server.namesrv) as producer, pytest.raises(SendFailed):
        producer.send(Message("t", b"x"))
    with pytest.raises(LocalProtocolError):
        blocking.PushConsumer(server.namesrv, "g", broadcast=True)


def test_a_loop_consumes(server: ScriptedServer):
    """Each message is done when the next one is asked for; closing ends the loop."""
    group = ScriptedGroup(server, end=3)
    consumer = blocking.PushConsumer(server.namesrv, "g", start="earliest")
    consumer.subscribe("t")
    with consumer:
        taken = []
        for message in consumer:
            taken.append(message.body)
            if message.offset == 1:
                consumer.retry(message)
            if message.offset == 2:
                consumer.ack(message)
                consumer.close()
    assert taken == [b"0/0", b"0/1", b"0/2"]
    assert (group.sent_back, group.committed) == ([(1, 0)], {0: 3})


def test_a_listener_runs_in_a_thread(server: ScriptedServer):
    """And `run` returns when another thread closes the consumer."""
    ScriptedGroup(server, end=1)
    got = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        assert threading.current_thread() is not threading.main_thread()
        got.set()

    consumer = blocking.PushConsumer(server.namesrv, "g", listener=listen, start="earliest")
    consumer.subscribe("t")
    consumer.subscribe("other")
    consumer.unsubscribe("other")
    consumer.start()
    running = threading.Thread(target=consumer.run)
    running.start()
    assert got.wait(30)
    assert [queue for queue in consumer.assignment if queue.topic == "t"] == [QUEUE]
    consumer.close()
    running.join(30)
    assert not running.is_alive()


def test_a_pull_consumer_reads(server: ScriptedServer):
    """Everything that the async one can do."""
    group = ScriptedGroup(server, end=5)
    with blocking.PullConsumer(server.namesrv, "g", start="earliest") as consumer:
        consumer.assign(consumer.queues("t"))
        assert [message.offset for message in consumer.poll(20, messages_max=2)] == [0, 1]
        assert (consumer.assignment, consumer.position(QUEUE)) == ([QUEUE], 2)
        consumer.commit()
        assert consumer.committed(QUEUE) == 2
        consumer.seek(QUEUE, 4)
        assert next(iter(consumer)).offset == 4
        consumer.seek_all("earliest")
        consumer.pause(QUEUE)
        assert consumer.poll(0) == []
        consumer.resume(QUEUE)
        assert consumer.poll(20, messages_max=1)[0].offset == 0
    assert group.committed == {0: 1}


def test_an_exception_leaves_the_last_poll_uncommitted(server: ScriptedServer):
    """As in the async one."""
    group = ScriptedGroup(server, end=5)

    def fail() -> None:
        with blocking.PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            consumer.assign([QUEUE])
            consumer.poll(20, messages_max=2)
            consumer.poll(20, messages_max=2)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert group.committed == {0: 2}


def test_name_servers_can_be_others(server: ScriptedServer):
    """Of every kind of client."""
    server.serve_topic("t")
    with blocking.Producer("127.0.0.1:1", topic_expiry_s=60, name_server_refresh_s=5) as producer:
        producer.set_name_servers(server.namesrv)
        assert producer.queues("t") == [QUEUE]
    for make in (blocking.PushConsumer, blocking.PullConsumer):
        consumer = make("127.0.0.1:1", "g", name_server_refresh_s=5)
        consumer.set_name_servers(server.namesrv)
        assert consumer.queues("t") == [QUEUE]
        consumer.close()


@pytest.mark.parametrize("make", [blocking.PushConsumer, blocking.PullConsumer])
def test_closing_ends_a_loop_in_another_thread(server: ScriptedServer, make: type[blocking.PullConsumer]):
    """Whether it waits for a message or begins only now; and a closed consumer is not started again."""
    ScriptedGroup(server, end=1)
    consumer = make(server.namesrv, "g", start="earliest")
    consumer.subscribe("t")
    consumer.start()
    seen = threading.Event()

    def loop() -> None:
        for _ in consumer:
            seen.set()

    looping = threading.Thread(target=loop, daemon=True)
    looping.start()
    assert seen.wait(30)
    consumer.close()
    looping.join(30)

    assert not looping.is_alive()
    assert list(consumer) == []
    with pytest.raises(LocalProtocolError, match="closed"):
        consumer.start()


def test_a_closed_consumer_does_not_poll(server: ScriptedServer):
    """A poll that waits returns when another thread closes the consumer; the next one raises, so no loop spins."""
    ScriptedGroup(server, end=0)
    consumer = blocking.PullConsumer(server.namesrv, "g", start="earliest")
    consumer.start()
    consumer.assign([QUEUE])
    polls: list[list[ReceivedMessage]] = []
    failures: list[Exception] = []

    def poll_for_ever() -> None:
        try:
            while True:
                polls.append(consumer.poll(600))
        except LocalProtocolError as error:
            failures.append(error)

    polling = threading.Thread(target=poll_for_ever, daemon=True)
    polling.start()
    consumer.close()
    polling.join(30)

    assert not polling.is_alive()
    assert len(polls) <= 1
    assert "closed" in str(failures[0])


def test_a_blocking_call_on_the_loop_is_refused(server: ScriptedServer):
    """It would wait for itself: an async listener has the asyncio client."""
    server.serve_topic("t")
    with blocking.Producer(server.namesrv) as producer:

        async def listen() -> None:
            producer.send("t", b"x")

        with pytest.raises(LocalProtocolError, match="plain function"):
            blocking._wait(listen())


def test_a_transaction_can_be_decided_early(server: ScriptedServer):
    """By plain calls that have happened when they return."""
    server.serve_topic("t")
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION):
        server.on(code, **STORED)
    with blocking.Producer(server.namesrv) as producer:
        with producer.transaction(Message("t", b"x")) as transaction:
            transaction.roll_back()
            assert len(server.requests_of(RequestCode.END_TRANSACTION)) == 1
        with producer.transaction(Message("t", b"x")) as transaction:
            assert transaction.commit().queue == transaction.queue == QUEUE

    outcomes = [command.fields["commitOrRollback"] for command in server.requests_of(RequestCode.END_TRANSACTION)]
    assert outcomes == ["12", "8"]


def test_one_message_that_cannot_be_sent_fails_alone(server: ScriptedServer):
    """Of those that threads give, and the loop finds out about later."""
    server.serve_topic("t")
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        server.on(code, **STORED)
    with blocking.Producer(server.namesrv) as producer:

        def give() -> list[Future[SendResult]]:
            bodies = [b"good", b"", b"good"]
            return [producer.send_nowait(Message("t", body), queue=QUEUE) for body in bodies]

        before, bad, after = blocking._wait(blocking._call(give))

        assert before.result().queue == after.result().queue == QUEUE
        assert isinstance(bad.exception(), LocalProtocolError)
        with pytest.raises(TypeError, match="body must be bytes"):
            producer.send_nowait(Message("t", "text"))  # type: ignore[arg-type]


def test_what_the_async_ones_know_is_known(server: ScriptedServer):
    """Ids, queues to send to, offsets, and topics to leave."""
    ScriptedGroup(server, end=5)
    server.on(RequestCode.SEND_MESSAGE_V2, **STORED)
    with blocking.Producer(server.namesrv) as producer:
        assert "@" in producer.client_id
        assert producer.send("t", b"x", queue=QUEUE).queue == QUEUE
        assert producer.has_room(1)
    with blocking.PushConsumer(server.namesrv, "g") as pushing:
        assert "@" in pushing.client_id
    with blocking.PullConsumer(server.namesrv, "g") as consumer:
        consumer.subscribe("t")
        consumer.unsubscribe("t")
        assert [consumer.offset_of(queue, "latest") for queue in consumer.queues("t")] == [5]
