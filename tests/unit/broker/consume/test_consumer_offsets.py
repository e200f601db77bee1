import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.broker.consume.consumer_offsets import NEVER_COMMITTED, OffsetTable
from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.tables.kept_files import KeptFiles
from holdfast.machine.effects import Log, SetTimer, WriteFile
from holdfast.machine.turn import Turn
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

NOW_MS = 1_700_000_000_000


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    desk.components.groups.ensure("g")
    return desk


def a_table(disk: SimDisk | None = None, turn: Turn | None = None) -> OffsetTable:
    return OffsetTable(disk or SimDisk(), Turn(NOW_MS) if turn is None else turn)


def stop(table: OffsetTable, disk: SimDisk) -> None:
    """Let the table save, and its writes reach the disk."""
    table.stop()
    files = KeptFiles([table], 5_000, table._turn)
    files.stop()
    for effect in table._turn.drain_effects():
        assert isinstance(effect, WriteFile)
        disk.replace(effect.path, effect.data)
        files.written(effect.path)


def query(group: str = "g", queue: int = 0, **fields: object) -> Command:
    return a_request(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic="T", queueId=queue, **fields)


def update(offset: int, group: str = "g", topic: str = "T", queue: int = 0) -> Command:
    return a_request(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue, commitOffset=offset
    )


def test_what_was_committed_is_told(desk: BrokerHarness) -> None:
    """Queue by queue, and backwards as well: a consumer may choose to see something again."""
    desk.call(update(5), update(7, queue=1), update(3))

    first, second = desk.call(query(), query(queue=1))

    assert (first.fields["offset"], second.fields["offset"]) == ("3", "7")


def test_a_group_that_never_committed_is_told_so(desk: BrokerHarness) -> None:
    """With upstream's code and words: where it begins is its own choice."""
    (answer,) = desk.call(query())

    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, NEVER_COMMITTED)


def test_a_queue_that_still_has_its_first_message_begins_at_0(desk: BrokerHarness) -> None:
    """Upstream's exception: a group that is merely late misses nothing. A client may object."""
    desk.call(a_send())

    told, objected = desk.call(query(), query(setZeroIfNotFound="false"))

    assert (told.code, told.fields) == (0, {"offset": "0"})
    assert objected.code == ResponseCode.QUERY_NOT_FOUND


def test_a_negative_offset_is_ignored(desk: BrokerHarness) -> None:
    """It is a client's word for "nothing yet", and must not undo what was committed."""
    desk.call(update(5))

    (ignored,) = desk.call(update(-1))

    assert ignored.code == 0
    assert desk.components.offsets.find("g", "T", 0) == 5


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (update(1, topic="unknown"), ResponseCode.TOPIC_NOT_EXIST),
        (update(1, group="unknown"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_a_commit_for_what_is_not_there_is_refused(desk: BrokerHarness, request_: Command, code: ResponseCode) -> None:
    """A slip of the keyboard must not create anything."""
    (answer,) = desk.call(request_)

    assert answer.code == code


def test_offsets_are_saved_from_time_to_time() -> None:
    """Only when something changed; the next save follows."""
    disk = SimDisk()
    turn = Turn(NOW_MS)
    table = a_table(disk, turn)
    files = KeptFiles([table], 5_000, turn)
    table.commit("g", "T", 0, 5)

    files.on_timer()

    (write, timer) = turn.drain_effects()
    assert isinstance(write, WriteFile)
    assert timer == SetTimer(SAVE_TIMER, NOW_MS + 5_000)
    disk.replace(write.path, write.data)
    assert a_table(disk).find("g", "T", 0) == 5
    turn.now_ms += 5_000
    files.written(write.path)
    files.on_timer()
    assert turn.drain_effects() == [SetTimer(SAVE_TIMER, NOW_MS + 10_000)]


def test_offsets_are_saved_when_the_broker_stops() -> None:
    """An orderly restart repeats nothing; the version before is kept beside."""
    disk = SimDisk()
    first = a_table(disk)
    first.commit("g", "T", 0, 5)
    stop(first, disk)
    second = a_table(disk)
    second.commit("g", "T", 0, 9)
    stop(second, disk)

    assert a_table(disk).find("g", "T", 0) == 9
    disk.replace("config/consumerOffset.json", b"torn")
    assert a_table(disk).find("g", "T", 0) == 5


def test_a_file_of_a_java_broker_is_read_and_what_we_do_not_use_is_kept() -> None:
    """Its queue numbers are bare keys."""
    disk = SimDisk()
    disk.replace(
        "config/consumerOffset.json",
        b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":2},"groupTopicMap":{"g":["T"]},'
        b'"offsetTable":{"T@g":{0:12,1:13}},"pullOffsetTable":{"T@g":{0:14}}}',
    )

    table = a_table(disk)
    stop(table, disk)

    assert table.queues_of("g", "T") == {0: 12, 1: 13}
    assert table.find_pulled("g", "T", 0) == 14
    saved = java_json.loads(disk.read_file("config/consumerOffset.json") or b"")
    assert saved["groupTopicMap"] == {"g": ["T"]}


def test_the_whole_table_is_told(desk: BrokerHarness) -> None:
    """Keys are what upstream's replicas expect."""
    desk.call(update(5))

    (answer,) = desk.call(a_request(RequestCode.GET_ALL_CONSUMER_OFFSET))

    assert java_json.loads(answer.body)["offsetTable"] == {"T@g": {"0": 5}}


def test_a_reset_reaches_the_consumer_once() -> None:
    """At its next pull, unless it is already there."""
    table = a_table()
    table.reset("g", "T", 0, 7, deliver=True)
    table.reset("g", "T", 1, 7, deliver=True)

    assert table.pop_reset("g", "T", 0, 100) == 7
    assert table.pop_reset("g", "T", 0, 100) is None
    assert table.pop_reset("g", "T", 1, 7) is None
    assert table.pop_reset("g", "T", 1, 8) is None


def test_commits_of_the_time_before_a_reset_are_ignored() -> None:
    """Until it is delivered: they would undo it."""
    table = a_table()
    table.commit("g", "T", 0, 50)
    table.reset("g", "T", 0, 7, deliver=True)

    assert not table.commit("g", "T", 0, 51)
    assert table.find("g", "T", 0) == 7
    table.pop_reset("g", "T", 0, 51)
    assert table.commit("g", "T", 0, 8)
    assert table.find("g", "T", 0) == 8


def test_a_reset_waits_also_over_a_restart() -> None:
    """It is in the file, beside the offset; commits of before are still ignored, and it is told once."""
    disk = SimDisk()
    table = a_table(disk)
    table.reset("g", "T", 0, 7, deliver=True)
    table.reset("g", "T", 1, 9, deliver=False)
    stop(table, disk)

    again = a_table(disk)
    is_taken = again.commit("g", "T", 0, 50)

    assert not is_taken
    assert again.pop_reset("g", "T", 1, 50) is None
    assert again.pop_reset("g", "T", 0, 50) == 7
    stop(again, disk)
    assert a_table(disk).pop_reset("g", "T", 0, 50) is None


def test_a_reset_that_was_told_is_saved_as_such() -> None:
    """Nothing else may ever change there: the next process would tell it again."""
    disk = SimDisk()
    turn = Turn(NOW_MS)
    table = a_table(disk, turn)
    table.reset("g", "T", 0, 7, deliver=True)
    stop(table, disk)
    table.pop_reset("g", "T", 0, 50)

    KeptFiles([table], 5_000, turn).on_timer()

    (saved,) = [effect for effect in turn.effects if isinstance(effect, WriteFile) and effect.path.endswith(".json")]
    assert "resets" not in java_json.loads(saved.data)


def test_a_reset_without_its_offset_is_none() -> None:
    """A file may have gone through anybody's hands."""
    disk = SimDisk()
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"T@g":{0:7}},"resets":{"T@g":[0,1],"T@other":[0]}}')

    table = a_table(disk)

    assert table.pop_reset("g", "T", 0, 50) == 7
    assert table.pop_reset("g", "T", 1, 50) is None
    assert table.pop_reset("other", "T", 0, 50) is None


