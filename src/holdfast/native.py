"""The choice between functions in Python and compiled ones, made once, when this module is imported.

    @accelerated
    def scan_keys(...): ...        the reference: it runs unless the extension has a function of this name

The extension `holdfast._native` (the folder `native/` of the repository) is optional. Its functions are pure: bytes in,
bytes out. Python owns all state, decisions and I/O, and the layout of every argument is the same for both, so no caller
knows which one runs. HOLDFAST_NATIVE=0 forces Python.

Only two folders can hold the extension: the one of this package, and `holdfast` among the installed packages (the wheel
`holdfast-native` beside an editable install). No package of another name, and no file of the working folder, can take
its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

SWITCH: Final = "HOLDFAST_NATIVE"
INTERFACE: Final = 1
"""Rises whenever a function changes its meaning or its arguments. `native/src/lib.rs` has the same number."""


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension, or None; and in words which functions run."""
    if os.environ.get(SWITCH) == "0":
        return None, f"python ({SWITCH}=0)"
    spec = _find(Path(__file__).parent) or _find(_installed_packages() / "holdfast")
    if spec is None or spec.loader is None:
        return None, "python (holdfast-native is not installed)"
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        return None, f"python (holdfast-native cannot be loaded: {error})"
    if getattr(module, "INTERFACE", None) != INTERFACE:
        return None, "python (holdfast-native is of another version: run `make install`)"
    return module, f"native {module.VERSION}"


def _find(folder: Path) -> ModuleSpec | None:
    return PathFinder.find_spec("holdfast._native", [str(folder)])


def _installed_packages() -> Path:
    import sysconfig  # noqa: PLC0415 - slow to import, and rarely needed

    return Path(sysconfig.get_path("platlib"))


_loaded: Final = _load()
EXTENSION: Final = _loaded[0]
DESCRIPTION: Final = _loaded[1]
"""Which functions run, in words: `native` and its version, or `python` and the reason."""

REFERENCES: Final[dict[str, Callable[..., object]]] = {}
"""The Python functions of the imported modules, by name: for tests and measurements that compare both."""


def accelerated(reference: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the compiled function with the name of *reference* if the extension has one, else *reference*."""
    REFERENCES[reference.__name__] = reference
    chosen: Callable[_P, _R] = getattr(EXTENSION, reference.__name__, reference)
    return chosen
