"""Who sends a frame: a login, a signature, or another server's word; and until when that counts."""

from __future__ import annotations

import pytest
from tests.support.access import SECRET, Users, guarded_broker, log_in, signed
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send

from holdfast.access.sessions import SIGNERS_MAX, ip_of
from holdfast.model.access.identity import IdentityKind
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import BINARY, Command


@pytest.fixture
def desk() -> BrokerHarness:
    broker = guarded_broker()
    broker.make_topic("T")
    Users(broker).add("alice", "Topic:T Pub,Sub", "Group:consumers Sub")
    return broker


def remarks(answers: list[Command]) -> list[str | None]:
    return [answer.remark if answer.code == ResponseCode.NO_PERMISSION else None for answer in answers]


@pytest.mark.parametrize("serializer", [0, BINARY])
@pytest.mark.parametrize("code", [10, 310])
def test_a_signed_request_is_that_of_its_user(desk: BrokerHarness, code: int, serializer: int) -> None:
    """In both versions of the header, and in both encodings."""
    send = a_send(code=310)
    if code == 10:
        send = Command(code=10, fields={"topic": "T", "queueId": "0", "producerGroup": "p"}, body=b"hello")
    send.serializer = serializer

    assert remarks(desk.call(signed(send, "alice"))) == [None]
    assert desk.store.queue("T", 0).next_offset == 1


@pytest.mark.parametrize("request_of", [a_send, a_pull])
def test_the_texts_for_unproven_senders_are_those_of_rocketmq(desk: BrokerHarness, request_of: type) -> None:
    """Clients of all languages know them."""
    users = Users(desk)
    users.add("off")
    users.update("off", is_enabled=False)

    def refusal(command: Command) -> str | None:
        (answer,) = desk.call(command)
        assert answer.code == ResponseCode.NO_PERMISSION
        return answer.remark

    assert refusal(request_of()) == "username cannot be null."
    assert refusal(signed(request_of(), "nobody")) == "User:nobody is not found."
    assert refusal(signed(request_of(), "off")) == "User:off is disabled."
    assert refusal(signed(request_of(), "alice", "another-secret")) == "check signature failed."


def test_an_altered_frame_is_refused(desk: BrokerHarness) -> None:
    """Its body, one of its fields, or its user."""
    Users(desk).add("bob", "Topic:T Pub")
    changes = [{"body": b"evil"}, {"fields": {"e": "1"}}, {"fields": {"AccessKey": "bob"}}]

    for change in changes:
        send = signed(a_send(), "alice")
        send.body = change.get("body", send.body)  # type: ignore[assignment]
        send.fields = send.fields | change.get("fields", {})  # type: ignore[operator]
        assert remarks(desk.call(send)) == ["check signature failed."], change
    assert desk.store.queue("T", 0).next_offset == 0


def test_a_user_may_sign_beside_others_on_one_connection(desk: BrokerHarness) -> None:
    """As a proxy does for its clients. Each request has the rights of its own user."""
    Users(desk).add("bob")

    answers = desk.call(
        signed(a_send(opaque=1), "alice"), signed(a_send(opaque=2), "bob"), signed(a_send(opaque=3), "alice")
    )

    assert sorted((answer.opaque, answer.code) for answer in answers) == [(1, 0), (2, 16), (3, 0)]


