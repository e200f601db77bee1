"""Whether a user has a permission, and which rule decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access.decision import decide, find_matches, name_cluster
from holdfast.model.access.directory import Directory, Record
from holdfast.model.access.resource import THIS_CLUSTER, Action, Permission, Resource, ResourceType
from holdfast.model.access.rule import Effect, NameMatch, ResourcePattern, Rule, Tier, parse_actions
from holdfast.model.access.source_address import parse_source
from holdfast.model.access.user import CLUSTER_USER, User, UserKind

IP = "10.0.0.1"
CLUSTER = "DefaultCluster"


def rule(text: str) -> Rule:
    """Read a rule in the form in which `str` writes it."""
    effect, resource, actions, *rest = text.removesuffix(" (Default)").split()
    sources = rest[1].split(",") if rest else []
    tier = Tier.DEFAULT if text.endswith(" (Default)") else Tier.CUSTOM
    return Rule(
        ResourcePattern.parse(resource),
        parse_actions(actions.split(",")),
        Effect(effect),
        tuple(map(parse_source, sources)),
        tier,
    )


def permission(text: str) -> Permission:
    """Read `Topic:t Sub,Get`."""
    resource, actions = text.split()
    type_, name = resource.split(":")
    return Permission(Resource(ResourceType(type_), name), parse_actions(actions.split(",")))


def alice_with(*rules: str, kind: UserKind = UserKind.NORMAL, is_enabled: bool = True) -> Directory:
    """Return a directory with the user alice."""
    directory = Directory()
    directory.create_user(User("alice", ("open-sesame",), kind, is_enabled), 1)
    if rules:
        directory.put_rules("alice", [rule(text) for text in rules], 1)
    return directory


def deciding(rules: list[str], needed: str, ip: str = IP, cluster: str = CLUSTER) -> str | None:
    """Return the rule that decides, as text."""
    decision = decide(alice_with(*rules), "alice", permission(needed), ip, cluster)
    assert decision.is_allowed == (decision.rule is not None and decision.rule.effect is Effect.ALLOW)
    return None if decision.rule is None else str(decision.rule)


@pytest.mark.parametrize(
    ("winner", "others"),
    [
        ("Deny * All", ["Allow Topic:orders Sub (Default)"]),
        ("Allow Topic:* Sub", ["Deny * All"]),
        ("Allow Topic:orders Sub", ["Deny Topic:* All", "Deny * All"]),
        ("Allow Topic:orders Sub", ["Deny Topic:orders* Sub"]),
        ("Allow Topic:ord* Sub", ["Deny Topic:o* Sub", "Deny Topic:* Sub"]),
        ("Deny Topic:ord* Sub", ["Allow Topic:o* Sub"]),
        (
            "Allow Topic:orders Sub",
            ["Deny Topic:orders Pub (Default)", "Deny Topic:other Sub", "Deny Group:orders Sub"],
        ),
        ("Deny Topic:* Sub", ["Allow Topic:orders Pub", "Allow Topic:orders Sub from 9.9.9.9"]),
        ("Allow Topic:orders Sub from 10.0.0.0/8", ["Deny Topic:o* Sub"]),
    ],
)
def test_the_most_specific_rule_decides(winner: str, others: list[str]):
    """In whatever order rules were added."""
    assert deciding([winner, *others], "Topic:orders Sub") == winner
    assert deciding([*others, winner], "Topic:orders Sub") == winner


def test_deny_goes_before_allow_if_both_are_for_one_pattern():
    """No change makes such rules here, but another server may send them."""
    allow, deny = rule("Allow Topic:orders Sub"), rule("Deny Topic:orders Sub")
    for rules in ((allow, deny), (deny, allow)):
        directory = alice_with()
        directory.merge([Record("rules/alice", 1, rules)])

        assert decide(directory, "alice", permission("Topic:orders Sub"), IP, CLUSTER).rule == deny


def test_without_a_rule_nothing_is_allowed():
    """The refusal has RocketMQ's text, and names the actions of which one would suffice."""
    decision = decide(alice_with("Allow Topic:other Sub"), "alice", permission("Topic:orders Sub,Get"), IP, CLUSTER)

    assert decision == (
        False,
        None,
        "User:alice has no permission to access Topic:orders from 10.0.0.1, no matched policies. It needs Sub or Get.",
    )


