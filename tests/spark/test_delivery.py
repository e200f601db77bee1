"""How the rows of a task go out: in order, in the form that brokers take, not beyond its end. The cluster is played."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.deliveries import poll_until

from holdfast.client.produce.sender import Parcel
from holdfast.model.errors import BrokerRefused, SendFailed
from holdfast.model.queue import MessageQueue
from holdfast.spark import writer
from holdfast.spark.delivery import Delivery, SinkRefused
from holdfast.spark.sink_options import read_sink_options
from holdfast.spark.sink_requests import WriteName
from holdfast.spark.sink_rows import MessageSelection, to_rows
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import unwrap_items
from holdfast.wire.requests.sink import SinkState, find_stamp, find_state

QUEUE = MessageQueue("orders", "__syslo__global__", 0)
OTHER_QUEUE = MessageQueue("orders", "__syslo__global__", 1)
NAME = WriteName("query", 7, 3)


class PlayedLink:
    """A cluster whose brokers keep batches whole, or do not."""

    def __init__(self) -> None:
        self.patience_s = 60.0
        self.is_whole = False
        self.mended: list[Exception] = []
        self.connection = self
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.begin(end()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def publishable(self, topic: str) -> tuple[MessageQueue, ...]:
        return (MessageQueue(topic, QUEUE.broker_name, 0),)

    async def supports_inner_batches(self, queue: MessageQueue) -> bool:
        return self.is_whole

    def next_id(self) -> str:
        return "ID"

    async def recover(self, topic: str, error: Exception, failures: int) -> None:
        self.mended.append(error)


class PlayedSender:
    """Takes parcels; each may be held up, or refused first."""

    def __init__(self) -> None:
        self.taken: list[Parcel] = []
        self.refused: list[Parcel] = []
        self.refusals: list[BrokerRefused] = []
        self.began = threading.Event()
        self.began_count = 0
        self.gate: Future[None] | None = None

    async def send(self, parcel: Parcel, timeout_s: float) -> None:
        self.began.set()
        self.began_count += 1
        if self.gate is not None:
            await asyncio.wrap_future(self.gate)
        if self.refusals:
            self.refused.append(parcel)
            raise SendFailed(self.refusals.pop(0), attempts=1, maybe_stored=False)
        self.taken.append(parcel)

    async def wait_for(self, count: int) -> None:
        """Return when so many parcels are taken."""
        await poll_until(lambda: len(self.taken) >= count)

    @property
    def bodies(self) -> list[list[bytes]]:
        """What was taken, request by request."""
        return [
            [bytes(body) for _, body, _ in unwrap_items(out.body, out.sys_flag, out.properties.encode())]
            if parcel.is_inner_batch
            else [bytes(body) for _, body, _ in split_items(out.body)]
            for parcel in self.taken
            for out in [parcel.outgoing]
        ]


@pytest.fixture
def link() -> Iterator[PlayedLink]:
    played = PlayedLink()
    yield played
    played.close()


@pytest.fixture
def sender() -> PlayedSender:
    return PlayedSender()


def rows_of(
    *bodies: bytes, key: str | None = None, topic: str = "orders", queue: MessageQueue = QUEUE
) -> dict[MessageQueue, MessageSelection]:
    rows = to_rows(pa.RecordBatch.from_pylist([{"body": body, "key": key} for body in bodies]), topic)[topic]
    return {queue: MessageSelection(rows, rows.arrival_order())}


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_task_that_fails_leaves_nothing_under_way(link: PlayedLink, sender: PlayedSender):
    """Spark runs it again: what the first attempt still sends would come behind that."""
    sender.gate = Future()

    def fail() -> None:
        with Delivery(link, sender, None) as delivery:
            delivery.begin(rows_of(b"1"))
            assert sender.began.wait(10)
            raise RuntimeError("the task")

    with pytest.raises(RuntimeError, match="the task"):
        fail()
    with pytest.raises(CancelledError):
        sender.gate.result(10)
    assert sender.taken == []


def test_the_next_rows_leave_when_those_before_are_stored(link: PlayedLink, sender: PlayedSender):
    """Rows of one queue keep their order; who makes rows is held up when there are enough of them on their way."""
    gate = sender.gate = Future()
    delivery = Delivery(link, sender, None)
    delivery.begin(rows_of(b"1"))
    delivery.begin(rows_of(b"2"))
    third = threading.Thread(target=delivery.begin, args=(rows_of(b"3"),))
    third.start()
    assert sender.began.wait(10)
    third.join(0.05)

    assert third.is_alive()
    assert sender.began_count == 1
    sender.gate = None
    gate.set_result(None)
    third.join(10)
    delivery.finish()
    assert sender.bodies == [[b"1"], [b"2"], [b"3"]]


def test_a_queue_does_not_wait_for_another(link: PlayedLink, sender: PlayedSender):
    """A broker that is slow, or away, holds up its own queues."""
    gate = sender.gate = Future()
    delivery = Delivery(link, sender, None)
    delivery.begin(rows_of(b"1"))
    assert sender.began.wait(10)
    sender.gate = None
    delivery.begin(rows_of(b"2", queue=OTHER_QUEUE) | rows_of(b"3"))

    link.begin(sender.wait_for(1)).result(10)
    assert sender.bodies == [[b"2"]]
    gate.set_result(None)
    delivery.finish()
    assert sender.bodies == [[b"2"], [b"1"], [b"3"]]


def test_what_failed_is_told_with_the_rows_that_follow(link: PlayedLink, sender: PlayedSender):
    """Not later than at the end; and nothing is stored behind a gap."""
    sender.refusals = [BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, "too large")]
    with Delivery(link, sender, None) as delivery:
        delivery.begin(rows_of(b"1"))
        delivery.begin(rows_of(b"2"))

        with pytest.raises(SinkRefused, match=r"orders/0: .*too large"):
            delivery.begin(rows_of(b"3"))
    assert sender.taken == []


@pytest.mark.parametrize("name", [None, NAME])
def test_rows_leave_in_the_form_that_the_broker_takes(
    link: PlayedLink, sender: PlayedSender, name: WriteName | None, monkeypatch: pytest.MonkeyPatch
):
    """More rows fit a request that stays one record; without it every row has its stamp."""
    monkeypatch.setattr("holdfast.spark.sink_requests.REQUEST_ROWS_MAX", 2)
    monkeypatch.setattr("holdfast.spark.sink_requests.INNER_BATCH_ROWS_MAX", 3)

    Delivery(link, sender, name).deliver(rows_of(*numbers(5)), 4)
    link.is_whole = True
    Delivery(link, sender, name).deliver(rows_of(*numbers(5)), 4)

    assert [parcel.is_inner_batch for parcel in sender.taken] == [False] * 3 + [True] * 2
    assert sender.bodies == [[b"0", b"1"], [b"2", b"3"], [b"4"], [b"0", b"1", b"2"], [b"3", b"4"]]
    stamps = [find_stamp(parcel.outgoing.properties) for parcel in sender.taken]
    if name is None:
        assert stamps == [None] * 5
        return
    assert [(stamp.first, stamp.count, stamp.is_last) for stamp in stamps] == [
        (0, 2, False), (2, 2, False), (4, 1, True), (0, 3, False), (3, 2, True),
    ]  # fmt: skip
    assert (stamps[0].checksum_before, stamps[2].checksum_after) == (
        stamps[3].checksum_before,
        stamps[4].checksum_after,
    )
    apart, whole = ([text for _, _, text in split_items(sender.taken[at].outgoing.body)] for at in (0, 3))
    assert [state.count for text in apart if (state := find_state(text, 0))] == [1, 2]
    assert whole == [b""] * 3


def test_a_batch_is_compressed_if_it_stays_whole(link: PlayedLink, sender: PlayedSender):
    """Others the broker would have to open."""
    rows = rows_of(*[b"again and again"] * 50)

    Delivery(link, sender, None, Codec.ZSTD).deliver(rows)
    link.is_whole = True
    Delivery(link, sender, None, Codec.ZSTD).deliver(rows)

    assert [parcel.outgoing.sys_flag & 0x701 for parcel in sender.taken] == [0, 0x201]
    assert sender.bodies == [[b"again and again"] * 50] * 2


def test_what_a_broker_will_not_keep_whole_is_sent_apart(link: PlayedLink, sender: PlayedSender):
    """It may have changed since it said so, or lead the queue no more. The next rows are tried whole again."""
    link.is_whole = True
    sender.refusals = [BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, "no")]
    delivery = Delivery(link, sender, None)

    delivery.deliver(rows_of(b"1"))
    delivery.deliver(rows_of(b"2"))

    assert [parcel.is_inner_batch for parcel in sender.refused + sender.taken] == [True, False, True]
    assert sender.bodies == [[b"1"], [b"2"]]
    assert link.mended == []


def test_a_batch_ends_where_its_keys_fit_no_record(link: PlayedLink, sender: PlayedSender):
    """A broker finds messages by keys that stand outside; a tag that does not fit there makes rows go apart."""
    link.is_whole = True
    keys = [letter * 15_000 for letter in "aababc"]
    batch = [{"body": b"%d" % at, "key": key, "tags": "t"} for at, key in enumerate(keys)]
    rows = to_rows(pa.RecordBatch.from_pylist([*batch, {"body": b"7", "key": "", "tags": "t" * 32_000}]), "T")["T"]

    order = rows.arrival_order()
    for mine in (order[:6], order[6:]):
        Delivery(link, sender, None).deliver({QUEUE: MessageSelection(rows, mine)})

    assert [len(bodies) for bodies in sender.bodies] == [5, 1, 1]
    assert [parcel.is_inner_batch for parcel in sender.taken] == [True, True, False]


@pytest.mark.parametrize("is_whole", [False, True])
def test_rows_go_on_behind_what_the_broker_has(link: PlayedLink, sender: PlayedSender, *, is_whole: bool):
    """In either form: an attempt before may have brought them in the other one."""
    link.is_whole = is_whole
    rows = rows_of(*numbers(5))
    Delivery(link, sender, NAME).deliver(rows, 4)
    whole = find_stamp(sender.taken[0].outgoing.properties)
    (first,) = (find_stamp(parcel.outgoing.properties) for parcel in deliver_some(link, rows, 2))
    state = SinkState(queue=0, query="query", partition=3, batch=7, count=2, checksum=first.checksum_after)
    sender.refusals = [BrokerRefused(ResponseCode.SINK_OUT_OF_SEQUENCE, msgspec.json.encode(state).decode())]

    Delivery(link, sender, NAME).deliver(rows, 4)

    assert sender.bodies[1:] == [[b"2", b"3", b"4"]]
    stamp = find_stamp(sender.taken[1].outgoing.properties)
    assert (stamp.first, stamp.checksum_before, stamp.checksum_after) == (2, first.checksum_after, whole.checksum_after)


def deliver_some(link: PlayedLink, rows: dict[MessageQueue, MessageSelection], count: int) -> list[Parcel]:
    """Return what brings the first of some rows."""
    sender = PlayedSender()
    Delivery(link, sender, NAME).deliver({queue: mine[:count] for queue, mine in rows.items()}, 4)
    return sender.taken


Write = Callable[..., PlayedSender]


@pytest.fixture
def write(link: PlayedLink, sender: PlayedSender, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write Arrow batches through the sink."""

    def run(*batches: list[dict[str, object]], **options: str) -> PlayedSender:
        monkeypatch.setattr(writer, "sink_session_for", lambda *_: link)
        monkeypatch.setattr(link, "sender", lambda: sender, raising=False)
        said = read_sink_options({"namesrv": "ns:1", "topic": "orders", **options})
        written = writer.write_rows(said, map(pa.RecordBatch.from_pylist, batches), "query", 1)
        assert written.count == sum(map(len, batches))
        return sender

    return run


