import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes

from holdfast.broker.consume.pull import SUSPEND_MAX_MS
from holdfast.broker.tables.creation_limit import CREATED_AT_ONCE_MAX
from holdfast.machine.effects import Log, ReadLog, SendBytes
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, Command
from holdfast.wire.records.record import decode_records

HELD = "6"  # suspend, with the subscription in the request


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def bodies(answer: Command) -> list[bytes]:
    return [bytes(record.body) for record in decode_records(answer.body)]


def fill(desk: BrokerHarness, count: int, *, queues: int = 1, tags: tuple[str, ...] = ("TagA",), size: int = 3) -> None:
    for number in range(count):
        properties = f"UNIQ_KEY\x01U{number}\x02TAGS\x01{tags[number % len(tags)]}\x02"
        desk.call(a_send(queue=number % queues, body=b"%0*d" % (size, number), i=properties))


def test_a_pull_brings_the_records_from_its_offset_on(desk: BrokerHarness) -> None:
    """And says where to go on and what the queue's bounds are."""
    fill(desk, 5)

    (answer,) = desk.call(a_pull(offset=2))

    assert bodies(answer) == [b"002", b"003", b"004"]
    assert answer.fields["nextBeginOffset"] == "5"
    assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("0", "5")


def test_adjacent_records_leave_as_one_view(desk: BrokerHarness) -> None:
    """What lies together in the log is not copied."""
    fill(desk, 5)
    before = len(desk.effects)

    desk.call(a_pull())

    (sent,) = [effect for effect in desk.effects[before:] if isinstance(effect, SendBytes)]
    head, records = sent.pieces
    assert isinstance(records, memoryview)
    assert isinstance(head, bytes)


def test_records_between_those_of_other_queues_are_brought_in_order(desk: BrokerHarness) -> None:
    """Scattered records are joined."""
    fill(desk, 12, queues=4)

    (answer,) = desk.call(a_pull(queue=2))

    assert bodies(answer) == [b"002", b"006", b"010"]


def test_runs_of_a_queue_between_those_of_another_leave_as_views(desk: BrokerHarness) -> None:
    """As batches leave them; small ones are joined all the same."""
    for queue in (0, 1, 0, 1, 0):
        for number in range(3):
            desk.call(a_send(queue=queue, body=b"%d" % number * 30_000))
    before = len(desk.effects)

    (answer,) = desk.call(a_pull(maxMsgBytes=str(1024 * 1024)))

    (sent,) = [effect for effect in desk.effects[before:] if isinstance(effect, SendBytes)]
    assert [type(piece) for piece in sent.pieces] == [bytes, memoryview, memoryview, memoryview]
    assert [body[:1] for body in bodies(answer)] == [b"0", b"1", b"2"] * 3


def test_large_records_leave_as_views_wherever_they_are(desk: BrokerHarness) -> None:
    """Batches that are kept whole, of several queues in turn: their bytes are not copied."""
    for number in range(6):
        desk.call(a_send(queue=number % 2, body=b"%d" % number * 100_000))
    before = len(desk.effects)

    (answer,) = desk.call(a_pull(maxMsgBytes=str(1024 * 1024)))

    (sent,) = [effect for effect in desk.effects[before:] if isinstance(effect, SendBytes)]
    assert [type(piece) for piece in sent.pieces] == [bytes, memoryview, memoryview, memoryview]
    assert bodies(answer) == [b"%d" % number * 100_000 for number in (0, 2, 4)]


def test_the_count_is_limited_by_the_request(desk: BrokerHarness) -> None:
    """The next pull goes on behind it."""
    fill(desk, 5)

    (answer,) = desk.call(a_pull(maxMsgNums="2"))

    assert bodies(answer) == [b"000", b"001"]
    assert answer.fields["nextBeginOffset"] == "2"


