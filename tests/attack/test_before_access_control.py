"""Servers that know the cluster secret and have no access control yet: what is prepared there counts later."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from tests.support.access import Users, log_in, log_in_as_server, role_secrets, store_of
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import MachineHarness, codes

from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.relay import RelayFields

NO = int(ResponseCode.NO_PERMISSION)


def unguarded(**options: object) -> BrokerHarness:
    """Return a broker that knows the cluster secret, and has not got access control yet."""
    return BrokerHarness(secrets=role_secrets(), **options)


@pytest.mark.parametrize("code", [3001, 3002, 3003, 3006, 3007, 3008])
@pytest.mark.parametrize("kind", ["broker", "name server"])
def test_nobody_plants_users_before_access_control_is_on(code: int, kind: str) -> None:
    """With the first administrator the users are for good: a stranger may change neither them nor their rules."""
    server: MachineHarness = (
        unguarded()
        if kind == "broker"
        else MachineHarness(NameServer(NameServerOptions(), random.Random(7), secrets=role_secrets()))
    )
    users = Users(server)
    users.add("shop", "Topic:mine Pub")
    users.add("root", is_super=True)
    users.add("helper", "Cluster:* Update")
    body = {"username": "shop", "password": "another-secret", "userType": "Normal"}
    rules = {
        "subject": "User:shop",
        "policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}],
    }
    fields = {"username": "eve" if code == 3001 else "shop", "subject": "User:shop"}
    request = Command(code=code, fields=fields, body=json.dumps(body | rules).encode())
    before = store_of(server).directory.digest

    for sender in (None, "shop"):
        channel = server.connect()
        if sender:
            assert log_in(server, channel, sender).code == 0
        server.receive(channel, encode_command(request))
        (answer,) = server.pop_answers(channel)
        assert answer.code == NO, answer
    assert store_of(server).directory.digest == before

    for sender in ("helper", "root"):
        channel = server.connect()
        assert log_in(server, channel, sender).code == 0
        server.receive(channel, encode_command(request))
        assert NO not in codes(server.pop_answers(channel))


def test_a_broker_without_access_control_vouches_for_nobody_on_a_stranger_s_word() -> None:
    """It is trusted by the brokers that have it already, so it must not pass on who a stranger claims to be."""
    desk = unguarded()
    envelope = RelayFields(source="b", boot=5, number=1, client="9.8.7.6:5", user="root", topic="T")
    heard = []
    vouch = desk.components.door.vouch
    desk.components.door.vouch = lambda user, address: heard.append(user) or vouch(user, address)  # type: ignore[method-assign]
    desk.make_topic("T")
    request = Command(code=7020, fields=to_fields(envelope), body=encode_command(a_send("T")))

    desk.call(request)
    log_in_as_server(desk, 1)
    envelope = msgspec.structs.replace(envelope, number=2)
    desk.call(Command(code=7020, fields=to_fields(envelope), body=encode_command(a_send("T"))))

    assert heard == ["", "root"]
