"""The table of requests: complete, and its rows fit their header types."""

import msgspec
import pytest

from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, NoFields, from_fields
from holdfast.wire.requests.send import SendFields
from holdfast.wire.requests.table import BROKER_REQUESTS, CLIENT_REQUESTS, REQUESTS, Path, Relaying, RequestSpec, Role

ROWS = [(role, spec) for role in Role for spec in REQUESTS[role].values()]
BY_FIELDS = {Relaying.SEND, Relaying.READ, Relaying.LEADER}


def test_every_code_has_a_row():
    """In one role at least."""
    assert {spec.code for _, spec in ROWS} == set(RequestCode)


@pytest.mark.parametrize("role", Role)
def test_rows_are_found_by_their_code_and_sorted(role: Role):
    """The page shows them in the order of the table."""
    table = REQUESTS[role]

    assert list(table) == sorted(table)
    assert all(code == spec.code for code, spec in table.items())


@pytest.mark.parametrize(("role", "spec"), ROWS, ids=lambda it: getattr(it, "name", "") or it.code.name)
def test_a_header_type_can_be_decoded(role: Role, spec: RequestSpec):
    """From fields that are all numbers, which are also texts; without them only what is required is missing."""
    fields = {field.encode_name: "1" for field in msgspec.structs.fields(spec.header)}

    assert from_fields(spec.header, fields)
    if any(field.required for field in msgspec.structs.fields(spec.header)):
        with pytest.raises(BadField, match="is missing"):
            spec.decode(Command(code=spec.code))
    else:
        assert isinstance(spec.decode(Command(code=spec.code)), spec.header), role


@pytest.mark.parametrize("code", [10, 324])
def test_version_1_of_a_send_is_decoded_by_its_long_names(code: int):
    """Both versions have one type."""
    spec = BROKER_REQUESTS[code]
    fields = {"topic": "t", "queueId": "3", "producerGroup": "p"}

    decoded = spec.decode(Command(code=code, fields=fields))

    assert isinstance(decoded, SendFields)
    assert (decoded.topic, decoded.queue_id, decoded.producer_group) == ("t", 3, "p")


def test_the_addressed_queue_is_found_in_the_header():
    """Of every kind of request that is relayed to one leader."""
    codes = {code for code, spec in BROKER_REQUESTS.items() if spec.relaying in BY_FIELDS}
    fields = {
        "topic": "t", "queueId": "3", "b": "t", "e": "3", "consumerGroup": "g", "queueOffset": "0", "timestamp": "0",
        "commitOffset": "0", "source": "a", "stream": "s", "position": "0", "settled": "0",
    }  # fmt: skip

    for code in codes:
        spec = BROKER_REQUESTS[code]
        assert spec.find_queue(spec.decode(Command(code=code, fields=fields))) == ("t", 3), spec.code.name
    assert codes == {10, 11, 14, 15, 29, 30, 31, 32, 310, 320, 361, 7021}


def test_the_hot_paths_are_named():
    """Their frames are decoded to other types than a handler gets."""
    hot = {
        (path, code) for path in (Path.SEND, Path.PULL) for code, spec in BROKER_REQUESTS.items() if spec.path is path
    }

    assert hot == {(Path.SEND, 10), (Path.SEND, 310), (Path.SEND, 320), (Path.PULL, 11), (Path.PULL, 361)}
    assert all(spec.path is Path.HANDLER for role, spec in ROWS if role is not Role.BROKER)


def test_a_decoded_header_gives_the_same_permissions():
    """Dispatch has decoded it already."""
    command = Command(code=30, fields={"topic": "t", "queueId": "3"})
    spec = BROKER_REQUESTS[30]

    assert spec.permissions_of(spec.decode(command), b"") == spec.find_permissions(command) != ()


def test_a_physical_queue_is_no_logical_queue():
    """A broker asks another one for a segment with `lo=false`."""
    spec = BROKER_REQUESTS[30]
    decoded = spec.decode(Command(code=30, fields={"topic": "t", "queueId": "3", "lo": "false"}))

    assert spec.find_queue(decoded) is None


def test_requests_without_one_queue_address_none():
    """Not even if they name a topic: 41 and 42 name many queues in their bodies."""
    for code in (41, 42, 202, 7020):
        spec = BROKER_REQUESTS[code]
        assert spec.find_queue(NoFields()) is None


def test_only_a_broker_relays():
    """Name servers and clients have no logical queues."""
    elsewhere = [spec for role, spec in ROWS if role is not Role.BROKER]

    assert all(spec.relaying is Relaying.NEVER and spec.on_replica for spec in elsewhere)
    assert not {Relaying.SEND, Relaying.LOCK} - {spec.relaying for spec in BROKER_REQUESTS.values()}


def test_one_code_can_have_a_meaning_in_each_role():
    """328 notifies a client of a name server; to a broker it is a query."""
    assert BROKER_REQUESTS[328].header is not CLIENT_REQUESTS[328].header
