"""The client's steps of a login. The server's are its own functions, or what an attacker would send."""

import pytest

from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConnectionLost, LoginFailed
from holdfast.wire.access.client_login import ClientLogin, Outcome
from holdfast.wire.access.login import encode_nonce, find_proven_secret, server_proof
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

ANN = Credentials("ann", "topsecret")
NONCE = bytes(range(32))
SERVER_NONCE = encode_nonce(b"s" * 32)


def begin(*, is_strict: bool = False) -> tuple[ClientLogin, Command]:
    login = ClientLogin(ANN, "host:1", nonce=NONCE, is_strict=is_strict)
    return login, login.first_request()


def challenge(request: Command, **fields: str) -> Command:
    return response(request, fields={"serverNonce": SERVER_NONCE, "server": "b", "method": "HMAC-SHA256"} | fields)


def java(request: Command, code: int, remark: str) -> Command:
    answer = response(request, code, remark)
    answer.language = "JAVA"
    return answer


def proof_of_server(secret: str) -> str:
    return server_proof(secret, "ann", encode_nonce(NONCE), SERVER_NONCE)


def test_both_sides_prove_that_they_know_the_secret():
    """Neither sends it, and only then it is a login."""
    login, first = begin(is_strict=True)
    second = login.second_request(challenge(first))

    assert second is not None
    assert (first.code, second.code) == (RequestCode.LOGIN, RequestCode.LOGIN_PROOF)
    assert (first.fields["user"], second.fields["user"]) == ("ann", "ann")
    proof = second.fields["proof"]
    nonces = (first.fields["clientNonce"], SERVER_NONCE)
    assert find_proven_secret(["other", "topsecret"], "ann", *nonces, proof) == "topsecret"
    assert login.outcome is None
    login.finish(response(second, fields={"proof": proof_of_server("topsecret")}))
    assert login.outcome is Outcome.LOGGED_IN
    assert "topsecret" not in f"{first}{second}"


@pytest.mark.parametrize("proof", [proof_of_server("other"), "", "ä", None])
@pytest.mark.parametrize("is_strict", [True, False])
def test_a_server_that_does_not_know_the_secret_is_refused(proof: str | None, is_strict: bool):  # noqa: FBT001
    """In every mode: it may be anybody."""
    login, first = begin(is_strict=is_strict)
    second = login.second_request(challenge(first))
    assert second is not None

    with pytest.raises(LoginFailed, match=r"'ann' at host:1 .*does not know the secret"):
        login.finish(response(second, fields={} if proof is None else {"proof": proof}))
    assert login.outcome is None


def test_the_proof_of_the_client_is_none_of_the_server():
    """A server that sends it back knows nothing."""
    login, first = begin()
    second = login.second_request(challenge(first))
    assert second is not None

    with pytest.raises(LoginFailed, match="does not know the secret"):
        login.finish(response(second, fields={"proof": second.fields["proof"]}))


def test_without_access_control_nothing_more_is_sent():
    """There is nothing to prove."""
    login, first = begin()

    assert login.second_request(response(first, fields={"required": "false"})) is None
    assert login.outcome is Outcome.OPEN


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (3, " request type 7060 not supported"),
        (16, "username cannot be null."),
        (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, org.apache..."),
    ],
)
def test_requests_to_servers_that_know_no_login_are_signed(code: int, remark: str):
    """A Java server without access control, one with ACL 2.0, and one with ACL 1.0."""
    login, first = begin()

    assert login.second_request(java(first, code, remark)) is None
    assert login.outcome is Outcome.SIGNED


def test_requests_to_servers_of_holdfast_that_know_no_login_are_signed():
    """They are of an earlier version, and ignore the signature."""
    login, first = begin()

    assert login.second_request(response(first, 3, "not supported")) is None
    assert login.outcome is Outcome.SIGNED


def test_a_strict_login_accepts_no_downgrade():
    """An attacker could answer like this to get requests that it can replay."""
    for answer in (
        lambda first: response(first, fields={"required": "false"}),
        lambda first: response(first, 3, "not supported"),
        lambda first: java(first, 16, "username cannot be null."),
    ):
        login, first = begin(is_strict=True)
        with pytest.raises(LoginFailed, match="auth='auto'"):
            login.second_request(answer(first))
        assert login.outcome is None


def test_a_refusal_of_the_server_is_a_failed_login_with_its_text():
    """And with what to check."""
    login, first = begin()
    with pytest.raises(LoginFailed, match=r"User:ann is disabled.*holdfast user list") as caught:
        login.second_request(response(first, 16, "User:ann is disabled."))
    assert (caught.value.code, caught.value.user, caught.value.address) == (16, "ann", "host:1")

    login, first = begin()
    second = login.second_request(challenge(first))
    assert second is not None
    with pytest.raises(LoginFailed, match="no such proof"):
        login.finish(response(second, 16, "no such proof"))


@pytest.mark.parametrize("code", [1, 2, 14])
def test_a_server_that_cannot_decide_now_may_be_asked_again(code: int):
    """It is busy, or just starting: no verdict on the user."""
    login, first = begin()

    with pytest.raises(ConnectionLost, match=f"code {code}: later"):
        login.second_request(response(first, code, "later"))


@pytest.mark.parametrize(
    "fields", [{"serverNonce": ""}, {"serverNonce": "x" * 10_000}, {"serverNonce": "ä"}, {"method": "MD5"}]
)
def test_an_answer_of_another_kind_is_refused(fields: dict[str, str]):
    """Nothing is proven over bytes of a wrong size, or in another way."""
    login, first = begin()

    with pytest.raises(LoginFailed, match="another kind"):
        login.second_request(challenge(first, **fields))


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_server_without_access_control_may_know_the_user(is_strict: bool):  # noqa: FBT001
    """It vouches for the client when it relays; so the login is worth its while, and both sides prove the secret."""
    login, first = begin(is_strict=is_strict)
    second = login.second_request(challenge(first, required="false"))
    assert second is not None

    login.finish(response(second, fields={"proof": proof_of_server("topsecret")}))
    assert login.outcome is Outcome.LOGGED_IN


def test_a_server_without_access_control_that_does_not_know_the_user_is_open():
    """It knows no users yet. A strict client does not trust it."""
    login, first = begin()
    second = login.second_request(challenge(first, required="false"))
    assert second is not None
    login.finish(response(second, 16, "check signature failed."))
    assert login.outcome is Outcome.OPEN

    strict, first = begin(is_strict=True)
    second = strict.second_request(challenge(first, required="false"))
    assert second is not None
    with pytest.raises(LoginFailed, match="no access control, and does not know the user"):
        strict.finish(response(second, 16, "check signature failed."))


def test_a_server_without_access_control_cannot_pretend_to_know_the_secret():
    """A wrong proof is a lie, whether a proof was needed or not."""
    login, first = begin()
    second = login.second_request(challenge(first, required="false"))
    assert second is not None

    with pytest.raises(LoginFailed, match="does not know the secret"):
        login.finish(response(second, fields={"proof": proof_of_server("other")}))
