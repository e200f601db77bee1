"""The C programs of this folder, compiled for one run."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent
FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


class BenchmarkFailed(Exception):
    """A measurement failed; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The paths of the compiled programs."""

    loadgen: Path
    sink: Path
    limits: Path


def compile_programs(folder: Path) -> Programs:
    """Compile everything into *folder*.

    Raises:
        BenchmarkFailed: There is no C compiler, or it rejected a source.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchmarkFailed("the load generator is written in C: install a C compiler (Debian: apt install gcc)")
    folder.mkdir(parents=True, exist_ok=True)
    return Programs(*(_compile(compiler, name, folder) for name in ("loadgen", "sink", "limits")))


def _compile(compiler: str, name: str, folder: Path) -> Path:
    program = folder / name
    command = [compiler, *FLAGS, "-o", str(program), str(SOURCES / f"{name}.c")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkFailed(f"{name}.c does not compile:\n{done.stdout}")
    return program
