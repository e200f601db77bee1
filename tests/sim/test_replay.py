"""One seed, one story: a run can be had again, in this process and in any other."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from holdfast.sim.__main__ import main
from holdfast.sim.run import Verdict, run_seed

SEED = 7
MOVING_SEED = 9


@cache
def lived(seed: int) -> Verdict:
    """Live through a seed once for all tests."""
    return run_seed(seed)


@pytest.mark.parametrize("seed", [SEED, MOVING_SEED])
def test_a_seed_gives_the_same_trace_every_time(seed: int):
    """Everything that happens is in the digest, down to the bytes on the wire."""
    first, second = lived(seed), run_seed(seed)

    assert first.digest == second.digest
    assert first.line() == second.line()


def test_another_seed_gives_another_trace():
    """Or the digest would prove nothing."""
    assert lived(SEED).digest != lived(MOVING_SEED).digest


@pytest.mark.parametrize("seed", [SEED, MOVING_SEED])
def test_the_trace_does_not_depend_on_how_this_process_hashes_text(seed: int):
    """A seed that failed on one machine must fail on another."""
    lines = [
        subprocess.run(
            [sys.executable, "-m", "holdfast.sim", str(seed)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]

    assert lines[0] == lines[1]
    assert lived(seed).digest[:12] in lines[0]


def test_nor_does_that_of_a_story_with_many_moves_and_members():
    """Two brokers that tell each other of changed groups once told their members in the order of a set."""
    story = "a source that has not heard of the opening neither sends readers back nor tries for ever"
    program = (
        "from tests.sim.test_scenarios import MOVES; from holdfast.sim.run import run_seed;"
        f" print(run_seed(13, plan=MOVES[{story!r}][1]).digest)"
    )

    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(digests) == 1


def test_a_shorter_run_is_the_beginning_of_the_longer_one():
    """`--steps` shows what led to a step, not something else."""
    whole: list[str] = []
    part: list[str] = []

    run_seed(SEED, steps_max=2000, show=whole.append)
    run_seed(SEED, steps_max=500, show=part.append)

    assert part
    assert whole[: len(part)] == part


def test_the_command_prints_one_line_for_a_seed_that_holds(capsys: pytest.CaptureFixture[str]):
    """Counts of what happened, in fixed columns."""
    assert main([str(SEED), "--steps", "200"]) == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"seed {SEED:>8}  ok  ")
    for word in ("messages", "consumed", "redelivered", "moves", "faults", "crashes", "restarts", "steps"):
        assert f" {word} " in line


def test_the_command_prints_every_step_on_request(capsys: pytest.CaptureFixture[str]):
    """Step, time, actor, what and detail, each in its column."""
    main([str(SEED), "--steps", "50", "--trace"])

    heading, *steps, _verdict = capsys.readouterr().out.splitlines()
    assert heading.split() == ["step", "time", "actor", "what", "detail"]
    actor_at = heading.index("actor")
    assert steps
    assert all(step[actor_at - 1] == " " and step[actor_at] != " " for step in steps)
