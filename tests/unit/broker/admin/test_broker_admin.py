import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send

from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.topic import TopicConfig
from holdfast.native import DESCRIPTION
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def figures(desk: BrokerHarness) -> dict[str, str]:
    (answer,) = desk.call(a_request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table: dict[str, str] = java_json.loads(answer.body)["table"]
    return table


def test_the_figures_that_tools_parse_are_there(desk: BrokerHarness) -> None:
    """Rates are three numbers with blanks between them: ten seconds, a minute, ten minutes."""
    table = figures(desk)

    for name in ("putTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert [float(word) for word in table[name].split()] == [0.0, 0.0, 0.0]
    for name in ("commitLogDiskRatio", "timerEnqueueTps", "timerDequeueTps"):
        float(table[name])
    for name in (
        "bootTimestamp",
        "commitLogMaxOffset",
        "earliestMessageTimeStamp",
        "pageCacheLockTimeMills",
        "pullThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "timerCongestNum",
        "timerOffsetBehind",
        "timerReadBehind",
    ):
        int(table[name])
    assert table["brokerActive"] == "true"
    assert table["accelerator"] == DESCRIPTION


def test_the_figures_tell_of_logical_queues_where_there_are_any(desk: BrokerHarness) -> None:
    """How many are led here, and whether the broker was drained."""
    assert "logicalQueuesLed" not in figures(desk)
    desk.components.topics.put(TopicConfig(name="S", read_queues=2, write_queues=2))
    homes = {number: new_logical_queue(number, desk.components.mappings.broker, number) for number in range(2)}
    record = TopicMapping(topic="S", broker=desk.components.mappings.broker, epoch=1, total=3, queues=homes)
    desk.components.mappings.change(record)
    desk.components.mappings.set_draining(True)

    table = figures(desk)

    assert (table["logicalQueuesLed"], table["draining"]) == ("2", "true")


def test_the_figures_follow_what_happens(desk: BrokerHarness) -> None:
    """Messages in and out, the log, and the schedule."""
    start_ms = desk.now_ms
    desk.call(a_send(), a_send(), a_send(i="UNIQ_KEY\x01u\x02DELAY\x011\x02"))
    desk.call(a_pull())
    desk.pass_time(10_000, "stats")

    table = figures(desk)

    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("3", "2")
    assert table["putTps"].split()[0] == "0.3"
    assert table["commitLogMaxOffset"] == str(desk.store.written)
    assert table["earliestMessageTimeStamp"] == str(start_ms)
    assert table["scheduleMessageOffset_1"] == "0,1"
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"


def test_a_broker_whose_disk_failed_is_not_active(desk: BrokerHarness) -> None:
    """Tools show that."""
    desk.store.fail("gone")

    assert figures(desk)["brokerActive"] == "false"


def test_single_counters_are_told(desk: BrokerHarness) -> None:
    """By upstream's names and keys; one that nothing was ever counted in does not exist."""
    desk.call(a_send(), a_send())
    for _ in range(6):
        desk.pass_time(10_000, "stats")
    ask = RequestCode.VIEW_BROKER_STATS_DATA

    (known,) = desk.call(a_request(ask, statsName="TOPIC_PUT_NUMS", statsKey="T"))
    (unknown,) = desk.call(a_request(ask, statsName="TOPIC_PUT_NUMS", statsKey="none"))

    rates = java_json.loads(known.body)
    assert rates.keys() == {"statsMinute", "statsHour", "statsDay"}
    assert rates["statsMinute"]["sum"] == 2
    assert rates["statsMinute"]["tps"] == pytest.approx(2 / 60)
    assert (unknown.code, unknown.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The stats <TOPIC_PUT_NUMS> <none> not exist",
    )


def test_settings_are_shown_under_upstreams_names(desk: BrokerHarness) -> None:
    """As lines of a properties file."""
    (answer,) = desk.call(a_request(RequestCode.GET_BROKER_CONFIG))

    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert lines["brokerName"] == "broker-a"
    assert lines["autoCreateTopicEnable"] == "true"
    assert (lines["brokerIP1"], lines["listenPort"]) == ("127.0.0.1", "10911")
    assert java_json.loads(answer.fields["version"].encode())["counter"] >= 0


@pytest.mark.parametrize(
    ("text", "code"),
    [("noSuchKey=1\n", 0), ("brokerName=broker-a\n", 0), ("# nothing", 0), ("maxMessageSize=1\n", 1)],
)
def test_a_setting_that_cannot_be_changed_is_not_said_to_be(desk: BrokerHarness, text: str, code: int) -> None:
    """Names that mean nothing here are ignored, as upstream ignores what it does not know."""
    (answer,) = desk.call(a_request(RequestCode.UPDATE_BROKER_CONFIG, text.encode()))

    assert answer.code == code


def test_a_replica_gets_the_small_tables(desk: BrokerHarness) -> None:
    """Delay offsets, request modes, and who copies this broker."""
    desk.call(a_send(i="UNIQ_KEY\x01u\x02DELAY\x011\x02"))
    desk.pass_time(1_000, "delays")

    delays, modes, replicas = desk.call(
        a_request(RequestCode.GET_ALL_DELAY_OFFSET),
        a_request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
        a_request(RequestCode.GET_BROKER_HA_STATUS),
    )

    assert java_json.loads(delays.body)["offsetTable"] == {"1": 1}
    assert java_json.loads(modes.body) == {"messageRequestModeMap": {}}
    status = java_json.loads(replicas.body)
    assert (status["master"], status["inSyncSlaveNums"]) == (True, 0)
    assert status["masterCommitLogMaxOffset"] == desk.store.written


@pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG])
def test_expired_files_go_when_a_tool_says_so(desk: BrokerHarness, code: RequestCode) -> None:
    """At any hour, and only those that have expired."""
    for _ in range(20):
        desk.call(a_send(body=b"x" * 100_000))
    before = desk.store.start

    (fresh,) = desk.call(a_request(code))
    assert (fresh.code, desk.store.start) == (0, before)
    desk.now_ms += 80 * 3_600_000
    (old,) = desk.call(a_request(code))

    assert old.code == 0
    assert desk.store.start > before


def test_trusted_addresses_are_among_the_figures_if_there_are_any(desk: BrokerHarness) -> None:
    """Replication accepts brokers from them without a proof."""
    trusting = BrokerHarness(trusted_brokers=("10.0.0.7", "10.1.0.0/16"))

    assert "trustedBrokers" not in figures(desk)
    assert figures(trusting)["trustedBrokers"] == "10.0.0.7,10.1.0.0/16"
