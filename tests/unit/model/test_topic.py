"""Topics: their names, their configuration, their JSON."""

import msgspec
import pytest

from holdfast.model.topic import (
    NOT_SENDABLE_TOPICS,
    Permission,
    TopicConfig,
    dead_letter_topic,
    find_name_fault,
    retry_topic,
)


def test_a_configuration_has_upstreams_names():
    """The same value is in `topics.json`, in registrations and in answers to tools."""
    config = TopicConfig(name="t", read_queues=4, write_queues=3, permission=6, order=True, attributes={"a": "b"})

    assert msgspec.to_builtins(config) == {
        "topicName": "t",
        "readQueueNums": 4,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": True,
        "attributes": {"a": "b"},
    }
    assert msgspec.convert({"topicName": "t"}, TopicConfig) == TopicConfig(name="t", read_queues=16, write_queues=16)


def test_permissions_are_bits():
    """Four to read, two to write, one to be a template."""
    assert Permission.READ | Permission.WRITE == 6
    assert Permission.READ | Permission.WRITE | Permission.INHERIT == 7


@pytest.mark.parametrize("name", ["t", "a-b_C%9|", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250])
def test_a_legal_name_has_no_fault(name: str):
    """Topics of groups may be longer."""
    assert find_name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "empty"), ("t" * 128, "127"), ("%RETRY%" + "g" * 249, "255"), ("a b", "may only"), ("ü", "may only")],
)
def test_an_illegal_name_is_told_why(name: str, words: str):
    """In words for whoever chose it."""
    fault = find_name_fault(name)

    assert fault is not None
    assert words in fault


def test_groups_have_topics_of_their_own():
    """For what failed, and for what failed too often."""
    assert retry_topic("g") == "%RETRY%g"
    assert dead_letter_topic("g") == "%DLQ%g"


def test_the_systems_own_topics_are_not_for_senders():
    """Their records mean something to the broker."""
    assert {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= NOT_SENDABLE_TOPICS
    assert "TBW102" not in NOT_SENDABLE_TOPICS
