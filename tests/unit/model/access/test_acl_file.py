"""The accounts of ACL 1.0 as users and rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access.acl_file import DENY, TRACE_TOPIC, AclAccount, AclFile, Perm
from holdfast.model.access.decision import decide
from holdfast.model.access.resource import Action, Permission, Resource, ResourceType
from holdfast.model.access.source_address import parse_white_address
from holdfast.model.access.user import User, UserKind

PUB, SUB, BOTH = Perm(pub=True), Perm(sub=True), Perm(pub=True, sub=True)


def an_account(**fields: object) -> AclAccount:
    return AclAccount(access_key="RocketMQ", secret_key="12345678", **fields)


def allows(account: AclAccount, resource: str, action: Action) -> bool:
    type_, name = resource.split(":")
    needed = Permission(Resource(ResourceType(type_), name), frozenset({action}))
    directory = AclFile(accounts={account.access_key: account}).to_directory()
    return decide(directory, account.access_key, needed, "10.0.0.1", "DefaultCluster").is_allowed


@pytest.mark.parametrize(
    ("text", "perm"),
    [("DENY", DENY), ("PUB", PUB), (" SUB ", SUB), ("PUB|SUB", BOTH), ("SUB|PUB", BOTH), ("pub", None), ("ANY", None)],
)
def test_permissions_have_these_words(text: str, perm: Perm | None):
    """Others count as DENY in RocketMQ: the reader warns of them."""
    assert Perm.parse(text) == perm


def test_an_account_is_a_normal_user():
    """With rules for the listed names, and for the rest."""
    account = an_account(
        topics={"orders": PUB, "secret": DENY}, groups={"g": SUB}, default_topic=SUB, default_group=DENY
    )

    assert account.to_user() == User("RocketMQ", ("12345678",))
    assert list(map(str, account.to_rules())) == [
        "Allow Group:g Sub,Get",
        f"Allow Topic:{TRACE_TOPIC} Pub",
        "Allow Topic:orders Pub",
        "Deny Topic:secret All",
        "Allow Topic:* Sub,Get (Default)",
        f"Deny Topic:{TRACE_TOPIC} Sub,Get (Default)",
        "Deny Topic:orders Sub,Get (Default)",
    ]


def test_an_administrator_may_do_everything_unless_it_lists_something():
    """Then it is bound to that, but may still administrate."""
    bound = an_account(is_admin=True, topics={"orders": PUB})

    assert an_account(is_admin=True).to_user().kind is UserKind.SUPER
    assert an_account(is_admin=True).to_rules() == ()
    assert bound.to_user().kind is UserKind.NORMAL
    assert allows(bound, "Topic:orders", Action.PUB)
    assert not allows(bound, "Topic:orders", Action.SUB)
    assert not allows(bound, "Topic:other", Action.PUB)
    for resource in ("Topic:orders", "Topic:other", "Group:g"):
        assert all(allows(bound, resource, action) for action in (Action.CREATE, Action.DELETE, Action.GET))
    assert allows(bound, "Cluster:DefaultCluster", Action.UPDATE)


def test_a_normal_account_may_not_administrate():
    """Whatever its defaults are."""
    account = an_account(default_topic=BOTH, default_group=BOTH)

    assert not allows(account, "Topic:orders", Action.CREATE)
    assert not allows(account, "Cluster:DefaultCluster", Action.GET)


def test_the_retry_topic_of_a_group_is_the_group():
    """Both lists may name it; the topics count."""
    account = an_account(topics={"%RETRY%g": SUB, "%RETRY%h": DENY}, groups={"h": SUB})

    assert allows(account, "Group:g", Action.SUB)
    assert not allows(account, "Group:h", Action.SUB)


@pytest.mark.parametrize("listed", [{}, {TRACE_TOPIC: DENY}])
def test_every_account_may_send_traces(listed: dict[str, Perm]):
    """Since 4.9.4."""
    account = an_account(topics=listed)

    assert allows(account, f"Topic:{TRACE_TOPIC}", Action.PUB)
    assert not allows(account, f"Topic:{TRACE_TOPIC}", Action.SUB)


PERMS = st.sampled_from([DENY, PUB, SUB, BOTH])


@given(st.dictionaries(st.sampled_from("ab"), PERMS), st.dictionaries(st.sampled_from("ab"), PERMS), PERMS, PERMS)
def test_sends_and_pulls_are_decided_as_in_acl_1(
    topics: dict[str, Perm], groups: dict[str, Perm], default_topic: Perm, default_group: Perm
):
    """A listed name has its own permission, all others have the default."""
    account = an_account(topics=topics, groups=groups, default_topic=default_topic, default_group=default_group)

    for name in "abc":
        for kind, listed, default in (("Topic", topics, default_topic), ("Group", groups, default_group)):
            perm = listed.get(name, default)
            assert allows(account, f"{kind}:{name}", Action.PUB) == perm.pub
            assert allows(account, f"{kind}:{name}", Action.SUB) == perm.sub
            assert allows(account, f"{kind}:{name}", Action.GET) == perm.sub


def test_white_addresses_are_asked_for_separately():
    """A global one needs no user, that of an account no signature."""
    file = AclFile(
        global_white=(parse_white_address("10.10.*"), parse_white_address("")),
        accounts={"RocketMQ": an_account(white_address=parse_white_address("192.168.0.*"))},
    )

    assert file.allows_everything("10.10.1.1")
    assert not file.allows_everything("192.168.0.1")
    assert file.needs_no_signature("RocketMQ", "192.168.0.1")
    assert not file.needs_no_signature("RocketMQ", "10.10.1.1")
    assert not file.needs_no_signature("another", "192.168.0.1")
    assert not AclFile(accounts={"RocketMQ": an_account()}).needs_no_signature("RocketMQ", "192.168.0.1")


def test_no_text_form_shows_a_secret():
    """Also not that of the whole file."""
    file = AclFile(accounts={"RocketMQ": an_account()})

    assert repr(file.accounts["RocketMQ"]) == "AclAccount('RocketMQ')"
    assert "12345678" not in f"{file} {file!r}"
