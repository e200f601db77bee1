"""Users and rules: changes by administrators, and records from other servers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access import directory as directory_module
from holdfast.model.access.directory import RULES_MAX, Directory, Record
from holdfast.model.access.refusal import SUPER_NEEDED, DirectoryRefused
from holdfast.model.access.resource import Action
from holdfast.model.access.rule import ALL_ACTIONS, Effect, ResourcePattern, Rule, Tier
from holdfast.model.access.source_address import parse_source
from holdfast.model.access.user import CLUSTER_USER, User, UserKind

ALICE = User("alice", ("open-sesame",))
ROOT = User("root", ("root-sesame",), UserKind.SUPER)
SUB = frozenset({Action.SUB})


def a_rule(resource: str, effect: Effect = Effect.ALLOW, tier: Tier = Tier.CUSTOM) -> Rule:
    return Rule(ResourcePattern.parse(resource), SUB, effect, tier=tier)


def a_directory(*users: User) -> Directory:
    """Return a directory that has these users since the time 1."""
    directory = Directory()
    for user in users:
        directory.create_user(user, 1)
    return directory


def keys(records: list[Record]) -> list[str]:
    return [record.key for record in records]


def test_a_created_user_is_found():
    """With its record, which other servers get."""
    directory = Directory()

    assert directory.create_user(ALICE, 17) == [Record("user/alice", 17, ALICE)]

    assert directory.find_user("alice") == ALICE
    assert directory.users == [ALICE]
    assert directory.find_user("bob") is None


def test_to_create_the_same_user_again_is_no_error():
    """Tools send a creation to every broker in turn."""
    directory = a_directory(ALICE)
    changes = directory.changes

    assert directory.create_user(ALICE, 2) == []
    assert directory.changes == changes


def test_another_user_of_the_same_name_is_refused():
    """With RocketMQ's text."""
    with pytest.raises(DirectoryRefused, match=r"^The user is existed$"):
        a_directory(ALICE).create_user(User("alice", ("other-sesame",)), 2)


@pytest.mark.parametrize("user", [User("", ("open-sesame",)), User(CLUSTER_USER, ("open-sesame",)), User("a", ("",))])
def test_an_unusable_user_is_refused(user: User):
    """Nothing changes."""
    directory = Directory()

    with pytest.raises(DirectoryRefused):
        directory.create_user(user, 1)

    assert directory.records == []


def test_an_update_changes_only_what_it_names():
    """The version rises, even if the clock went back."""
    directory = a_directory(ALICE)

    (record,) = directory.update_user("alice", 0, is_enabled=False)

    assert record == Record("user/alice", 2, User("alice", ("open-sesame",), is_enabled=False))
    assert directory.update_user("alice", 9, kind=UserKind.SUPER)[0].version == 9
    assert directory.find_user("alice") == User("alice", ("open-sesame",), UserKind.SUPER, is_enabled=False)
    assert directory.update_user("alice", 10) == []


def test_a_new_secret_replaces_the_old_one_unless_it_is_kept():
    """A rotation: keep the old secret, then drop it."""
    directory = a_directory(ALICE)

    def secrets_after(**change: object) -> tuple[str, ...]:
        directory.update_user("alice", 2, **change)
        user = directory.find_user("alice")
        return () if user is None else user.secrets

    assert secrets_after(secret="second-sesame", keeps_old=True) == ("second-sesame", "open-sesame")
    assert secrets_after(secret="second-sesame", keeps_old=True) == ("second-sesame", "open-sesame"), "a repetition"
    assert secrets_after(secret="third-sesame", keeps_old=True) == ("third-sesame", "second-sesame")
    assert secrets_after(is_enabled=True) == ("third-sesame", "second-sesame")
    assert secrets_after(keeps_old=False) == ("third-sesame",)
    assert secrets_after(secret="fourth-sesame") == ("fourth-sesame",)


@pytest.mark.parametrize(
    ("name", "secret", "why"),
    [
        ("bob", None, "^The user is not exist$"),
        ("", None, "The username is blank"),
        ("alice", "short", "has 5 characters"),
    ],
)
def test_an_impossible_update_is_refused(name: str, secret: str | None, why: str):
    """With RocketMQ's texts."""
    with pytest.raises(DirectoryRefused, match=why):
        a_directory(ALICE).update_user(name, 2, secret=secret)


def test_a_deleted_user_loses_its_rules():
    """The records stay as markers. To delete the user again is no error."""
    directory = a_directory(ALICE)
    directory.put_rules("alice", [a_rule("Topic:*")], 2)

    assert set(directory.delete_user("alice", 3)) == {Record("user/alice", 3, None), Record("rules/alice", 3, None)}

    assert directory.users == []
    assert directory.rules_of("alice") == ()
    assert directory.delete_user("alice", 4) == []
    assert directory.delete_user("never", 4) == []
    with pytest.raises(DirectoryRefused, match="The username is blank"):
        directory.delete_user("", 4)


