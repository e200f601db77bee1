"""The load generator believes no answer: what a broken server says is noticed."""

import json
import re
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.programs import Programs, compile_programs

REQUESTS = 50
Answer = Callable[[int, bytes], bytes]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    if shutil.which("cc") is None and shutil.which("gcc") is None and shutil.which("clang") is None:
        pytest.skip("the load generator needs a C compiler: install gcc")
    return compile_programs(tmp_path_factory.mktemp("bin"))


def a_frame(header: str, body: bytes = b"") -> bytes:
    raw = header.encode()
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


def answered(opaque: int, code: int = 0, body: bytes = b"") -> bytes:
    return a_frame(f'{{"code":{code},"flag":1,"opaque":{opaque}}}', body)


def a_record(queue: int, offset: int) -> bytes:
    size = 100
    return struct.pack(">IIIIIQ", size, 0xDAA320A7, 0, queue, 0, offset) + bytes(size - 28)


def serve(listener: socket.socket, answer: Answer) -> None:
    """Answer one connection, frame by frame, until it closes."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as stream:
        while len(prefix := stream.read(8)) == 8:
            size, header_size = struct.unpack(">II", prefix)
            header = stream.read(header_size)
            stream.read(size - 4 - header_size)
            opaque = re.search(rb'"opaque":(\d+)', header)
            assert opaque is not None
            connection.sendall(answer(int(opaque[1]), header))


def run(program: Path, answer: Answer, *arguments: str) -> tuple[int, dict[str, object]]:
    """Run the generator against a server that gives such answers; return its exit status and what it printed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener, answer))
        server.start()
        command = [str(program), *arguments, f"port={listener.getsockname()[1]}", f"requests={REQUESTS}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        server.join()
    return done.returncode, json.loads(done.stdout)


def test_good_answers_are_counted(programs: Programs) -> None:
    """Every request is answered once, and nothing is wrong."""
    status, said = run(programs.loadgen, lambda opaque, _: answered(opaque), "send", "in_flight=8")

    assert (status, said["requests"], said["unanswered"], said["wrong"]) == (0, REQUESTS, 0, 0)


def test_refusals_are_counted_by_their_code_and_are_not_rate(programs: Programs) -> None:
    """A busy server is not a broken one, but what it refused was not done."""
    codes = iter([0, 2] * REQUESTS)

    status, said = run(programs.loadgen, lambda opaque, _: answered(opaque, next(codes)), "send")

    assert (status, said["requests"], said["refused"]) == (0, REQUESTS // 2, {"2": REQUESTS // 2})


def test_an_opaque_that_was_not_asked_for_is_wrong(programs: Programs) -> None:
    """An extra answer beside the right one fails the run."""
    status, said = run(
        programs.loadgen, lambda opaque, _: answered(opaque + 400_000_000) + answered(opaque), "send", "in_flight=4"
    )

    assert (status, said["requests"], said["wrong"]) == (1, REQUESTS, REQUESTS)


@pytest.mark.parametrize(("queue_error", "offset_error"), [(1, 0), (0, 1)])
def test_a_record_that_was_not_asked_for_is_wrong(programs: Programs, queue_error: int, offset_error: int) -> None:
    """A pull that brings another queue or another offset fails the run."""

    def answer(opaque: int, header: bytes) -> bytes:
        queue = int(re.search(rb'"queueId":"(\d+)"', header)[1])  # type: ignore[index]
        offset = int(re.search(rb'"queueOffset":"(\d+)"', header)[1])  # type: ignore[index]
        return answered(opaque, 0, a_record(queue + queue_error, offset + offset_error))

    status, said = run(programs.loadgen, answer, "pull", "count=1")

    assert (status, said["wrong"]) == (1, REQUESTS)


def test_records_are_followed_wherever_the_stream_is_cut(programs: Programs) -> None:
    """The right records of a pull are counted, one by one, however large the answer."""

    def answer(opaque: int, header: bytes) -> bytes:
        queue = int(re.search(rb'"queueId":"(\d+)"', header)[1])  # type: ignore[index]
        offset = int(re.search(rb'"queueOffset":"(\d+)"', header)[1])  # type: ignore[index]
        return answered(opaque, 0, b"".join(a_record(queue, offset + each) for each in range(5000)))

    status, said = run(programs.loadgen, answer, "pull", "count=5000", "step=1")

    assert (status, said["requests"], said["wrong"]) == (0, REQUESTS, 0)


@pytest.mark.parametrize(("mode", "has_id"), [("inner", True), ("closed", True), ("outer", False)])
def test_only_batches_that_may_stay_whole_have_an_id_of_their_own(
    programs: Programs,
    mode: str,
    has_id: bool,  # noqa: FBT001 - pytest's
) -> None:
    """That is how brokers tell them apart. All messages of both are counted."""
    headers: list[bytes] = []

    def answer(opaque: int, header: bytes) -> bytes:
        headers.append(header)
        return answered(opaque)

    status, said = run(programs.loadgen, answer, mode, "batch=7")

    assert (status, said["requests"], said["wrong"]) == (0, REQUESTS, 0)
    assert all((b'"i":"UNIQ_KEY' in header) == has_id and b'"code":320' in header for header in headers)
    assert all(
        (b'"f":"192"' in header and b"INNER_NUM.u00017" in header.replace(b"\\", b".")) == (mode == "closed")
        for header in headers
    )
    assert len(set(re.findall(rb"UNIQ_KEY.u0001(\w+)", b"".join(headers)))) == (REQUESTS if has_id else 0)
