"""Heartbeats of clients of every kind."""

import json
from typing import Any

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.group import Subscription
from holdfast.wire.frames import java_json
from holdfast.wire.requests.heartbeat import ClientConfigCheck, ConsumerData, Heartbeat, ProducerData, decode_heartbeat

JAVA = (
    b'{"clientID":"1.2.3.4@12345#987654321","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[97,98],"expressionType":"TAG","subString":"a||b",'
    b'"subVersion":1794732689925,"tagsSet":["a","b"],"topic":"t"}],"unitMode":false}],"heartbeatFingerprint":0,'
    b'"producerDataSet":[{"groupName":"p"},{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}'
)


def consumer(**parts: Any) -> bytes:
    return json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", **parts}]}).encode()


def test_a_java_heartbeat_is_read_in_full():
    """Groups, subscriptions, tags and their hashes."""
    assert decode_heartbeat(JAVA) == Heartbeat(
        client_id="1.2.3.4@12345#987654321",
        producer_data_set=[ProducerData("p"), ProducerData("CLIENT_INNER_PRODUCER")],
        consumer_data_set=[
            ConsumerData(
                group_name="g",
                subscription_data_set=[
                    Subscription(
                        topic="t",
                        sub_string="a||b",
                        tags_set=frozenset({"a", "b"}),
                        code_set=frozenset({97, 98}),
                        sub_version=1794732689925,
                    )
                ],
            )
        ],
    )


def test_a_heartbeat_survives_encoding():
    """What we send is what we read."""
    heartbeat = decode_heartbeat(JAVA)

    assert decode_heartbeat(java_json.encode(heartbeat)) == heartbeat


def test_a_heartbeat_of_nobody_in_particular_is_one():
    """Only the client's id is needed; null is as good as absent."""
    body = b'{"clientID":"c","consumerDataSet":null,"producerDataSet":[]}'

    assert decode_heartbeat(body) == Heartbeat(client_id="c")


@pytest.mark.parametrize(
    ("key", "number", "name"),
    [
        ("consumeType", 0, "CONSUME_ACTIVELY"),
        ("consumeType", 1, "CONSUME_PASSIVELY"),
        ("messageModel", 0, "BROADCASTING"),
        ("messageModel", 1, "CLUSTERING"),
        ("consumeFromWhere", 0, "CONSUME_FROM_LAST_OFFSET"),
        ("consumeFromWhere", 4, "CONSUME_FROM_FIRST_OFFSET"),
    ],
)
def test_enums_that_come_as_numbers_are_named(key: str, number: int, name: str):
    """C++ clients send them so."""
    (found,) = decode_heartbeat(consumer(**{key: number})).consumer_data_set

    assert name in {found.consume_type, found.message_model, found.consume_from_where}


def test_parts_of_subscriptions_that_are_null_have_their_defaults():
    """Some clients send every key."""
    body = consumer(subscriptionDataSet=[{"topic": "t", "tagsSet": None, "codeSet": None, "expressionType": None}])

    (found,) = decode_heartbeat(body).consumer_data_set

    assert found.subscription_data_set == [Subscription(topic="t")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"clientID":7,"consumerDataSet":{}}',
        b'{"clientID":"c","consumerDataSet":[7]}',
        b'{"clientID":"c","consumerDataSet":7}',
        b'{"clientID":"c","consumerDataSet":"text"}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
        consumer(consumeType=99),
        consumer(consumeType=[]),
        consumer(subscriptionDataSet=[7]),
        consumer(subscriptionDataSet=7),
        consumer(subscriptionDataSet=[{"topic": "t", "codeSet": ["x"]}]),
    ],
)
def test_what_is_no_heartbeat_is_refused(body: bytes):
    """With a typed error."""
    with pytest.raises(RemoteProtocolError):
        decode_heartbeat(body)


def test_a_subscription_check_is_read():
    """46, before a SQL consumer starts."""
    body = b'{"clientId":"c","group":"g","subscriptionData":{"topic":"t","expressionType":"SQL92","subString":"a > 1"}}'

    found = java_json.decode(body, ClientConfigCheck)

    assert found.subscription_data == Subscription(topic="t", expression_type="SQL92", sub_string="a > 1")
