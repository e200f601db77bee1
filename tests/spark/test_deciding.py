"""What a stream makes of what brokers tell it. The cluster is played, and so is the time."""

import pytest

from holdfast.bulk.read_options import QueueKey
from holdfast.bulk.task_reader import DataLost
from holdfast.model.queue import MessageQueue
from holdfast.spark.offsets import StreamPosition
from holdfast.spark.options import read_source_options
from holdfast.spark.stream_reader import HoldfastStreamReader

NAMES = [("orders", "0"), ("orders", "1")]
QUEUES = {name: MessageQueue("orders", "__syslo__global__", int(name[1])) for name in NAMES}


class PlayedLink:
    """A cluster that says what it is told to."""

    def __init__(self) -> None:
        self.told: dict[QueueKey, int] = {NAMES[0]: 10, NAMES[1]: 10}
        self.patience_s = 600.0
        self.contacts = 0
        self.unit = None
        self.connection = self.offsets = self

    def require_name_server(self) -> None:
        self.contacts += 1

    def ends(self, queues: dict[QueueKey, MessageQueue]) -> dict[QueueKey, int]:
        return {name: self.told[name] for name in queues if name in self.told}

    def available_bounds(self, queues: dict[QueueKey, MessageQueue]) -> dict[QueueKey, tuple[int, int]]:
        return {name: (0, self.told[name]) for name in queues if name in self.told}

    def find_queue(self, name: QueueKey) -> MessageQueue:
        return QUEUES[name]

    def readable_ranges(self, name: QueueKey, start: int, end: int, **how: bool) -> list[tuple[int, int]]:
        """Queue 1 has a gap of a forced move from 20 on."""
        parts = [(start, end)] if name == NAMES[0] else [(start, min(end, 20)), (max(start, 1 << 40), end)]
        return [(low, high) for low, high in parts if low < high]


class Stage:
    """A reader between its link and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.link = PlayedLink()
        self.now_s = 1000.0
        said = {"namesrv": "ns:1", "subscribe": "orders", **options}
        monkeypatch.setattr("holdfast.spark.stream_reader.session_for", lambda *_: self.link)
        monkeypatch.setattr("holdfast.spark.stream_reader.find_queues", lambda *_: QUEUES)
        monkeypatch.setattr("holdfast.spark.stream_reader.time.monotonic", lambda: self.now_s)
        self.reader = HoldfastStreamReader(read_source_options(said, is_stream=True), ("body",))

    def advance(self, *ends: int) -> StreamPosition | None:
        """Return the position behind one at which the queues were read to *ends*."""
        return self.reader._advance(StreamPosition(dict(zip(NAMES, ends, strict=True))))


def test_a_broker_that_is_silent_keeps_its_queues_where_they_are(monkeypatch: pytest.MonkeyPatch):
    """The others go on."""
    stage = Stage(monkeypatch)
    del stage.link.told[NAMES[0]]

    after = stage.advance(4, 4)

    assert after is not None
    assert after.ends == {NAMES[0]: 4, NAMES[1]: 10}


def test_name_servers_must_answer_when_a_query_begins_but_not_later(monkeypatch: pytest.MonkeyPatch):
    """A wrong address fails within seconds; an outage is waited for."""
    stage = Stage(monkeypatch)

    stage.advance(4, 4)
    stage.advance(10, 10)

    assert stage.link.contacts == 1


def test_when_there_is_nothing_new_there_is_no_batch(monkeypatch: pytest.MonkeyPatch):
    """Spark would run one for any other text."""
    assert Stage(monkeypatch).advance(10, 10) is None


def test_a_gap_counts_for_nothing(monkeypatch: pytest.MonkeyPatch):
    """A forced move leaves one of 2^40 offsets: a batch of 25 rows must not take ages to cross it."""
    stage = Stage(monkeypatch, maxOffsetsPerTrigger="25")
    stage.link.told = {NAMES[0]: 10, NAMES[1]: (1 << 40) + 15}

    after = stage.advance(10, 10)

    assert after is not None
    assert after.ends[NAMES[1]] == (1 << 40) + 15


def test_an_end_that_goes_back_is_believed_only_if_it_stays(monkeypatch: pytest.MonkeyPatch):
    """Whoever answers just now may know less than who answered before."""
    stage = Stage(monkeypatch)
    stage.link.told[NAMES[0]] = 3
    assert stage.advance(10, 10) is None
    stage.now_s += 29
    assert stage.advance(10, 10) is None

    stage.now_s += 2
    with pytest.raises(DataLost, match="orders/0 was read up to 10 and ends at 3 now"):
        stage.advance(10, 10)


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_if_that_is_wanted(monkeypatch: pytest.MonkeyPatch):
    """And the batch says so itself, for whoever runs it again."""
    stage = Stage(monkeypatch, failOnDataLoss="false")
    stage.link.told[NAMES[0]] = 3
    stage.advance(10, 10)
    stage.now_s += 31

    after = stage.advance(10, 10)

    assert after is not None
    assert after.begins == {NAMES[0]: 0}
    assert after.ends[NAMES[0]] == 3
