"""The public API type-checks where users use it."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_uses_of_the_public_api_type_check():
    """Strictly."""
    command = [sys.executable, "-m", "mypy", "--strict", str(HERE / "api.py")]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])

    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_uses_do_not(tmp_path: Path):
    """The types say something: each of these lines is an error."""
    lines = [
        'holdfast.Message("t", "text, not bytes")',
        'holdfast.PushConsumer("a:1", "g", start="newest")',
        'holdfast.PushConsumer("a:1", "g", listener=lambda: None)',
        'blocking.Producer("a:1", retires=3)',
        'holdfast.Producer("a:1").send("t", b"", timeout="soon")',
    ]
    file = tmp_path / "wrong.py"
    file.write_text("import holdfast\nfrom holdfast import blocking\n" + "\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])

    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == {3, 4, 5, 6, 7}, done.stdout


FORGOTTEN = """
from holdfast.broker.flow.awaitables import PeerCall, Synced
from holdfast.wire.frames.command import Command


async def is_there(address: str) -> bool:
    return (await PeerCall(address, Command(code=1))).code == 0


async def procedure() -> str:
    Synced(1)
    is_there("a:1")
    if is_there("a:1"):
        return "yes"
    return "no" if not is_there("a:1") or PeerCall("a:1", Command(code=1)) else "both"
"""


def test_a_forgotten_await_in_a_procedure_is_an_error(tmp_path: Path):
    """As a statement it would do nothing, and as a condition it would be true."""
    config = (HERE.parents[1] / "pyproject.toml").read_text()
    assert 'module = ["holdfast.broker.*", "holdfast.store.*"]' in config
    (tmp_path / "mypy.toml").write_text(config.replace('"holdfast.broker.*"', '"holdfast.broker.*", "forgotten"'))
    (tmp_path / "forgotten.py").write_text(FORGOTTEN)
    command = [sys.executable, "-m", "mypy", "--config-file", str(tmp_path / "mypy.toml"), "--no-error-summary"]

    done = subprocess.run(
        [*command, str(tmp_path / "forgotten.py")], capture_output=True, text=True, check=False, cwd=HERE.parents[1]
    )

    refused = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert refused == {11, 12, 13, 15}, done.stdout
