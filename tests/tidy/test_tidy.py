"""Rules of the tree: which package may import which, where I/O and clocks may be used, and that every test checks."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "holdfast"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
PLACES = (
    "src/**/*",
    "native/src/*",
    "native/*",
    "tests/**/*",
    "docs/**/*",
    "benchmarks/**/*",
    "*.md",
    "Makefile",
    ".ci/*",
)
ENDINGS = {".py", ".md", ".toml", ".txt", ".java", ".js", ".sh", ".c", ".rs", ""}
TEXTS = sorted(
    path
    for place in PLACES
    for path in ROOT.glob(place)
    if path.suffix in ENDINGS and path.is_file() and not {"__pycache__", "data"} & {*path.relative_to(ROOT).parts}
)

# Which packages a package may import. Downward only; siblings (nameserver, broker, client) never import each other.
BELOW: dict[str, set[str]] = {
    "model": set(),
    "native": set(),
    "wire": {"model", "native"},
    "store": {"wire", "model", "native"},
    "machine": {"wire", "model", "store"},
    "access": {"store", "machine", "wire", "model"},
    "nameserver": {"access", "store", "machine", "wire", "model"},
    "broker": {"access", "store", "machine", "wire", "model", "native"},
    "client": {"machine", "wire", "model"},
    "columns": {"wire", "model", "native"},
    "bulk": {"client", "columns", "wire", "model"},
    "arrow": {"bulk", "client", "columns", "model", "runtime"},
    "console": {"admin", "client", "machine", "model", "runtime", "wire"},
    "runtime": {"access", "machine", "store", "wire", "model"},
    "sim": {"access", "nameserver", "broker", "client", "store", "machine", "wire", "model"},
}
# Packages that put everything together: they may import anything but the simulator.
TOP = {"admin", "cli", "config", "demo", "pipeline", "spark", "blocking", "__init__", "__main__"}
# The only modules of the store that events, effects and kept files may name.
ONLY_OF_STORE_IN_MACHINE = {"holdfast.store.base.disk", "holdfast.store.base.file_versions"}

# The order of modules and sub-packages within a package: each imports only what is listed before it, or itself.
# Modules that are not listed come last.
ORDER: dict[str, tuple[str, ...]] = {
    "broker": (
        *("options", "flow", "tables", "mapping", "naming", "messages", "consume", "relay", "deferred", "produce"),
        *("move", "failover", "replication", "admin"),
    ),
    "cli": (
        *("help_style", "broker_keys", "progress", "profiles", "shared_options", "credentials", "completion"),
        *("arguments", "certificates", "secret_files", "local_access", "local_console", "session"),
        *("queue_position_text", "message_text", "move_output", "commands"),
    ),
    "console": (
        *("options", "problems", "endpoints", "poller", "plans", "context", "read_cluster", "read_topics"),
        *("read_groups", "read_messages", "move_changes", "openapi", "docs_page", "events", "gate", "static_files"),
        *("app", "service"),
    ),
    "client": ("messages", "access", "options", "routes", "cluster", "produce", "consume"),
    "nameserver": ("options", "notices", "route_changes", "config", "routes", "cluster", "push"),
    "pipeline": ("scan", "reports", "stats", "audit", "archive", "convert"),
    "sim": ("world", "checkers", "actors"),
    "store": ("base", "queues", "log", "keys", "recovery", "conversion"),
    "wire": ("frames", "records", "cluster", "access", "requests"),
}

WORLD = {"asyncio", "time", "socket", "os", "threading", "logging", "subprocess", "select", "ssl", "concurrent"}
PURE = {"model", "wire", "access", "columns", "machine", "store", "nameserver", "broker", "sim"}
# The shell of a role is a module of the role's package.
SHELLS = {"nameserver/service.py", "broker/service.py"}

# The calls that count as a check in a test, by the last part of their name: `pytest.raises`, `check`, `check_anything`,
# and in a browser `expect(locator).to_have_text("...")`.
CHECKING_CALL = re.compile(r"raises|check(_\w+)?|to_(be|have|contain)_\w+")

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
MODULES_OF_A_FOLDER_MAX = 22

# Modules whose behaviour is stated elsewhere, and where.
TESTED_ELSEWHERE = {
    "nameserver/service.py": "tests/integration/test_nameserver.py",
    "nameserver/options.py": "tests/unit/test_config.py",
    "machine/role_options.py": "tests/unit/test_config.py",
    "machine/events.py": "tests/unit/nameserver/test_core.py",
    "machine/effects.py": "tests/unit/nameserver/test_core.py",
    "machine/machine.py": "tests/unit/nameserver/test_core.py",
    "machine/request.py": "tests/unit/nameserver/test_core.py",
    "machine/pressure.py": "tests/unit/runtime/test_budget.py",
    "machine/readings.py": "tests/unit/nameserver/push/test_push_pacing.py",
    "machine/reads.py": "tests/unit/broker/test_dispatch.py",
    "machine/sample.py": "tests/unit/nameserver/test_metrics.py",
    "broker/options.py": "tests/unit/test_config.py",
    "broker/relay/held_leases.py": "tests/unit/broker/failover/test_queue_leases.py",
    "broker/tables/remote_members.py": "tests/unit/broker/relay/test_group_gossip.py",
    "broker/relay/suspects.py": "tests/unit/broker/failover/test_forced_open.py",
    "broker/relay/guests.py": "tests/unit/broker/relay/test_relay_server.py",
    "broker/service.py": "tests/integration/test_serve.py",
    "broker/assembly.py": "tests/conformance/test_broker_replay.py",
    "broker/flow/request.py": "tests/conformance/test_broker_replay.py",
    "broker/produce/slow_send.py": "tests/unit/broker/produce/test_fast_send.py",
    "broker/messages/writer.py": "tests/unit/broker/produce/test_fast_send.py",
    "broker/flow/awaitables.py": "tests/unit/broker/flow/test_scheduler.py",
    "broker/completion.py": "tests/unit/broker/flow/test_reply_gate.py",
    "admin/operations.py": "tests/integration/test_cli.py",
    "model/property_names.py": "tests/unit/model/test_message.py",
    "runtime/exposition.py": "tests/unit/runtime/test_metrics.py",
    "__main__.py": "tests/integration/test_cli.py",
}
# Packages that are tested as a whole, and where. Their modules may have tests of their own, too.
TESTED_AS_A_WHOLE = {
    "bulk": "tests/unit/bulk",
    "cli": "tests/integration/test_cli.py",
    "columns": "tests/unit/columns",
    "console": "tests/integration/console",
    "demo": "tests/integration/test_demo.py",
    "pipeline": "tests/unit/pipeline",
    "sim": "tests/sim",
    "spark": "tests/spark",
}


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def package_of(path: Path) -> str:
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


def our_packages(path: Path) -> set[str]:
    """Return the other packages that a module imports."""
    packages = {name.split(".")[1] for name in imports_of(path) if name.startswith("holdfast.")}
    return packages - {package_of(path)}


def is_shell(path: Path) -> bool:
    """Return whether a module of a role owns sockets and clocks. In the client that is whoever speaks asyncio."""
    return relative(path) in SHELLS or (package_of(path) == "client" and "asyncio" in set(imports_of(path)))


def test_there_is_something_to_look_at():
    """Tests over no files would pass."""
    assert len(MODULES) > 100
    assert len(TESTS) > 300
    assert {package_of(path) for path in MODULES} <= BELOW.keys() | TOP


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_what_is_below_it(package: str):
    """Shells may also import the runtime; nobody else does."""
    for path in MODULES:
        if package_of(path) == package:
            allowed = BELOW[package] | ({"runtime"} if is_shell(path) else set())
            assert our_packages(path) <= allowed, f"{relative(path)} imports {sorted(our_packages(path) - allowed)}"


@pytest.mark.parametrize("package", ORDER)
def test_a_package_keeps_the_order_of_its_parts(package: str):
    """The folder tree shows the architecture: what a part needs is listed before it."""
    order = ORDER[package]
    rank = {part: number for number, part in enumerate(order)}
    assert all((SOURCE / package / part).is_dir() or (SOURCE / package / f"{part}.py").is_file() for part in order)

    for path in MODULES:
        if package_of(path) == package:
            part = path.relative_to(SOURCE / package).parts[0].removesuffix(".py")
            imported = {name.split(".")[2] for name in imports_of(path) if name.startswith(f"holdfast.{package}.")}
            above = {name for name in imported if rank.get(name, len(order)) > rank.get(part, len(order))}
            assert not above, f"{relative(path)} imports {sorted(above)}"


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES} - {SOURCE}), ids=relative)
def test_a_folder_is_small_and_its_init_lists_its_modules(folder: Path):
    """The docstring of `__init__.py` is the map of its folder: a line for each module and sub-package."""
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    map_ = ast.get_docstring(tree_of(folder / "__init__.py"), clean=False) or ""

    assert len(modules) <= MODULES_OF_A_FOLDER_MAX
    assert sorted(re.findall(r"^ {0,4}(\w+/?)  +\S", map_, re.MULTILINE)) == sorted(modules | packages)


def test_nobody_but_the_simulator_imports_the_simulator():
    """It is a test of the roles, not a part of them."""
    for path in MODULES:
        assert "sim" not in our_packages(path), relative(path)


def test_the_words_between_know_one_thing_of_the_store():
    """An effect names a file; it does not know a log."""
    for path in MODULES:
        if package_of(path) == "machine":
            names = {name for name in imports_of(path) if name.startswith("holdfast.store")}
            assert names <= ONLY_OF_STORE_IN_MACHINE, relative(path)


def test_the_simulator_runs_pure_code_only():
    """A shell in a simulation would bring the real clock along."""
    shells = {f"holdfast.{relative(path).removesuffix('.py').replace('/', '.')}" for path in MODULES if is_shell(path)}

    for path in MODULES:
        if package_of(path) == "sim":
            assert not shells & set(imports_of(path)), relative(path)


@pytest.mark.parametrize("path", [path for path in MODULES if package_of(path) in PURE | {"client"}], ids=relative)
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
    """`src/holdfast/package/thing.py` is tested by `tests/unit/package/test_thing.py`, or the exception says where."""
    alone = [path for path in MODULES if path.name != "__init__.py" and package_of(path) not in TESTED_AS_A_WHOLE]

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


def contains_check(function: ast.AST) -> bool:
    """Return whether a test asserts something, or calls a function whose name says that it does."""
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and CHECKING_CALL.fullmatch(ast.unparse(node.func).rpartition(".")[2]))
        for node in ast.walk(function)
    )


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(ROOT / "tests").as_posix())
def test_every_test_checks_something(path: Path):
    """A test without a check passes as long as nothing raises, whatever its name promises."""
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    hollow = [
        f"line {function.lineno}: {function.name}"
        for function in functions
        if function.name.startswith("test_") and not contains_check(function)
    ]

    assert hollow == [], (
        "assert the outcome that the name states; if a helper asserts it, let the name of the helper start with check_"
    )


@pytest.mark.parametrize(
    "text",
    ["assert x", "with pytest.raises(E): f()", "expect(x).to_have_text(y)", "ledger.check_kept()", "await check(x)"],
)
def test_a_check_is_recognised(text: str):
    """Inside the test, or in a helper that is named for it."""
    assert contains_check(ast.parse(text))


@pytest.mark.parametrize("text", ["await until(f)", "expect(x)", "wait_for_checkpoint()", "checked(x)", "x.check_kept"])
def test_what_only_looks_like_a_check_is_not_one(text: str):
    """To wait for something is not to check it; nor is a name that merely contains the word."""
    assert not contains_check(ast.parse(text))


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


def defined_names(module: str) -> set[str] | None:
    """Return what `from module import` can import, or None if there is no such module."""
    base = SOURCE.parent / module.replace(".", "/")
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if not file.is_file():
        return None
    names = {path.stem for path in base.glob("*")} if base.is_dir() else set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_every_import_of_ours_can_be_resolved_also_in_scripts_and_examples():
    """Scripts in strings and examples in pages are code that no type checker reads."""
    statement = re.compile(r"^ *from (holdfast[\w.]*) import (\([^)]*\)|[\w ,]+)", re.MULTILINE)
    found = []
    for path in TEXTS:
        for match in statement.finditer(path.read_text(encoding="utf-8", errors="replace")):
            known = defined_names(match[1])
            wanted = re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", match[2]))
            missing = wanted if known is None else sorted(set(wanted) - known)
            found += [f"{path.relative_to(ROOT)}: {match[1]}.{name}" for name in missing]

    assert found == []
