"""The real `mqadmin` 5.5.0 sees and changes the cluster as it would a Java one.

Each test has a topic and a group of its own; they share one JVM and one cluster.
"""

from collections.abc import Iterator

import pytest
from tests.interop.java_shell import JavaShell, fields, route, rows
from tests.interop.servers import CLUSTER, Servers
from tests.support.client_stories import read_all
from tests.support.java_peer import JavaPeer

from holdfast.admin.operations import Admin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def shell(servers: Servers, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaShell]:
    with JavaShell(peer_5, servers.name_server, tmp_path_factory.mktemp("mqadmin")) as java:
        yield java


def test_cluster_list_shows_every_broker(shell: JavaShell, servers: Servers) -> None:
    """`clusterList` names each broker with its address, as active, and with a version it can read."""
    listed = rows(shell.mqadmin("clusterList"))

    assert [row[:4] for row in listed] == [
        [CLUSTER, name, "0", servers.brokers[name]] for name in sorted(servers.brokers)
    ]
    assert all(row[4].startswith("V") and row[-1] == "true" for row in listed), listed


def test_cluster_list_shows_totals(shell: JavaShell, servers: Servers) -> None:
    """`clusterList` -m has four numbers for each broker."""
    listed = rows(shell.mqadmin("clusterList", "-m"))

    assert [row[1] for row in listed] == sorted(servers.brokers)
    assert all(number.isdigit() for row in listed for number in row[2:]), listed


def test_broker_status_has_what_operators_read(shell: JavaShell, servers: Servers) -> None:
    """`brokerStatus` tells version, uptime, rates and totals; the total of puts rises with what is sent."""
    shell.make_topic("AdminStatus", CLUSTER, 2, len(servers.brokers))
    before = fields(shell.mqadmin("brokerStatus", "-b", servers.first_broker))

    shell.seed("AdminStatus", "AdminStatusGroup", 20)

    after = fields(shell.mqadmin("brokerStatus", "-b", servers.first_broker))
    known = {"brokerVersionDesc", "bootTimestamp", "runtime", "putTps", "getTransferredTps", "msgPutTotalTodayNow"}
    assert known | {"commitLogMaxOffset", "commitLogMinOffset", "commitLogDiskRatio"} <= after.keys(), after
    # Twenty of the forty went to this broker. Java shows one put before there was any.
    assert int(after["putMessageTimesTotal"]) - int(before["putMessageTimesTotal"]) in {19, 20}, (before, after)
    assert int(after["commitLogMaxOffset"]) > int(before["commitLogMaxOffset"])


def test_topic_list_has_a_new_topic(shell: JavaShell, servers: Servers) -> None:
    """`topicList` names it, and with -c its cluster and the groups that consume it."""
    shell.make_topic("AdminListed", CLUSTER, 2, len(servers.brokers))
    shell.seed("AdminListed", "AdminListedGroup", 4)

    assert ["AdminListed"] in rows(shell.mqadmin("topicList"))
    assert [CLUSTER, "AdminListed", "AdminListedGroup"] in rows(shell.mqadmin("topicList", "-c"))
    assert rows(shell.mqadmin("topicClusterList", "-t", "AdminListed")) == [[CLUSTER]]


async def test_a_topic_of_batches_is_made_and_filled(shell: JavaShell, servers: Servers) -> None:
    """`updateTopic -a`: batches of Java's producer are one record each there, and each message is found by its id."""
    topic = "AdminBatches"
    made = shell.mqadmin(
        "updateTopic", "-c", CLUSTER, "-t", topic, "-r", "1", "-w", "1", "-a", "+queue.type=BatchCQ"
    )  # fmt: skip
    assert made.count("success") == len(servers.brokers), made
    shell.mqadmin_until(lambda said: said.count('"readQueueNums"') == len(servers.brokers), "topicRoute", "-t", topic)
    shell.run("fill", topic, 0, 100)

    got = await read_all(servers.name_server, topic, 100)
    assert {message.properties["n"] for message in got} == {str(number) for number in range(100)}
    records = {(message.queue, message.position): message for message in got}
    assert len(records) < len({(message.queue, message.offset) for message in got}) == 100
    lasts = [message for message in records.values() if message.offset > 0]
    if servers.kind == "holdfast":  # Java does not find messages of a batch.
        async with Admin(servers.name_server) as admin:
            for message in lasts[::7]:
                (by_id,) = await admin.messages.by_id(topic, message.message_id)
                (by_key,) = await admin.messages.by_key(topic, f"key-{message.properties['n']}")
                assert by_id.message.offset == by_key.message.offset == message.offset


