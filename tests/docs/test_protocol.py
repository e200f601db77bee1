"""The page of request and response codes is complete, and true of the roles."""

import re
from pathlib import Path

import pytest
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.name_server_machine import a_name_server

from holdfast.client.producer import Producer
from holdfast.client.push_consumer import PushConsumer
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
REQUESTS = {
    int(code): (name, answered)
    for code, name, answered in re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
}
RESPONSES = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \| [^|]+ \|$", PAGE, re.MULTILINE)}


def test_every_request_has_a_row():
    """A code in a log can be looked up, and no row is about a code that is gone."""
    assert {code: name for code, (name, _) in REQUESTS.items()} == {int(it): it.name for it in RequestCode}


def test_every_response_has_a_row():
    """The same holds for the codes of answers."""
    assert {int(it): it.name for it in ResponseCode} == RESPONSES


@pytest.mark.parametrize("code", list(RequestCode), ids=lambda code: code.name)
def test_the_page_says_who_answers(code: RequestCode):
    """Each role that knows a request is named, and no other role."""
    roles = REQUESTS[code][1].split(", ")

    refused_by_broker = [answer.code for answer in BrokerHarness().call(Command(code=code))] == [
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    ]
    refused_by_name_server = a_name_server().request(code, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    assert refused_by_broker == ("broker" not in roles)
    assert refused_by_name_server == ("name server" not in roles)


async def test_the_page_says_what_clients_answer():
    """Servers ask clients, too."""
    answered = {code for code, (_, roles) in REQUESTS.items() if "client" in roles.split(", ")}
    producer = Producer("127.0.0.1:1")
    consumer = PushConsumer("127.0.0.1:1", "readers")

    assert answered == {*producer._client._handlers, *consumer._member.client._handlers}
