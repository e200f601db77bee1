"""What a client tells every broker about itself."""

import json

from holdfast.client.cluster.heartbeat import consumer_data, heartbeat_command, unregister_command
from holdfast.model.filter import parse_tags
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.heartbeat import ConsumeFromWhere, decode_heartbeat


def test_a_producer_tells_its_group():
    """In upstream's words."""
    command = heartbeat_command("me", producer="p")

    assert command.code == RequestCode.HEART_BEAT
    assert json.loads(command.body) == {
        "clientID": "me",
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }


def test_a_consumer_tells_what_it_wants():
    """As a broker reads it."""
    data = consumer_data(
        "g",
        [parse_tags("t", "a||b", version=5)],
        is_push=True,
        is_broadcast=True,
        start=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
    )

    (consumer,) = decode_heartbeat(heartbeat_command("me", consumer=data).body).consumer_data_set

    assert (consumer.group_name, consumer.consume_type, consumer.message_model, consumer.consume_from_where) == (
        "g",
        "CONSUME_PASSIVELY",
        "BROADCASTING",
        "CONSUME_FROM_TIMESTAMP",
    )
    (subscription,) = consumer.subscription_data_set
    assert (subscription.topic, subscription.tags_set, subscription.code_set, subscription.sub_version) == (
        "t",
        {"a", "b"},
        {97, 98},
        5,
    )


def test_a_consumer_that_asks_by_itself_says_so():
    """Members of one group share their queues all the same."""
    data = consumer_data("g", [], is_push=False, is_broadcast=False, start=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)

    assert (data.consume_type, data.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")


def test_a_good_bye_names_one_group():
    """The other is left out."""
    assert unregister_command("me", consumer="g").fields == {"clientID": "me", "consumerGroup": "g"}
    assert unregister_command("me", producer="p").fields == {"clientID": "me", "producerGroup": "p"}
