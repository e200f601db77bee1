"""All results of one run, as one value that is stored as JSON."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import msgspec
from benchmarks.access_findings import AccessFindings
from benchmarks.batch_findings import BatchFindings
from benchmarks.cold_start import ColdStart
from benchmarks.growth import Axis
from benchmarks.idle import Idle
from benchmarks.judgement import Verdict
from benchmarks.load import LoadResult
from benchmarks.measure import CellResult
from benchmarks.moves import MoveFindings
from benchmarks.pipeline_findings import PipelineFindings
from benchmarks.programs import BenchmarkFailed
from benchmarks.push_findings import PushFindings
from benchmarks.recovery import Recovery
from benchmarks.replica_findings import ReplicaFindings
from benchmarks.spark_findings import SparkFindings


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of the run."""

    processor: str
    cores: int
    memory_gb: float
    kernel: str
    congestion_control: str
    python: str
    libraries: dict[str, str]
    java: str


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """One axis and its figures, point by point."""

    axis: Axis
    results: list[CellResult]


class Results(msgspec.Struct, kw_only=True):
    """One run. Parts that were not requested are empty or None.

    Attributes:
        limits: Medians of the machine's speed, by name.
        ceilings: The generator's figures against a server that does nothing, by cell.
        profile: Stages of a send: name, our ns, the bare path's ns.
        taken: When each part was measured.
    """

    seconds: float
    rounds: int
    machine: Machine
    taken: dict[str, str] = {}
    limits: dict[str, float] = {}
    ceilings: dict[str, LoadResult] = {}
    cells: list[CellResult] = []
    verdicts: list[Verdict] = []
    cold: dict[str, ColdStart] = {}
    growth: list[Growth] = []
    idle: dict[str, Idle] = {}
    recovery: dict[str, Recovery] = {}
    moves: MoveFindings | None = None
    push: PushFindings | None = None
    spark: SparkFindings | None = None
    pipeline: PipelineFindings | None = None
    batches: BatchFindings | None = None
    replicas: ReplicaFindings | None = None
    access: AccessFindings | None = None
    profile: list[tuple[str, float, float | None]] = []


def describe_machine(java: str) -> Machine:
    """Return the description of this machine."""
    cpu_info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = [line.partition(":")[2].strip() for line in cpu_info.splitlines() if line.startswith("model name")]
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return Machine(
        processor=models[0] if models else platform.processor(),
        cores=os.cpu_count() or 1,
        memory_gb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9,
        kernel=platform.release(),
        congestion_control=congestion.read_text(encoding="utf-8").strip() if congestion.exists() else "unknown",
        python=platform.python_version(),
        libraries={name: metadata.version(name) for name in ("uvloop", "msgspec", "isal")},
        java=java,
    )


def save(results: Results, file: Path) -> None:
    """Store *results* as readable JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def load(file: Path) -> Results:
    """Load stored results.

    Raises:
        BenchmarkFailed: The file has another format.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Results)
    except msgspec.MsgspecError as error:
        raise BenchmarkFailed(f"{file} has another format: remove it or measure everything: {error}") from error