def test_rules_that_another_server_stored_meanwhile_do_not_return_with_the_name():
    """Two administrators: the first deletes the user, the second grants it something."""
    directory = a_directory(ALICE)
    other = Directory(directory.records)
    directory.delete_user("alice", 5)
    directory.merge(other.put_rules("alice", [a_rule("Topic:*")], 6))

    assert directory.rules_of("alice") == ()
    assert keys(directory.create_user(User("alice", ("new-sesame",)), 7)) == ["user/alice", "rules/alice"]
    assert directory.rules_of("alice") == ()


def test_rules_are_merged_by_tier_and_resource():
    """As RocketMQ does for both creation and update."""
    directory = a_directory(ALICE)
    directory.put_rules("alice", [a_rule("Topic:a"), a_rule("Topic:b")], 2)

    directory.put_rules("alice", [a_rule("Topic:b", Effect.DENY), a_rule("Topic:b", tier=Tier.DEFAULT)], 3)

    assert list(map(str, directory.rules_of("alice"))) == [
        "Allow Topic:a Sub",
        "Deny Topic:b Sub",
        "Allow Topic:b Sub (Default)",
    ]
    assert directory.put_rules("alice", [a_rule("Topic:a")], 4) == []


def test_impossible_rules_are_refused():
    """With RocketMQ's texts where it has one."""
    directory = a_directory(ALICE)
    many = [a_rule(f"Topic:t{number}") for number in range(RULES_MAX + 1)]
    wide = a_rule("*")._replace(sources=(parse_source("::1"),) * 65)

    for name, rules, why in [
        ("bob", [a_rule("*")], r"^The subject of User:bob is not exist\.$"),
        ("alice", [], r"^The policies is empty\.$"),
        ("alice", many, "would have 257 rules, at most 256"),
        ("alice", [wide], "more than 64 source addresses"),
    ]:
        with pytest.raises(DirectoryRefused, match=why):
            directory.put_rules(name, rules, 2)
    assert keys(directory.records) == ["user/alice"]


def test_rules_are_deleted_one_by_one_or_together():
    """To delete them again is no error: tools send the deletion to every broker."""
    directory = a_directory(ALICE)
    directory.put_rules("alice", [a_rule("Topic:a"), a_rule("Topic:b"), a_rule("Topic:a", tier=Tier.DEFAULT)], 2)
    a = ResourcePattern.parse("Topic:a")

    assert keys(directory.delete_rules("alice", 3, resource=a)) == ["rules/alice"]
    assert list(map(str, directory.rules_of("alice"))) == ["Allow Topic:b Sub", "Allow Topic:a Sub (Default)"]
    assert directory.delete_rules("alice", 4, resource=a) == []
    assert directory.delete_rules("alice", 5) == [Record("rules/alice", 5, None)]
    assert directory.delete_rules("alice", 6) == []
    assert directory.delete_rules("alice", 6, resource=a) == []


def test_the_last_deleted_rule_leaves_no_empty_list():
    """Two ways to say the same would have two digests."""
    directory = a_directory(ALICE)
    directory.put_rules("alice", [a_rule("*")], 2)

    assert directory.delete_rules("alice", 3, resource=ResourcePattern.parse("*"))[0].value is None


@pytest.mark.parametrize(("name", "why"), [("bob", "The subject is not exist"), ("alice", "The acl is not exist")])
def test_rules_that_never_were_cannot_be_deleted(name: str, why: str):
    """With RocketMQ's texts."""
    with pytest.raises(DirectoryRefused, match=why):
        a_directory(ALICE).delete_rules(name, 2)


@pytest.mark.parametrize(
    ("caller", "name", "kind", "is_allowed"),
    [
        ("root", "root", None, True),
        ("root", "new", UserKind.SUPER, True),
        (None, "root", UserKind.NORMAL, True),
        ("alice", "alice", None, True),
        ("alice", "new", UserKind.NORMAL, True),
        ("alice", "new", UserKind.SUPER, False),
        ("alice", "alice", UserKind.SUPER, False),
        ("alice", "root", None, False),
        ("nemo", "root", None, False),
    ],
)
def test_only_a_super_user_changes_super_users(caller: str | None, name: str, kind: UserKind | None, is_allowed: bool):  # noqa: FBT001
    """Otherwise who may manage users could do everything."""
    directory = a_directory(ALICE, ROOT)
    if is_allowed:
        assert directory.check_caller(caller, name, kind) is None
        return

    with pytest.raises(DirectoryRefused, match=r"The super user can only be (create|update) by super user") as refusal:
        directory.check_caller(caller, name, kind)
    assert refusal.value.code == SUPER_NEEDED


def test_there_is_an_end_to_records(monkeypatch: pytest.MonkeyPatch):
    """Deleted ones count, and their names can be used again."""
    monkeypatch.setattr(directory_module, "RECORDS_MAX", 2)
    directory = a_directory(ALICE, ROOT)
    directory.delete_user("alice", 2)

    with pytest.raises(DirectoryRefused, match="has 2 records, deleted ones included, and 2 are the maximum"):
        directory.create_user(User("bob", ("open-sesame",)), 3)
    assert keys(directory.create_user(ALICE, 3)) == ["user/alice"]