def test_answers_are_small_while_connections_hold_much(desk: BrokerHarness) -> None:
    """Large ones that many readers leave waiting would have senders told to wait."""
    fill(desk, 4, size=900_000)
    large = a_pull(maxMsgBytes=str(12 * 1024 * 1024))

    desk.pressure.held = 64 * 1024 * 1024
    (under_pressure,) = desk.call(large)
    desk.pressure.held -= 1
    (eased,) = desk.call(large)

    assert (len(bodies(under_pressure)), len(bodies(eased))) == (2, 4)


def test_the_size_is_limited_but_never_to_nothing(desk: BrokerHarness) -> None:
    """A message larger than the limit comes alone."""
    fill(desk, 4, size=1000)

    (two,) = desk.call(a_pull(maxMsgBytes="2500"))
    (one,) = desk.call(a_pull(maxMsgBytes="10"))

    assert len(bodies(two)) == 2
    assert len(bodies(one)) == 1
    assert one.fields["nextBeginOffset"] == "1"


@pytest.mark.parametrize(
    ("count", "offset", "code", "following"),
    [
        (0, 0, ResponseCode.PULL_NOT_FOUND, 0),
        (0, 5, ResponseCode.PULL_OFFSET_MOVED, 0),
        (3, 3, ResponseCode.PULL_NOT_FOUND, 3),
        (3, 4, ResponseCode.PULL_OFFSET_MOVED, 3),
        (3, -1, ResponseCode.PULL_OFFSET_MOVED, 0),
    ],
)
def test_a_pull_beside_the_queue_is_told_where_to_go(
    desk: BrokerHarness, count: int, offset: int, code: ResponseCode, following: int
) -> None:
    """The table of store situations, when the pull does not want to wait."""
    fill(desk, count)

    (answer,) = desk.call(a_pull(offset=offset))

    assert (answer.code, answer.fields["nextBeginOffset"]) == (code, str(following))


def test_tags_are_filtered_by_their_hash(desk: BrokerHarness) -> None:
    """What does not match is skipped, and not asked for again."""
    fill(desk, 6, tags=("a", "b", "c"))

    (answer,) = desk.call(a_pull(subscription="a || c"))
    (none,) = desk.call(a_pull(subscription="z"))

    assert bodies(answer) == [b"000", b"002", b"003", b"005"]
    assert answer.fields["nextBeginOffset"] == "6"
    assert (none.code, none.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "6")


def test_a_pull_at_the_end_waits_for_the_next_message(desk: BrokerHarness) -> None:
    """It is answered by the send that comes, on its own channel."""
    desk.connect(2)

    assert desk.call(a_pull(sysFlag=HELD), channel=2) == []
    desk.call(a_send(body=b"news"))

    (answer,) = desk.answers[2]
    assert bodies(answer) == [b"news"]


def test_a_waiting_pull_is_not_woken_by_other_queues_or_tags(desk: BrokerHarness) -> None:
    """It goes on waiting; at its deadline it is told how far it need not look again."""
    desk.connect(2)
    desk.call(a_pull(sysFlag=HELD, subscription="wanted"), channel=2)
    desk.call(a_send(queue=1), a_send(queue=0), a_send(queue=0))

    assert desk.answers[2] == []

    desk.pass_time(15_000, "parked pulls")
    (answer,) = desk.answers[2]
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")


def test_a_waiting_pull_is_answered_at_its_deadline(desk: BrokerHarness) -> None:
    """Nothing new, pull again: and not a moment earlier."""
    desk.call(a_pull(sysFlag=HELD, suspendTimeoutMillis="1000"))

    desk.pass_time(999, "parked pulls")
    assert desk.answers[1] == []
    desk.pass_time(1, "parked pulls")

    assert codes(desk.answers[1]) == [ResponseCode.PULL_NOT_FOUND]


def test_pulls_that_bring_nothing_are_counted(desk: BrokerHarness) -> None:
    """At once, or when they have waited in vain; one that waits, and then brings something, is no miss."""
    stats = desk.components.stats
    desk.call(a_pull())
    at_once = (stats.pulls_found.value, stats.pulls_missed.value)
    desk.call(a_pull(sysFlag=HELD, suspendTimeoutMillis="1000"))
    waiting = stats.pulls_missed.value
    desk.pass_time(1_000, "parked pulls")
    expired = stats.pulls_missed.value
    desk.call(a_pull(sysFlag=HELD))

    desk.call(a_send())

    assert at_once == (0, 1)
    assert (waiting, expired) == (1, 2)
    assert (stats.pulls_found.value, stats.pulls_missed.value) == (1, 2)