def test_update_topic_changes_the_route(shell: JavaShell, servers: Servers) -> None:
    """`updateTopic` sets queues and permission on the broker it names, and the name server tells clients."""
    shell.make_topic("AdminUpdated", CLUSTER, 3, len(servers.brokers))

    shell.mqadmin("updateTopic", "-b", servers.first_broker, "-t", "AdminUpdated", "-r", "5", "-w", "4", "-p", "4")

    told = route(shell.mqadmin_until(lambda said: '"readQueueNums":5' in said, "topicRoute", "-t", "AdminUpdated"))
    queues = {
        data["brokerName"]: (data["readQueueNums"], data["writeQueueNums"], data["perm"]) for data in told["queueDatas"]
    }
    addresses = {data["brokerName"]: data["brokerAddrs"] for data in told["brokerDatas"]}
    first, second = sorted(servers.brokers)
    assert queues == {first: (5, 4, 4), second: (3, 3, 6)}
    assert addresses == {name: {"0": address} for name, address in servers.brokers.items()}


def test_delete_topic_forgets_it(shell: JavaShell, servers: Servers) -> None:
    """`deleteTopic` takes it from brokers and name server: no route is left, and the list has it no more."""
    shell.make_topic("AdminDeleted", CLUSTER, 3, len(servers.brokers))
    shell.seed("AdminDeleted", "AdminDeletedGroup", 4)

    printed = shell.mqadmin("deleteTopic", "-c", CLUSTER, "-t", "AdminDeleted")

    assert "success" in printed, printed
    assert "CODE: 17" in shell.mqadmin_until(lambda said: "brokerDatas" not in said, "topicRoute", "-t", "AdminDeleted")
    assert ["AdminDeleted"] not in rows(shell.mqadmin("topicList"))


def test_topic_status_counts_every_message(shell: JavaShell, servers: Servers) -> None:
    """`topicStatus` has one line for each queue; their offsets add up to what was sent."""
    shell.make_topic("AdminCounted", CLUSTER, 3, len(servers.brokers))
    shell.seed("AdminCounted", "AdminCountedGroup", 12)

    table = [row for row in rows(shell.mqadmin("topicStatus", "-t", "AdminCounted")) if row[0] in servers.brokers]

    assert [row[:2] for row in table] == [[name, str(queue)] for name in sorted(servers.brokers) for queue in range(3)]
    assert sum(int(row[3]) - int(row[2]) for row in table) == 24


def test_consumer_progress_shows_the_lag(shell: JavaShell, servers: Servers) -> None:
    """`consumerProgress` of a group that consumed half says so, by queue and in total; the list of groups agrees."""
    shell.make_topic("AdminProgress", CLUSTER, 2, len(servers.brokers))
    shell.seed("AdminProgress", "AdminProgressGroup", 10)

    printed = shell.mqadmin("consumerProgress", "-g", "AdminProgressGroup")

    table = [row for row in rows(printed) if row[0] == "AdminProgress"]
    assert sum(int(row[3]) for row in table) == 20, printed
    assert sum(int(row[4]) for row in table) == 10, printed
    assert fields(printed)["Consume Diff Total"] == "10", printed
    (group,) = [row for row in rows(shell.mqadmin("consumerProgress")) if row[0] == "AdminProgressGroup"]
    assert group[-1] == "10", group


def test_a_message_is_found_by_key_and_by_id(shell: JavaShell, servers: Servers) -> None:
    """queryMsgByKey, ById, ByUniqueKey and ByOffset lead to the same message; a key that nobody has leads nowhere."""
    shell.make_topic("AdminFound", CLUSTER, 2, len(servers.brokers))
    first = shell.seed("AdminFound", "AdminFoundGroup", 4)
    topic = ("-t", "AdminFound")

    by_key = rows(shell.mqadmin_until(lambda said: first.unique_id in said, "queryMsgByKey", *topic, "-k", "key-0"))
    by_id = shell.mqadmin("queryMsgById", *topic, "-i", first.offset_id)
    by_unique_key = shell.mqadmin("queryMsgByUniqueKey", *topic, "-i", first.unique_id)
    place = ("-b", first.broker, "-i", str(first.queue), "-o", str(first.offset))
    by_offset = shell.mqadmin("queryMsgByOffset", *topic, *place)

    assert [row[:3] for row in by_key] == [[first.unique_id, str(first.queue), str(first.offset)]]
    for printed in (by_id, by_unique_key, by_offset):
        found = fields(printed)
        assert found["Topic"] == "AdminFound", printed
        assert found["Keys"] == "[key-0 ключ-0]", printed
        assert (found["Queue ID"], found["Queue Offset"]) == (str(first.queue), str(first.offset)), printed
        assert f"UNIQ_KEY={first.unique_id}" in found["Properties"], printed
        assert 'имя=值 = {"é": 🚀}' in printed, printed
    assert "CODE: 208" in shell.mqadmin("queryMsgByKey", *topic, "-k", "nobody")


