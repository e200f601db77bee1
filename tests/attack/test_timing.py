"""How long a comparison takes says nothing about how much of a guess is right."""

from __future__ import annotations

import base64
import hmac
from collections import Counter

import pytest
from tests.support.access import CLIENT_NONCE, SECRET, begin_login, log_in, signed
from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.access.scrape_guard import ScrapeGuard
from holdfast.wire.access.login import client_proof, is_server_proof, server_proof
from holdfast.wire.access.signature import SIGNATURE
from holdfast.wire.frames.codes import RequestCode

NO = 16
Compared = list[tuple[object, object]]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """What is compared in constant time."""
    found: Compared = []
    compare = hmac.compare_digest

    def record(expected: bytes, given: bytes) -> bool:
        found.append((expected, given))
        return compare(expected, given)

    monkeypatch.setattr(hmac, "compare_digest", record)
    return found


def alter(text: str, at: int) -> str:
    """Return another text of the same length, which differs in one character."""
    characters = list(text)
    characters[at] = "A" if text[at] != "A" else "B"
    return "".join(characters)


@pytest.mark.parametrize("serializer", [0, 1])
@pytest.mark.parametrize("at", [0, 20])
def test_a_signature_is_compared_as_a_whole(desk: BrokerHarness, compared: Compared, at: int, serializer: int) -> None:
    """On the path of runs of sends, and on that of all other requests."""
    send = signed(a_send("secret"), "alice")
    right = send.fields[SIGNATURE]
    send.serializer, send.fields[SIGNATURE] = serializer, alter(right, at)

    (answer,) = desk.call(send, channel=desk.connect())

    assert answer.code == NO
    assert (right.encode(), send.fields[SIGNATURE].encode()) in compared


@pytest.mark.parametrize("at", [0, 40])
def test_a_proof_is_compared_as_a_whole(desk: BrokerHarness, compared: Compared, at: int) -> None:
    """The client's by a server, and the server's by a client."""
    nonce = begin_login(desk, 1, "alice")["serverNonce"]
    right = client_proof(SECRET, "alice", CLIENT_NONCE, nonce)
    wrong = alter(right, at)

    answer = desk.request(RequestCode.LOGIN_PROOF, {"user": "alice", "proof": wrong}, channel=1)

    assert answer.code == NO
    assert (right.encode(), wrong.encode()) in compared
    right = server_proof(SECRET, "alice", CLIENT_NONCE, nonce)
    assert not is_server_proof(SECRET, "alice", CLIENT_NONCE, nonce, alter(right, at))
    assert (right.encode(), alter(right, at).encode()) in compared


@pytest.mark.parametrize("at", [0, 17])
def test_the_token_and_the_secret_of_a_scraper_are_compared_as_a_whole(
    desk: BrokerHarness, compared: Compared, at: int
) -> None:
    assert log_in(desk, 1, "alice").code == 0
    token = "a-token-of-scrapers"
    guard = ScrapeGuard(desk.components.authority, Counter(), token, is_required=True)
    basic = base64.b64encode(f"alice:{alter(SECRET, at)}".encode()).decode()

    assert guard.find_refusal(f"Bearer {alter(token, at)}", "10.0.0.1") is not None
    assert guard.find_refusal(f"Basic {basic}", "10.0.0.1") is not None

    assert {alter(token, at).encode(), alter(SECRET, at).encode()} <= {side for pair in compared for side in pair}
