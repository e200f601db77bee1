"""Programs that fork: the child opens its own clients, and leaves its parent's alone.

Each story is a separate program, so that its end is a part of the test: one that hangs there fails, too.
"""

import asyncio
import subprocess
import sys
from textwrap import dedent

from tests.support.client_stories import read_all

_BEGIN = """
import asyncio, concurrent.futures, multiprocessing, os, sys, threading
import holdfast
from holdfast import ForkedClient, Message, blocking

namesrv, topic, group = sys.argv[1:]

def join(pid):
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status

def must_refuse(call, *arguments, **options):
    try:
        outcome = call(*arguments, **options)
    except ForkedClient as error:
        assert "after the fork" in str(error)
    else:
        raise AssertionError(f"{call} returned {outcome}")

def connections(client):
    return {address: id(link) for address, link in client._client._pool._connections.items() if link.is_open}
"""


def tell(story: str, *arguments: str) -> str:
    """Run *story* to its end and return its output."""
    program = _BEGIN + dedent(story)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bodies(namesrv: str, topic: str, count: int) -> list[bytes]:
    """Return the bodies of the stored messages, once there are *count*."""
    return sorted(message.body for message in asyncio.run(read_all(namesrv, topic, count)))


def test_a_child_opens_its_own_clients(namesrv: str, topic: str, group: str):
    """Also if its parent has used the library before: with clients that are closed, open, or not open yet."""
    tell(
        """
        with blocking.Producer(namesrv) as producer:
            producer.send(topic, b"1 parent")
        waiting = blocking.Producer(namesrv)
        pid = os.fork()
        if not pid:
            with blocking.Producer(namesrv) as producer:
                producer.send(topic, b"2 child")
            with waiting:
                waiting.send(topic, b"3 opened in the child")
            with blocking.PullConsumer(namesrv, group, start="earliest") as consumer:
                consumer.assign(consumer.queues(topic))
                read = 0
                while read < 3:
                    read += len(consumer.poll(20))
            sys.exit()
        join(pid)
        with blocking.Producer(namesrv) as producer:
            producer.send(topic, b"4 parent again")
        """,
        namesrv,
        topic,
        group,
    )
    assert bodies(namesrv, topic, 4) == [b"1 parent", b"2 child", b"3 opened in the child", b"4 parent again"]


def test_clients_that_a_child_inherits_say_so(namesrv: str, topic: str, group: str):
    """Every call, at once; and the parent's connections do not notice, whatever the child does to its copies."""
    tell(
        """
        got = threading.Semaphore(0)
        consumer = blocking.PushConsumer(namesrv, group, listener=lambda message: got.release(), start="earliest")
        consumer.subscribe(topic)
        looping = blocking.PushConsumer(namesrv, group + "-loop")
        puller = blocking.PullConsumer(namesrv, group + "-pull", start="earliest")
        with blocking.Producer(namesrv) as producer, consumer, looping, puller:
            first = producer.send(topic, b"parent 0")
            puller.assign(puller.queues(topic))
            assert got.acquire(timeout=60)
            open_links = connections(producer._producer)
            producer._pending_lock.acquire()  # as another thread might at this moment
            pid = os.fork()
            if not pid:
                must_refuse(producer.start)
                must_refuse(producer.send, topic, b"child")
                must_refuse(producer.send_many, [Message(topic, b"child")])
                must_refuse(producer.send_nowait, Message(topic, b"child"))
                must_refuse(producer.send_soon, Message(topic, b"child"))
                must_refuse(producer.send_oneway, Message(topic, b"child"))
                must_refuse(producer.flush)
                must_refuse(producer.queues, topic)
                must_refuse(producer.has_room, 1)
                must_refuse(producer.request, Message(topic, b"child"))
                must_refuse(producer.transaction(Message(topic, b"child")).__enter__)
                must_refuse(producer.set_name_servers, namesrv)
                for either in (consumer, looping, puller):
                    must_refuse(either.start)
                    must_refuse(either.subscribe, topic)
                    must_refuse(either.unsubscribe, topic)
                    must_refuse(either.queues, topic)
                must_refuse(consumer.run)
                must_refuse(lambda: next(iter(looping)))
                must_refuse(lambda: next(iter(puller)))
                must_refuse(puller.poll, 600)
                must_refuse(puller.commit)
                must_refuse(puller.seek_all, "earliest")
                for queue in puller.assignment:
                    must_refuse(puller.seek, queue, 0)
                    must_refuse(puller.position, queue)
                    must_refuse(puller.committed, queue)
                sys.exit()  # which closes all of them
            producer._pending_lock.release()
            join(pid)
            for number in range(1, 20):
                producer.send(topic, b"parent %d" % number)
            for _ in range(1, 20):
                assert got.acquire(timeout=60)
            assert open_links.items() <= connections(producer._producer).items()
        """,
        namesrv,
        topic,
        group,
    )
    assert len(bodies(namesrv, topic, 20)) == 20


