"""Finding stored messages."""

import pytest
from tests.support.cluster.scripted import ScriptedAccess

from holdfast.admin.cluster_access import NotFound
from holdfast.admin.messages import Messages, Origin
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.properties import format_properties
from holdfast.wire.records.record import StoredRecord, encode_record

ADDRESS = "10.0.0.1:10911"


def a_record(body: bytes = b"hello", store_ms: int = 5, **properties: str) -> bytes:
    host = pack_host(ADDRESS)
    return encode_record(
        StoredRecord(
            0, 700, "t", 3, 17, 0, 0, 1, host, store_ms, host, 0, 0, 0, body, format_properties(properties).encode()
        )
    )


def a_cluster() -> ScriptedAccess:
    return ScriptedAccess(brokers_by_name={"broker-a": ADDRESS}, topics={"t": {"broker-a": 4}})


async def test_only_messages_that_carry_the_key_are_returned():
    """The index compares hashes; another key of the same hash is not what was asked for."""
    body = a_record(KEYS="k1 k2", store_ms=9) + a_record(KEYS="other") + a_record(KEYS="k1", store_ms=3)
    reach = a_cluster().on(RequestCode.QUERY_MESSAGE, lambda _: body)

    found = await Messages(reach).by_key("t", "k1")

    assert [(each.broker, each.message.stored_ms) for each in found] == [("broker-a", 3), ("broker-a", 9)]


async def test_no_message_is_an_answer():
    """A key that nobody used is no failure."""
    reach = a_cluster().on(RequestCode.QUERY_MESSAGE, lambda _: ResponseCode.QUERY_NOT_FOUND)

    assert await Messages(reach).by_key("t", "k1") == []


async def test_a_brokers_id_leads_straight_to_the_record():
    """Broker and position are in the id."""
    reach = a_cluster().on(RequestCode.VIEW_MESSAGE_BY_ID, lambda _: a_record())

    (found,) = await Messages(reach).by_id("t", format_message_id(pack_host(ADDRESS), 700))

    assert (found.broker, found.message.body) == ("broker-a", b"hello")
    (asked,) = reach.requests_of(RequestCode.VIEW_MESSAGE_BY_ID)
    assert (asked.address, asked.fields["offset"]) == (ADDRESS, "700")


def a_dead_letter(topic: str = "%DLQ%g", **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic, b"x", MessageQueue(topic, "broker-a", 0), 1, properties, 0, 0, 1, 0, 0, 0, bytes(8), bytes(8)
    )


async def test_a_dead_letter_leads_to_where_it_came_from():
    """Also one that a Java broker made: it has the topic and the id, and the stored message has the rest."""
    message_id = format_message_id(pack_host(ADDRESS), 700)
    reach = a_cluster().on(RequestCode.VIEW_MESSAGE_BY_ID, lambda _: a_record())

    found = await Messages(reach).find_origin(a_dead_letter(RETRY_TOPIC="t", ORIGIN_MESSAGE_ID=message_id))

    assert found == Origin("t", message_id, "broker-a", 3, 17)


async def test_a_dead_letter_whose_message_is_gone_has_its_topic():
    """It expired, or its topic was deleted."""
    reach = a_cluster().on(RequestCode.QUERY_MESSAGE, lambda _: ResponseCode.QUERY_NOT_FOUND)

    assert await Messages(reach).find_origin(a_dead_letter(RETRY_TOPIC="t", ORIGIN_MESSAGE_ID="gone")) == Origin(
        "t", "gone"
    )
    assert await Messages(reach).find_origin(a_dead_letter(RETRY_TOPIC="deleted", ORIGIN_MESSAGE_ID="gone")) == Origin(
        "deleted", "gone"
    )


async def test_other_messages_have_no_origin():
    """Also if their sender writes the property: nothing is asked."""
    reach = a_cluster()

    assert await Messages(reach).find_origin(a_dead_letter("t", RETRY_TOPIC="other")) is None
    assert await Messages(reach).find_origin(a_dead_letter("%DLQ%g")) is None


async def test_an_id_cannot_make_us_dial_a_stranger():
    """An id may name any host: only brokers that the name server knows are asked."""
    reach = a_cluster().on(RequestCode.QUERY_MESSAGE, lambda _: ResponseCode.QUERY_NOT_FOUND)

    with pytest.raises(NotFound):
        await Messages(reach).by_id("t", format_message_id(pack_host("6.6.6.6:22"), 700))

    assert {asked.address for asked in reach.requests} <= {ADDRESS, "namesrv:9876"}


async def test_a_senders_id_is_searched_for():
    """It has the length of a broker's id, but nothing begins at that position."""
    unique = "7F00000147C602D52C7A4C0C6E240001"
    reach = a_cluster().on(RequestCode.VIEW_MESSAGE_BY_ID, lambda _: 1)
    reach.on(RequestCode.QUERY_MESSAGE, lambda _: a_record(UNIQ_KEY=unique))

    (found,) = await Messages(reach).by_id("t", unique)

    assert found.message.message_id == unique
    (asked,) = reach.requests_of(RequestCode.QUERY_MESSAGE)
    assert asked.fields["_UNIQUE_KEY_QUERY"] == "true"
