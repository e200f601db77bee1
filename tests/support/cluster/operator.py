"""The `holdfast` command as an operator runs it: as a process of its own, or in this process, which is faster.

operator = HoldfastCommand("127.0.0.1:24104")
await operator.run("queue", "migrate", "orders", "0", "--to", "broker-b")
await operator.rows("orders")       -> ["broker-a | 0 | 0(0-100) | ReadOnly", ...] as the proposal prints them
"""

import asyncio
import contextlib
import io
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.cli.main import main

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


class CommandResult(NamedTuple):
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str


def run_in_process(*arguments: str, namesrv: str, unit: str | None = None) -> CommandResult:
    """Run a command in this process, as a person does who has set the environment. Needs a thread without a loop."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline=""), io.StringIO()
    before = dict(os.environ)
    os.environ |= {"HOLDFAST_NAMESRV": namesrv, "COLUMNS": "200"}
    if unit is not None:
        os.environ["HOLDFAST_UNIT"] = unit
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(list(arguments))
    finally:
        os.environ.clear()
        os.environ.update(before)
    out.seek(0)
    return CommandResult(status, out.read(), err.getvalue())


def leaders_of(mapping: dict[str, Any]) -> dict[int, str]:
    """Return the leader of each queue of a mapping as `queue list` prints it: its last segment that was ever opened."""
    queues = mapping["queues"]
    return {
        int(number): [segment["broker"] for segment in queues[number]["segments"] if segment["first"] >= 0][-1]
        for number in sorted(queues, key=int)
    }


class HoldfastCommand:
    """Runs `holdfast` against one cluster, each command as a process of its own."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv

    async def start(self, *arguments: str) -> Process:
        """Start a command and do not wait for it."""
        command = [HOLDFAST, *arguments, "--json", "--namesrv", self._namesrv]
        return await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)

    async def attempt(self, *arguments: str) -> tuple[int, str]:
        """Run a command; return its status and everything that it printed."""
        process = await self.start(*arguments)
        output, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode() + errors.decode()

    async def run(self, *arguments: str) -> dict[str, Any]:
        """Run a command that succeeds; return the JSON that it printed."""
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
        """Return the leader of each queue."""
        return leaders_of((await self.run("queue", "list", topic))["mapping"])
