"""Which kind of an accelerated function is chosen, and that building the compiled one never fails an installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import native
from holdfast.store.keys.key_links import link_keys

ROOT = Path(__file__).parents[2]


def describe(*, folder: Path | None = None, **variables: str) -> str:
    """Return which functions a new process says to run, and which one it runs."""
    program = "from holdfast import native; from holdfast.store.keys.key_links import link_keys; "
    program += "print(native.DESCRIPTION, type(link_keys).__name__)"
    environment = {key: value for key, value in os.environ.items() if key != native.SWITCH} | variables
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout.strip()


def test_the_switch_forces_python():
    """Whether the extension is there or not."""
    assert describe(HOLDFAST_NATIVE="0") == "python (HOLDFAST_NATIVE=0) function"


@pytest.mark.skipif(native.EXTENSION is None, reason=f"holdfast runs in {native.DESCRIPTION}")
def test_the_extension_is_chosen_where_it_is_built():
    """No package or file of another place with its name is."""
    assert re.fullmatch(r"native [\d.]+ builtin_function_or_method", describe())


@pytest.mark.parametrize("name", ["_native.py", "holdfast_native.py", "holdfast/_native.py"])
def test_a_stranger_cannot_take_the_place_of_the_extension(name: str, tmp_path: Path):
    """Neither from the working folder nor from a folder on the path."""
    stranger = tmp_path / name
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text(f"INTERFACE = {native.INTERFACE}; VERSION = 'evil'\ndef link_keys(): ...\n")

    assert describe(folder=tmp_path, PYTHONPATH=str(tmp_path)) == describe()


@pytest.mark.skipif(native.EXTENSION is None, reason=f"holdfast runs in {native.DESCRIPTION}")
def test_an_extension_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch):
    """It was built from other sources: a function may mean something else."""
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)

    assert native._load() == (None, "python (holdfast-native is of another version: run `make install`)")


def test_an_extension_that_cannot_be_loaded_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Made for another system, or damaged: Python runs."""
    (tmp_path / "_native.abi3.so").write_bytes(b"not a library")
    monkeypatch.delenv(native.SWITCH, raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))

    extension, description = native._load()

    assert extension is None
    assert description.startswith("python (holdfast-native cannot be loaded: ")


@pytest.mark.skipif(native.EXTENSION is None, reason=f"holdfast runs in {native.DESCRIPTION}")
def test_the_wheel_is_found_beside_an_editable_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """It lies among the installed packages, not in the source folder."""
    assert native.EXTENSION is not None
    assert native.EXTENSION.__file__ is not None
    (tmp_path / "holdfast").mkdir()
    shutil.copy(native.EXTENSION.__file__, tmp_path / "holdfast" / "_native.abi3.so")
    monkeypatch.delenv(native.SWITCH, raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "elsewhere" / "native.py"))
    monkeypatch.setattr(native, "_installed_packages", lambda: tmp_path)

    assert native._load()[1] == native.DESCRIPTION


def test_every_reference_has_a_name_of_its_own():
    """The compiled function of a name belongs to exactly one Python function."""
    reference = native.REFERENCES["link_keys"]

    assert reference.__module__ == "holdfast.store.keys.key_links"
    assert (link_keys is reference) == (native.EXTENSION is None)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with what the installation of the extension reads, in which an older one is built."""
    for name in ("native/src", "src/holdfast", ".venv", "bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "native" / "install.sh", tmp_path / "native")
    for name in ("sh", "dirname", "rm", "touch", "cp", "mv", "cat", "mkdir"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / "bin" / name).symlink_to(program)
    (tmp_path / "src" / "holdfast" / "_native.abi3.so").write_text("old")
    return tmp_path


def install(clone: Path, cargo: str | None) -> tuple[str, str | None]:
    """Install with a cargo that does *cargo*, or without one. Return what is printed, and the extension."""
    if cargo is not None:
        (clone / "bin" / "cargo").write_text(f"#!{clone}/bin/sh\n{cargo}\n")
        (clone / "bin" / "cargo").chmod(0o755)
    done = subprocess.run(
        [clone / "native" / "install.sh"], env={"PATH": str(clone / "bin")}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    extension = clone / "src" / "holdfast" / "_native.abi3.so"
    return done.stdout, extension.read_text() if extension.exists() else None


def test_without_cargo_the_installation_says_so_in_one_line(clone: Path):
    """And tries again the next time; an extension of older sources does not stay."""
    text, extension = install(clone, None)

    assert text == "holdfast-native is not built (there is no cargo): Holdfast runs in Python alone\n"
    assert extension is None
    assert not (clone / ".venv" / ".native").exists()


@pytest.mark.parametrize("cargo", ["echo rustc 1.60 is not supported >&2; exit 101", "exit 0", "kill -9 $$"])
def test_a_cargo_that_fails_is_one_line(clone: Path, cargo: str):
    """Too old, without a network, or killed: nothing of it is an error; and it is not tried until something changes."""
    text, extension = install(clone, cargo)

    assert re.fullmatch(r"holdfast-native is not built \(.+\): Holdfast runs in Python alone\n", text)
    assert extension is None
    assert (clone / ".venv" / ".native").exists()


def test_a_cargo_that_works_is_silent(clone: Path):
    """The library takes the place of the older one."""
    made = "mkdir -p native/target/release; echo new > native/target/release/libholdfast_native.so"

    assert install(clone, made) == ("", "new\n")
