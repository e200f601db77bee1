"""A whole cluster of ours, started by `holdfast up` as a user would.

with Up(folder) as cluster:
    cluster.namesrv            -> "127.0.0.1:17734"
    cluster.pid_of("broker-a") -> the process that runs now
"""

import json
import re
from pathlib import Path
from typing import Self

from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST

READY_TIMEOUT_S = 90.0


class Up:
    """One running `holdfast up` on free ports, without a console unless an option asks for one."""

    def __init__(self, folder: Path, *options: str, has_console: bool = False) -> None:
        console = [] if has_console or "--console" in options else ["--console", "off"]
        command = [HOLDFAST, "up", "--data", str(folder), "--base-port", "0", "--json", *console, *options]
        self.child = Child(command, name="holdfast up")
        try:
            self.announced = json.loads(self.child.wait_for_line('"namesrv"', timeout_s=READY_TIMEOUT_S))
        except BaseException:
            self.child.kill()
            raise
        self.namesrv: str = self.announced["namesrv"]
        self.brokers: dict[str, str] = {broker["name"]: broker["address"] for broker in self.announced["brokers"]}

    def pid_of(self, role: str) -> int:
        """Return the process that serves *role* since its last start."""
        found = [
            int(line[1])
            for line in (re.search(rf"ready .* pid=(\d+) role={role}$", each) for each in self.child.lines())
            if line
        ]
        return found[-1]

    def stop(self) -> int:
        """End it in order and return the exit status."""
        return self.child.stop(timeout_s=READY_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.child.is_running:
            self.child.stop(timeout_s=READY_TIMEOUT_S)
