"""One Python process that sends with the library, and prints its rate: what a user's program can reach.

    python produce.py NAMESRV TOPIC many|nowait|keyed seconds=S|count=N [size=1024]

    <- {"messages": 512000, "seconds": 1.31, "cpu_seconds": 1.02}

Every message is made when it is sent, and every result is checked. Two calls of `send_many` are in flight at a time:
one makes its messages while the other waits for answers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable

from holdfast import Message, Producer, ProducerFull, SendResult

CHUNK = 4000
KEYS = [f"key-{number}" for number in range(1000)]
# A broker announces its features in its answer to a heartbeat, and is asked about a topic with its first batch.
BATCH_SUPPORT_TIMEOUT_S = 5.0


class Work:
    """Sends to one topic until the time is over or the count is reached."""

    def __init__(self, producer: Producer, topic: str, body: bytes, *, seconds: float, count: int) -> None:
        self._producer = producer
        self._topic = topic
        self._body = body
        self._end_s = time.perf_counter() + seconds
        self._count = count
        self.sent = 0

    @property
    def _is_done(self) -> bool:
        return self.sent >= self._count if self._count else time.perf_counter() >= self._end_s

    async def many(self) -> None:
        """Send with `send_many`."""
        await asyncio.gather(self._send_chunks(), self._send_chunks())

    async def _send_chunks(self) -> None:
        topic, body = self._topic, self._body
        while not self._is_done:
            results = await self._producer.send_many([Message(topic, body) for _ in range(CHUNK)])
            self.sent += len(results)  # not in one line: the other chunk is counted meanwhile

    async def nowait(self) -> None:
        """Send with `send_nowait`."""
        topic, body = self._topic, self._body
        await self._send_each(lambda: Message(topic, body))

    async def keyed(self) -> None:
        """Send with `send_nowait`, using a thousand keys in rotation."""
        topic, body, keys = self._topic, self._body, itertools.cycle(KEYS)
        await self._send_each(lambda: Message(topic, body, key=next(keys)))

    async def _send_each(self, make: Callable[[], Message]) -> None:
        send = self._producer.send_nowait
        before: list[asyncio.Future[SendResult]] = []
        while not self._is_done:
            futures = []
            for _ in range(CHUNK):
                message = make()
                try:
                    futures.append(send(message))
                except ProducerFull:
                    futures.append(await self._producer.send_soon(message))
            for future in before:
                await future
            self.sent += len(before)
            before = futures
        await self._producer.flush()
        for future in before:
            future.result()
        self.sent += len(before)


async def wait_for_batch_support(producer: Producer, topic: str) -> None:
    """Return when the producer knows that batches of *topic* are kept whole, as it would after its first seconds."""
    deadline_s = time.perf_counter() + BATCH_SUPPORT_TIMEOUT_S
    while time.perf_counter() < deadline_s:
        first, second = await producer.send_many([Message(topic, b"x")] * 2)
        if first.offset_id == second.offset_id:
            return
        await asyncio.sleep(0.2)


async def run(namesrv: str, topic: str, call: str, options: dict[str, str]) -> None:
    body = bytes(range(256)) * 16
    async with Producer(namesrv, "bench") as producer:
        if options.get("whole", "1") == "1":
            await wait_for_batch_support(producer, topic)
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        work = Work(
            producer,
            topic,
            body[: int(options.get("size", "1024"))],
            seconds=float(options.get("seconds", "1")),
            count=int(options.get("count", "0")),
        )
        calls: dict[str, Callable[[], Awaitable[None]]] = {
            "many": work.many, "nowait": work.nowait, "keyed": work.keyed,
        }  # fmt: skip
        await calls[call]()
        seconds, cpu_seconds = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    print(json.dumps({"messages": work.sent, "seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)


def main() -> None:
    """Run with the event loop that servers use."""
    import uvloop  # noqa: PLC0415 - user programs may lack it

    namesrv, topic, call, *options = sys.argv[1:]
    uvloop.run(run(namesrv, topic, call, dict(option.split("=", 1) for option in options)))


if __name__ == "__main__":
    main()
