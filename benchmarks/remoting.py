"""A minimal connection to a broker or name server, one request at a time, to prepare and check a measurement.

| frame size u32 | header size u32 | header, JSON | body |
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from benchmarks.programs import BenchmarkFailed

SIZES: Final = struct.Struct(">II")
CREATE_TOPIC: Final = 17
ALL_TOPICS: Final = 21
RUNTIME_INFO: Final = 28
MAX_OFFSET: Final = 30
ROUTE: Final = 105
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


class Remote:
    """One connection to a server on loopback."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._stream = self._socket.makefile("rb")
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def request(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> Reply:
        """Send a request and return its answer, whatever its code."""
        self.send_request(code, fields, body)
        return self.receive_answer()

    def send_request(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> None:
        """Send a request; `hear` returns its answer."""
        self._opaque += 1
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        header = {"code": code, "extFields": texts, "flag": 0, "language": "JAVA", "opaque": self._opaque}
        data = json.dumps(header | {"serializeTypeCurrentRPC": "JSON", "version": 513}).encode()
        self._socket.sendall(SIZES.pack(4 + len(data) + len(body), len(data)) + data + body)

    def receive_answer(self) -> Reply:
        """Return the answer to the last request, whatever its code."""
        while True:
            frame_size, header_size = SIZES.unpack(self._read(8))
            answer: dict[str, Any] = json.loads(self._read(header_size & 0xFFFFFF))
            content = self._read(frame_size - 4 - header_size)
            if answer.get("opaque") == self._opaque and answer.get("flag", 0) & 1:
                return Reply(answer["code"], answer.get("remark") or "", answer.get("extFields") or {}, content)

    def create_topic(self, topic: str, *, queues: int, batches: bool = False) -> None:
        """Create *topic*, readable and writable, with *queues* queues; with *batches*, indexed by batch."""
        fields: dict[str, object] = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        if batches:
            fields["attributes"] = "+queue.type=BatchCQ"
        reply = self.request(CREATE_TOPIC, fields)
        if reply.code != 0:
            raise BenchmarkFailed(f"topic {topic} could not be created: {reply.code} {reply.remark}")

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the offset after the last message of a queue."""
        reply = self.request(MAX_OFFSET, {"topic": topic, "queueId": queue})
        if reply.code != 0:
            raise BenchmarkFailed(f"the broker refused the end of {topic}/{queue}: {reply.code} {reply.remark}")
        return int(reply.fields["offset"])

    def topics(self) -> set[str]:
        """Return the topics that a broker knows."""
        reply = self.request(ALL_TOPICS, {})
        if reply.code != 0:
            raise BenchmarkFailed(f"a broker refused to list its topics: {reply.code} {reply.remark}")
        return set(json.loads(reply.body)["topicConfigTable"])

    def has_route(self, topic: str) -> bool:
        """Return whether a name server knows *topic*."""
        return self.request(ROUTE, {"topic": topic}).code == 0

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise BenchmarkFailed("the server closed the connection")
        return data


def log_ends(brokers: Sequence[Remote]) -> list[int]:
    """Return where the logs of *brokers* end, requested from all at the same time."""
    for broker in brokers:
        broker.send_request(RUNTIME_INFO, {})
    replies = [broker.receive_answer() for broker in brokers]
    for reply in replies:
        if reply.code != 0:
            raise BenchmarkFailed(f"a broker refused its runtime info: {reply.code} {reply.remark}")
    return [int(json.loads(reply.body)["table"]["commitLogMaxOffset"]) for reply in replies]
