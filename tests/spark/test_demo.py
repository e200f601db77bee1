"""`make demo`, as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_proof_of_the_demo_holds(tmp_path: Path):
    """Three minutes at most where nothing else runs; here somebody may."""
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.demo"], cwd=tmp_path, capture_output=True, text=True, timeout=480, check=False
    )

    log = tmp_path / "holdfast-demo" / "log.txt"
    assert ended.returncode == 0, ended.stdout + ended.stderr + log.read_text()[-5000:]
    proof = json.loads((tmp_path / "holdfast-demo" / "proof.json").read_text())
    assert proof["clicks"]["acknowledged"] > 1000
    assert (proof["copied"], proof["left"], proof["restarts"]) == (0, 0, 0)
    assert "kill -9 broker-d" in (tmp_path / "holdfast-demo" / "timeline.svg").read_text()
