"""The page of request and response codes, the table of requests, and the handlers of the roles agree."""

import re

import msgspec
import pytest
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.name_server_machine import a_name_server
from tests.support.protocol_page import PAGE, update

from holdfast.client.producer import Producer
from holdfast.client.push_consumer import PushConsumer
from holdfast.machine.effects import CloseChannel, Fault
from holdfast.store.recovery.replica_log import REPLICA_REFUSAL
from holdfast.wire.cluster.watch import ROUTES_CHANGED
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.send import LongSendFields
from holdfast.wire.requests.table import BROKER_REQUESTS, CLIENT_REQUESTS, NAME_SERVER_REQUESTS, RequestSpec

TEXT = PAGE.read_text(encoding="utf-8")
RESPONSES = {
    int(code): name
    for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \| [^|]+ \|$", TEXT[TEXT.index("## Responses") :], re.MULTILINE)
}


def test_the_tables_of_requests_are_those_of_the_code():
    """`python -m tests.support.protocol_page` writes them again."""
    assert update(TEXT) == TEXT


def test_every_response_has_a_row():
    """A code in a log can be looked up, and no row is about a code that is gone."""
    assert {int(it): it.name for it in ResponseCode} == RESPONSES


@pytest.mark.parametrize("code", list(RequestCode), ids=lambda code: code.name)
def test_the_table_says_which_server_answers(code: RequestCode):
    """Each server has a handler for every request in its table, and for no other."""
    unknown = [(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")]

    by_broker = [(answer.code, answer.remark) for answer in BrokerHarness().call(Command(code=code))]
    by_name_server = a_name_server().request(code, {})

    assert (by_broker != unknown) == (code in BROKER_REQUESTS)
    assert ([(by_name_server.code, by_name_server.remark)] != unknown) == (code in NAME_SERVER_REQUESTS)


async def test_the_table_says_what_clients_answer():
    """Servers ask clients, too. The session with a name server receives notices of routes itself."""
    producer = Producer("127.0.0.1:1")
    consumer = PushConsumer("127.0.0.1:1", "readers")

    answered = {ROUTES_CHANGED, *producer._client._callbacks.handlers, *consumer._member.client._callbacks.handlers}

    assert answered == set(CLIENT_REQUESTS)


def minimal(spec: RequestSpec) -> Command:
    """Return a request with every required field, whatever it means."""
    names = [field.encode_name for field in msgspec.structs.fields(spec.header) if field.required]
    fields = dict.fromkeys(names, "1")
    if spec.header is LongSendFields:
        fields = {"topic": "1", "queueId": "1"}
    return Command(code=spec.code, fields=fields)


@pytest.mark.parametrize("spec", BROKER_REQUESTS.values(), ids=lambda spec: spec.code.name)
def test_a_handler_of_the_broker_reads_the_header_type_of_its_row(spec: RequestSpec):
    """Any other type is a fault, which costs the client its connection."""
    desk = BrokerHarness()

    desk.call(minimal(spec))

    assert not [effect for effect in desk.effects if isinstance(effect, Fault | CloseChannel)]


@pytest.mark.parametrize("spec", NAME_SERVER_REQUESTS.values(), ids=lambda spec: spec.code.name)
def test_a_handler_of_the_name_server_reads_the_header_type_of_its_row(spec: RequestSpec):
    """The same for the other server."""
    server = a_name_server()

    answer = server.request(spec.code, minimal(spec).fields)

    assert answer.is_response
    assert not [effect for effect in server.effects if isinstance(effect, Fault | CloseChannel)]


class Answers:
    """The connection of a client to a server, which only collects the answers."""

    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.collected: list[Command] = []

    def answer(self, command: Command) -> None:
        self.collected.append(command)


@pytest.mark.parametrize("spec", CLIENT_REQUESTS.values(), ids=lambda spec: spec.code.name)
async def test_a_handler_of_a_client_reads_the_header_type_of_its_row(spec: RequestSpec):
    """Another type fails, and the answer would name it. No body is given, so many handlers complain about that."""
    answers = Answers()

    for client in (Producer("127.0.0.1:1")._client, PushConsumer("127.0.0.1:1", "readers")._member.client):
        await client._answer(answers, minimal(spec))

    assert len(answers.collected) >= 1
    assert not [answer.remark for answer in answers.collected if answer.remark and "the table names" in answer.remark]


@pytest.mark.parametrize("spec", BROKER_REQUESTS.values(), ids=lambda spec: spec.code.name)
def test_a_replica_refuses_what_the_table_says(spec: RequestSpec):
    """Changes that only a master may accept, before their fields are read."""
    replica = BrokerHarness(replica_of="broker-a", ha_master="10.0.0.9:10912", advertise="127.0.0.1:10921")

    answers = [(answer.code, answer.remark) for answer in replica.call(Command(code=spec.code))]

    assert (answers == [(ResponseCode.SERVICE_NOT_AVAILABLE, REPLICA_REFUSAL)]) == (not spec.on_replica)
