"""Replies of request-reply, for clients that only their id names."""

from __future__ import annotations

import json

from tests.support.access import Users, log_in
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import codes

from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command


def a_producer(client_id: str) -> Command:
    """Return the heartbeat of a producer."""
    body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": "p"}]}).encode()
    return Command(code=34, body=body)


def test_a_reply_reaches_only_the_user_who_waits_for_it(desk: BrokerHarness) -> None:
    """The reply names its receiver by a client id, which everybody may claim in a heartbeat."""
    desk.make_topic("DefaultCluster_REPLY_TOPIC")
    Users(desk).add("server", "Topic:DefaultCluster_REPLY_TOPIC Pub")
    replying = desk.connect()
    log_in(desk, replying, "server")
    assert codes(desk.call(a_producer("alice@1"), channel=2)) == [0]
    desk.call(a_producer("alice@1"), channel=1)
    desk.pop_answers(1), desk.pop_answers(2)

    reply = a_send("DefaultCluster_REPLY_TOPIC", code=325, i="REPLY_TO_CLIENT\x01alice@1\x02", body=b"private")
    desk.call(reply, channel=replying)

    assert desk.pop_answers(1) == []
    assert codes(desk.pop_answers(2)) == [RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]


def test_a_client_id_is_free_when_its_user_has_left(desk: BrokerHarness) -> None:
    desk.call(a_producer("shared"), channel=2)
    desk.call(a_producer("shared"), channel=1)
    desk.disconnect(2)
    desk.call(a_producer("shared"), channel=1)

    client = desk.components.clients.find_producer("shared")

    assert client is not None
    assert client.channel == 1
