"""The pages of the documentation, and how tests run what they show.

A page shows programs with the usual address of a name server; tests run them against a cluster on free ports.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.up import Up

ROOT = Path(__file__).parents[2]
USUAL_ADDRESS = "127.0.0.1:9876"

# What differs in every run: ids, times and places of messages.
_VARYING = (
    r"[0-9A-F]{32}",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}",
    r"broker-[ab]/\d+@\d+",
    r"broker-[ab] queue \d+ offset \d+",
)
_ANY_VARYING = re.compile("|".join(f"({pattern})" for pattern in _VARYING))


def read_page(name: str) -> str:
    """Return the text of a page; *name* is its path below the root of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of one language in *text*."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def split_words(words: str) -> list[str]:
    """Return the words of a shell line, without the comment at its end."""
    return [word.strip('"') for word in re.findall(r'"[^"]*"|[^\s"]+', words.partition(" #")[0])]


def pattern_of(shown: str) -> str:
    """Return a pattern for the output *shown*, in which ids, times and places may differ."""
    pattern, end = "", 0
    for varying in _ANY_VARYING.finditer(shown):
        assert varying.lastindex is not None
        pattern += re.escape(shown[end : varying.start()]) + _VARYING[varying.lastindex - 1]
        end = varying.end()
    return pattern + re.escape(shown[end:])


def run_command(cluster: Up, command: list[str]) -> str:
    """Return the output of *command* for a user of *cluster*."""
    environment = {**os.environ, "HOLDFAST_NAMESRV": cluster.namesrv}
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_holdfast(cluster: Up, arguments: str) -> str:
    """Return the output of `holdfast` with *words*, for a user of *cluster*."""
    return run_command(cluster, [HOLDFAST, *split_words(arguments)])


def python_command(cluster: Up, program: str, *arguments: str) -> list[str]:
    """Return the command that runs *program* against *cluster*, with nothing but the address changed."""
    assert USUAL_ADDRESS in program
    return [sys.executable, "-u", "-c", program.replace(USUAL_ADDRESS, cluster.namesrv), *arguments]
