"""Rules of how a role is put together: a component is complete when it has been built."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "holdfast"
ROLES = ("nameserver", "broker")
ASSEMBLIES = ("nameserver/core.py", "broker/assembly.py", "broker/core.py")


@cache
def trees_of(role: str) -> dict[str, ast.Module]:
    """Return the modules of a role by their path in its package."""
    paths = sorted((SOURCE / role).rglob("*.py"))
    return {path.relative_to(SOURCE / role).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def assigned_attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))


def attributes_set_from_outside(tree: ast.AST) -> list[str]:
    """Return the assignments to attributes of other objects than `self`. Counters and the turn hold values only."""
    values = {"self", "self.counters", "turn"}
    return [ast.unparse(node) for node in assigned_attributes(tree) if ast.unparse(node.value) not in values]


def constructors(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]


def aliases_of(trees: Iterable[ast.AST]) -> set[str]:
    """Return the names of types that are callbacks: `Callable`, and every name given to such a type."""
    names = {"Callable"}
    for tree in trees:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable["):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def is_callback(annotation: ast.AST | None, aliases: set[str]) -> bool:
    """Return whether a type is a callback, or one of two types of which one is."""
    if isinstance(annotation, ast.BinOp):
        return is_callback(annotation.left, aliases) or is_callback(annotation.right, aliases)
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return isinstance(annotation, ast.Name) and annotation.id in aliases


def callbacks_of(tree: ast.AST, aliases: set[str]) -> set[str]:
    """Return the attributes that a constructor in *tree* sets to a callback."""
    found = set()
    for constructor in constructors(tree):
        parameters = [*constructor.args.args, *constructor.args.kwonlyargs]
        given = {each.arg for each in parameters if is_callback(each.annotation, aliases)}
        for node in ast.walk(constructor):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in given:
                found |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                found |= {node.target.attr} if is_callback(node.annotation, aliases) else set()
    return found


def callbacks_bound_late(trees: list[ast.Module]) -> list[str]:
    """Return the assignments to callbacks that are not in a constructor, or there to another object than `self`."""
    aliases = aliases_of(trees)
    names = {name for tree in trees for name in callbacks_of(tree, aliases)}
    late = []
    for tree in trees:
        early = {
            id(node)
            for constructor in constructors(tree)
            for node in ast.walk(constructor)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
        }
        late += [
            ast.unparse(node) for node in assigned_attributes(tree) if node.attr in names and id(node) not in early
        ]
    return late


@pytest.mark.parametrize("name", ASSEMBLIES)
def test_nothing_is_set_on_a_component_after_it_was_built(name: str):
    """So every component can be built and tested alone."""
    role, _, file = name.partition("/")

    assert attributes_set_from_outside(trees_of(role)[file]) == []


def test_a_callback_is_bound_in_the_constructor_of_its_owner():
    """A cycle is broken by splitting the state from the behaviour, not by a setter. The store is no exception."""
    trees = [tree for package in (*ROLES, "store", "machine") for tree in trees_of(package).values()]
    aliases = aliases_of(trees)

    assert {"Callable", "IsTopicKnown", "Handler"} <= aliases
    assert {name for tree in trees for name in callbacks_of(tree, aliases)}, "there are callbacks to look at"
    assert callbacks_bound_late(trees) == []


LATE = """
Erase = Callable[[int], None]

class Watcher:
    def __init__(self, digest: Callable[[str], int]) -> None:
        self._digest = digest
        self.on_left: Callable[[], None] = lambda: None
        self.erase: Erase | None = None

    def set_digest(self, digest: Callable[[str], int]) -> None:
        self._digest = digest

class Role:
    def __init__(self) -> None:
        watcher = Watcher(len)
        self.watcher = watcher
        watcher.name = "a"
        watcher.erase = self.leave

    def start(self) -> None:
        self.watcher.on_left = self.leave
"""


def test_what_is_bound_late_is_found():
    """By a setter, or from outside."""
    tree = ast.parse(LATE)

    assert attributes_set_from_outside(tree) == ["watcher.name", "watcher.erase", "self.watcher.on_left"]
    assert callbacks_bound_late([tree]) == ["self._digest", "watcher.erase", "self.watcher.on_left"]
