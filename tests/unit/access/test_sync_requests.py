"""Servers exchange users and rules; nobody else does."""

import pytest
from tests.support.access import Users, guarded_broker, guarded_name_server, log_in_as_server, signed, store_of
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.machine import MachineHarness

from holdfast.access.sync_requests import NOT_A_SERVER
from holdfast.machine.events import ChannelId
from holdfast.model.access.directory import Directory
from holdfast.model.access.user import User, UserKind
from holdfast.wire.access.records import decode_records, encode_records
from holdfast.wire.frames.command import encode_command

ALICE = User("alice", ("secret-of-alice",))


@pytest.fixture(params=[guarded_broker, guarded_name_server], ids=["broker", "name server"])
def server(request: pytest.FixtureRequest) -> MachineHarness:
    """A role with an administrator."""
    server: MachineHarness = request.param()
    Users(server).add("admin", is_super=True)
    return server


def a_server_channel(server: MachineHarness) -> ChannelId:
    channel = server.connect()
    log_in_as_server(server, channel)
    return channel


def test_records_are_merged_and_the_sender_learns_what_it_lacks(server: MachineHarness) -> None:
    other = Directory()
    other.create_user(ALICE, 5_000)
    body = encode_records(other.records)

    answer = server.request(7062, {"hf.digest": other.digest}, body=body, channel=a_server_channel(server))

    assert answer.code == 0
    assert store_of(server).directory.find_user("alice") == ALICE
    assert [record.key for record in decode_records(answer.body)] == ["user/admin"]
    other.merge(decode_records(answer.body))
    assert other.digest == store_of(server).directory.digest == answer.fields["hf.digest"]


def test_nothing_is_returned_once_both_have_the_same(server: MachineHarness) -> None:
    other = Directory(store_of(server).directory.records)
    changed = other.create_user(ALICE, 5_000)

    answer = server.request(
        7062, {"hf.digest": other.digest}, body=encode_records(changed), channel=a_server_channel(server)
    )

    assert (answer.code, answer.body) == (0, b"")


def test_a_super_user_is_not_a_server(server: MachineHarness) -> None:
    other = Directory()
    other.create_user(User("eve", ("secret-of-eve",), UserKind.SUPER), 5_000)
    channel = server.connect()

    command = server.new_request(7062, {"hf.digest": other.digest}, body=encode_records(other.records))
    server.receive(channel, encode_command(signed(command, "admin")))

    (answer,) = server.pop_answers(channel)
    assert (answer.code, answer.remark, answer.body) == (16, NOT_A_SERVER, b"")
    assert store_of(server).directory.find_user("eve") is None


def test_without_access_control_a_stranger_is_refused_too() -> None:
    server = BrokerHarness()

    answer = server.request(7062, {"hf.digest": ""}, body=encode_records([]))

    assert (answer.code, answer.remark) == (16, NOT_A_SERVER)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"records": [{"key": "user/a"}]}', b"\xff"])
def test_records_that_cannot_be_read_are_refused(server: MachineHarness, body: bytes) -> None:
    before = store_of(server).directory.digest

    answer = server.request(7062, {"hf.digest": ""}, body=body, channel=a_server_channel(server))

    assert answer.code != 0
    assert store_of(server).directory.digest == before
