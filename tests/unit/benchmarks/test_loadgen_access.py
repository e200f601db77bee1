"""The load generator with TLS, with logins and with signatures, at servers that check what it sends."""

import json
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from benchmarks import programs as programs_module
from benchmarks.load import SECRET, USER
from benchmarks.programs import Programs, compile_programs
from tests.support.certificates import Certificates
from tests.support.cluster.raw_requests import Signer
from tests.unit.benchmarks.test_loadgen import a_frame, a_record

from holdfast.wire.access.login import encode_nonce, find_proven_secret

REQUESTS = 50
NONCE = encode_nonce(bytes(32))
Answer = Callable[[Mapping[str, Any], bytes], bytes]
Wrap = Callable[[socket.socket], socket.socket]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    if programs_module.shutil.which("cc") is None:
        pytest.skip("the load generator needs a C compiler: install gcc")
    found = compile_programs(tmp_path_factory.mktemp("bin"))
    if not found.has_openssl:
        pytest.skip("the load generator needs the headers of OpenSSL: install libssl-dev")
    return found


def answered(header: Mapping[str, Any], code: int = 0, body: bytes = b"", **fields: str) -> bytes:
    answer = {"code": code, "flag": 1, "opaque": header["opaque"], "extFields": fields}
    return a_frame(json.dumps(answer, separators=(",", ":")), body)


def is_signed(header: Mapping[str, Any], body: bytes) -> bool:
    """Whether the signature is what an independent implementation makes of the fields and the body."""
    fields = dict(header["extFields"])
    signature = fields.pop("Signature", None)
    return signature is not None and Signer(USER, SECRET).sign(fields, body)["Signature"] == signature


def serve(listener: socket.socket, answer: Answer, wrap: Wrap) -> None:
    """Answer one connection, frame by frame, until it closes."""
    accepted, _ = listener.accept()
    with wrap(accepted) as connection, connection.makefile("rb") as stream:
        while (frame := read_frame(stream)) is not None:
            connection.sendall(answer(*frame))


def read_frame(stream: BinaryIO) -> tuple[Mapping[str, Any], bytes] | None:
    prefix = stream.read(8)
    if len(prefix) < 8:
        return None
    size, header_size = struct.unpack(">II", prefix)
    return json.loads(stream.read(header_size)), stream.read(size - 4 - header_size)


