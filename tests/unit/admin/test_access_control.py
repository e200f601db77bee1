"""Users and rules, against scripted servers that keep a directory each."""

import pytest
from tests.support.cluster.scripted_users import SERVERS, ScriptedUsers

from holdfast.access.acl_file_reader import read_acl_files
from holdfast.admin.access_control import AccessControl, UserSummary
from holdfast.admin.cluster_access import NameServerUnreachable, NotFound, PartlyDone
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.resource import Action, Resource, ResourceType
from holdfast.model.access.rule import Effect, ResourcePattern, Rule, parse_actions
from holdfast.model.access.user import User, UserKind
from holdfast.model.errors import BrokerRefused

ALICE = User("alice", ("secret-of-alice",))
ORDERS = Resource(ResourceType.TOPIC, "orders")


def rule(resource: str, actions: str, effect: Effect = Effect.ALLOW) -> Rule:
    return Rule(ResourcePattern.parse(resource), parse_actions(actions.split(",")), effect)


async def a_cluster_with_alice(*rules: Rule) -> tuple[ScriptedUsers, AccessControl]:
    servers = ScriptedUsers()
    control = AccessControl(servers)
    await control.create_user(ALICE)
    if rules:
        await control.put_rules("alice", rules)
    return servers, control


async def test_a_change_reaches_every_name_server_and_no_broker():
    """Brokers learn it from them."""
    servers, control = await a_cluster_with_alice(rule("Topic:orders", "Pub"))

    assert [servers.directories[name].find_user("alice") for name in SERVERS] == [ALICE, ALICE]
    assert servers.directories["a:1"].users == []
    assert await control.users() == [UserSummary("alice", UserKind.NORMAL, is_enabled=True, rules=1)]


async def test_a_name_server_that_is_away_is_named():
    """It catches up. Without any name server nothing is changed."""
    servers = ScriptedUsers(dead={"ns:2"})

    change = await AccessControl(servers).create_user(ALICE)

    assert (change.servers, list(change.missed), change.is_on_brokers) == (["ns:1"], ["ns:2"], False)
    with pytest.raises(NameServerUnreachable, match="cannot connect to ns:1"):
        await AccessControl(ScriptedUsers(dead=set(SERVERS))).create_user(ALICE)


async def test_where_name_servers_know_no_users_every_broker_is_changed():
    """As in RocketMQ, whose brokers each have users of their own."""
    servers = ScriptedUsers()
    for name in SERVERS:
        del servers.directories[name]
    control = AccessControl(servers)

    change = await control.create_user(ALICE)

    assert (change.servers, change.is_on_brokers) == (["a:1"], True)
    assert [user.name for user in await control.users()] == ["alice"]


async def test_a_change_that_one_server_refuses_says_where_it_was_made():
    """Servers disagree: somebody has to look."""
    servers = ScriptedUsers()
    servers.directories["ns:2"].create_user(User("alice", ("another-secret",)), 1)

    with pytest.raises(PartlyDone, match=r"changed at ns:1, but refused by ns:2.*The user is existed"):
        await AccessControl(servers).create_user(ALICE)


async def test_the_same_creation_again_succeeds_and_another_one_is_refused():
    """A command may be repeated."""
    _, control = await a_cluster_with_alice()

    await control.create_user(ALICE)
    with pytest.raises(BrokerRefused, match="The user is existed"):
        await control.create_user(User("alice", ("another-secret",)))
    with pytest.raises(DirectoryRefused, match="password has 3"):
        await control.create_user(User("bob", ("abc",)))


async def test_a_secret_is_replaced_in_two_steps():
    """Clients go from one to the other while both are valid."""
    servers, control = await a_cluster_with_alice()
    directory = servers.directories["ns:1"]

    await control.update_user("alice", secret="the-new-secret", keeps_old=True)
    assert directory.find_user("alice").secrets == ("the-new-secret", "secret-of-alice")  # type: ignore[union-attr]
    await control.update_user("alice", keeps_old=False, is_enabled=False, kind=UserKind.SUPER)
    assert directory.find_user("alice") == User("alice", ("the-new-secret",), UserKind.SUPER, is_enabled=False)


