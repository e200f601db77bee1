"""Anything at all, in the places that strangers can reach: no exception escapes, and nobody is let in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.access import CLIENT_NONCE, SECRET, Users, guarded_broker, guarded_name_server
from tests.support.cluster.machine import MachineHarness

from holdfast.access.acl_file_reader import read_acl_files
from holdfast.broker.replication.stream_login import StreamLogin
from holdfast.machine.effects import Fault
from holdfast.model.access.credentials import Credentials
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.errors import ConfigError, ConnectionLost, LoginFailed, RemoteProtocolError
from holdfast.wire.access.bodies import decode_rules, decode_user
from holdfast.wire.access.client_login import ClientLogin, Outcome
from holdfast.wire.access.records import decode_records
from holdfast.wire.frames.command import BINARY, JSON, Command, encode_command

TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["alice", "holdfast.cluster", CLIENT_NONCE, "", "false", "true", "HMAC-SHA256", "A" * 43]),
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(["user", "clientNonce", "proof", "AccessKey", "Signature", "required"]), st.text(max_size=8)
)
FIELDS = st.dictionaries(NAMES, TEXTS, max_size=6)


@pytest.fixture(scope="module", params=[guarded_broker, guarded_name_server], ids=["broker", "name server"])
def server(request: pytest.FixtureRequest) -> MachineHarness:
    """A role that alice may use."""
    server: MachineHarness = request.param()
    Users(server).add("alice", "* All")
    return server


@given(
    frames=st.lists(
        st.tuples(st.sampled_from([7060, 7061, 26, 105, 310, 11, 3004, 7062]), FIELDS, st.binary(max_size=30)),
        min_size=1,
        max_size=6,
    ),
    serializer=st.sampled_from([JSON, BINARY]),
)
def test_no_handshake_lets_a_stranger_in(
    server: MachineHarness, frames: list[tuple[int, dict[str, str], bytes]], serializer: int
) -> None:
    channel = server.connect()
    server.effects.clear()
    for code, fields, body in frames:
        server.receive(channel, encode_command(Command(code=code, fields=fields, body=body, serializer=serializer)))

    assert not [effect for effect in server.effects if isinstance(effect, Fault)]
    server.receive(channel, encode_command(Command(code=3004, fields={"username": "alice"}, opaque=77)))
    answer = server.pop_answers(channel)[-1]
    assert (answer.opaque, answer.code) == (77, 16)
    server.disconnect(channel)


def check_read_or_refused(read: Callable[[], object], *refusals: type[Exception]) -> None:
    """Check that *read* ends, with no other error than a refusal that says why."""
    refusal = "none"
    try:
        read()
    except refusals as error:
        refusal = str(error)
    assert refusal


@given(data=st.binary(max_size=200))
def test_records_and_bodies_of_strangers_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_records, decode_user, decode_rules):
        for text in (data, b'{"records":[' + data + b"]}", b'{"records":' * 300, b'{"password":' + data + b"}"):
            check_read_or_refused(lambda decode=decode, text=text: decode(text), RemoteProtocolError, DirectoryRefused)


PIECES = (
    "accounts:", "\n- ", "  accessKey: ", "secretKey: ", "abcdefgh", "&a ", "*a", "[", "]", "{", "}", "topicPerms:",
    "\n  - a=PUB", "globalWhiteRemoteAddresses:", "192.168.{1,2", "1-300.*", "::", "\t", "'", '"', "|", ">", "%", "\0",
    "é", "<<: ", "!!python/object:os.system ",
)  # fmt: skip
YAML = st.lists(st.sampled_from(PIECES), max_size=30)


@given(parts=YAML, junk=st.binary(max_size=20))
def test_acl_files_are_read_or_refused(parts: list[str], junk: bytes) -> None:
    for data in ("".join(parts).encode(), junk + "".join(parts).encode(), b"accounts:\n- " + "".join(parts).encode()):
        check_read_or_refused(lambda data=data: read_acl_files([("plain_acl.yml", data)]), ConfigError)


@pytest.mark.parametrize("is_strict", [True, False])
@given(answers=st.lists(st.tuples(st.integers(0, 20), FIELDS, st.sampled_from(["JAVA", "PYTHON"])), max_size=3))
def test_no_answer_of_a_lying_server_ends_a_strict_login(
    answers: list[tuple[int, dict[str, str], str]], *, is_strict: bool
) -> None:
    """Nor is it ever logged in at a server that does not know the secret."""
    login = ClientLogin(Credentials("alice", SECRET), "lying:1", nonce=bytes(32), is_strict=is_strict)
    following: Command | None = None
    with contextlib.suppress(LoginFailed, ConnectionLost):
        for number, (code, fields, language) in enumerate(answers):
            answer = Command(code=code, fields=fields, language=language, flag=1)
            if number == 0:
                following = login.second_request(answer)
            elif following is not None:
                login.finish(answer)
    assert login.outcome is not Outcome.LOGGED_IN
    assert not is_strict or login.outcome is None


@given(
    pieces=st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from([b"\xfeHFLOGIN", b"\xfe", b"HFLOGIN", bytes(8)])), max_size=8
    )
)
def test_the_replication_port_admits_no_stranger(pieces: list[bytes]) -> None:
    desk = guarded_broker()
    gate = desk.components._stream_gate
    login = StreamLogin()
    gate.opened(99, "192.0.2.9:5")  # type: ignore[arg-type]
    for piece in pieces:
        try:
            assert gate.advance(login, 99, "192.0.2.9:5", piece) is None  # type: ignore[arg-type]
        except RemoteProtocolError:
            break
        assert len(login.received) <= 8192
