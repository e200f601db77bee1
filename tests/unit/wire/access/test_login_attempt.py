"""The dialing side of one attempt to log in."""

import pytest

from holdfast.wire.access.login import encode_nonce, find_proven_secret, server_proof
from holdfast.wire.access.login_attempt import LoginAttempt
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

NONCE = encode_nonce(b"c" * 32)
SERVER_NONCE = encode_nonce(b"s" * 32)


def attempt() -> LoginAttempt:
    return LoginAttempt("ann", "topsecret", b"c" * 32)


def challenge(**fields: str) -> Command:
    return Command(code=0, fields={"serverNonce": SERVER_NONCE} | fields)


def test_the_requests_prove_the_secret_without_containing_it():
    """The proof covers the user and both nonces."""
    login = attempt()

    first, second = login.first_request(), login.prove(challenge(method="HMAC-SHA256"))

    assert (first.code, first.fields) == (RequestCode.LOGIN, {"user": "ann", "clientNonce": NONCE})
    assert second is not None
    assert (second.code, second.fields["user"]) == (RequestCode.LOGIN_PROOF, "ann")
    proof = second.fields["proof"]
    assert find_proven_secret(["topsecret"], "ann", NONCE, SERVER_NONCE, proof) == "topsecret"
    assert find_proven_secret(["topsecret"], "ann", SERVER_NONCE, NONCE, proof) is None
    assert "topsecret" not in f"{first}{second}"


@pytest.mark.parametrize("fields", [{"serverNonce": ""}, {"serverNonce": "x" * 100}, {"method": "MD5"}])
def test_nothing_is_proven_in_another_way(fields: dict[str, str]):
    """Over bytes of a wrong size, or with a method that the caller did not choose."""
    assert attempt().prove(challenge(**fields)) is None
    assert attempt().prove(Command(code=0)) is None


@pytest.mark.parametrize(
    ("proof", "is_proven"),
    [
        (server_proof("topsecret", "ann", NONCE, SERVER_NONCE), True),
        (server_proof("other", "ann", NONCE, SERVER_NONCE), False),
        (server_proof("topsecret", "bob", NONCE, SERVER_NONCE), False),
        ("\u00e4", False),
        (None, False),
    ],
)
def test_only_the_proof_of_a_server_that_knows_the_secret_counts(proof: str | None, is_proven: bool):  # noqa: FBT001
    """It covers this user and these nonces."""
    login = attempt()
    login.prove(challenge())

    assert login.is_proven_by(Command(code=0, fields={} if proof is None else {"proof": proof})) is is_proven


def test_the_proof_of_a_client_is_none_of_a_server():
    """A server that sends it back knows nothing."""
    login = attempt()
    second = login.prove(challenge())
    assert second is not None

    assert not login.is_proven_by(Command(code=0, fields={"proof": second.fields["proof"]}))
