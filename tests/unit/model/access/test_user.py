"""Names and secrets of users."""

import pytest

from holdfast.model.access.refusal import INVALID, DirectoryRefused
from holdfast.model.access.user import CLUSTER_USER, User, UserKind, check_secret, check_user, check_user_name


@pytest.mark.parametrize("name", ["a", "alice", "LTAI5tNx", "team/app-1", "me@example.org", "x" * 128])
def test_a_name_may_be_what_rocketmq_users_have_as_access_key(name: str):
    """No error."""
    check_user_name(name)
    check_user(User(name, ("open-sesame",)))

    assert User(name, ("open-sesame",)).kind is UserKind.NORMAL


@pytest.mark.parametrize("name", ["", " "])
def test_a_blank_name_is_refused_with_its_own_code(name: str):
    """RocketMQ answers INVALID_PARAMETER."""
    with pytest.raises(DirectoryRefused, match="The username is blank") as refusal:
        check_user_name(name)

    assert refusal.value.code == INVALID


@pytest.mark.parametrize("name", ["a b", "a\n", "a,b", "a*", "ä", "x" * 129])
def test_a_name_with_other_characters_is_refused(name: str):
    """Names are parts of logs, lists and keys."""
    with pytest.raises(DirectoryRefused, match="cannot be used: it may have up to 128"):
        check_user_name(name)


def test_the_name_of_servers_is_reserved():
    """Such a user could do everything."""
    with pytest.raises(DirectoryRefused, match="reserved for servers"):
        check_user_name(CLUSTER_USER)


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ("", "password can not be blank"),
        ("  ", "password can not be blank"),
        ("123456", "has 6 characters: choose one with 7 to 256"),
        ("x" * 257, "has 257 characters"),
        ("open sesame", "contains spaces or control characters"),
        ("open\nsesame", "contains spaces or control characters"),
    ],
)
def test_an_unusable_secret_is_refused_without_being_shown(secret: str, why: str):
    """The error may be logged."""
    with pytest.raises(DirectoryRefused, match=why) as refusal:
        check_secret(secret)

    assert not secret.strip() or secret not in str(refusal.value)


@pytest.mark.parametrize("count", [0, 3])
def test_a_user_has_one_secret_or_two(count: int):
    """Two during a rotation."""
    with pytest.raises(DirectoryRefused, match=f"the user alice has {count} passwords"):
        check_user(User("alice", ("open-sesame",) * count))


def test_no_text_form_shows_a_secret():
    """Errors and logs may contain users."""
    user = User("alice", ("open-sesame", "old-sesame"), UserKind.SUPER, is_enabled=False)

    for text in (repr(user), str(user), f"{[user]}"):
        assert "User('alice', Super, disabled)" in text
        assert "sesame" not in text
