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
