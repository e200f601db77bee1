"""A broker takes the rows of a sink once, whoever brings them, and knows so after restarts and moves."""

import itertools

import msgspec
import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.broker_machines import TOPIC, StaticBroker, StaticBrokers

from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.move.move_payload import MovePayload
from holdfast.broker.relay.forward_dedup import ForwardedNames
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.records.batch import encode_items, split_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items
from holdfast.wire.requests.moves import OpenQueues
from holdfast.wire.requests.sink import SINK, SinkStamp, SinkState, record_texts


def checksum(count: int) -> int:
    """Return a checksum of the first rows of every writer here."""
    return 1000 + count


def rows(
    first: int, count: int, *, batch: int = 7, is_last: bool = False, total: int | None = None, **more: object
) -> Command:
    """Return a request with rows of (query, batch, partition 0); *total* lies about how many."""
    items = [
        (
            0,
            b"%d/%d" % (batch, number),
            f"{SINK}\x01{record_texts('q', batch, 0, number, [checksum(number + 1)], is_last=False)[0]}\x02".encode(),
        )
        for number in range(first, first + count)
    ]
    stamp = SinkStamp(
        query="q", batch=batch, partition=0, first=first, count=total or count, checksum_before=checksum(first),
        checksum_after=checksum(first + count), is_last=is_last, **more,
    )  # fmt: skip
    return a_send(TOPIC, code=320, m="true", i=f"{SINK}\x01{stamp.to_text()}\x02", body=encode_items(items))


def whole(command: Command) -> Command:
    """Return the same as a batch that is kept whole."""
    batch = wrap_items(command.body, len(split_items(command.body)), "0A", codec=Codec.ZSTD)
    fields = command.fields | {"f": str(batch.sys_flag), "i": batch.properties + command.fields["i"]}
    return Command(code=command.code, opaque=command.opaque, fields=fields, body=batch.body)


@pytest.fixture(params=["split", "kept whole"])
def desks(request: pytest.FixtureRequest) -> StaticBrokers:
    found = StaticBrokers("a", "b")
    if request.param == "kept whole":
        found.attributes = {"queue.type": "BatchCQ"}
    found.create("a")
    return found


def save(desk: StaticBroker) -> None:
    """Let the broker take a snapshot of the progress, and write it once the log is on disk."""
    desk.pass_time(5_000, SAVE_TIMER, "flush")
    desk.sync()


def ask(desk: StaticBroker, command: Command) -> tuple[int, SinkState | None]:
    config = desk.components.topics.find(command.fields["b"])
    (answer,) = desk.call(whole(command) if config is not None and config.accepts_batches else command)
    is_behind = answer.code == ResponseCode.SINK_OUT_OF_SEQUENCE
    return answer.code, msgspec.json.decode(answer.remark or "", type=SinkState) if is_behind else None


def bodies(desks: StaticBrokers) -> list[bytes]:
    return [body for _, body in desks.read_all()]


def test_rows_that_follow_one_another_are_taken(desks: StaticBrokers):
    """A batch in several requests, and the next batch."""
    commands = [rows(0, 2), rows(2, 1, is_last=True), rows(0, 1, batch=8)]

    assert [ask(desks["a"], command)[0] for command in commands] == [0, 0, 0]
    assert bodies(desks) == [b"7/0", b"7/1", b"7/2", b"8/0"]


def test_a_retry_is_told_how_far_the_batch_is(desks: StaticBrokers):
    """It stores nothing: the retry resumes behind that."""
    ask(desks["a"], rows(0, 3))

    code, state = ask(desks["a"], rows(0, 2))

    assert code == ResponseCode.SINK_OUT_OF_SEQUENCE
    assert state is not None
    assert (state.batch, state.count, state.checksum, state.is_over) == (7, 3, checksum(3), False)
    assert ask(desks["a"], rows(3, 1))[0] == 0
    assert bodies(desks) == [b"7/0", b"7/1", b"7/2", b"7/3"]


def test_rows_that_leave_a_hole_are_not_taken(desks: StaticBrokers):
    """Neither at the beginning of a batch nor later."""
    assert ask(desks["a"], rows(2, 1))[0] == ResponseCode.SINK_OUT_OF_SEQUENCE
    ask(desks["a"], rows(0, 1))
    assert ask(desks["a"], rows(2, 1))[0] == ResponseCode.SINK_OUT_OF_SEQUENCE
    assert bodies(desks) == [b"7/0"]


def test_a_ghost_adds_nothing_behind_a_batch_that_is_over(desks: StaticBrokers):
    """Nor to one whose query has gone on."""
    ask(desks["a"], rows(0, 2, is_last=True))

    assert ask(desks["a"], rows(2, 1))[0] == ResponseCode.SINK_OUT_OF_SEQUENCE
    ask(desks["a"], rows(0, 1, batch=8))
    assert ask(desks["a"], rows(0, 1, batch=7))[0] == ResponseCode.SINK_REFUSED
    assert bodies(desks) == [b"7/0", b"7/1", b"8/0"]


def test_what_is_not_on_disk_yet_is_not_told(desks: StaticBrokers):
    """Whoever believed it would not write the rows again when the disk refuses them."""
    sync = StaticBrokers("a", flush="sync")
    sync.create("a")
    desk = sync["a"]
    desk.answers[1].clear()
    desk.send_bytes(encode_command(rows(0, 2)))

    (answer,) = desk.send_bytes(encode_command(rows(0, 2)))
    assert answer.code == ResponseCode.SYSTEM_BUSY

    desk.sync()
    assert ask(desk, rows(0, 2))[0] == ResponseCode.SINK_OUT_OF_SEQUENCE