def test_where_a_group_goes_on_is_noted(desk: BrokerHarness) -> None:
    """What was handed out and is not committed yet is under way: tools show both."""
    fill(desk, 5)

    desk.call(a_pull(offset=0, maxMsgNums="3"))

    assert desk.components.offsets.find_pulled("consumers", "T", 0) == 3
    assert desk.components.offsets.find("consumers", "T", 0) is None


def test_where_a_group_goes_on_is_noted_for_cold_records_too(desk: BrokerHarness) -> None:
    """They are read off the loop: the offset is known when they are there."""
    fill(desk, 5)
    desk.store.close(desk.now_ms)
    again = reopen(desk)

    again.call(a_pull(offset=0, maxMsgNums="4"))

    assert any(isinstance(effect, ReadLog) for effect in again.effects)
    assert again.components.offsets.find_pulled("consumers", "T", 0) == 4


def test_nobody_reads_what_is_not_synced() -> None:
    """Under sync flush neither a pull nor its bounds show a record before the disk has it."""
    desk = BrokerHarness(flush="sync")
    desk.make_topic("T")
    desk.connect(2)
    desk.call(a_pull(sysFlag=HELD), channel=2)
    desk.call(a_send(body=b"x"))

    assert desk.answers[2] == []

    desk.sync()

    assert bodies(desk.answers[2][0]) == [b"x"]


def test_a_gone_client_is_not_answered(desk: BrokerHarness) -> None:
    """Its waiting pulls are forgotten with it."""
    desk.connect(2)
    desk.call(a_pull(sysFlag=HELD), channel=2)
    desk.disconnect(2)

    desk.call(a_send())

    assert desk.answers[2] == []
    assert len(desk.components.pull_handler.parked_pulls) == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"queueOffset": "x"}, ResponseCode.INVALID_PARAMETER),
        ({"sysFlag": "2"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"topic": "WriteOnly"}, ResponseCode.NO_PERMISSION),
    ],
)
def test_a_pull_that_may_not_be_is_refused_with_a_reason(
    desk: BrokerHarness, change: dict[str, str], code: ResponseCode
) -> None:
    """The remark says what is wrong."""
    desk.make_topic("WriteOnly", permission=2)

    (answer,) = desk.call(a_pull(**change))

    assert answer.code == code
    assert answer.remark


def test_a_group_is_not_made_where_groups_are_not_automatic() -> None:
    """It must be created first."""
    desk = BrokerHarness(auto_create_groups=False)
    desk.make_topic("T")

    (answer,) = desk.call(a_pull())

    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_retried_pull_creates_its_deleted_group_at_the_present_time(desk: BrokerHarness) -> None:
    """Creations at different times do not count as creations at once."""
    count = CREATED_AT_ONCE_MAX + 1
    desk.connect(2)
    desk.make_topic("Wide", queues=count)
    for number in range(count):
        desk.pass_time(1)
        desk.call(a_pull("Wide", queue=number, opaque=number, consumerGroup=f"group{number}", sysFlag=HELD))
    desk.answers[1].clear()

    for number in range(count):
        desk.pass_time(1)
        desk.components.groups.delete(f"group{number}")
        desk.pass_time(1)
        desk.call(a_send("Wide", queue=number), channel=2)
        assert desk.components.groups.data_version.timestamp == desk.now_ms

    assert codes(desk.answers[1]) == [ResponseCode.SUCCESS] * count


def test_a_commit_that_rides_along_is_kept(desk: BrokerHarness) -> None:
    """Unless it is negative, which some clients send for "nothing"."""
    fill(desk, 5)

    desk.call(a_pull(offset=3, sysFlag="5", commitOffset="3"))
    desk.call(a_pull(offset=3, sysFlag="5", commitOffset="-1"))

    assert desk.components.offsets.find("consumers", "T", 0) == 3


