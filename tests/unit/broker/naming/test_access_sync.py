"""Users and rules reach every server of the domain: pushed at once, and exchanged after an absence."""

import json

import pytest
from tests.support.access import Users, role_secrets
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.simulated_world import SimulatedCluster

from holdfast.access.directory_store import AccessStore
from holdfast.broker.naming.registration import PURPOSE
from holdfast.machine.events import ChannelId, ChannelOpened
from holdfast.model.access.directory import Directory
from holdfast.nameserver.core import NameServer
from holdfast.sim.world.node import Node
from holdfast.wire.cluster.registration import ACCESS_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command, response

SECRET = "the secret of the cluster"
SECOND_MS = 1_000


def a_domain(**options: object) -> SimulatedCluster:
    """Return two name servers, three brokers and a replica that trust each other."""
    settings: dict[str, object] = {"cluster_secret": SECRET, "name_servers": 2, "replicas": {"a2": "a"}} | options
    cluster = SimulatedCluster("a", "b", "c", "a2", **settings)  # type: ignore[arg-type]
    cluster.run(4_000)
    return cluster


def create_user(name: str, password: str = "secret-of-alice") -> Command:
    body = json.dumps({"username": name, "password": password}).encode()
    return Command(code=RequestCode.AUTH_CREATE_USER, fields={"username": name}, body=body)


def store_of(node: Node) -> AccessStore:
    """Return the users and rules of a name server."""
    assert node.shell is not None
    assert isinstance(node.shell.machine, NameServer)
    return node.shell.machine.access_store


def directories(cluster: SimulatedCluster) -> list[Directory]:
    """Return what each server that runs knows."""
    stores = [store_of(node) for node in cluster.name_servers if node.is_up]
    stores += [cluster.components[name].access_store for name, node in cluster.brokers.items() if node.is_up]
    return [store.directory for store in stores]


def all_know(cluster: SimulatedCluster, name: str) -> bool:
    return all(directory.find_user(name) is not None for directory in directories(cluster))


def call_name_server(cluster: SimulatedCluster, number: int, command: Command) -> Command:
    answers: list[Command] = []
    address = cluster.name_servers[number]._addresses[0]
    cluster._run_in_client(
        cluster.client,
        lambda: cluster.client.request(address, command, answers.append),  # type: ignore[arg-type]
    )
    assert cluster.run(5_000, lambda: bool(answers))
    return answers[0]


def cut(cluster: SimulatedCluster, name: str) -> None:
    """Cut a broker off from all name servers."""
    host = cluster.brokers[name].host
    for node in cluster.name_servers:
        cluster.network.cut_link(host, node.host)
        cluster.network.cut_link(node.host, host)


@pytest.mark.parametrize("name", ["a", "a2"])
def test_a_change_at_a_broker_or_a_replica_reaches_every_server_within_a_second(name: str) -> None:
    cluster = a_domain()

    assert cluster.call(name, create_user("alice")).code == ResponseCode.SUCCESS

    assert cluster.run(SECOND_MS, lambda: all_know(cluster, "alice"))
    assert len({directory.digest for directory in directories(cluster)}) == 1
    assert len(directories(cluster)) == 6


def test_a_change_at_a_name_server_reaches_every_server_within_a_second() -> None:
    """The brokers pass it on to the other name server."""
    cluster = a_domain()

    assert call_name_server(cluster, 1, create_user("alice")).code == ResponseCode.SUCCESS

    assert cluster.run(SECOND_MS, lambda: all_know(cluster, "alice"))


def test_a_creation_that_is_sent_to_every_broker_in_turn_succeeds_everywhere() -> None:
    """As mqadmin sends it."""
    cluster = a_domain()

    for name in cluster.brokers:
        assert cluster.call(name, create_user("alice")).code == ResponseCode.SUCCESS

    refused = cluster.call("b", create_user("alice", "another-secret"))
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "The user is existed")


def test_a_broker_that_was_down_learns_changes_and_deletions() -> None:
    cluster = a_domain()
    cluster.call("a", create_user("bob"))
    cluster.run(SECOND_MS)
    cluster.kill("c")

    cluster.call("a", create_user("alice"))
    cluster.call("a", Command(code=RequestCode.AUTH_DELETE_USER, fields={"username": "bob"}))
    cluster.restart("c")

    assert cluster.run(4_000, lambda: all_know(cluster, "alice"))
    assert all(directory.find_user("bob") is None for directory in directories(cluster))


