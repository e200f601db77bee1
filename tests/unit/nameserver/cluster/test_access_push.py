"""A name server sends users and rules to the brokers of its cluster at once, and to nobody else."""

from tests.support.access import Users, guarded_name_server, log_in_as_server, signed, store_of
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, register, registration_fields

from holdfast.machine.events import ChannelId
from holdfast.wire.access.records import decode_records
from holdfast.wire.cluster.registration import ACCESS_FIELD
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import encode_command


def a_broker_of(server: MachineHarness) -> ChannelId:
    """Let a broker log in and register."""
    channel = server.connect()
    log_in_as_server(server, channel)
    assert register(server, channel=channel).code == 0
    return channel


def test_a_change_is_pushed_to_every_broker_of_the_cluster() -> None:
    server = guarded_name_server()
    Users(server).add("before")
    channel = a_broker_of(server)

    Users(server).add("alice")

    (push,) = server.pop_answers(channel)
    assert (push.code, push.is_one_way) == (RequestCode.SYNC_ACCESS, True)
    assert [record.key for record in decode_records(push.body)] == ["user/alice"]
    assert push.fields["hf.digest"] == store_of(server).directory.digest


def test_a_registration_is_answered_with_the_digest() -> None:
    server = guarded_name_server()
    channel = a_broker_of(server)

    answer = register(server, channel=channel)

    assert answer.fields[ACCESS_FIELD] == store_of(server).directory.digest


def test_a_broker_that_has_only_signed_learns_nothing() -> None:
    """As Java brokers do."""
    server = guarded_name_server()
    users = Users(server)
    users.add("inner", "Cluster:* All")
    channel, body = server.connect(), a_registration("orders")
    fields = registration_fields("a", "10.0.0.1:10911", body)
    server.receive(channel, encode_command(signed(server.new_request(103, fields, body=body), "inner")))
    (answer,) = server.pop_answers(channel)
    assert answer.code == 0

    users.add("alice")

    assert ACCESS_FIELD not in answer.fields
    assert server.pop_answers(channel) == []


def test_without_access_control_a_broker_that_has_proven_nothing_learns_nothing() -> None:
    server = a_name_server()
    channel = server.connect()

    answer = register(server, channel=channel)
    Users(server).add("alice")

    assert ACCESS_FIELD not in answer.fields
    assert server.pop_answers(channel) == []


def test_a_broker_that_has_left_gets_nothing() -> None:
    server = guarded_name_server()
    channel = a_broker_of(server)
    server.disconnect(channel)

    Users(server).add("alice")

    assert server.pop_answers(channel) == []
