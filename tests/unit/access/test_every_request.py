"""Every request of every role: refused for who may not send it, accepted from who just may.

A new code needs a line here: its permissions, written down by hand.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.support.access import Users, guarded_broker, guarded_name_server, log_in_as_server, signed
from tests.support.cluster.machine import MachineHarness

from holdfast.access.sync_requests import NOT_A_SERVER
from holdfast.machine.effects import Fault
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.relay import RelayFields
from holdfast.wire.requests.send import LongSendFields
from holdfast.wire.requests.table import REQUESTS, RequestSpec, Role

# public: everybody; user: every user; server: only servers; otherwise permissions, each with its alternatives.
BROKER_NEEDS = {
    10: "Topic:t Pub",
    11: "Group:g Sub; Topic:t Sub",
    12: "Topic:t Sub,Get",
    14: "Topic:t Sub,Get; Group:g Sub,Get",
    15: "Topic:t Sub,Update; Group:g Sub,Update",
    17: "Topic:t Create",
    18: "Topic:t Create; Topic:u Create",
    21: "Cluster:* Get,List",
    25: "Cluster:* Update",
    26: "Cluster:* Get",
    28: "Cluster:* Get",
    29: "Topic:t Get",
    30: "Topic:t Get",
    31: "Topic:t Get",
    32: "Topic:t Get",
    33: "Topic:t Get",
    34: "Group:g Sub; Topic:t Sub",
    35: "Group:g Sub",
    36: "Group:g Sub",
    37: "Topic:t Pub",
    38: "Group:g Sub,Get",
    39: "Cluster:* Update",
    41: "Group:g Sub; Topic:t Sub",
    42: "Group:g Sub; Topic:t Sub",
    43: "Cluster:* Get",
    45: "Cluster:* Get",
    46: "Group:g Sub; Topic:t Sub",
    60: "Cluster:* Get",
    61: "Cluster:* Get",
    200: "Group:g Create",
    201: "Cluster:* Get,List",
    202: "Topic:t Get",
    203: "Group:g Get",
    204: "Cluster:* Get",
    207: "Group:g Delete",
    208: "Group:g Get; Topic:t Get",
    215: "Topic:t Delete",
    222: "Topic:t Update; Group:g Update",
    223: "Topic:t Get; Group:g Get",
    225: "Group:g Create; Group:h Create",
    300: "Topic:t Get",
    303: "Topic:t Get; Group:g Get",
    305: "Cluster:* Get,List",
    306: "Cluster:* Update",
    307: "Group:g Get",
    309: "Topic:t Sub; Group:g Sub",
    310: "Topic:t Pub",
    314: "Topic:t Update; Group:g Update; Group:h Get",
    315: "Cluster:* Get",
    316: "Cluster:* Update",
    317: "Cluster:* Get",
    320: "Topic:t Pub",
    321: "Topic:t Get; Group:g Get",
    324: "Topic:t Pub",
    325: "Topic:t Pub",
    328: "Cluster:* Get",
    329: "Cluster:* Update",
    343: "Group:g Get",
    345: "Topic:t Get; Group:g Get",
    351: "Topic:t Get",
    352: "Group:g Get",
    361: "Group:g Sub; Topic:t Sub",
    400: "public",
    402: "Cluster:* Get",
    513: "Topic:t Create",
    907: "Cluster:* Get",
    3001: "Cluster:* Update",
    3002: "Cluster:* Update",
    3003: "Cluster:* Update",
    3004: "Cluster:* Get",
    3005: "Cluster:* Get",
    3006: "Cluster:* Update",
    3007: "Cluster:* Update",
    3008: "Cluster:* Update",
    3009: "Cluster:* Get",
    3010: "Cluster:* Get",
    7001: "Cluster:* Update",
    7002: "Cluster:* Get",
    7003: "Cluster:* Update",
    7004: "Cluster:* Update",
    7005: "Cluster:* Update",
    7006: "Cluster:* Update",
    7007: "Cluster:* Get",
    7008: "Cluster:* Update",
    7009: "Cluster:* Update",
    7010: "Cluster:* Update",
    7011: "Cluster:* Update",
    7012: "Cluster:* Get",
    7013: "Cluster:* Update",
    7014: "Cluster:* Update",
    7015: "Cluster:* Update",
    7016: "Cluster:* Update",
    7017: "Cluster:* Get",
    7020: "server",
    7021: "Cluster:* Update; Topic:t Pub",
    7022: "Topic:t Create",
    7030: "Cluster:* Update",
    7031: "Cluster:* Update",
    7032: "Cluster:* Get",
    7033: "Cluster:* Get",
    7034: "Cluster:* Get",
    7035: "Cluster:* Update",
    7051: "Cluster:* Update",
    7052: "Cluster:* Get",
    7060: "public",
    7061: "public",
    7062: "server",
}
NAME_SERVER_NEEDS = {
    100: "Cluster:* Update",
    101: "Cluster:* Get",
    102: "Cluster:* Update",
    103: "Cluster:* Update",
    104: "Cluster:* Update",
    105: "Topic:t Pub,Sub,Get",
    106: "user",
    205: "Cluster:* Update",
    206: "Cluster:* Get,List",
    216: "Cluster:* Update",
    217: "Cluster:* Update",
    219: "Cluster:* Get",
    224: "Cluster:* Get,List",
    304: "Cluster:* Get,List",
    311: "Cluster:* Get,List",
    312: "Cluster:* Get,List",
    313: "Cluster:* Get,List",
    318: "Cluster:* Update",
    319: "Cluster:* Get",
    322: "Cluster:* Get",
    327: "Cluster:* Update",
    329: "public",
    901: "Cluster:* Get",
    904: "Cluster:* Update",
    3001: "Cluster:* Update",
    3002: "Cluster:* Update",
    3003: "Cluster:* Update",
    3004: "Cluster:* Get",
    3005: "Cluster:* Get",
    3006: "Cluster:* Update",
    3007: "Cluster:* Update",
    3008: "Cluster:* Update",
    3009: "Cluster:* Get",
    3010: "Cluster:* Get",
    7040: "Cluster:* Update",
    7050: "Cluster:* Get",
    7051: "Cluster:* Update",
    7052: "Cluster:* Get",
    7060: "public",
    7061: "public",
    7062: "server",
}
NEEDS = {Role.BROKER: BROKER_NEEDS, Role.NAME_SERVER: NAME_SERVER_NEEDS}
CASES = [(role, code) for role, needs in NEEDS.items() for code in needs]

QUEUES = {"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}]}
BODIES = {
    18: {"topicConfigList": [{"topicName": "t"}, {"topicName": "u"}]},
    34: {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t"}]}]},
    41: QUEUES,
    42: QUEUES,
    46: {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t"}},
    200: {"groupName": "g"},
    225: {"groupConfigList": [{"groupName": "g"}, {"groupName": "h"}]},
}
SEND = {"producerGroup": "p", "topic": "t", "queueId": "0"}
NAMES = {
    "topic": "t", "b": "t", "consumerGroup": "g", "group": "g", "groupName": "g", "destGroup": "g", "srcGroup": "h",
}  # fmt: skip


def example(role: Role, code: int) -> Command:
    """Return a request that names topic t and group g, wherever it names any."""
    spec = REQUESTS[role][code]
    body = BODIES.get(code) if role is Role.BROKER else None
    data = b"" if body is None else json.dumps(body).encode()
    if spec.header is RelayFields:
        fields = to_fields(RelayFields(source="a", boot=1, number=1, topic="t", queue=0, user="root"))
        data = encode_command(Command(code=310, fields={"a": "p", "b": "t", "e": "0"}, body=b"x"))
    elif spec.header is LongSendFields:
        fields = SEND
    else:
        fields = _fields_of(spec)
    return Command(code=code, fields=dict(fields), body=data)


def _fields_of(spec: RequestSpec) -> dict[str, str]:
    fields = msgspec.structs.fields(spec.header)
    return {it.encode_name: NAMES.get(it.encode_name, "0") for it in fields if it.required or it.encode_name in NAMES}


class Walk:
    """One server, and the same request of several senders."""

    def __init__(self, role: Role, code: int) -> None:
        self.role = role
        self.code = code
        self.server: MachineHarness = guarded_broker() if role is Role.BROKER else guarded_name_server()
        if role is Role.BROKER:
            self.server.make_topic("t")  # type: ignore[attr-defined]
        self.users = Users(self.server)
        self.channel = self.server.connect()

    def refused(self, user: str | None = None, channel: int | None = None) -> str | None:
        """Send the request; return the text of its refusal, or None if it was admitted."""
        command = example(self.role, self.code)
        if user is not None:
            signed(command, user)
        target = self.channel if channel is None else channel
        before = _refusals(self.server)
        self.server.receive(target, encode_command(command))
        answers = self.server.pop_answers(target)
        assert not [effect for effect in self.server.effects if isinstance(effect, Fault)]
        if _refusals(self.server) == before and NOT_A_SERVER not in [answer.remark for answer in answers]:
            return None
        (answer,) = answers
        assert answer.code == ResponseCode.NO_PERMISSION
        return answer.remark


def _refusals(server: MachineHarness) -> int:
    """Return how many requests the door has refused."""
    door = getattr(server.machine, "door", None) or server.components.door  # type: ignore[attr-defined]
    return int(door.refusals)


@pytest.mark.parametrize("role", NEEDS)
def test_every_code_is_listed_here(role: Role) -> None:
    """A new request that nobody has thought about would be missing."""
    assert set(NEEDS[role]) == set(REQUESTS[role])


@pytest.mark.parametrize(("role", "code"), CASES, ids=lambda it: getattr(it, "value", it))
def test_who_has_not_proven_who_it_is_may_send_only_what_is_public(role: Role, code: int) -> None:
    """Whatever the request contains."""
    walk = Walk(role, code)

    refusal = walk.refused()

    assert refusal == (None if NEEDS[role][code] == "public" else "username cannot be null.")


@pytest.mark.parametrize(("role", "code"), CASES, ids=lambda it: getattr(it, "value", it))
def test_a_user_without_rights_is_told_what_it_lacks(role: Role, code: int) -> None:
    """The text is that of RocketMQ, with the actions that are missing."""
    walk, needs = Walk(role, code), NEEDS[role][code]
    walk.users.add("bob")

    refusal = walk.refused("bob")

    if needs in {"public", "user"}:
        assert refusal is None
        return
    assert refusal is not None
    if needs == "server":
        needs = "Cluster:* Update"
    resource, actions = needs.split("; ")[0].split()
    name = resource.replace("*", "DefaultCluster") if role is Role.BROKER else resource
    assert refusal.startswith(f"User:bob has no permission to access {name} from "), refusal
    assert refusal.endswith(f", no matched policies. It needs {' or '.join(actions.split(','))}.")


@pytest.mark.parametrize(("role", "code"), CASES, ids=lambda it: getattr(it, "value", it))
def test_a_user_with_just_the_rights_is_admitted_and_with_one_less_is_not(role: Role, code: int) -> None:
    """Every permission is needed; of alternatives, one is enough."""
    needs = NEEDS[role][code]
    walk, rules = Walk(role, code), [text for text in needs.split("; ") if " " in text]
    walk.users.add("all", *rules)
    for number, text in enumerate(rules):
        others = [other for other in rules if other != text]
        walk.users.add(f"less{number}", *others)
        resource, actions = text.split()
        for action in actions.split(","):
            walk.users.add(f"one{number}{action}", *others, f"{resource} {action}")
            assert walk.refused(f"one{number}{action}") is None
        assert walk.refused(f"less{number}") is not None

    is_admitted = walk.refused("all") is None

    assert is_admitted == (needs != "server")


@pytest.mark.parametrize(("role", "code"), CASES, ids=lambda it: getattr(it, "value", it))
def test_a_super_user_and_a_server_may_send_everything(role: Role, code: int) -> None:
    """Except what only servers say to each other."""
    walk = Walk(role, code)
    walk.users.add("root", is_super=True)
    other = walk.server.connect()
    log_in_as_server(walk.server, other)

    by_super = walk.refused("root")
    by_server = walk.refused(channel=other)

    assert (by_super is None) == (NEEDS[role][code] != "server")
    assert by_server is None