def test_name_servers_that_were_down_learn_changes_from_a_broker() -> None:
    cluster = a_domain()
    for node in cluster.name_servers:
        node.kill()
    cluster.call("a", create_user("alice"))
    cluster.run(SECOND_MS)

    for node in cluster.name_servers:
        node.start()

    assert cluster.run(6_000, lambda: all_know(cluster, "alice"))


def test_both_sides_of_a_partition_learn_what_the_other_has_changed() -> None:
    cluster = a_domain()
    cut(cluster, "c")
    cluster.run(20_000)
    cluster.call("a", create_user("alice"))
    cluster.call("c", create_user("carol"))
    cluster.run(SECOND_MS)
    assert not all_know(cluster, "alice")

    cluster.network.mend()
    assert cluster.run(6_000, lambda: all_know(cluster, "alice") and all_know(cluster, "carol"))

    cluster.call("c", create_user("dave"))
    assert cluster.run(SECOND_MS, lambda: all_know(cluster, "dave"))


def test_changes_that_follow_each_other_quickly_all_arrive() -> None:
    cluster = a_domain()
    names = [f"user-{number}" for number in range(20)]

    pending = [cluster.call_later("abc"[number % 3], create_user(name)) for number, name in enumerate(names)]

    assert cluster.run(2_000, lambda: all(all_know(cluster, name) for name in names))
    assert [answer[0].code for answer in pending] == [ResponseCode.SUCCESS] * 20  # type: ignore[union-attr]
    assert len({directory.digest for directory in directories(cluster)}) == 1


def test_records_are_sent_only_to_servers_that_have_proven_the_cluster_secret() -> None:
    """A broker with another secret still registers while access control is off, but learns no user and spreads none."""
    cluster = a_domain()
    cluster.kill("c")
    cluster.cluster_secret = "the secret of a stranger"
    cluster.restart("c")
    cluster.run(4_000)

    cluster.call("a", create_user("alice"))
    cluster.call("c", create_user("mallory"))
    cluster.run(40_000)

    strange, honest = cluster.components["c"], cluster.components["a"]
    assert strange.access_store.directory.find_user("alice") is None
    assert honest.access_store.directory.find_user("mallory") is None
    assert all(node.is_up and store_of(node).directory.find_user("mallory") is None for node in cluster.name_servers)
    assert strange.rpc.is_connected(cluster.name_servers[0]._addresses[0], PURPOSE)


def test_without_a_cluster_secret_nothing_is_exchanged() -> None:
    cluster = a_domain(cluster_secret="")

    assert cluster.call("a", create_user("alice")).code == ResponseCode.SUCCESS
    cluster.run(SECOND_MS)

    assert [directory.find_user("alice") is not None for directory in directories(cluster)].count(True) == 1


def test_what_was_answered_survives_a_loss_of_power() -> None:
    cluster = a_domain(name_servers=1, replicas={})
    cluster.call("a", create_user("alice"))
    for node in (*cluster.brokers.values(), *cluster.name_servers):
        node.power_off()

    cluster.restart("a")
    cluster.run(500)

    assert cluster.components["a"].access_store.directory.find_user("alice") is not None


def test_a_name_server_that_has_proven_nothing_gets_no_record() -> None:
    """Though it answers registrations, and reports another digest."""
    namesrv, channel = "192.0.2.9:9876", ChannelId(90)
    broker = BrokerHarness(namesrv=(namesrv,), secrets=role_secrets())
    Users(broker).add("alice")
    broker.answers[channel] = []
    broker.feed(ChannelOpened(channel, namesrv, broker.now_ms, namesrv, PURPOSE))

    codes = []
    for _ in range(10):
        for command in broker.pop_answers(channel):
            codes.append(command.code)
            is_login = command.code == RequestCode.LOGIN
            fields = {} if is_login else {ACCESS_FIELD: "another digest"}
            answer = response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED if is_login else 0, fields=fields)
            broker.receive(channel, encode_command(answer))

    assert codes == [RequestCode.LOGIN, RequestCode.REGISTER_BROKER]
