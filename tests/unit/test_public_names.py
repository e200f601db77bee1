"""What `import holdfast` offers."""

import subprocess
import sys

import pytest

import holdfast


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_there(name: str):
    """Where the package says that it is."""
    assert getattr(holdfast, name).__name__.rpartition(".")[2] == name or name in {"Start", "Listener"}
    assert name in dir(holdfast)


def test_an_unknown_name_is_an_attribute_error():
    """As in any module."""
    with pytest.raises(AttributeError, match="Consumer"):
        _ = holdfast.Consumer  # type: ignore[attr-defined]


def test_importing_the_package_loads_no_client():
    """Servers are started from it, too."""
    script = "import sys, holdfast; print([name for name in sys.modules if name.startswith('holdfast.')])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