def test_a_reset_reaches_a_consumer_with_its_next_pull(desk: BrokerHarness) -> None:
    """It is told to go on elsewhere, once."""
    fill(desk, 5)
    desk.components.offsets.reset("consumers", "T", 0, 1, deliver=True)

    (moved,) = desk.call(a_pull(offset=5))
    (after,) = desk.call(a_pull(offset=1))

    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert len(bodies(after)) == 4


def test_a_reset_wakes_a_waiting_pull(desk: BrokerHarness) -> None:
    """It need not wait for the next message, or for its deadline."""
    fill(desk, 5)
    desk.connect(2)
    desk.call(a_pull(offset=5, sysFlag=HELD), channel=2)
    reset = {"topic": "T", "group": "consumers", "timestamp": "0", "isForce": "true"}

    desk.call(Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=reset))

    (moved,) = desk.answers[2]
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


def test_binary_and_lite_pulls_are_answered_alike(desk: BrokerHarness) -> None:
    """Same records, in the request's encoding."""
    fill(desk, 2)
    binary = a_pull()
    binary.serializer = BINARY
    lite = a_pull()
    lite.code = RequestCode.LITE_PULL_MESSAGE

    answers = desk.call(binary, lite)

    assert [bodies(answer) for answer in answers] == [[b"000", b"001"]] * 2
    assert [answer.serializer for answer in answers] == [BINARY, 0]


def test_cold_records_are_read_off_the_loop_and_checked(desk: BrokerHarness) -> None:
    """After a restart nothing is verified yet: the first pull reads index and records, the second need not."""
    fill(desk, 4, queues=2)
    desk.store.close(desk.now_ms)
    again = reopen(desk)

    (first,) = again.call(a_pull())
    reads = [effect.file.path.split("/")[0] for effect in again.effects if isinstance(effect, ReadLog)]
    (second,) = again.call(a_pull())

    assert bodies(first) == bodies(second) == [b"000", b"002"]
    assert reads == ["consumequeue", "commitlog"]
    assert sum(isinstance(effect, ReadLog) for effect in again.effects) == len(reads)


def test_a_flipped_bit_is_reported_with_its_place(desk: BrokerHarness) -> None:
    """In the log. Wrong bytes are never served, and the good messages around them always."""
    fill(desk, 3)
    (before, whole, _), (position, size, _), (behind, _, _) = desk.store.queue("T", 0).entries(0, 3)
    desk.store.close(desk.now_ms)
    file = desk.disk.open("commitlog/00000000000000000000")
    flipped = bytearray(file.read(position, position + size))
    flipped[90] ^= 1
    file.write(position, [bytes(flipped)])
    again = reopen(desk)

    (answer,) = again.call(a_pull())
    (alone,) = again.call(a_pull(offset=1, maxMsgNums="1"))

    assert answer.code == ResponseCode.SUCCESS
    assert answer.body == file.read(before, before + whole) + file.read(behind, behind + whole)
    assert answer.fields["nextBeginOffset"] == "3"
    assert (alone.code, alone.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
    told = [effect for effect in again.effects if isinstance(effect, Log) and effect.event == "corrupt record"]
    assert {effect.fields["position"] for effect in told} == {position}


def test_nobody_parks_a_pull_for_ever(desk: BrokerHarness) -> None:
    """However long it says that it wants to wait, it is answered after minutes and may ask again."""
    assert desk.call(a_pull(sysFlag=HELD, suspendTimeoutMillis=str(2**62))) == []

    desk.pass_time(SUSPEND_MAX_MS, "parked pulls")

    assert codes(desk.answers[1]) == [ResponseCode.PULL_NOT_FOUND]


def reopen(desk: BrokerHarness) -> BrokerHarness:
    """Return the same broker, started again on its disk."""
    return BrokerHarness(disk=desk.disk)
