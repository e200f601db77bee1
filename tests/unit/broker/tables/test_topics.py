import pytest

from holdfast.broker.flow.request import Refusal
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.topics import QUEUES_MAX, TopicTable, find_topic_fault
from holdfast.machine.turn import Turn
from holdfast.model.errors import StoreError
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import ResponseCode

NOW_MS = 1_700_000_000_000


def a_table(disk: SimDisk | None = None, **options: object) -> TopicTable:
    turn = Turn(NOW_MS)
    settings = BrokerOptions(name="a", cluster="C", **options)  # type: ignore[arg-type]
    return TopicTable(disk or SimDisk(), settings, turn)


def test_a_new_broker_hosts_what_a_java_broker_hosts() -> None:
    """More than one topic, or a Java name server takes the first registration for an incremental one."""
    hosted = {name: (topic.read_queues, topic.permission) for name, topic in a_table().all().items()}

    assert hosted["TBW102"] == (8, 7)
    assert hosted["SCHEDULE_TOPIC_XXXX"] == (18, 6)
    assert hosted["C"] == (16, 7)
    assert hosted["a"] == (1, 7)
    assert hosted["C_REPLY_TOPIC"] == (1, 6)
    assert hosted["rmq_sys_SYNC_BROKER_MEMBER_a"] == (1, 1)
    assert {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SELF_TEST_TOPIC"} <= hosted.keys()


def test_a_change_survives_a_crash_at_once() -> None:
    """It is on disk when the method returns: an answered creation must not be lost."""
    disk = SimDisk()
    table = a_table(disk)
    config = TopicConfig(name="T", read_queues=3, write_queues=2, attributes={"message.type": "FIFO"})

    table.put(config)

    again = a_table(disk)
    assert again.find("T") == config
    assert again.data_version == table.data_version
    assert (again.data_version.timestamp, again.data_version.counter) == (NOW_MS, 1)


def test_a_broken_file_is_replaced_by_its_predecessor() -> None:
    """Upstream keeps the version before beside each file for that."""
    disk = SimDisk()
    table = a_table(disk)
    table.put(TopicConfig(name="T1"))
    table.put(TopicConfig(name="T2"))
    disk.replace("config/topics.json", b'{"topicConfigTable":{"T1":')

    again = a_table(disk)

    assert again.find("T1") is not None
    assert again.find("T2") is None


@pytest.mark.parametrize("content", [b"garbage", b'{"topicConfigTable":{"T":{"readQueueNums":4}}}'])
def test_a_file_that_cannot_be_read_stops_the_broker(content: bytes) -> None:
    """Going on without it would forget every topic in silence."""
    disk = SimDisk()
    disk.replace("config/topics.json", content)

    with pytest.raises(StoreError, match=r"topics\.json"):
        a_table(disk)


def test_a_file_of_a_java_broker_is_read() -> None:
    """4.9 writes neither attributes nor a state version."""
    disk = SimDisk()
    topic = {"order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG", "topicName": "T"}
    saved = {
        "dataVersion": {"counter": 3, "timestamp": 17},
        "topicConfigTable": {"T": topic | {"topicSysFlag": 0, "writeQueueNums": 4}},
    }
    disk.replace("config/topics.json", java_json.encode(saved))

    table = a_table(disk)

    assert table.find("T") == TopicConfig(name="T", read_queues=4, write_queues=4)
    assert (table.data_version.counter, table.data_version.timestamp) == (3, 17)


def test_a_topic_is_created_after_the_template_that_the_sender_names() -> None:
    """With as many queues as both allow, and without the right to be inherited from."""
    table = a_table()

    few = table.create_from_template("few", "TBW102", 4)
    many = table.create_from_template("many", "TBW102", 100)

    assert isinstance(few, TopicConfig)
    assert (few.read_queues, few.write_queues, few.permission) == (4, 4, 6)
    assert isinstance(many, TopicConfig)
    assert many.write_queues == 8


@pytest.mark.parametrize(("template", "auto_create"), [("TBW102", False), ("SELF_TEST_TOPIC", True), ("none", True)])
def test_a_topic_is_not_created_without_a_template(template: str, auto_create: bool) -> None:  # noqa: FBT001
    """Switched off, not inheritable, or not there: the sender must ask for the topic first."""
    refusal = a_table(auto_create_topics=auto_create).create_from_template("T", template, 4)

    assert isinstance(refusal, Refusal)
    assert refusal.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_template_of_an_earlier_run_does_not_outlive_the_switch() -> None:
    """The stored TBW102 must not go on creating topics."""
    disk = SimDisk()
    a_table(disk).put(TopicConfig(name="T"))

    table = a_table(disk, auto_create_topics=False)

    assert table.find("TBW102") is None
    assert table.find("T") is not None


def test_an_illegal_name_is_refused_with_the_reason() -> None:
    """Before anything is created."""
    refusal = a_table().create_from_template("no blanks", "TBW102", 4)

    assert isinstance(refusal, Refusal)
    assert refusal.code == ResponseCode.INVALID_PARAMETER
    assert "no blanks" in refusal.remark


def test_topics_that_the_broker_needs_are_created_whatever_the_switch_says() -> None:
    """Retry and dead-letter topics are nobody's wish."""
    table = a_table(auto_create_topics=False)

    created = table.ensure("%RETRY%g", 2)

    assert (created.read_queues, created.permission) == (2, 6)
    assert table.ensure("%RETRY%g", 7) == created


def test_what_changed_is_told_once() -> None:
    """Deleted topics are not among it: a registration cannot take anything away."""
    table = a_table()
    table.put(TopicConfig(name="T1"))
    table.put(TopicConfig(name="T2"))
    table.delete("T2")

    assert table.drain_changed().keys() == {"T1"}
    assert table.drain_changed() == {}


def test_putting_the_same_again_only_announces_it() -> None:
    """A name server may have forgotten the topic, but nothing changed here."""
    table = a_table()
    table.put(TopicConfig(name="T"))
    table.drain_changed()
    version = table.data_version

    table.put(TopicConfig(name="T"))

    assert table.data_version is version
    assert table.changed == {"T"}


def test_a_deleted_topic_stays_deleted() -> None:
    """Also after a restart; deleting it twice is fine."""
    disk = SimDisk()
    table = a_table(disk)
    table.put(TopicConfig(name="T"))

    table.delete("T")
    table.delete("T")

    assert table.find("T") is None
    assert a_table(disk).find("T") is None


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (TopicConfig(name="a b"), "a b"),
        (TopicConfig(name=""), "empty"),
        (TopicConfig(name="T", read_queues=-1), "read"),
        (TopicConfig(name="T", write_queues=QUEUES_MAX + 1), "write"),
        (TopicConfig(name="T", permission=8), "permission"),
    ],
)
def test_a_topic_that_cannot_be_hosted_is_refused_by_name(config: TopicConfig, part: str) -> None:
    """The reason names what is wrong."""
    assert part in (find_topic_fault(config) or "")


def test_a_topic_without_queues_can_be_hosted() -> None:
    """Upstream's tools make such topics on brokers that shall not have a share."""
    assert find_topic_fault(TopicConfig(name="T", read_queues=0, write_queues=0)) is None
