"""One load: the arguments of `loadgen`, and its result."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from benchmarks.programs import BenchmarkFailed

Mode = Literal["send", "outer", "inner", "closed", "pull", "route"]
Auth = Literal["none", "login", "sign"]
USER: Final = "load"
SECRET: Final = "of-servers-that-live-for-minutes"
"""The user of loads with access control. Its secret protects nothing, so it may be seen in the list of processes."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load for a server. The fields are the keys of `loadgen`; its head explains them."""

    mode: Mode
    connections: int = 1
    in_flight: int = 1
    seconds: float = 3.0
    warm: float = 0.3
    requests: int = 0
    topic: str = "TopicTest"
    broker: str = "broker-a"
    queues: int = 4
    size: int = 1024
    batch: int = 100
    count: int = 32
    bytes: int = 262_144
    step: int = 32
    span: int = 100_000
    tls: Literal[0, 1] = 0
    auth: Auth = "none"

    def arguments(self, port: int) -> list[str]:
        """Return the command line arguments after the program's name."""
        keys = [key for key in self.__struct_fields__ if key != "mode"]
        user = [] if self.auth == "none" else [f"user={USER}", f"secret={SECRET}"]
        return [self.mode, f"port={port}", *(f"{key}={getattr(self, key)}" for key in keys), *user]

    @property
    def shape(self) -> str:
        """Connections x requests in flight on each."""
        return f"{self.connections}x{self.in_flight}"


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a load. Rates count answers with code 0 only."""

    seconds: float
    requests: int
    requests_per_s: float
    messages_per_s: float
    up_mb_per_s: float
    down_mb_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    client_cpu: float
    total_requests: int
    unanswered: int
    wrong: int
    refused: dict[str, int]


def run_load(loadgen: Path, port: int, load: Load) -> LoadResult:
    """Run *load* against the server on *port*.

    Raises:
        BenchmarkFailed: An answer was wrong or missing, or the server closed a connection.
    """
    command = [str(loadgen), *load.arguments(port)]
    timeout_s = 60 + load.seconds + load.warm if not load.requests else 600
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    if done.returncode != 0:
        raise BenchmarkFailed(f"{_join(command)} failed:\n{done.stdout}{done.stderr}")
    return msgspec.json.decode(done.stdout, type=LoadResult)


def _join(command: Sequence[str]) -> str:
    return " ".join(command)