def test_a_denied_permission_says_so():
    """As in RocketMQ."""
    decision = decide(alice_with("Deny Topic:orders Sub"), "alice", permission("Topic:orders Sub"), IP, CLUSTER)

    assert decision.reason == (
        "User:alice has no permission to access Topic:orders from 10.0.0.1, the decision is deny. It needs Sub."
    )


@pytest.mark.parametrize(
    ("rules", "winner"),
    [
        (["Allow Topic:orders Get"], "Allow Topic:orders Get"),
        (["Allow Topic:orders Sub"], "Allow Topic:orders Sub"),
        (["Allow Topic:orders Pub"], None),
        (["Deny Topic:orders Sub", "Allow Topic:* All"], "Deny Topic:orders Sub"),
        (["Allow Topic:orders Sub", "Deny Topic:* Get"], "Allow Topic:orders Sub"),
    ],
)
def test_one_of_several_alternative_actions_suffices(rules: list[str], winner: str | None):
    """Also to deny: the first rule with any one of them decides, as in RocketMQ."""
    assert deciding(rules, "Topic:orders Sub,Get") == winner


@pytest.mark.parametrize(
    ("rule_text", "cluster", "is_allowed"),
    [
        ("Allow Cluster:* Get", CLUSTER, True),
        ("Allow * Get", CLUSTER, True),
        ("Allow Cluster:DefaultCluster Get", CLUSTER, True),
        ("Allow Cluster:Default* Get", CLUSTER, True),
        ("Allow Cluster:other Get", CLUSTER, False),
        ("Allow Cluster:DefaultCluster Get", "other", False),
        ("Allow Cluster:* Get", "", True),
        ("Allow Cluster:DefaultCluster Get", "", False),
    ],
)
def test_a_rule_for_a_cluster_is_for_the_server_that_is_in_it(rule_text: str, cluster: str, is_allowed: bool):  # noqa: FBT001
    """Requests do not name their cluster; a name server is in none."""
    needed = Permission(THIS_CLUSTER, frozenset({Action.GET}))

    decision = decide(alice_with(rule_text), "alice", needed, IP, cluster)

    assert decision.is_allowed == is_allowed
    assert is_allowed or f"to access Cluster:{cluster or '*'} from" in decision.reason
    assert bool(find_matches(alice_with(rule_text), "alice", needed, IP, cluster)) == is_allowed


@pytest.mark.parametrize(
    ("directory", "user", "is_allowed", "reason"),
    [
        (alice_with(kind=UserKind.SUPER), "alice", True, "User:alice is a Super user"),
        (alice_with("Deny * All", kind=UserKind.SUPER), "alice", True, "User:alice is a Super user"),
        (alice_with(kind=UserKind.SUPER, is_enabled=False), "alice", False, "User:alice is disabled."),
        (alice_with("Allow * All", is_enabled=False), "alice", False, "User:alice is disabled."),
        (alice_with("Allow * All"), "Alice", False, "User:Alice is not found."),
        (alice_with(), CLUSTER_USER, True, f"User:{CLUSTER_USER} is a server"),
    ],
)
def test_some_users_need_no_rule_and_others_have_no_use_of_one(
    directory: Directory,
    user: str,
    is_allowed: bool,  # noqa: FBT001
    reason: str,
):
    """Super users and servers; disabled users and those that do not exist."""
    decision = decide(directory, user, permission("Topic:orders Sub"), IP, CLUSTER)

    assert decision == (is_allowed, None, reason)