def test_a_waiting_reset_is_told_to_whoever_commits(desk: BrokerHarness) -> None:
    """With upstream's words."""
    desk.components.offsets.reset("g", "T", 0, 7, deliver=True)

    (answer,) = desk.call(update(9))

    assert (answer.code, answer.remark) == (0, "Offset has been previously reset")


def test_groups_and_topics_find_each_other() -> None:
    """Both lists are sorted: they are shown to people."""
    table = a_table()
    for group, topic in (("g2", "T1"), ("g1", "T2"), ("g1", "T1")):
        table.commit(group, topic, 0, 1)

    assert table.topics_of("g1") == ["T1", "T2"]
    assert table.groups_of("T1") == ["g1", "g2"]


def test_what_is_deleted_is_forgotten() -> None:
    """A topic made anew under an old name starts at 0, and so must its groups."""
    table = a_table()
    for group, topic in (("g1", "T1"), ("g1", "T2"), ("g2", "T1")):
        table.commit(group, topic, 0, 1)
    table.reset("g1", "T1", 0, 5, deliver=True)

    table.forget_topic("T1")
    assert table.find("g1", "T1", 0) is None
    assert table.groups_of("T2") == ["g1"]

    table.forget_group("g1")
    assert table.topics_of("g1") == []


def test_a_group_can_be_put_where_another_stands() -> None:
    """A copy: what the first does then is its own affair."""
    table = a_table()
    table.commit("g1", "T", 0, 4)

    table.clone("g1", "g2", "T")
    table.commit("g1", "T", 0, 5)

    assert table.queues_of("g2", "T") == {0: 4}


def test_offsets_behind_the_end_of_their_queue_are_moved_back_at_the_start() -> None:
    """The log lost its end in a power cut: messages that get these offsets again must be consumed. Each is told."""
    desk = BrokerHarness()
    desk.make_topic("T")
    for number in range(3):
        desk.call(a_send(body=b"%d" % number))
    table = desk.components.offsets
    for queue_id, offset in ((0, 5), (1, 2), (2, 0)):
        table.commit("g", "T", queue_id, offset)
    table.commit("whole", "T", 0, 3)
    table.commit("g", "elsewhere", 0, 9)
    desk.pass_time(5_000, SAVE_TIMER)
    desk.store.close(desk.now_ms)

    again = BrokerHarness(disk=desk.disk)

    assert again.components.offsets.queues_of("g", "T") == {0: 3, 1: 0, 2: 0}
    assert again.components.offsets.queues_of("whole", "T") == {0: 3}
    assert again.components.offsets.queues_of("g", "elsewhere") == {0: 9}, "no topic of ours says where that ends"
    told = [effect.fields for effect in again.effects if isinstance(effect, Log)]
    assert told == [
        {"group": "g", "topic": "T", "queue": 0, "old": 5, "new": 3},
        {"group": "g", "topic": "T", "queue": 1, "old": 2, "new": 0},
    ]