def run(program: Path, answer: Answer, *arguments: str, wrap: Wrap = lambda plain: plain) -> tuple[int, Any, str]:
    """Run the generator against a server that gives such answers; return its status, its result and its errors."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener, answer, wrap))
        server.start()
        user = (f"user={USER}", f"secret={SECRET}", f"requests={REQUESTS}")
        command = [str(program), *arguments, *user, f"port={listener.getsockname()[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        server.join()
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


@pytest.mark.parametrize("arguments", [("send",), ("inner", "batch=3"), ("outer", "batch=3"), ("pull",), ("route",)])
def test_every_request_has_its_own_right_signature(programs: Programs, arguments: tuple[str, ...]) -> None:
    """Fields that differ from request to request, and the body, are signed too."""
    signatures: list[str] = []

    def answer(header: Mapping[str, Any], body: bytes) -> bytes:
        signatures.append(header["extFields"]["Signature"])
        fields = header["extFields"]
        record = a_record(int(fields["queueId"]), int(fields["queueOffset"])) if arguments == ("pull",) else b""
        return answered(header, 0 if is_signed(header, body) else 16, record)

    status, said, _ = run(programs.loadgen, answer, *arguments, "auth=sign", "in_flight=4")

    assert (status, said["requests"], said["refused"]) == (0, REQUESTS, {})
    assert len(set(signatures)) == (1 if arguments == ("route",) else REQUESTS)


def test_a_signature_with_another_secret_is_another_one(programs: Programs) -> None:
    """So a server that checks signatures refuses all of them."""
    status, said, _ = run(
        programs.loadgen,
        lambda header, body: answered(header, 0 if is_signed(header, body) else 16),
        "send", "auth=sign", "secret=wrong",
    )  # fmt: skip

    assert (status, said["requests"], said["refused"]) == (0, 0, {"16": REQUESTS})


def login_server(codes: list[int], proof_code: int = 0) -> Answer:
    """Return the answers of a server that checks the proof of a login; *codes* gets the codes of the requests."""
    nonces: list[str] = []

    def answer(header: Mapping[str, Any], _body: bytes) -> bytes:
        codes.append(header["code"])
        fields = header["extFields"]
        if header["code"] == 7060:
            nonces.append(fields["clientNonce"])
            return answered(header, serverNonce=NONCE, server="broker-a", method="HMAC-SHA256")
        if header["code"] == 7061:
            found = find_proven_secret([SECRET], USER, nonces[0], NONCE, fields["proof"])
            return answered(header, proof_code if found == SECRET else 16)
        return answered(header)

    return answer


def test_a_login_comes_first_and_only_once(programs: Programs) -> None:
    """With the right proof; the requests after it carry no signature."""
    codes: list[int] = []

    status, said, _ = run(programs.loadgen, login_server(codes), "send", "auth=login")

    assert (status, said["requests"], said["refused"]) == (0, REQUESTS, {})
    assert codes == [7060, 7061, *[310] * REQUESTS]


def test_a_refused_login_ends_the_run(programs: Programs) -> None:
    """No figure may come from a connection that did not log in."""
    codes: list[int] = []

    status, said, errors = run(programs.loadgen, login_server(codes, proof_code=16), "send", "auth=login")

    assert (status, said, codes) == (1, None, [7060, 7061])
    assert "login refused" in errors


def test_a_server_without_access_control_is_no_server_for_logins(programs: Programs) -> None:
    """Even if it offers a nonce: it would be measured as if a login cost nothing."""
    status, said, errors = run(
        programs.loadgen,
        lambda header, _: answered(header, required="false", serverNonce=NONCE),
        "send", "auth=login",
    )  # fmt: skip

    assert (status, said) == (1, None)
    assert "wants no login" in errors


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_tls_answers_of_many_records_are_followed_to_their_end(programs: Programs, certificates: Certificates) -> None:
    """One suite of TLS 1.3, for all servers the same; no record stays unread in the buffers of TLS.

    The kernel holds the records of an answer back until all are there, so that no event announces the later ones.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    suites: list[tuple[str, str]] = []

    def wrap(plain: socket.socket) -> socket.socket:
        encrypted = context.wrap_socket(plain, server_side=True)
        cipher = encrypted.cipher()
        assert cipher is not None
        suites.append(cipher[:2])
        encrypted.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        return encrypted

    def answer(header: Mapping[str, Any], _body: bytes) -> bytes:
        queue, offset = int(header["extFields"]["queueId"]), int(header["extFields"]["queueOffset"])
        return answered(header, 0, b"".join(a_record(queue, offset + each) for each in range(300)))

    status, said, _ = run(programs.loadgen, answer, "pull", "count=300", "in_flight=4", "tls=1", wrap=wrap)

    assert (status, said["requests"], said["wrong"], said["unanswered"]) == (0, REQUESTS, 0, 0)
    assert suites == [("TLS_AES_256_GCM_SHA384", "TLSv1.3")]


@pytest.mark.parametrize("option", ["tls=1", "auth=login", "auth=sign"])
def test_a_generator_without_openssl_refuses_what_it_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """It does not send plain, unsigned requests instead."""
    if programs_module.shutil.which("cc") is None:
        pytest.skip("the load generator needs a C compiler: install gcc")
    monkeypatch.setattr(programs_module, "_has_openssl", lambda _compiler: False)
    plain = compile_programs(tmp_path)

    done = subprocess.run(
        [str(plain.loadgen), "send", "port=1", option], capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, plain.has_openssl) == (2, False)
    assert "without OpenSSL" in done.stderr
