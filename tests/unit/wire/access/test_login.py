"""Login: both sides prove that they know a secret."""

import base64
import hashlib
import hmac

import pytest

from holdfast.wire.access.login import (
    METHOD,
    Challenge,
    LoginAnswer,
    LoginFields,
    LoginProofFields,
    client_proof,
    encode_nonce,
    find_proven_secret,
    is_nonce,
    is_server_proof,
    server_proof,
)
from holdfast.wire.frames.fields import from_fields, to_fields

CLIENT_NONCE, SERVER_NONCE = encode_nonce(b"c" * 32), encode_nonce(b"s" * 32)
SECRET = "open-sesame"
CHALLENGE = Challenge("alice", CLIENT_NONCE, SERVER_NONCE, expires_ms=1000)


def test_a_proof_is_what_the_protocol_says():
    """Computed here from its definition."""
    text = f"holdfast login client\0alice\0{CLIENT_NONCE}\0{SERVER_NONCE}".encode()
    expected = base64.b64encode(hmac.new(SECRET.encode(), text, hashlib.sha256).digest()).decode()

    assert client_proof(SECRET, "alice", CLIENT_NONCE, SERVER_NONCE) == expected


def test_both_sides_prove_that_they_know_the_secret():
    """The server does not accept its own proof from a client, nor the client its own from a server."""
    ours = client_proof(SECRET, "alice", CLIENT_NONCE, SERVER_NONCE)
    theirs = server_proof(SECRET, "alice", CLIENT_NONCE, SERVER_NONCE)

    assert find_proven_secret([SECRET], "alice", CLIENT_NONCE, SERVER_NONCE, ours) == SECRET
    assert find_proven_secret([SECRET], "alice", CLIENT_NONCE, SERVER_NONCE, theirs) is None
    assert is_server_proof(SECRET, "alice", CLIENT_NONCE, SERVER_NONCE, theirs)
    assert not is_server_proof(SECRET, "alice", CLIENT_NONCE, SERVER_NONCE, ours)


@pytest.mark.parametrize(
    ("secret", "user", "client", "server"),
    [
        ("other", "alice", CLIENT_NONCE, SERVER_NONCE),
        (SECRET, "bob", CLIENT_NONCE, SERVER_NONCE),
        (SECRET, "alice", SERVER_NONCE, SERVER_NONCE),
        (SECRET, "alice", CLIENT_NONCE, CLIENT_NONCE),
    ],
)
def test_a_proof_for_something_else_is_refused(secret: str, user: str, client: str, server: str):
    """Another secret, user or nonce: a recorded login cannot be repeated."""
    proof = client_proof(secret, user, client, server)

    assert CHALLENGE.find_secret(LoginProofFields("alice", proof), [SECRET], 0) is None


def test_the_server_learns_which_secret_was_used():
    """Its own proof needs the same one."""
    proof = client_proof("old-sesame", "alice", CLIENT_NONCE, SERVER_NONCE)

    assert CHALLENGE.find_secret(LoginProofFields("alice", proof), [SECRET, "old-sesame"], 0) == "old-sesame"
    assert CHALLENGE.find_secret(LoginProofFields("alice", proof), [], 0) is None


@pytest.mark.parametrize(
    ("user", "now_ms", "is_accepted"), [("alice", 999, True), ("alice", 1000, False), ("bob", 0, False)]
)
def test_a_challenge_is_for_one_user_and_a_short_time(user: str, now_ms: int, is_accepted: bool):  # noqa: FBT001
    """Then the client has to begin again."""
    fields = LoginProofFields(user, client_proof(SECRET, "alice", CLIENT_NONCE, SERVER_NONCE))

    assert (CHALLENGE.find_secret(fields, [SECRET], now_ms) is not None) == is_accepted


@pytest.mark.parametrize("proof", ["", "ü", "\ud800", "x" * 1_000_000])
def test_no_proof_breaks_the_check(proof: str):
    """It comes from any client."""
    assert CHALLENGE.find_secret(LoginProofFields("alice", proof), [SECRET], 0) is None
    assert not is_server_proof(SECRET, "\ud800", CLIENT_NONCE, SERVER_NONCE, proof)


def test_a_blank_secret_proves_nothing():
    """Every client knows it."""
    proof = client_proof("", "alice", CLIENT_NONCE, SERVER_NONCE)

    assert CHALLENGE.find_secret(LoginProofFields("alice", proof), [""], 0) is None


@pytest.mark.parametrize(
    "text", ["", "c" * 43, encode_nonce(b"c" * 32)[:-1], base64.b64encode(b"c" * 31).decode(), "ü" * 44, "c" * 99]
)
def test_a_nonce_has_32_bytes(text: str):
    """In base64."""
    assert is_nonce(CLIENT_NONCE)
    assert not is_nonce(text)


def test_headers_have_the_names_of_the_protocol():
    """The answer names the method, so that a client notices a different one."""
    assert to_fields(LoginFields("alice", CLIENT_NONCE)) == {"user": "alice", "clientNonce": CLIENT_NONCE}
    assert to_fields(LoginAnswer(SERVER_NONCE, "broker-a")) == {
        "serverNonce": SERVER_NONCE,
        "server": "broker-a",
        "method": METHOD,
    }
    fields = from_fields(LoginProofFields, {"user": "alice", "proof": "p"})
    assert fields == LoginProofFields("alice", "p")
    assert "proof" not in repr(fields)
