"""Whoever operates a cluster: the installed command, run as a process of its own, and what it prints as JSON.

operator = Operator("127.0.0.1:24104")
await operator.run("queue", "migrate", "orders", "0", "--to", "broker-b")
await operator.rows("orders")       -> ["broker-a | 0 | 0(0-100) | ReadOnly", ...] as the proposal prints them
"""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Any

from tests.support.cluster.up import HOLDFAST


class HoldfastCommand:
    """Runs `holdfast` against one cluster."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv

    async def start(self, *arguments: str) -> Process:
        """Start a command and do not wait for it."""
        command = [HOLDFAST, *arguments, "--json", "--namesrv", self._namesrv]
        return await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)

    async def attempt(self, *arguments: str) -> tuple[int, str]:
        """Run a command; return its status and all that it said."""
        process = await self.start(*arguments)
        output, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode() + errors.decode()

    async def run(self, *arguments: str) -> dict[str, Any]:
        """Run a command that succeeds; return what it printed."""
        process = await self.start(*arguments)
        output, errors = await process.communicate()
        assert process.returncode == 0, f"holdfast {' '.join(arguments)}: {output.decode()}{errors.decode()}"
        printed: dict[str, Any] = json.loads(output)
        return printed

    async def rows(self, topic: str) -> list[str]:
        """Return the mapping with the columns of the proposal."""
        rows = (await self.run("queue", "list", topic))["rows"]
        return [f"{row['broker']} | {row['queue_id']} | {row['label']} | {row['status']}" for row in rows]

    async def leaders(self, topic: str) -> dict[int, str]:
        """Return who leads each queue: the last home that was ever opened."""
        queues = (await self.run("queue", "list", topic))["mapping"]["queues"]
        return {
            int(number): [segment["broker"] for segment in queue["segments"] if segment["first"] >= 0][-1]
            for number, queue in queues.items()
        }
