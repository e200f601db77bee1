"""Resource patterns, actions and rules."""

import pytest

from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.resource import Action, Permission, Resource, ResourceType
from holdfast.model.access.rule import (
    ALL_ACTIONS,
    ANY_RESOURCE,
    Effect,
    NameMatch,
    ResourcePattern,
    Rule,
    Tier,
    list_actions,
    parse_actions,
)
from holdfast.model.access.source_address import parse_source

ORDERS = Resource(ResourceType.TOPIC, "orders")
SUB = frozenset({Action.SUB})


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("*", ANY_RESOURCE),
        ("Topic:*", ResourcePattern(ResourceType.TOPIC, "", NameMatch.ANY)),
        ("Topic:orders", ResourcePattern(ResourceType.TOPIC, "orders", NameMatch.LITERAL)),
        ("Topic:orders*", ResourcePattern(ResourceType.TOPIC, "orders", NameMatch.PREFIXED)),
        ("Group:a:b", ResourcePattern(ResourceType.GROUP, "a:b", NameMatch.LITERAL)),
        ("Cluster:*", ResourcePattern(ResourceType.CLUSTER, "", NameMatch.ANY)),
        ("Namespace:n", ResourcePattern(ResourceType.NAMESPACE, "n", NameMatch.LITERAL)),
    ],
)
def test_a_pattern_is_read_and_written(text: str, pattern: ResourcePattern):
    """In the form of ACL 2.0. Types have no case."""
    assert ResourcePattern.parse(text) == pattern
    assert str(pattern) == text
    assert ResourcePattern.parse(text.replace("Topic", "tOPIC")) == pattern


@pytest.mark.parametrize("text", ["", "orders", "Topics:orders", "*:orders", ":orders", "Topic"])
def test_a_text_without_a_type_is_no_pattern(text: str):
    """The beginning is RocketMQ's text."""
    with pytest.raises(DirectoryRefused, match=r"The resource is null\. '.*' is neither"):
        ResourcePattern.parse(text)


@pytest.mark.parametrize(
    "text", ["Topic:", "Topic:a*b", "Topic:a*b*", "Topic:**", "Topic:a b", "Topic:\n", f"Topic:{'x' * 256}"]
)
def test_a_name_is_not_guessed(text: str):
    """RocketMQ makes `a*` of `a*b*`, which allows more than was asked for."""
    with pytest.raises(DirectoryRefused, match="cannot be used"):
        ResourcePattern.parse(text)


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("*", ["Topic:orders", "Topic:orders2", "Topic:order", "Group:orders", "Cluster:c"]),
        ("Topic:*", ["Topic:orders", "Topic:orders2", "Topic:order"]),
        ("Topic:orders*", ["Topic:orders", "Topic:orders2"]),
        ("Topic:orders", ["Topic:orders"]),
        ("Group:*", ["Group:orders"]),
        ("Cluster:*", ["Cluster:c"]),
    ],
)
def test_a_pattern_matches_resources(text: str, matching: list[str]):
    """Of its type, by its name."""
    resources = [
        *(Resource(ResourceType.TOPIC, name) for name in ("orders", "orders2", "order")),
        Resource(ResourceType.GROUP, "orders"),
        Resource(ResourceType.CLUSTER, "c"),
    ]

    assert [str(resource) for resource in resources if ResourcePattern.parse(text).matches(resource)] == matching


def test_actions_are_read_in_any_case():
    """All stands for all of them, also when they are listed."""
    assert parse_actions(["pub", "SUB"]) == {Action.PUB, Action.SUB}
    assert parse_actions(["All"]) == ALL_ACTIONS
    assert list_actions(parse_actions(["Sub", "Pub"])) == ["Pub", "Sub"]
    assert list_actions(ALL_ACTIONS) == ["All"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "The actions is empty"),
        (["Any"], "The actions can not be Any"),
        (["Pub", "Snd"], "'Snd' is unknown: .* Pub"),
    ],
)
def test_an_unknown_action_is_refused(words: list[str], why: str):
    """RocketMQ ignores it, and with it a Deny."""
    with pytest.raises(DirectoryRefused, match=why):
        parse_actions(words)


@pytest.mark.parametrize(
    ("actions", "ip", "matches"),
    [
        ({Action.SUB}, "10.0.0.1", True),
        ({Action.SUB, Action.GET}, "10.0.0.1", True),
        ({Action.GET}, "10.0.0.1", False),
        ({Action.SUB}, "11.0.0.1", False),
        ({Action.SUB}, "", False),
    ],
)
def test_a_rule_matches_by_resource_action_and_address(actions: set[Action], ip: str, matches: bool):  # noqa: FBT001
    """Any one of the needed actions suffices."""
    rule = Rule(ResourcePattern.parse("Topic:*"), SUB, sources=(parse_source("9.9.9.9"), parse_source("10.0.0.0/8")))

    assert rule.matches(Permission(ORDERS, frozenset(actions)), ip) == matches
    assert not rule.matches(Permission(Resource(ResourceType.GROUP, "orders"), frozenset(actions)), ip)


def test_without_sources_a_rule_applies_everywhere():
    """Also to an address that is unknown."""
    assert Rule(ANY_RESOURCE, SUB).matches(Permission(ORDERS, SUB), "")


def test_a_rule_reads_as_a_sentence():
    """For `acl explain` and for logs."""
    rule = Rule(ANY_RESOURCE, ALL_ACTIONS, Effect.DENY, (parse_source("10.0.0.0/8"), parse_source("::1")), Tier.DEFAULT)

    assert str(rule) == "Deny * All from 10.0.0.0/8,::1 (Default)"
    assert str(Rule(ResourcePattern.parse("Topic:t*"), SUB)) == "Allow Topic:t* Sub"