def test_reset_offset_by_time_moves_the_group(shell: JavaShell, servers: Servers) -> None:
    """`resetOffsetByTime` takes a group that is away back to a time long ago, and forth to now."""
    shell.make_topic("AdminReset", CLUSTER, 2, len(servers.brokers))
    shell.seed("AdminReset", "AdminResetGroup", 10)
    reset = ("resetOffsetByTime", "-g", "AdminResetGroup", "-t", "AdminReset", "-s")

    back = shell.mqadmin(*reset, "2001-01-01#00:00:00:000")
    lag_back = fields(shell.mqadmin("consumerProgress", "-g", "AdminResetGroup"))["Consume Diff Total"]
    forth = shell.mqadmin(*reset, "-1")
    lag_forth = fields(shell.mqadmin("consumerProgress", "-g", "AdminResetGroup"))["Consume Diff Total"]

    assert lag_back == "20", back
    assert lag_forth == "0", forth


def test_update_sub_group_is_kept(shell: JavaShell, servers: Servers) -> None:
    """`updateSubGroup` sets what a group may do; the broker tells it back, and forgets it with deleteSubGroup."""
    printed = shell.mqadmin("updateSubGroup", "-c", CLUSTER, "-g", "AdminGroup", "-r", "3", "-q", "2", "-s", "false")

    assert printed.count("success") == len(servers.brokers), printed
    told = shell.mqadmin("getConsumerConfig", "-g", "AdminGroup")
    config = {
        name.strip(): value.strip() for name, value in (line.split("=", 1) for line in told.splitlines() if "=" in line)
    }
    assert config["retryMaxTimes"] == "3", told
    assert config["retryQueueNums"] == "2", told
    assert config["consumeEnable"] == "false", told
    deleted = shell.mqadmin("deleteSubGroup", "-c", CLUSTER, "-g", "AdminGroup")
    assert deleted.count("success") >= len(servers.brokers), deleted


def test_stats_all_shows_topic_and_group(shell: JavaShell, servers: Servers) -> None:
    """`statsAll` has one line for a topic and its group, with what the group has yet to consume."""
    shell.make_topic("AdminStats", CLUSTER, 2, len(servers.brokers))
    shell.seed("AdminStats", "AdminStatsGroup", 6)

    table = rows(shell.mqadmin("statsAll", "-t", "AdminStats"))

    assert [row[:3] for row in table if row[0] == "AdminStats"] == [["AdminStats", "AdminStatsGroup", "6"]], table


def test_write_permission_is_wiped_and_given_back(shell: JavaShell, servers: Servers) -> None:
    """`wipeWritePerm` makes a broker read-only for every topic in the route; addWritePerm undoes it."""
    shell.make_topic("AdminWiped", CLUSTER, 2, len(servers.brokers))
    last = max(servers.brokers)

    wiped = shell.mqadmin("wipeWritePerm", "-b", last)
    during = route(shell.mqadmin("topicRoute", "-t", "AdminWiped"))
    given = shell.mqadmin("addWritePerm", "-b", last)
    after = route(shell.mqadmin("topicRoute", "-t", "AdminWiped"))

    assert "OK" in wiped, wiped
    assert {data["brokerName"]: data["perm"] for data in during["queueDatas"]} == {
        name: 4 if name == last else 6 for name in servers.brokers
    }
    assert "OK" in given, given
    assert {data["perm"] for data in after["queueDatas"]} == {6}


def test_order_configuration_is_kept_by_the_name_server(shell: JavaShell) -> None:
    """`updateOrderConf` puts, gets and deletes the queue numbers of an ordered topic."""
    put = shell.mqadmin("updateOrderConf", "-t", "AdminOrder", "-m", "put", "-v", "broker-a:4")
    got = shell.mqadmin("updateOrderConf", "-t", "AdminOrder", "-m", "get")
    deleted = shell.mqadmin("updateOrderConf", "-t", "AdminOrder", "-m", "delete")

    assert "success" in put, put
    assert "orderConf=[broker-a:4]" in got, got
    assert "success" in deleted, deleted
    assert "CODE: 22" in shell.mqadmin("updateOrderConf", "-t", "AdminOrder", "-m", "get")