def test_a_full_directory_accepts_records_of_servers_and_changes_of_them(monkeypatch: pytest.MonkeyPatch):
    """Two servers that could not reach each other may have more together than one may create."""
    monkeypatch.setattr(directory_module, "RECORDS_MAX", 1)
    directory = a_directory(ALICE)

    assert directory.merge(a_directory(ROOT).records)
    assert keys(directory.update_user("alice", 2, is_enabled=False)) == ["user/alice"]


def test_there_is_an_end_to_bytes(monkeypatch: pytest.MonkeyPatch):
    """What makes the directory smaller is always possible."""
    directory = a_directory(ALICE)
    directory.put_rules("alice", [a_rule(f"Topic:t{number}") for number in range(100)], 2)
    monkeypatch.setattr(directory_module, "SIZE_MAX", 1000)

    with pytest.raises(DirectoryRefused, match="1000 are the maximum"):
        directory.put_rules("alice", [a_rule("Topic:one-more")], 3)
    assert directory.delete_rules("alice", 3, resource=ResourcePattern.parse("Topic:t1"))
    assert directory.delete_user("alice", 4)


def test_a_peer_gets_exactly_what_it_lacks():
    """Newer records and absent ones, also deletions."""
    ours = a_directory(ALICE, ROOT)
    theirs = Directory(ours.records)
    theirs.update_user("root", 5, is_enabled=False)
    ours.delete_user("alice", 6)
    ours.create_user(User("bob", ("open-sesame",)), 7)

    assert keys(ours.find_missing(theirs.records)) == ["user/alice", "user/bob"]
    assert keys(theirs.find_missing(ours.records)) == ["user/root"]
    assert ours.find_missing(ours.records) == []


def test_a_change_is_noticed():
    """By the digest between servers, and by the count of changes within one."""
    directory = a_directory(ALICE)
    digest, changes = directory.digest, directory.changes

    directory.update_user("alice", 2, is_enabled=False)

    assert directory.digest != digest
    assert directory.changes > changes


def test_a_deleted_user_is_not_brought_back_by_a_server_that_was_down():
    """Its record is older than the marker."""
    directory = a_directory(ALICE)
    old = directory.records
    directory.delete_user("alice", 2)

    assert directory.merge(old) == []
    assert directory.users == []


SOURCES = st.sampled_from(["10.0.0.0/8", "::1"]).map(parse_source)
RULES = st.builds(
    Rule,
    st.sampled_from(["*", "Topic:*", "Topic:a*", "Topic:ab", "Group:g"]).map(ResourcePattern.parse),
    st.sampled_from([SUB, frozenset({Action.PUB, Action.GET}), ALL_ACTIONS]),
    st.sampled_from(Effect),
    st.lists(SOURCES, max_size=2).map(tuple),
    st.sampled_from(Tier),
)
NAMES = st.sampled_from(["a", "b"])
USERS = st.builds(
    User,
    st.just("u"),
    st.lists(st.sampled_from(["secret-1", "secret-2"]), min_size=1, max_size=2, unique=True).map(tuple),
    st.sampled_from(UserKind),
    st.booleans(),
)
RECORDS = st.one_of(
    st.builds(Record, NAMES.map("user/{}".format), st.integers(1, 3), st.none() | USERS),
    st.builds(
        Record, NAMES.map("rules/{}".format), st.integers(1, 3), st.none() | st.lists(RULES, max_size=2).map(tuple)
    ),
)


@given(st.lists(RECORDS, max_size=8), st.randoms(use_true_random=False))
def test_all_servers_end_with_the_same_directory(records: list[Record], random: random.Random):
    """In whatever order and however often they receive the records."""
    one = Directory(records)
    shuffled = [*records, *records]
    random.shuffle(shuffled)
    other = Directory()
    for record in shuffled:
        other.merge([record])

    assert one.records == other.records
    assert one.digest == other.digest
    assert one.merge(other.records) == []


@given(st.lists(RECORDS, max_size=6), st.lists(RECORDS, max_size=6))
def test_one_exchange_makes_two_servers_equal(ours: list[Record], theirs: list[Record]):
    """The sender's records there, the missing ones back."""
    one, other = Directory(ours), Directory(theirs)

    adopted = other.merge(one.records)
    answer = other.find_missing(one.records)

    assert all(record in one.records for record in adopted)
    assert one.merge(answer) == answer, "every record of the answer was new"
    assert one.digest == other.digest


@given(st.lists(RECORDS, max_size=6), st.lists(RECORDS, max_size=6))
def test_a_digest_differs_if_the_records_differ(ours: list[Record], theirs: list[Record]):
    """And only then."""
    one, other = Directory(ours), Directory(theirs)

    assert (one.digest == other.digest) == (one.records == other.records)


@given(st.lists(RECORDS, max_size=6))
def test_the_size_is_that_of_the_records(records: list[Record]):
    """However often they were replaced."""
    directory = Directory(records)

    assert directory._size == sum(len(record.encode()) for record in directory.records)
