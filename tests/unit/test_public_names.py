"""What `import holdfast` offers."""

import subprocess
import sys
from importlib import metadata

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


def test_the_version_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch):
    """Or unknown, where the package is used without having been installed."""
    assert holdfast.__version__ == metadata.version("holdfast")
    assert "__version__" in dir(holdfast)

    def find_nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delitem(vars(holdfast), "__version__")
    monkeypatch.setattr(metadata, "version", find_nothing)
    assert holdfast.__version__ == "unknown"
    monkeypatch.delitem(vars(holdfast), "__version__")


def test_importing_the_package_loads_no_client():
    """Servers are started from it, too."""
    script = "import sys, holdfast; print([name for name in sys.modules if name.startswith('holdfast.')])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
