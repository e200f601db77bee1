"""What a task does when a broker does not answer as it should. The cluster is played."""

from collections.abc import Callable

import pytest
from tests.unit.columns.test_message_columns import a_record, block_of

from holdfast.bulk.cluster_connection import Unavailable
from holdfast.bulk.queue_pulls import PullRequest, PullResult
from holdfast.bulk.read_options import Bound, QueueKey, Range, ReadOptions
from holdfast.bulk.task_reader import DataLost, read_ranges
from holdfast.client.consume.pull_plan import PullStatus
from holdfast.columns.message_columns import RecordOrigin
from holdfast.model.errors import AccessDenied, BrokerRefused, ConnectionLost, HoldfastError
from holdfast.model.queue import MessageQueue

QUEUE = MessageQueue("orders", "__syslo__global__", 0)


def found(start: int, end: int, *, low: int = 0) -> PullResult:
    block = memoryview(block_of(*(a_record(offset) for offset in range(start, end))))
    return PullResult(PullStatus.FOUND, end, low, 100, 0, block)


def nothing(status: PullStatus, next_offset: int, *, low: int = 0) -> PullResult:
    return PullResult(status, next_offset, low, 100, 0, memoryview(b""))


class PlayedLink:
    """Answers pulls as it was told, one after the other; the last answer again and again."""

    def __init__(self, *answers: PullResult | HoldfastError, patience_s: float = 60) -> None:
        self._answers = list(answers)
        self.patience_s = patience_s
        self.connection = self.pulls = self.client = self
        self.tls = None
        self.asked: list[int] = []
        self.asked_ahead: list[int] = []
        self.rejected: list[int] = []
        self.mended: list[HoldfastError] = []

    def session_of(self, name: QueueKey) -> tuple["PlayedLink", QueueKey]:
        return self, name

    def find_queue(self, name: QueueKey) -> MessageQueue:
        return QUEUE

    def origin(self, *place: object) -> RecordOrigin:
        return RecordOrigin("orders", 0, "broker-a", 0)

    def pull(self, pull_socket: object, request: PullRequest) -> PullResult:
        self.asked.append(request.offset)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    def pull_ahead(self, pull_socket: object, request: PullRequest) -> None:
        self.asked_ahead.append(request.offset)

    def avoid_replica(self, request: PullRequest) -> None:
        self.rejected.append(request.offset)

    def recover(self, topic: str, error: HoldfastError, failures: int) -> None:
        self.mended.append(error)

    def wait(self, work: None) -> None:
        return work


Read = Callable[..., list[int]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Read 0 to 10 from a link; return the offsets that came."""

    def run(link: PlayedLink, *, fails_on_data_loss: bool = True, columns: tuple[str, ...] = ("offset",)) -> list[int]:
        monkeypatch.setattr("holdfast.bulk.task_reader.session_for", lambda *_: link)
        options = ReadOptions(
            namesrv="ns:1",
            topics=("orders",),
            start=Bound("earliest"),
            end=Bound("latest"),
            fails_on_data_loss=fails_on_data_loss,
        )
        batches = read_ranges(options, columns, (Range("orders", "0", 0, 10),))
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]

    return run


def test_the_same_pull_is_made_again_until_it_is_answered(read: Read):
    """Nothing is lost or repeated, wherever it fails."""
    link = PlayedLink(found(0, 4), ConnectionLost("gone"), BrokerRefused(501, "moved"), found(4, 10))

    assert read(link) == list(range(10))
    assert link.asked == [0, 4, 4, 4]
    assert [type(error) for error in link.mended] == [ConnectionLost, BrokerRefused]


def test_a_refusal_of_access_control_ends_the_query(read: Read):
    """At once, with the text of the broker."""
    link = PlayedLink(AccessDenied(16, "User:ann has no permission to access Topic:orders"), found(0, 10))

    with pytest.raises(AccessDenied, match="no permission to access Topic:orders"):
        read(link)
    assert link.mended == []


def test_the_next_pull_is_under_way_while_rows_are_made(read: Read):
    """The broker has its answer ready when it is wanted; behind the end nothing is asked for."""
    link = PlayedLink(found(0, 4), found(4, 8), found(8, 12))

    assert read(link) == list(range(10))
    assert link.asked == [0, 4, 8]
    assert link.asked_ahead == [4, 8]


def test_rows_behind_the_planned_end_are_left_for_the_next_batch(read: Read):
    """A broker answers with as many as there are."""
    assert read(PlayedLink(found(0, 17))) == list(range(10))


def test_a_broker_that_stays_away_ends_the_query_by_name(read: Read):
    """When patience ends, and not before."""
    link = PlayedLink(ConnectionLost("no connection to broker-a"), patience_s=0)

    with pytest.raises(Unavailable, match=r"orders/0 at offset 0 .* 'brokerTimeout'.*broker-a"):
        read(link)


def test_offsets_that_were_cleaned_are_lost_data(read: Read):
    """Which fails the query, unless it is to go on without them."""
    answers = (nothing(PullStatus.OFFSET_MOVED, 6, low=6), found(6, 10, low=6))

    with pytest.raises(DataLost, match="orders/0: the range from 0 to 6 is no longer stored"):
        read(PlayedLink(*answers))
    assert read(PlayedLink(*answers), fails_on_data_loss=False) == list(range(6, 10))


def test_a_gap_that_never_held_a_message_is_no_loss(read: Read):
    """A forced move leaves one; a tag filter, too."""
    assert read(PlayedLink(found(0, 3), nothing(PullStatus.NO_MATCH, 8), found(8, 10))) == [0, 1, 2, 8, 9]


def test_an_end_that_went_back_is_waited_for_and_then_lost(read: Read):
    """A broker that was killed may have lost what it had not synced."""
    answers = (found(0, 7), nothing(PullStatus.NOTHING_NEW, 7))

    with pytest.raises(DataLost, match="from 7 to 10 was missing"):
        read(PlayedLink(*answers, patience_s=0))
    assert read(PlayedLink(*answers, patience_s=0), fails_on_data_loss=False) == list(range(7))


def test_a_batch_that_nobody_can_open_is_lost_data(read: Read):
    """Which fails the query by its offset, unless it is to go on without it."""
    torn = a_record(3, b"no messages", b"INNER_NUM\x014\x02", sys_flag=0xC0)
    block = block_of(*map(a_record, range(3)), torn, *map(a_record, range(7, 10)))
    answer = PullResult(PullStatus.FOUND, 10, 0, 100, 0, memoryview(block))

    with pytest.raises(
        DataLost, match=r"orders/0: the batch at offset 3 cannot be opened: .* With failOnDataLoss=false"
    ):
        read(PlayedLink(answer))
    assert read(PlayedLink(answer), fails_on_data_loss=False) == [0, 1, 2, 7, 8, 9]


def test_what_a_replica_hands_out_is_read_whole_or_not_at_all(read: Read):
    """A damaged copy is no loss: the master is asked for all of it, and no row comes twice."""
    block = bytes(block_of(a_record(4, b"whole"), a_record(5, b"torn"))).replace(b"torn", b"worn")
    damaged = PullResult(PullStatus.FOUND, 10, 0, 100, 0, memoryview(block), is_from_replica=True)
    link = PlayedLink(found(0, 4), damaged, found(4, 10))

    assert read(link, columns=("offset", "body")) == list(range(10))
    assert link.asked == [0, 4, 4]
    assert link.rejected == [4]
    assert not link.mended