async def test_unknown_users_are_refused_with_the_closest_name():
    """For every change."""
    _, control = await a_cluster_with_alice()

    for change in (
        control.update_user("alicx", is_enabled=False),
        control.delete_user("alicx"),
        control.put_rules("alicx", [rule("*", "All")]),
        control.delete_rules("alicx"),
    ):
        with pytest.raises(NotFound, match="did you mean 'alice'"):
            await change


async def test_a_user_is_deleted_with_its_rules():
    """So that a later user of the same name inherits nothing."""
    servers, control = await a_cluster_with_alice(rule("Topic:orders", "Pub"))

    await control.delete_user("alice")

    assert await control.users() == []
    assert servers.directories["ns:1"].rules_of("alice") == ()


async def test_rules_are_filtered_and_in_the_order_in_which_they_count():
    """The first rule that matches decides."""
    _, control = await a_cluster_with_alice(rule("*", "Get"), rule("Topic:orders*", "Sub"), rule("Topic:orders", "Pub"))

    (of_alice,) = await control.rules()
    assert [each.resource for each in of_alice.rules] == ["Topic:orders", "Topic:orders*", "*"]
    (of_topics,) = await control.rules("ali", "Topic:")
    assert [each.resource for each in of_topics.rules] == ["Topic:orders", "Topic:orders*"]
    assert await control.rules("bob") == []


async def test_one_rule_is_found_and_deleted_and_others_stay():
    """By exactly its pattern."""
    _, control = await a_cluster_with_alice(rule("Topic:orders", "Pub"), rule("Topic:orders*", "Sub"))
    pattern = ResourcePattern.parse("Topic:orders")

    assert await control.find_rule("alice", pattern) == rule("Topic:orders", "Pub")
    await control.delete_rules("alice", pattern)
    assert await control.find_rule("alice", pattern) is None
    assert await control.rules_of("alice") == [rule("Topic:orders*", "Sub")]


async def test_an_explanation_has_the_rules_in_their_order():
    """And those that do not match, because one of them was perhaps meant to."""
    _, control = await a_cluster_with_alice(
        rule("Topic:orders*", "Pub"), rule("Topic:orders", "Pub", Effect.DENY), rule("Group:g", "Sub")
    )

    found = await control.explain("alice", Action.PUB, ORDERS, "10.0.0.1")

    assert not found.is_allowed
    assert [(each.effect, each.resource) for each in found.matches] == [
        ("Deny", "Topic:orders"),
        ("Allow", "Topic:orders*"),
    ]
    assert [each.resource for each in found.others] == ["Group:g"]
    retry = Resource(ResourceType.TOPIC, "%RETRY%g")
    assert (await control.explain("alice", Action.SUB, retry, "10.0.0.1")).is_allowed


async def test_an_import_creates_what_is_new_and_leaves_other_users_alone():
    """It can be repeated."""
    servers, control = await a_cluster_with_alice()
    text = b"""
accounts:
- {accessKey: alice, secretKey: not-her-secret, defaultTopicPerm: PUB}
- {accessKey: orders-service, secretKey: 12345678, topicPerms: [orders=PUB|SUB]}
- {accessKey: operator, secretKey: 12345678, admin: true}
"""
    acl = read_acl_files([("plain_acl.yml", text.replace(b"alice", b"alice00"))])
    servers.directories["ns:1"].create_user(User("alice00", ("secret-of-alice",)), 1)

    planned = await control.import_accounts(acl, dry_run=True)
    assert [(each.user, each.state) for each in planned] == [
        ("alice00", "exists"),
        ("orders-service", "new"),
        ("operator", "new"),
    ]
    assert len(servers.directories["ns:1"].users) == 2

    servers.directories["ns:2"].create_user(User("alice00", ("secret-of-alice",)), 1)
    for state in ("new", "exists"):
        done = await control.import_accounts(acl, dry_run=False)
        assert [each.state for each in done] == ["differs", state, state]
    assert servers.directories["ns:2"].rules_of("alice00") == ()
    assert rule("Topic:orders", "Pub,Sub,Get") in servers.directories["ns:2"].rules_of("orders-service")
    assert servers.directories["ns:2"].find_user("operator") == User("operator", ("12345678",), UserKind.SUPER)