@pytest.mark.parametrize("is_saved", [False, True])
def test_it_is_known_after_a_restart(desks: StaticBrokers, *, is_saved: bool):
    """From the records, and from the snapshot with the records behind it."""
    ask(desks["a"], rows(0, 2))
    if is_saved:
        save(desks["a"])
    ask(desks["a"], rows(2, 2))

    desk = desks.restart("a")

    code, state = ask(desk, rows(0, 1))
    assert code == ResponseCode.SINK_OUT_OF_SEQUENCE
    assert state is not None
    assert (state.count, state.checksum) == (4, checksum(4))
    assert ask(desk, rows(4, 1))[0] == 0


def test_records_before_the_snapshot_are_not_read_again(desks: StaticBrokers):
    """Or a start would take longer with every message there ever was."""
    ask(desks["a"], rows(0, 2))
    save(desks["a"])
    read = []
    desk = desks["a"]
    desk.disk.replace("config/holdfastSink.json", desk.disk.read_file("config/holdfastSink.json") or b"")

    again = desks.restart("a")
    again.store.read_record = read.append  # type: ignore[method-assign,assignment]
    again.components.sink_progress._load()

    assert read == []


def test_it_moves_with_the_queue(desks: StaticBrokers):
    """The new leader knows what the old one took; the old one forgets it."""
    ask(desks["a"], rows(0, 2))
    packed = desks["a"].components.sink_progress.pack(TOPIC, [0])
    desks.move(0, "b")
    opening = OpenQueues(
        move="m", source="a", topic=TOPIC, scope="__global__", epoch=1, total=1, queues=[], sinks=packed
    )

    luggage(desks["b"]).unpack(opening, [0])
    luggage(desks["a"]).forget(TOPIC, [0])

    assert ask(desks["b"], rows(0, 2))[0] == ResponseCode.SINK_OUT_OF_SEQUENCE
    assert ask(desks["b"], rows(2, 1))[0] == 0
    assert desks["a"].components.sink_progress.pack(TOPIC, [0]) == []
    assert bodies(desks) == [b"7/0", b"7/1", b"7/2"]


def test_after_a_forced_move_nothing_is_guessed(desks: StaticBrokers):
    """Nobody knows what the dead leader took; who wants to go on has to say so."""
    ask(desks["a"], rows(0, 2))
    desks.kill("a")
    forced = desks.queue(0).force("b", 0)
    desks.record_at(desks["b"], forced, total=1, epoch=1_800_000_000_000)

    assert ask(desks["b"], rows(0, 2))[0] == ResponseCode.SINK_REFUSED
    assert ask(desks["b"], rows(0, 2, accepts_unknown=True))[0] == 0
    assert ask(desks["b"], rows(2, 1))[0] == 0


def test_rows_that_were_staged_and_discarded_are_not_known(desks: StaticBrokers, monkeypatch: pytest.MonkeyPatch):
    """A turn that failed has stored nothing."""
    desk = desks["a"]
    ask(desk, rows(0, 1))

    real, calls = desk.components.stats.count_puts, itertools.count()

    def fail_once(topic: str, count: int, size: int) -> None:
        if next(calls) == 0:
            raise RuntimeError("a mistake")
        real(topic, count, size)

    monkeypatch.setattr(desk.components.stats, "count_puts", fail_once)

    # The turn fails as a whole, and what was read in it is taken anew, each read by itself.
    assert desk.call_together({1: [rows(1, 1)]})[1][0].code == 0
    assert next(calls) == 2
    assert bodies(desks) == [b"7/0", b"7/1"]


def test_a_stamp_that_lies_and_a_normal_topic_are_refused(desks: StaticBrokers):
    """What cannot be counted must not be promised."""
    assert ask(desks["a"], rows(0, 2, total=3))[0] == ResponseCode.SINK_REFUSED
    desks["a"].make_topic("normal")
    command = rows(0, 1)
    command.fields["b"] = "normal"
    assert ask(desks["a"], command)[0] == ResponseCode.SINK_REFUSED


def test_writers_of_long_ago_are_forgotten(desks: StaticBrokers, monkeypatch: pytest.MonkeyPatch):
    """What is remembered has a bound."""
    monkeypatch.setattr("holdfast.broker.produce.exactly_once.WRITERS_MAX", 2)
    book = desks["a"].components.sink_progress
    states = [SinkState(queue=0, query=f"q{number}", partition=0, batch=1, count=1, checksum=1) for number in range(3)]

    book.adopt(TOPIC, states)

    assert [state.query for state in book.pack(TOPIC, [0])] == ["q1", "q2"]


def luggage(desk: StaticBroker) -> MovePayload:
    return MovePayload(
        desk.components.offsets,
        desk.components.groups,
        desk.components.locks,
        ForwardedNames(desk.store, desk.components.reply_gate.is_acknowledged, desk.components.turn),
        desk.components.sink_progress,
        desk.components.members,
        desk.components.turn,
    )


def test_a_batch_that_was_kept_whole_is_read_once(desks: StaticBrokers):
    """Not once for each of its rows."""
    ask(desks["a"], rows(0, 50))
    again, read = desks.restart("a"), []
    real = again.store.read_record

    def look(position: int) -> object:
        read.append(position)
        return real(position)

    again.store.read_record = look  # type: ignore[method-assign,assignment]
    again.components.sink_progress._load()

    assert len(read) == (1 if desks.attributes else 50)
