"""What the source tree promises of itself: who may import whom, where the world comes in, how long is too long."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "holdfast"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)
PLACES = ("src/**/*", "tests/**/*", "docs/**/*", "benchmarks/**/*", "*.md", "Makefile", ".ci/*")
ENDINGS = {".py", ".md", ".toml", ".txt", ".java", ".js", ".sh", ".c", ""}
TEXTS = sorted(
    path
    for place in PLACES
    for path in ROOT.glob(place)
    if path.suffix in ENDINGS and path.is_file() and not {"__pycache__", "data"} & {*path.relative_to(ROOT).parts}
)

# Which rooms a room may import. Downward only; siblings (nameserver, broker, client) never see each other.
BELOW: dict[str, set[str]] = {
    "model": set(),
    "wire": {"model"},
    "store": {"wire", "model"},
    "machine": {"wire", "model", "store"},
    "nameserver": {"store", "machine", "wire", "model"},
    "broker": {"store", "machine", "wire", "model"},
    "client": {"machine", "wire", "model"},
    "columns": {"wire", "model"},
    "bulk": {"client", "columns", "wire", "model"},
    "arrow": {"bulk", "client", "columns", "model", "runtime"},
    "runtime": {"machine", "store", "wire", "model"},
    "sim": {"nameserver", "broker", "client", "store", "machine", "wire", "model"},
}
# Rooms that put everything together: they may import whatever is not a simulator.
TOP = {"admin", "cli", "config", "demo", "pipeline", "spark", "blocking", "__init__", "__main__"}
# The one thing of the store that the words between roles and shells know.
ONLY_OF_STORE_IN_MACHINE = "holdfast.store.base.disk"

WORLD = {"asyncio", "time", "socket", "os", "threading", "logging", "subprocess", "select", "ssl", "concurrent"}
PURE_ROOMS = {"model", "wire", "columns", "machine", "store", "nameserver", "broker", "sim"}
# The shell of a role stands in the role's room.
SHELLS = {"nameserver/service.py", "broker/service.py"}

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

# Modules whose behaviour is stated elsewhere, and where.
TESTED_ELSEWHERE = {
    "nameserver/service.py": "tests/integration/test_nameserver.py",
    "nameserver/request.py": "tests/unit/nameserver/test_core.py",
    "nameserver/options.py": "tests/unit/test_config.py",
    "machine/events.py": "tests/unit/nameserver/test_core.py",
    "machine/effects.py": "tests/unit/nameserver/test_core.py",
    "machine/machine.py": "tests/unit/nameserver/test_core.py",
    "machine/pressure.py": "tests/unit/runtime/test_budget.py",
    "machine/readings.py": "tests/unit/nameserver/push/test_push_pacing.py",
    "machine/reads.py": "tests/unit/broker/test_dispatch.py",
    "machine/sample.py": "tests/unit/nameserver/test_metrics.py",
    "broker/options.py": "tests/unit/test_config.py",
    "broker/service.py": "tests/integration/test_serve.py",
    "broker/assembly.py": "tests/conformance/test_broker_replay.py",
    "broker/flow/request.py": "tests/conformance/test_broker_replay.py",
    "broker/produce/slow_send.py": "tests/unit/broker/produce/test_fast_send.py",
    "broker/messages/writer.py": "tests/unit/broker/produce/test_fast_send.py",
    "broker/flow/awaitables.py": "tests/unit/broker/flow/test_scheduler.py",
    "broker/completion.py": "tests/unit/broker/flow/test_held_replies.py",
    "admin/operations.py": "tests/integration/test_cli.py",
    "model/property_names.py": "tests/unit/model/test_message.py",
    "runtime/exposition.py": "tests/unit/runtime/test_metrics.py",
    "__main__.py": "tests/integration/test_cli.py",
}
# Rooms that are one thing seen from outside, and where they are looked at as a whole. Twins are welcome there too.
TESTED_AS_A_WHOLE = {
    "bulk": "tests/unit/bulk",
    "cli": "tests/integration/test_cli.py",
    "columns": "tests/unit/columns",
    "demo": "tests/integration/test_demo.py",
    "pipeline": "tests/unit/pipeline",
    "sim": "tests/sim",
    "spark": "tests/spark",
}


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    """Return the folder of a module, or its own name when it lies at the top."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(path: Path) -> Iterator[str]:
    """Yield the full name of every module that is imported, at any depth of the code."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: imports are absolute"
            assert node.module is not None
            yield node.module


def our_rooms(path: Path) -> set[str]:
    """Return the other rooms that a module imports."""
    rooms = {name.split(".")[1] for name in imports_of(path) if name.startswith("holdfast.")}
    return rooms - {room_of(path)}


def is_shell(path: Path) -> bool:
    """Return whether a module of a role owns sockets and clocks. In the client that is whoever speaks asyncio."""
    return relative(path) in SHELLS or (room_of(path) == "client" and "asyncio" in set(imports_of(path)))


def test_there_is_something_to_look_at():
    """Tests over no files would pass."""
    assert len(MODULES) > 100
    assert {room_of(path) for path in MODULES} <= BELOW.keys() | TOP


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_what_lies_below_it(room: str):
    """Shells may also import the runtime; nobody else does."""
    for path in MODULES:
        if room_of(path) == room:
            allowed = BELOW[room] | ({"runtime"} if is_shell(path) else set())
            assert our_rooms(path) <= allowed, f"{relative(path)} imports {sorted(our_rooms(path) - allowed)}"


def test_nobody_but_the_simulator_imports_the_simulator():
    """It is a test of the roles, not a part of them."""
    for path in MODULES:
        assert "sim" not in our_rooms(path), relative(path)


def test_the_words_between_know_one_thing_of_the_store():
    """An effect names a file; it does not know a log."""
    for path in MODULES:
        if room_of(path) == "machine":
            names = {name for name in imports_of(path) if name.startswith("holdfast.store")}
            assert names <= {ONLY_OF_STORE_IN_MACHINE}, relative(path)


def test_the_simulator_runs_pure_code_only():
    """A shell in a simulation would bring the real clock along."""
    shells = {f"holdfast.{relative(path).removesuffix('.py').replace('/', '.')}" for path in MODULES if is_shell(path)}

    for path in MODULES:
        if room_of(path) == "sim":
            assert not shells & set(imports_of(path)), relative(path)


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) in PURE_ROOMS | {"client"}], ids=relative)
def test_the_world_comes_in_through_shells_only(path: Path):
    """Time comes in events, chance as a parameter, files through a `Disk`."""
    if is_shell(path) or relative(path) == "sim/__main__.py":
        return

    assert not {name.split(".")[0] for name in imports_of(path)} & WORLD
    assert list(uses_of_chance(tree_of(path), is_parameter=False)) == [], "chance is a parameter"


def uses_of_chance(node: ast.AST, *, is_parameter: bool) -> Iterator[str]:
    """Yield what is taken from the module `random` besides the class `Random`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        is_parameter = is_parameter or any(argument.arg == "random" for argument in arguments)
    if isinstance(node, ast.ImportFrom) and node.module == "random":
        yield from (alias.name for alias in node.names if alias.name != "Random")
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        is_chance = node.value.id == "random" and node.attr != "Random"
        if is_chance and not is_parameter:
            yield f"random.{node.attr} in line {node.lineno}"
    for child in ast.iter_child_nodes(node):
        yield from uses_of_chance(child, is_parameter=is_parameter)