def test_small_arrow_batches_become_one_request(write: Write):
    """Spark brings many of them; each would be a request to every queue."""
    assert write([{"body": b"1"}], [{"body": b"2"}, {"body": b"3"}], [{"body": b"4"}]).bodies == [
        [b"1", b"2", b"3", b"4"]
    ]


def test_large_arrow_batches_leave_as_they_come(write: Write, monkeypatch: pytest.MonkeyPatch):
    """What waits for more is bounded."""
    monkeypatch.setattr(writer, "_GATHERED_BYTES_MAX", 30)

    taken = write([{"body": b"1" * 20}], [{"body": b"2" * 20}], [{"body": b"3" * 20}]).bodies

    assert taken == [[b"1" * 20, b"2" * 20], [b"3" * 20]]


def test_exactly_once_writes_where_the_option_says(write: Write):
    """A column of that name comes from the topics that rows were read from, perhaps, and parts them no more."""
    rows = [{"body": b"%d" % number, "topic": "ab"[number % 2]} for number in range(4)]

    sender = write(rows, exactlyOnce="true", inputOrdered="true")

    assert [parcel.topic for parcel in sender.taken] == ["orders"]
    assert sender.bodies == [[b"0", b"1", b"2", b"3"]]


def test_at_least_once_writes_where_rows_say(write: Write):
    """Else where the option says."""
    sender = write([{"body": b"1", "topic": "elsewhere"}, {"body": b"2", "topic": None}])

    assert {parcel.topic for parcel in sender.taken} == {"elsewhere", "orders"}
