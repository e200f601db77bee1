"""Consumer groups and subscriptions as JSON."""

import msgspec
import pytest

from holdfast.model.group import GroupConfig, Subscription, find_group_fault


def test_a_group_has_upstreams_defaults_and_names():
    """As a Java broker stores a group that nobody configured."""
    assert msgspec.to_builtins(GroupConfig(group_name="g")) == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": "g",
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def test_groups_do_not_share_their_policies():
    """Each has a dictionary of its own."""
    assert GroupConfig(group_name="g").group_retry_policy is not GroupConfig(group_name="g").group_retry_policy


def test_a_subscription_wants_everything_unless_it_says_otherwise():
    """An empty set of tags is no filter."""
    subscription = Subscription(topic="t")

    assert (subscription.sub_string, subscription.tags_set, subscription.expression_type) == ("*", frozenset(), "TAG")
    assert msgspec.convert({"topic": "t", "tagsSet": ["a"], "codeSet": [97]}, Subscription) == Subscription(
        topic="t", tags_set=frozenset({"a"}), code_set=frozenset({97})
    )


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (GroupConfig(group_name=""), "1 to 248"),
        (GroupConfig(group_name="a b"), "a b"),
        (GroupConfig(group_name="g", retry_queue_nums=-1), "retry queues"),
    ],
)
def test_a_group_that_cannot_be_taken_is_refused_by_name(config: GroupConfig, part: str) -> None:
    """The reason names what is wrong."""
    assert part in (find_group_fault(config) or "")


def test_a_group_without_retries_is_fine() -> None:
    """Its failed messages are simply done with."""
    assert find_group_fault(GroupConfig(group_name="g", retry_queue_nums=0)) is None