def twin_of(path: Path) -> str:
    return f"tests/unit/{path.relative_to(SOURCE).parent.as_posix()}/test_{path.name}".replace("/./", "/")


def test_every_module_has_a_twin():
    """`src/holdfast/room/thing.py` is tested by `tests/unit/room/test_thing.py`, or the exception says where."""
    alone = [path for path in MODULES if path.name != "__init__.py" and room_of(path) not in TESTED_AS_A_WHOLE]

    missing = [
        twin for path in alone if not (ROOT / (twin := TESTED_ELSEWHERE.get(relative(path), twin_of(path)))).is_file()
    ]

    assert missing == []
    assert all((ROOT / place).exists() for place in TESTED_AS_A_WHOLE.values())


def test_exceptions_from_twins_are_needed():
    """A module that has its twin, or is gone, leaves the list."""
    modules = {relative(path): path for path in MODULES}

    assert [name for name in TESTED_ELSEWHERE if name not in modules or (ROOT / twin_of(modules[name])).is_file()] == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_functions_fit_a_screen_and_files_a_sitting(path: Path):
    """Longer ones hide more than one thought."""
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= FILE_LINES_MAX, f"{lines} lines"

    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_every_module_says_what_it_is(path: Path):
    """The first thing a reader sees."""
    if path.read_text(encoding="utf-8").strip():
        assert ast.get_docstring(tree_of(path))


def test_nothing_is_left_for_later_and_nothing_points_outside():
    """No marks of unfinished work, no paths of the machine on which it was written."""
    marks = ("TO" + "DO", "FIX" + "ME", "X" * 3 + ":", "../" + "shared", "/" + "work/")

    found = [
        f"{path.relative_to(ROOT)}:{number}: {mark}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        for mark in marks
        if mark in line
    ]

    assert found == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_error_is_swallowed(path: Path):
    """An `except` that catches everything and does nothing hides the next bug."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler):
            catches_all = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
            )
            does_nothing = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not (catches_all and does_nothing), f"line {node.lineno}"
