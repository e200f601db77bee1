"""The room of mappings, on desks: what is recorded, where a queue is, what survives, what others hear."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.broker_machines import EPOCH, TOPIC, StaticBrokers
from tests.support.cluster.machine import logs

from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.mapping.mapping_table import JAVA_NAME, NAME
from holdfast.broker.mapping.segment_ends import SealedEnd
from holdfast.model.errors import MappingRefused
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.topic import MAPPING_TOPIC, TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.config_files import config_path
from holdfast.wire.cluster.mapping import MappingFile, encode_file, to_detail
from holdfast.wire.requests.moves import Move


def a_desk(*leaders: str, disk: SimDisk | None = None, **options: object) -> BrokerHarness:
    """Return broker a, which records a static topic whose queues are led by *leaders*."""
    desk = BrokerHarness(name="a", disk=disk, **options)
    queues = {number: new_logical_queue(number, name, number) for number, name in enumerate(leaders)}
    if leaders:
        desk.make_topic(TOPIC, len(leaders))
        mapping = TopicMapping(topic=TOPIC, broker="a", epoch=EPOCH, total=len(leaders) + 1, queues=queues)
        desk.components.mappings.change(mapping)
    return desk


def a_move(*queues: int, state: str = "granted") -> MoveState:
    return MoveState(move=Move(id="m", topic=TOPIC, queues=list(queues), source="a", target="b", state=state))


def mapping_of(desk: BrokerHarness) -> TopicMapping:
    mapping = desk.components.mappings.find(TOPIC)
    assert mapping is not None
    return mapping


# Where a queue is.


def test_a_queue_is_open_where_its_newest_home_is():
    """Elsewhere it is elsewhere; what nobody recorded is elsewhere too; what there is not is unknown."""
    desk = a_desk("a", "b")
    mappings = desk.components.mappings

    here, there = mappings.placement(TOPIC, 0), mappings.placement(TOPIC, 1)

    assert (here.state, here.leader, here.delta, here.is_led) == ("open", "a", 0, True)
    assert here.queue_index is desk.store.queue(TOPIC, 0)
    assert (there.state, there.leader, there.is_led) == ("elsewhere", "b", False)
    assert (mappings.placement(TOPIC, 2).state, mappings.placement(TOPIC, 2).leader) == ("elsewhere", "")
    assert mappings.placement(TOPIC, 3).state == "unknown"
    assert mappings.placement(TOPIC, -1).state == "unknown"
    assert mappings.placement("Normal", 0).state == "unknown"
    assert mappings.led_queues(TOPIC) == [0]


def test_a_prepared_queue_takes_no_writes():
    """Neither does it keep the old leader from taking them."""
    desk = a_desk("a", "b")
    mapping = mapping_of(desk)
    comes, goes = mapping.queues[1].prepare("a", 5), mapping.queues[0].prepare("b", 5)

    desk.components.mappings.change(mapping.with_queues(comes, goes))

    prepared = desk.components.mappings.placement(TOPIC, 1)
    assert (prepared.state, prepared.leader, prepared.is_led) == ("prepared", "b", False)
    assert desk.components.mappings.placement(TOPIC, 0).state == "open"


def test_a_seal_takes_the_end_of_everything_that_was_staged():
    """A send of the same event, not yet written, is before the end."""
    desk = a_desk("a")
    desk.call(a_send(TOPIC, queue=0))
    log = desk.store.queue(TOPIC, 0)
    desk.store.stage(log, b"staged", b"", 0, 0, 1, bytes(8), 0, 1)

    ends = desk.components.mappings.seal(TOPIC, [0])

    assert ends == {0: SealedEnd(2, desk.now_ms)}
    assert desk.components.mappings.placement(TOPIC, 0).state == "sealed"
    assert desk.components.mappings.placement(TOPIC, 0).is_led


def test_a_seal_in_memory_can_be_taken_back():
    """Until a record says so nothing has happened; other changes of the topic meanwhile do not matter."""
    desk = a_desk("a", "a")
    mappings = desk.components.mappings
    mappings.seal(TOPIC, [0])

    mappings.change(mapping_of(desk).with_queues(epoch=EPOCH + 1))
    during = [mappings.placement(TOPIC, number).state for number in range(2)]
    mappings.unseal(TOPIC, [0])

    assert during == ["sealed", "open"]
    assert mappings.placement(TOPIC, 0).state == "open"


def test_what_others_keep_by_queue_is_emptied_whenever_a_placement_may_have_changed():
    """A seal, its withdrawal and a change of the record each do; a question does not."""
    desk = a_desk("a", "a")
    mappings, cache = desk.components.mappings, {}
    mappings.register_cache(cache)

    def is_emptied_by(act: Callable[[], object]) -> bool:
        cache[TOPIC, 0] = "anything"
        act()
        return not cache

    assert not is_emptied_by(lambda: mappings.placement(TOPIC, 0))
    assert is_emptied_by(lambda: mappings.seal(TOPIC, [0]))
    assert is_emptied_by(lambda: mappings.unseal(TOPIC, [0]))
    assert is_emptied_by(lambda: mappings.change(mapping_of(desk).with_queues(epoch=EPOCH + 1)))


def test_only_what_is_open_can_be_sealed():
    """The refusal says how it is, and nothing of the group is sealed."""
    desk = a_desk("a", "b")

    with pytest.raises(MappingRefused, match=r"logical queue 1 .* elsewhere"):
        desk.components.mappings.seal(TOPIC, [0, 1])

    assert desk.components.mappings.placement(TOPIC, 0).state == "open"


def test_a_recorded_seal_belongs_to_a_move():
    """While the move goes on, what is sent waits; when a tool of others sealed it, it is elsewhere at once."""
    desk = a_desk("a", "a")
    mappings = desk.components.mappings
    sealed = [mapping_of(desk).queues[number].prepare("b", number).seal(0) for number in range(2)]

    mappings.change(mapping_of(desk).with_queues(*sealed), move=a_move(0))

    assert mappings.placement(TOPIC, 0).state == "sealed"
    assert (mappings.placement(TOPIC, 1).state, mappings.placement(TOPIC, 1).leader) == ("elsewhere", "b")


# Changing.


def test_an_older_epoch_and_a_foreign_record_are_refused():
    """And nothing is written."""
    desk = a_desk("a")
    written = desk.store.written

    with pytest.raises(MappingRefused, match="older"):
        desk.components.mappings.change(mapping_of(desk).with_queues(epoch=1))
    with pytest.raises(MappingRefused, match="belongs to b"):
        desk.components.mappings.change(msgspec.structs.replace(mapping_of(desk), broker="b"))

    assert desk.store.written == written


def test_a_change_survives_the_failure_of_its_event():
    """Whatever else the event staged is given up; what was decided is in the log."""
    desk = a_desk("a")
    position = desk.components.mappings.change(mapping_of(desk).with_queues(epoch=EPOCH + 5))

    desk.store.discard()

    assert desk.store.written == position
    assert a_desk(disk=desk.disk).components.mappings.find(TOPIC) == mapping_of(desk)


def test_others_hear_of_a_change_when_it_is_on_disk():
    """A name server never hears what a crash could take back."""
    desk = a_desk("a", flush="sync")
    before = desk.components.mappings.announced()

    assert before == {}
    desk.call(a_send("Other"))
    desk.sync()

    assert desk.components.mappings.announced() == {TOPIC: mapping_of(desk)}
    version = desk.components.topics.data_version
    desk.components.mappings.change(mapping_of(desk).with_queues(epoch=EPOCH + 5))
    assert desk.components.topics.data_version is version
    desk.call(a_send("Other"))
    desk.sync()
    assert desk.components.topics.data_version is not version


def test_a_normal_topic_is_no_business_of_this_room():
    """Without static topics nothing is written and nothing is told."""
    desk = BrokerHarness()
    desk.make_topic("Normal")
    desk.call(a_send("Normal"))
    desk.pass_time(5_000, "kept files")

    assert desk.store.find_queue(MAPPING_TOPIC, 0) is None
    assert desk.disk.find_size(config_path(NAME)) is None
    assert desk.disk.find_size(config_path(JAVA_NAME)) is None


# Physical queues.


def test_a_new_physical_queue_is_behind_all_others():
    """Also behind those that only the mapping knows; the topic is hosted with it from then on."""
    desk = a_desk("a", "a")

    mapping = desk.components.mappings.find(TOPIC)
    assert mapping is not None

    first = desk.components.mappings.allocate(mapping, [2])
    second = desk.components.mappings.allocate(mapping, [2])

    config = desk.components.topics.find(TOPIC)
    assert config is not None
    assert (first, second, config.read_queues, config.write_queues) == ({2: 2}, {2: 3}, 4, 4)


def test_an_expired_physical_queue_is_used_again_from_0():
    """Its old index is gone, in memory, on disk, and after a restart that reads the old records again."""
    desks = StaticBrokers("a", "b")
    desks.create("a")
    desks.send(0, b"old-1", b"old-2")
    desks.move(0, "b")
    desks.send(0, b"middle")
    expired = desks.queue(0).expire(0, 0)
    desks.record(expired, epoch=EPOCH + 9_000, total=1)

    desks.move(0, "a")
    offsets = desks.send(0, b"new")

    home = desks.queue(0).leader
    assert (home.physical_queue, home.start, offsets) == (("a", 0), 0, [3])
    assert desks.read_all(0, start=2) == [(2, b"middle"), (3, b"new")]
    desks.restart("a")
    assert desks.read_all(0, start=2) == [(2, b"middle"), (3, b"new")]
    assert desks.send(0, b"newer") == [4]


def test_a_topic_that_is_not_hosted_gets_no_physical_queue():
    """The refusal says what to do."""
    with pytest.raises(MappingRefused, match="create it there first"):
        BrokerHarness().components.mappings.allocate(TopicMapping(topic="Nowhere", broker="a"), [0])


# Surviving.


def test_records_are_enough_to_know_everything_again():
    """A broker that died before its first snapshot has lost nothing that it wrote."""
    desk = a_desk("a", "b", "a")
    desk.components.mappings.put_move(a_move(0, state="planned"))

    again = a_desk(disk=desk.disk).components.mappings

    assert again.find(TOPIC) == mapping_of(desk)
    assert again.moves() == desk.components.mappings.moves()
    assert again.announced() == {TOPIC: mapping_of(desk)}


def test_a_snapshot_and_what_came_after_it_make_the_whole():
    """The last word counts; a deletion is one."""
    desk = a_desk("a", "b")
    desk.sync()
    desk.pass_time(5_000, "kept files", "flush")
    desk.sync()
    assert desk.disk.find_size(config_path(NAME))
    changed = mapping_of(desk).with_queues(mapping_of(desk).queues[0].seal(0), epoch=EPOCH + 1)
    desk.components.mappings.change(changed)

    again = a_desk(disk=desk.disk)

    assert mapping_of(again) == changed
    again.components.mappings.delete(TOPIC)
    assert a_desk(disk=desk.disk).components.mappings.find(TOPIC) is None


def test_a_topic_whose_file_is_older_than_its_record_is_hosted():
    """The record says how: a crash may come between the log and the file."""
    desk = a_desk("a")
    mapping = TopicMapping(topic="New", broker="a", epoch=1, total=1, queues={0: new_logical_queue(0, "a", 0)})
    config = TopicConfig(name="New", read_queues=1, write_queues=1)

    desk.components.mappings.change(mapping, config=config)

    assert a_desk(disk=desk.disk).components.topics.find("New") == config


def test_a_snapshot_is_not_on_disk_before_what_it_says():
    """Otherwise a power cut would leave a mapping that the log has never heard of."""
    desk = a_desk("a", flush="sync")

    desk.pass_time(5_000, "kept files")
    before = desk.disk.find_size(config_path(NAME))
    desk.call(a_send("Other"))
    desk.sync()

    assert before is None
    assert desk.disk.find_size(config_path(NAME))


# Java's file.


def java_file(mapping: TopicMapping) -> bytes:
    detail = to_detail(mapping, with_extras=False)
    return encode_file(MappingFile(topic_queue_mapping_info_map={mapping.topic: detail}))


def test_javas_file_is_written_beside():
    """In its own form, homes without ends."""
    desk = a_desk("a")
    desk.sync()
    desk.pass_time(5_000, "kept files", "flush")
    desk.sync()

    text = desk.disk.read_file(config_path(JAVA_NAME))

    assert text is not None
    assert b"hostedQueues" in text
    assert b'"endOffset":-1' in text
    assert a_desk(disk=desk.disk).components.mappings.adopted == []


def test_a_newer_record_of_java_is_adopted_and_an_older_one_is_not():
    """A Java broker was here after us, or before us."""
    desk = a_desk("a")
    desk.disk.replace(
        config_path(JAVA_NAME), java_file(mapping_of(desk).with_queues(new_logical_queue(1, "a", 1), epoch=EPOCH - 1))
    )
    older = a_desk(disk=desk.disk)
    desk.disk.replace(
        config_path(JAVA_NAME), java_file(mapping_of(desk).with_queues(new_logical_queue(1, "a", 1), epoch=EPOCH + 1))
    )
    newer = a_desk(disk=desk.disk)

    assert mapping_of(older) == mapping_of(desk)
    assert sorted(mapping_of(newer).queues) == [0, 1]
    assert newer.components.mappings.adopted == []


@pytest.mark.parametrize("by", ["records", "snapshot"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "x", "cluster": "east"}, "recorded here for broker a"),
        ({"name": "a", "cluster": "west"}, "fixed in east, and a was started in cluster west"),
    ],
)
def test_a_folder_of_another_broker_is_known_by_its_records(by: str, options: dict[str, str], reason: str):
    """Also where cluster and not name is wrong; nothing of it is led here, and it is said what to do."""
    desk = BrokerHarness(name="a", cluster="east")
    desk.make_topic(TOPIC, 1)
    mapping = TopicMapping(
        topic=TOPIC, broker="a", scope="east", epoch=EPOCH, total=1, queues={0: new_logical_queue(0, "a", 0)}
    )
    desk.components.mappings.change(mapping)
    if by == "snapshot":
        desk.sync()
        desk.pass_time(5_000, "kept files", "flush")
        desk.sync()
        assert b'"version":"1"' in (desk.disk.read_file(config_path(JAVA_NAME)) or b"")

    copied = BrokerHarness(disk=desk.disk, **options)

    (said,) = logs(copied.effects, "mapping in the folder is not this broker's")
    assert reason in said.fields["reason"]
    assert not copied.components.mappings.placement(TOPIC, 0).is_led
    desk.disk.replace("holdfast/replica", b"")
    replica = BrokerHarness(disk=desk.disk, name="a", cluster="west", replica_of="a", ha_master="10.0.0.9:10912")
    assert not [line for line in replica.logged() if line.startswith("mapping in the folder")]


def test_a_file_of_another_broker_is_refused_by_name():
    """Somebody copied a folder: nothing of it is believed, and the log says why."""
    desk = BrokerHarness(name="a")
    foreign = TopicMapping(topic=TOPIC, broker="b", epoch=1, total=1, queues={0: new_logical_queue(0, "b", 0)})
    desk.disk.replace(config_path(JAVA_NAME), java_file(foreign))

    again = a_desk(disk=desk.disk)

    assert again.components.mappings.find(TOPIC) is None
    assert any("belongs to b" in str(line.fields) for line in logs(again.effects, "mapping in the folder not adopted"))


def test_offsets_that_java_kept_for_physical_queues_become_logical():
    """Once, with the folder."""
    desk = BrokerHarness(name="a")
    desk.make_topic(TOPIC, 4)
    desk.call(*[a_send(TOPIC, queue=3) for _ in range(5)])
    desk.components.offsets.commit("G", TOPIC, 3, 2)
    desk.components.offsets.commit("G", TOPIC, 0, 7)
    desk.pass_time(5_000, "kept files")
    mapping = TopicMapping(topic=TOPIC, broker="a", epoch=1, total=2, queues={1: new_logical_queue(1, "a", 3)})
    desk.disk.replace(config_path(JAVA_NAME), java_file(mapping))

    again = a_desk(disk=desk.disk)

    assert again.components.offsets.queues_of("G", TOPIC) == {1: 2}


def test_a_change_is_written_however_small_messages_must_be():
    """The limit is for what clients send."""
    desk = a_desk("a", message_size_max=64)
    mapping = mapping_of(desk).with_queues(mapping_of(desk).queues[0].prepare("b", 1))

    desk.components.mappings.change(mapping)

    assert a_desk(disk=desk.disk).components.mappings.find(TOPIC) == mapping
