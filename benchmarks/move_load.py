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

TIMEOUT_S: Final = 90.0
FLOWING: Final = 20
RETRY_S: Final = 0.001
POLL_S: Final = 0.01
PADDING: Final = " " + 1000 * "x"


class KeyedLoad:
    """Sends increasing numbers in every key."""

    def __init__(self, topic: str, keys: int) -> None:
        self._topic = topic
        self._keys = range(keys)
        self._acknowledged = [0] * keys
        self._delivered = [0] * keys
        self._is_stopped = False
        self.rows: list[str] = []

    async def listen(self, message: ReceivedMessage) -> None:
        """Record a delivered message."""
        key, number, _ = message.body.decode().split(" ", 2)
        self.rows.append(f"S\t{key}\t{number}\t{message.queue.queue_id}\t{message.offset}")
        self._delivered[int(key)] += 1

    async def send_numbers(self, producer: Producer, key: int, queue: MessageQueue) -> None:
        """Send one message after the other until `stop` is called."""
        number = 0
        while not self._is_stopped:
            body = f"{key} {number}{PADDING}".encode()
            planned_us = _now_us()
            try:
                result = await producer.send(Message(self._topic, body), queue=queue)
            except HoldfastError as error:
                self.rows.append(f"F\t{key}\t{number}\t{planned_us}\t{_now_us()}\t{type(error).__name__}")
                await asyncio.sleep(RETRY_S)
            else:
                port = int(result.offset_id[8:16], 16)
                stored_at = f"{result.queue.queue_id}\t{result.offset}\t{port}"
                self.rows.append(f"A\t{key}\t{number}\t{planned_us}\t{_now_us()}\t{stored_at}")
                self._acknowledged[key] += 1
            number += 1

    def stop(self) -> None:
        """End the sending."""
        self._is_stopped = True

    async def wait_for_flow(self) -> bool:
        """Return whether a message of every key was acknowledged and delivered again within the time."""
        acknowledged, delivered = list(self._acknowledged), list(self._delivered)
        return await _wait_until(
            lambda: all(
                self._acknowledged[key] >= acknowledged[key] + FLOWING and self._delivered[key] > delivered[key]
                for key in self._keys
            )
        )

    async def wait_for_deliveries(self) -> None:
        """Wait until everything acknowledged is delivered."""
        await _wait_until(lambda: all(self._delivered[key] >= self._acknowledged[key] for key in self._keys))
        await asyncio.sleep(0.5)  # Wait for repeated deliveries.


async def _wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _now_us() -> int:
    return time.time_ns() // 1000


async def run(namesrv: str, topic: str, keys: int) -> list[str]:
    """Run the load until a command stops it; return the rows."""
    load = KeyedLoad(topic, keys)
    consumer = PushConsumer(namesrv, f"{topic}-load", listener=load.listen, ordered=True, start="earliest")
    consumer.subscribe(topic)
    async with consumer, Producer(namesrv, "load", retries=0) as producer:
        queues = {queue.queue_id: queue for queue in await producer.queues(topic)}
        senders = [asyncio.create_task(load.send_numbers(producer, key, queues[key])) for key in range(keys)]
        print("ready", flush=True)
        while (await asyncio.to_thread(sys.stdin.readline)).strip() != "stop":
            print("flowing" if await load.wait_for_flow() else "stuck", flush=True)
        load.stop()
        await asyncio.gather(*senders)
        await load.wait_for_deliveries()
    return load.rows


def main() -> None:
    """Run."""
    namesrv, topic, keys, file = sys.argv[1:]
    rows = uvloop.run(run(namesrv, topic, int(keys)))
    Path(file).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    print("written", flush=True)


if __name__ == "__main__":
    main()
