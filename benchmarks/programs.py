"""The C programs of this folder, compiled for one run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent
FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
OPENSSL: Final = ("-DHAS_OPENSSL", "-lssl", "-lcrypto")


class BenchmarkFailed(Exception):
    """A measurement failed; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The paths of the compiled programs.

    Attributes:
        has_openssl: Whether the generator can encrypt, log in and sign.
    """

    loadgen: Path
    sink: Path
    limits: Path
    has_openssl: bool


def compile_programs(folder: Path) -> Programs:
    """Compile everything into *folder*.

    Raises:
        BenchmarkFailed: There is no C compiler, or it rejected a source.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchmarkFailed("the load generator is written in C: install a C compiler (Debian: apt install gcc)")
    folder.mkdir(parents=True, exist_ok=True)
    has_openssl = _has_openssl(compiler)
    return Programs(
        loadgen=_compile(compiler, "loadgen", folder, OPENSSL if has_openssl else ()),
        sink=_compile(compiler, "sink", folder),
        limits=_compile(compiler, "limits", folder),
        has_openssl=has_openssl,
    )


def _has_openssl(compiler: str) -> bool:
    """Return whether the headers of OpenSSL are installed."""
    command = [compiler, "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, input=b"#include <openssl/ssl.h>\n", capture_output=True, check=False)
    return done.returncode == 0


def _compile(compiler: str, name: str, folder: Path, more: Sequence[str] = ()) -> Path:
    program = folder / name
    command = [compiler, *FLAGS, "-o", str(program), str(SOURCES / f"{name}.c"), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkFailed(f"{name}.c does not compile:\n{done.stdout}")
    return program
