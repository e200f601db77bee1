"""Clients that watch routes, thousands of them in one process: raw sockets and one epoll.

    python -m benchmarks.watchers PORT CLIENTS EACH POOL

    connect, 105 watch=true for each topic ─> "ready"
    "expect N TEXT" ─> "expecting" ─> 328 ─> 105 for each topic of it ─> all N have their answers: a line of JSON

Every client watches `COMMON_TOPIC`, `TICK_TOPIC` and EACH - 2 topics of a pool of POOL topics. The process waits for
notices of `COMMON_TOPIC`. For notices of other topics clients query the route, too, but the answer is discarded.
Moments are times of the monotonic clock, which all processes share. An answer without TEXT in it is an old route and
does not count. Clients that have received nothing when the time is over are missing in the line.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from typing import Final

import msgspec

from holdfast.wire.cluster.watch import ROUTES_CHANGED, TOPICS_FIELD, WATCH_FIELD, WATCHING_FIELD, split_topics
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.frame import split_frames

COMMON_TOPIC: Final = "Common"
TICK_TOPIC: Final = "Herald"
NOTICE_TIMEOUT_S: Final = 30.0
CONNECTS_AT_ONCE: Final = 100
_RECEIVE_SIZE: Final = 256 * 1024
_RESPONSE: Final = 1
_COMMANDS_FD: Final = 0


class NoticeTimes(msgspec.Struct, kw_only=True):
    """The result of one expectation. Moments in seconds of the monotonic clock.

    Attributes:
        told: When each client received the notice of the common topic.
        pulled: When each client had the answers to all its queries.
        frames: When each notice came, of any topic.
        pulls: The number of queries.
        old: Answers that were not the new route.
    """

    told: list[float] = []
    pulled: list[float] = []
    frames: list[float] = []
    pulls: int = 0
    old: int = 0


class WatchFailed(Exception):
    """The name server refused, or did not answer."""


class _Header(msgspec.Struct):
    code: int
    flag: int = 0
    extFields: dict[str, str] | None = None  # noqa: N815 - the name on the wire


_decode = msgspec.json.Decoder(_Header).decode


def pool_topic(number: int) -> str:
    """Return the name of a topic of the pool."""
    return f"Pool-{number:05}"


def topics_of(client: int, each: int, pool: int) -> list[str]:
    """Return the topics that a client watches, so that each topic of the pool has about as many watchers."""
    start = client * (each - 2)
    return [COMMON_TOPIC, TICK_TOPIC, *(pool_topic((start + step) % pool) for step in range(each - 2))]


class _Client:
    __slots__ = ("has_old", "is_notified", "socket", "unanswered", "unfinished")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.unfinished = b""
        self.unanswered = 0
        self.is_notified = False
        self.has_old = False


class Watchers:
    """All clients."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._queries: dict[str, bytes] = {}
        self._notice_times = NoticeTimes()
        self._expected_text = b""
        self._unanswered = 0
        self._is_watching = False

    def connect(self, count: int, each: int, pool: int) -> None:
        """Connect *count* clients and let them watch, a few at a time, so that the name server can accept them all.

        Raises:
            WatchFailed: The name server does not support watching.
        """
        for number in range(count):
            client = _Client(self._port)
            self._clients[client.socket.fileno()] = client
            self._poll.register(client.socket, select.EPOLLIN)
            self._request_routes(client, topics_of(number, each, pool))
            if (number + 1) % CONNECTS_AT_ONCE == 0 or number + 1 == count:
                self._wait_for_answers()
        self._is_watching = True

    def expect(self, count: int, text: bytes) -> NoticeTimes:
        """Wait until *count* clients have been notified and have pulled, or the time is over; return the moments."""
        notice_times = self._notice_times = NoticeTimes()
        self._expected_text = text
        for client in self._clients.values():
            client.is_notified = client.has_old = False
        print("expecting", flush=True)
        deadline = time.monotonic() + NOTICE_TIMEOUT_S
        while len(notice_times.pulled) < count and time.monotonic() < deadline:
            self._poll_once()
        return notice_times

    def wait_for_command(self) -> bool:
        """Wait for one event: return True if it was a command, or handle a client's input and return False."""
        self._poll.register(_COMMANDS_FD, select.EPOLLIN)
        ready = self._poll.poll()
        self._poll.unregister(_COMMANDS_FD)
        for fd, _ in ready:
            if fd != _COMMANDS_FD:
                self._read(self._clients[fd])
        return any(fd == _COMMANDS_FD for fd, _ in ready)

    def _wait_for_answers(self) -> None:
        deadline = time.monotonic() + NOTICE_TIMEOUT_S
        while self._unanswered:
            if time.monotonic() > deadline:
                raise WatchFailed("the name server does not answer")
            self._poll_once()

    def _poll_once(self) -> None:
        for fd, _ in self._poll.poll(0.1):
            self._read(self._clients[fd])

    def _read(self, client: _Client) -> None:
        data = client.socket.recv(_RECEIVE_SIZE)
        if not data:
            raise WatchFailed("the name server closed a connection")
        now = time.monotonic()
        data = client.unfinished + data
        frames, used = split_frames(memoryview(data))
        client.unfinished = data[used:]
        for frame in frames:
            command = _decode(frame.header)
            fields = command.extFields or {}
            if command.flag & _RESPONSE:
                self._handle_answer(client, fields, frame.body, now)
            elif command.code == ROUTES_CHANGED:
                self._handle_notice(client, split_topics(fields.get(TOPICS_FIELD)), now)

    def _handle_notice(self, client: _Client, topics: list[str], now: float) -> None:
        self._notice_times.frames.append(now)
        if COMMON_TOPIC in topics and not client.is_notified:
            client.is_notified = True
            self._notice_times.told.append(now)
        self._notice_times.pulls += len(topics)
        self._request_routes(client, topics)

    def _handle_answer(self, client: _Client, fields: dict[str, str], body: memoryview, now: float) -> None:
        if not self._is_watching and fields.get(WATCHING_FIELD) != "true":
            raise WatchFailed("the name server does not push routes")
        client.unanswered -= 1
        self._unanswered -= 1
        if not client.is_notified:
            return
        if self._expected_text not in bytes(body):
            self._notice_times.old += 1
            client.has_old = True
        if not client.unanswered and not client.has_old:
            self._notice_times.pulled.append(now)

    def _request_routes(self, client: _Client, topics: list[str]) -> None:
        client.unanswered += len(topics)
        self._unanswered += len(topics)
        client.socket.sendall(b"".join(map(self._query, topics)))

    def _query(self, topic: str) -> bytes:
        query = self._queries.get(topic)
        if query is None:
            fields = {"topic": topic, WATCH_FIELD: "true"}
            query = encode_command(Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields))
            self._queries[topic] = query
        return query


def main() -> None:
    """Watch until the input ends."""
    port, clients, each, pool = map(int, sys.argv[1:])
    watchers = Watchers(port)
    watchers.connect(clients, each, pool)
    print("ready", flush=True)
    while True:
        if not watchers.wait_for_command():
            continue
        words = os.read(_COMMANDS_FD, 4096).decode().split()
        if not words:
            return
        _, count, *text = words
        notice_times = watchers.expect(int(count), "".join(text).encode())
        print(msgspec.json.encode(notice_times).decode(), flush=True)


if __name__ == "__main__":
    main()
