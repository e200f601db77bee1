"""Our name server answers recorded conversations as the Java name server did."""

from typing import Any

import pytest
from tests.support import recordings
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server
from tests.support.recordings import RecordedFrame

from holdfast.machine.events import ChannelId
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

REFUSED_BY_JAVA = "127.0.0.1:42911"
"""The broker whose compressed registration a Java 5.5.0 name server cannot read; ours can."""

# `file:n` is one request of another recording: the recorder left out what repeats, and so some of what came before.
SCENARIOS = {
    "5.5.0 brokers start, make static topics, stop": [
        "5.5.0-json-register:1",
        "5.5.0-json-register-query-version",
        "5.5.0-json-admin-topic:31",
        "5.5.0-json-static-create",
        "5.5.0-json-static-grow",
        "5.5.0-json-static-delete",
    ],
    "the same with binary headers": [
        "5.5.0-binary-register-query-version",
        "5.5.0-binary-admin-topic:21",
        "5.5.0-binary-static-create",
        "5.5.0-binary-static-grow",
        "5.5.0-binary-static-delete",
        "5.5.0-binary-unregister",
    ],
    "4.9.7 brokers start, one of them compresses": ["4.9.7-json-register", "4.9.7-json-register-query-version"],
    "4.9.7 brokers, clients ask for routes": [
        "4.9.7-json-register",
        "4.9.7-json-admin-topic:14",
        "4.9.7-json-route",
        "4.9.7-json-broadcast",
        "4.9.7-json-unregister",
    ],
    "5.5.0 master and slave": [
        "5.5.0-json-ha-slave:15",
        "5.5.0-json-ha-slave",
        "5.5.0-json-ha-route",
        "5.5.0-json-ha-more",
        "5.5.0-json-ha-unregister",
    ],
    "4.9.7 master and slave": [
        "4.9.7-json-ha-slave:8",
        "4.9.7-json-ha-slave",
        "4.9.7-json-ha-route",
        "4.9.7-json-ha-more",
    ],
}


def meaning(body: bytes) -> Any:
    """Return what a body says, without what only some versions say and without hash orders."""
    if not body.startswith(b"{"):
        return bool(body)
    value = java_json.loads(body.replace(b',"enableActingMaster":false', b"").replace(b'"stateVersion":0,', b""))
    for key in ("brokerDatas", "queueDatas"):
        if key in value:
            value[key].sort(key=lambda part: part["brokerName"])
    if "topicList" in value:
        value["topicList"].sort()
    if "clusterAddrTable" in value:
        value["clusterAddrTable"] = {key: sorted(names) for key, names in value["clusterAddrTable"].items()}
    return value


def replay(server: MachineHarness, step: str) -> list[tuple[RecordedFrame, Command]]:
    """Send every request of a recording, or one of them; return each recorded answer with ours."""
    name, _, number = step.partition(":")
    ours: dict[tuple[ChannelId, int], Command] = {}
    pairs = []
    for recorded in recordings.read(name):
        if not recorded.line["conn"].endswith("-namesrv") or (number and recorded.line["n"] != int(number)):
            continue
        channel = ChannelId(recorded.line["c"])
        if recorded.is_response:
            pairs.append((recorded, ours.pop((channel, recorded.line["opaque"]))))
        else:
            server.answers.setdefault(channel, [])  # A recording may begin when its channels are open.
            server.receive(channel, recorded.data)
            ours |= {(channel, answer.opaque): answer for answer in server.pop_answers(channel)}
    return pairs


def first_line(remark: str | None) -> str | None:
    """Return a remark without the address of the manual, which moved between versions."""
    return remark.partition("\n")[0] if remark else None


@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_every_answer_means_what_javas_meant(steps: list[str]):
    """Same code, same fields, same remark, same body but for orders that do not matter."""
    server = a_name_server()
    compared = 0

    for step in steps:
        for recorded, ours in replay(server, step):
            theirs = recorded.command
            assert ours.serializer == theirs.serializer, recorded
            assert (ours.code, first_line(ours.remark)) == (theirs.code, first_line(theirs.remark)), recorded
            assert ours.fields == theirs.fields, recorded
            assert meaning(ours.body) == meaning(theirs.body), recorded
            compared += 1

    assert compared >= 4


@pytest.mark.parametrize("name", ["5.5.0-json-register", "5.5.0-binary-register"])
def test_a_compressed_registration_that_java_refuses_is_taken(name: str):
    """5.5.0 compresses and says that it does not; its own name server cannot read that."""
    pairs = replay(a_name_server(), name)

    refused = [
        ours for recorded, ours in pairs if recorded.code == RequestCode.REGISTER_BROKER and recorded.command.code
    ]
    assert refused
    assert {answer.code for answer in refused} == {0}
    lists = [ours.body for recorded, ours in pairs if recorded.code == RequestCode.GET_BROKER_CLUSTER_INFO]
    assert any(REFUSED_BY_JAVA.encode() in body for body in lists)


@pytest.mark.parametrize("name", recordings.file_names("*-admin-topic"))
def test_administration_is_answered_with_the_same_codes_fields_and_remarks(name: str):
    """KV store, order configuration, settings, permissions, deletion; lists depend on what the recorder left out."""
    server = a_name_server()
    replay(server, name.replace("admin-topic", "register-query-version"))
    answered = set()

    for recorded, ours in replay(server, name):
        theirs = recorded.command
        if recorded.code in {RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER}:
            assert ours.fields.keys() == theirs.fields.keys(), recorded
        elif recorded.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            assert (ours.code == theirs.code) or b"TopicOrderConf" not in recorded.data, recorded
            continue
        else:
            assert ours.fields == theirs.fields, recorded
        assert (ours.code, first_line(ours.remark)) == (theirs.code, first_line(theirs.remark)), recorded
        answered.add(recorded.code)

    assert {100, 101, 102, 103, 106, 205, 206, 216, 318, 319} <= answered