def test_asyncio_clients_that_a_child_inherits_say_so(namesrv: str, topic: str, group: str):
    """On the child's own loop; and on the parent's, which a child that was forked there may unwind."""
    tell(
        """
        async def use(producer, consumer):
            for work in (
                producer.send(topic, b"child"), producer.flush(), producer.queues(topic), consumer.poll(600),
                anext(aiter(consumer)), consumer.committed(holdfast.MessageQueue(topic, "broker-a", 0)),
            ):
                try:
                    await work
                except ForkedClient:
                    continue
                raise AssertionError(work)
            try:
                producer.send_nowait(Message(topic, b"child"))
            except ForkedClient:
                pass
            await producer.close()
            await consumer.close()
            async with holdfast.Producer(namesrv) as another:
                await another.send(topic, b"from a child")

        async def parent():
            async with holdfast.Producer(namesrv) as producer, holdfast.PullConsumer(namesrv, group) as consumer:
                await producer.send(topic, b"parent 0")
                open_links = connections(producer)
                pid = os.fork()
                if not pid:
                    # On a loop of the child's, in another thread: this one is in the parent's still.
                    concurrent.futures.ThreadPoolExecutor().submit(asyncio.run, use(producer, consumer)).result()
                    sys.exit()  # through every block and the loop itself
                for number in range(1, 20):
                    await producer.send(topic, b"parent %d" % number)
                join(pid)  # Not in a thread: asyncio lets a child that unwinds a loop disable its wake-up.
                for number in range(20, 40):
                    await producer.send(topic, b"parent %d" % number)
                assert open_links.items() <= connections(producer).items()

        asyncio.run(parent())
        """,
        namesrv,
        topic,
        group,
    )
    assert len(bodies(namesrv, topic, 41)) == 41


def test_children_do_not_share_their_parents_chance(namesrv: str, topic: str, group: str):
    """A client that was created before the fork: message ids and the choice of name servers differ in each child."""
    printed = tell(
        """
        waiting = blocking.Producer(namesrv)
        for _ in range(3):
            pid = os.fork()
            if not pid:
                with waiting:
                    print(waiting.send(topic, b"x").message_id[12:20], flush=True)
                sys.exit()
            join(pid)
        """,
        namesrv,
        topic,
        group,
    )
    assert len(set(printed.split())) == 3


def test_a_pool_of_forked_workers_sends(namesrv: str, topic: str, group: str):
    """While the parent, which has an open producer, keeps sending from a thread."""
    printed = tell(
        """
        inherited = blocking.Producer(namesrv)

        def work(number):
            must_refuse(inherited.send, topic, b"no")
            with blocking.Producer(namesrv) as producer:
                return producer.send(topic, b"worker %d" % number).offset

        with inherited:
            ended = threading.Event()
            sent = []

            def keep_sending():
                while not ended.is_set() or len(sent) < 10:
                    sent.append(inherited.send(topic, b"parent"))

            thread = threading.Thread(target=keep_sending)
            inherited.send(topic, b"parent")
            thread.start()
            with multiprocessing.get_context("fork").Pool(3) as pool:
                offsets = pool.map(work, range(9), chunksize=1)
                pool.close()
                pool.join()
            ended.set()
            thread.join()
            print(1 + len(sent) + len(offsets))
        """,
        namesrv,
        topic,
        group,
    )
    stored = bodies(namesrv, topic, int(printed))
    assert [body for body in stored if body != b"parent"] == [b"worker %d" % number for number in range(9)]


def test_a_loop_of_the_parent_does_not_continue_in_the_child(namesrv: str, topic: str, group: str):
    """The child neither reads a message that the parent has buffered, nor finishes the one in the parent's hand."""
    said = tell(
        """
        with blocking.Producer(namesrv) as producer:
            for number in range(3):
                producer.send(topic, b"%d" % number)
        with blocking.PushConsumer(namesrv, group, start="earliest") as consumer:
            consumer.subscribe(topic)
            messages = iter(consumer)
            bodies = [next(messages).body]
            pid = os.fork()
            if not pid:
                must_refuse(next, messages)
                os._exit(0)
            join(pid)
            bodies += [next(messages).body, next(messages).body]
            print(*sorted(bodies))
        """,
        namesrv,
        topic,
        group,
    )

    assert said == "b'0' b'1' b'2'\n"