def test_a_deleted_user_has_no_permission():
    """Although it had one before."""
    directory = alice_with("Allow * All")
    directory.delete_user("alice", 2)

    assert not decide(directory, "alice", permission("Topic:orders Sub"), IP, CLUSTER).is_allowed


def test_all_matching_rules_are_listed_by_rank():
    """For `acl explain`."""
    rules = [
        "Allow * All",
        "Deny Topic:o* Sub",
        "Allow Topic:orders Sub (Default)",
        "Allow Topic:ord* Sub",
        "Deny Group:* All",
    ]

    matches = find_matches(alice_with(*rules), "alice", permission("Topic:orders Sub"), IP, CLUSTER)

    assert list(map(str, matches)) == [
        "Allow Topic:ord* Sub",
        "Deny Topic:o* Sub",
        "Allow * All",
        "Allow Topic:orders Sub (Default)",
    ]


def test_only_permissions_for_the_own_cluster_get_its_name():
    """Others have names."""
    orders = permission("Topic:orders Sub")

    assert name_cluster(orders, CLUSTER) is orders
    assert str(name_cluster(Permission(THIS_CLUSTER, orders.actions), CLUSTER).resource) == "Cluster:DefaultCluster"


WORDS = st.sampled_from(["a", "ab", "abc", "b"])
PATTERNS = st.one_of(
    st.just("*"),
    st.sampled_from(["Topic:*", "Group:*"]),
    st.builds("{}:{}{}".format, st.sampled_from(["Topic", "Group"]), WORDS, st.sampled_from(["", "*"])),
)
RULES = st.builds(
    Rule,
    PATTERNS.map(ResourcePattern.parse),
    st.frozensets(st.sampled_from(Action), min_size=1, max_size=3),
    st.sampled_from(Effect),
    st.sampled_from([(), (parse_source(IP),), (parse_source("9.9.9.9"),)]),
    st.sampled_from(Tier),
)
PERMISSIONS = st.builds(
    Permission,
    st.builds(Resource, st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]), WORDS),
    st.frozensets(st.sampled_from(Action), min_size=1, max_size=2),
)


def beats(one: Rule, other: Rule) -> bool:
    """Return whether *one* goes before *other*, by the words of RocketMQ's documentation."""
    if one.resource.type != other.resource.type:
        return other.resource.type is None
    if one.resource.match is not other.resource.match:
        order = [NameMatch.LITERAL, NameMatch.PREFIXED, NameMatch.ANY]
        return order.index(one.resource.match) < order.index(other.resource.match)
    if len(one.resource.name) != len(other.resource.name):
        return len(one.resource.name) > len(other.resource.name)
    return one.effect is Effect.DENY


@given(st.lists(RULES, max_size=8), PERMISSIONS)
def test_the_ranking_is_that_of_rocketmq(rules: list[Rule], needed: Permission):
    """Compared with a second implementation: tier by tier, pair by pair."""
    directory = Directory()
    directory.create_user(User("alice", ("open-sesame",)), 1)
    if rules:
        directory.put_rules("alice", rules, 1)
    kept = list({(rule.tier, rule.resource): rule for rule in rules}.values())

    expected = None
    for tier in (Tier.CUSTOM, Tier.DEFAULT):
        for each in kept:
            type_, name, match = each.resource
            is_for_name = {
                NameMatch.LITERAL: needed.resource.name == name,
                NameMatch.PREFIXED: needed.resource.name[: len(name)] == name,
                NameMatch.ANY: True,
            }[match]
            is_here = not each.sources or str(each.sources[0]) == IP
            is_match = each.tier is tier and type_ in {None, needed.resource.type} and is_for_name and is_here
            if is_match and each.actions & needed.actions and (expected is None or beats(each, expected)):
                expected = each
        if expected is not None:
            break

    decision = decide(directory, "alice", needed, IP, CLUSTER)

    assert decision.rule == expected
    assert decision.is_allowed == (expected is not None and expected.effect is Effect.ALLOW)