def test_the_users_remembered_for_a_connection_are_bounded(desk: BrokerHarness) -> None:
    """However many sign on it."""
    users = Users(desk)
    for number in range(SIGNERS_MAX + 10):
        users.add(f"user{number}", "Topic:T Pub")
        assert remarks(desk.call(signed(a_send(), f"user{number}"))) == [None]

    known = desk.components.door._sessions._channels[1]  # type: ignore[index]

    assert len(known.signers) == SIGNERS_MAX


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_a_session_ends_with_its_user(desk: BrokerHarness, *, is_logged_in: bool) -> None:
    """Disabled, deleted: the next request on an open connection is refused. Enabled again, it is accepted again."""
    users = Users(desk)
    if is_logged_in:
        log_in(desk, 1, "alice")

    def refusal() -> str | None:
        (remark,) = remarks(desk.call(a_send() if is_logged_in else signed(a_send(), "alice")))
        return remark

    assert refusal() is None
    users.update("alice", is_enabled=False)
    assert refusal() == "User:alice is disabled."
    users.update("alice", is_enabled=True)
    assert refusal() is None
    users.delete("alice")
    assert refusal() == "User:alice is not found."


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_a_session_ends_with_the_secret_that_it_used(desk: BrokerHarness, *, is_logged_in: bool) -> None:
    """A stolen secret is worth nothing once it is replaced."""
    if is_logged_in:
        log_in(desk, 1, "alice")

    Users(desk).update("alice", secret="a-new-secret-of-alice")

    assert remarks(desk.call(a_send() if is_logged_in else signed(a_send(), "alice"))) == ["check signature failed."]


def test_a_session_that_has_ended_pulls_nothing(desk: BrokerHarness) -> None:
    """Its user still exists, and may pull: but not with the old secret."""
    log_in(desk, 1, "alice")
    assert remarks(desk.call(a_pull())) == [None]

    Users(desk).update("alice", secret="a-new-secret-of-alice")

    assert remarks(desk.call(a_pull())) == ["check signature failed."]


def test_a_client_changes_the_secret_with_which_it_signs(desk: BrokerHarness) -> None:
    """On an open connection, before or after the old one ends."""
    users, new = Users(desk), "a-new-secret-of-alice"
    assert remarks(desk.call(signed(a_send(), "alice"))) == [None]
    users.update("alice", secret=new, keeps_old=True)
    assert remarks(desk.call(signed(a_send(), "alice"))) == [None]

    assert remarks(desk.call(signed(a_send(), "alice", new))) == [None]
    waiting = signed(a_pull(queue=1, sysFlag="6"), "alice", new)
    assert desk.call(waiting) == []
    users.update("alice", keeps_old=False)

    assert desk.pop_answers(1) == [], "the pull was signed with the secret that stays"
    assert remarks(desk.call(signed(a_send(), "alice", new))) == [None]
    assert remarks(desk.call(signed(a_send(), "alice"))) == ["check signature failed."]


def test_a_user_who_is_deleted_and_created_again_has_no_session(desk: BrokerHarness) -> None:
    """It may be somebody else, with another secret."""
    users = Users(desk)
    log_in(desk, 1, "alice")
    users.delete("alice")

    users.add("alice", "Topic:T Pub", secrets=("a-new-secret-of-alice",))

    assert remarks(desk.call(a_send())) == ["check signature failed."]


def test_a_signature_on_a_logged_in_connection_changes_nothing(desk: BrokerHarness) -> None:
    """The login says who sends."""
    Users(desk).add("bob", "Topic:T Pub")
    Users(desk).add("eve")
    log_in(desk, 1, "eve")

    (remark,) = remarks(desk.call(signed(a_send(), "bob")))

    assert remark is not None
    assert remark.startswith("User:eve has no permission to access Topic:T")


def test_a_secret_never_reaches_a_text(desk: BrokerHarness) -> None:
    """Sessions are in structs that errors and logs may show."""
    log_in(desk, 1, "alice")
    session = desk.components.door._sessions.find_login(1)  # type: ignore[arg-type]

    assert session is not None
    assert (session.kind, session.user, session.secret) == (IdentityKind.USER, "alice", SECRET)
    assert SECRET not in repr(session)


@pytest.mark.parametrize(
    ("address", "ip"), [("10.0.0.1:5000", "10.0.0.1"), ("[2001:db8::1]:5000", "2001:db8::1"), ("unknown", "")]
)
def test_rules_compare_the_address_without_its_port(address: str, ip: str) -> None:
    """IPv6 addresses without brackets."""
    assert ip_of(address) == ip
