"""A continuous load by our own client, as `java/MoveLoad.java` runs it, which prints a row for every event.

    python -m benchmarks.move_load NAMESRV TOPIC KEYS FILE

`java/MoveLoad.java` describes the commands and rows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from holdfast import HoldfastError, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage

PATIENCE_S: Final = 90.0
FLOWING: Final = 20
AGAIN_S: Final = 0.001
LOOK_S: Final = 0.01
REST: Final = " " + 1000 * "x"


class Load:
    """Sends increasing numbers in every key."""

    def __init__(self, topic: str, keys: int) -> None:
        self._topic = topic
        self._keys = range(keys)
        self._acknowledged = [0] * keys
        self._delivered = [0] * keys
        self._is_over = False
        self.rows: list[str] = []

    async def listen(self, message: ReceivedMessage) -> None:
        """Record a delivered message."""
        key, number, _ = message.body.decode().split(" ", 2)
        self.rows.append(f"S\t{key}\t{number}\t{message.queue.queue_id}\t{message.offset}")
        self._delivered[int(key)] += 1

    async def count_up(self, producer: Producer, key: int, queue: MessageQueue) -> None:
        """Send one message after the other until `stop` is called."""
        number = 0
        while not self._is_over:
            body = f"{key} {number}{REST}".encode()
            wanted = _now_us()
            try:
                result = await producer.send(Message(self._topic, body), queue=queue)
            except HoldfastError as error:
                self.rows.append(f"F\t{key}\t{number}\t{wanted}\t{_now_us()}\t{type(error).__name__}")
                await asyncio.sleep(AGAIN_S)
            else:
                port = int(result.offset_id[8:16], 16)
                place = f"{result.queue.queue_id}\t{result.offset}\t{port}"
                self.rows.append(f"A\t{key}\t{number}\t{wanted}\t{_now_us()}\t{place}")
                self._acknowledged[key] += 1
            number += 1

    def stop(self) -> None:
        """End the sending."""
        self._is_over = True

    async def flow(self) -> bool:
        """Return whether a message of every key was acknowledged and delivered again within the time."""
        acknowledged, delivered = list(self._acknowledged), list(self._delivered)
        return await _until(
            lambda: all(
                self._acknowledged[key] >= acknowledged[key] + FLOWING and self._delivered[key] > delivered[key]
                for key in self._keys
            )
        )

    async def settle(self) -> None:
        """Wait until everything acknowledged is delivered."""
        await _until(lambda: all(self._delivered[key] >= self._acknowledged[key] for key in self._keys))
        await asyncio.sleep(0.5)  # Wait for repeated deliveries.


async def _until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_S)
    return True


def _now_us() -> int:
    return time.time_ns() // 1000


async def run(namesrv: str, topic: str, keys: int) -> list[str]:
    """Run the load until a command stops it; return the rows."""
    load = Load(topic, keys)
    consumer = PushConsumer(namesrv, f"{topic}-load", listener=load.listen, ordered=True, start="earliest")
    consumer.subscribe(topic)
    async with consumer, Producer(namesrv, "load", retries=0) as producer:
        queues = {queue.queue_id: queue for queue in await producer.queues(topic)}
        senders = [asyncio.create_task(load.count_up(producer, key, queues[key])) for key in range(keys)]
        print("ready", flush=True)
        while (await asyncio.to_thread(sys.stdin.readline)).strip() != "stop":
            print("flowing" if await load.flow() else "stuck", flush=True)
        load.stop()
        await asyncio.gather(*senders)
        await load.settle()
    return load.rows


def main() -> None:
    """Run."""
    namesrv, topic, keys, file = sys.argv[1:]
    rows = uvloop.run(run(namesrv, topic, int(keys)))
    Path(file).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    print("written", flush=True)


if __name__ == "__main__":
    main()
