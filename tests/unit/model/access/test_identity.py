"""Who sends a request."""

from holdfast.model.access.identity import ANONYMOUS, Identity, IdentityKind


def test_a_sender_is_shown_with_its_name_and_address() -> None:
    """For readers of errors."""
    assert repr(Identity(IdentityKind.USER, "alice", "10.0.0.1:5")) == "Identity(user, 'alice', '10.0.0.1:5')"


def test_two_users_of_one_name_are_two_senders() -> None:
    """Each has proven it in its own way."""
    first, second = (Identity(IdentityKind.USER, "alice") for _ in range(2))

    assert first != second
    assert (ANONYMOUS.kind, ANONYMOUS.user) == (IdentityKind.ANONYMOUS, "")
