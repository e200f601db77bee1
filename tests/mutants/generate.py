"""Writes a list of small, seeded changes to the source: the bugs that the tests are expected to find.

    .venv/bin/python -m tests.mutants.generate [--seed N] [--count N]

It prints one mutant per line to standard output. `tests.mutants.run --find` adds the tests that notice each of them.
"""

import argparse
import ast
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"

# Code that only slow suites run: Spark, the demo, and the simulator, which is test code itself.
LEFT_OUT = ("spark", "demo", "sim", "__main__.py")

_OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Mutant:
    """One change: in `function` of `file`, the `nth` occurrence of the text `old` becomes `new`.

    Lines are not numbered, so a mutant stays valid while other code of its file changes.
    """

    file: str
    function: str
    old: str
    new: str
    nth: int
    killed_by: str | None = None  # the tests that fail with it; None until they are found

    def apply(self, text: str) -> str:
        """Return `text`, the content of the file, with the change.

        Raises:
            LookupError: The function or the text is gone.
        """
        start, end = self._span(text)
        for _ in range(self.nth + 1):
            found = text.find(self.old, start, end)
            if found < 0:
                raise LookupError(f"{self.file}: {self.function} no longer has {self.old!r}")
            start = found + len(self.old)
        return text[:found] + self.new + text[found + len(self.old) :]

    def _span(self, text: str) -> tuple[int, int]:
        for name, function in functions(ast.parse(text)):
            if name == self.function:
                return _range(text, function)
        raise LookupError(f"{self.file}: no function {self.function}")

    def line(self) -> str:
        """Return the mutant as a line of the list."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read_mutants(path: Path) -> list[Mutant]:
    """Return the mutants of a list."""
    return [Mutant(**json.loads(line)) for line in path.read_text().splitlines()]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function of a module that is not inside another one, with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant of one source file."""
    for name, function in functions(ast.parse(text)):
        begin, _ = _range(text, function)
        for node in ast.walk(function):
            change = _change(text, node)
            if change is None:
                continue
            (start, end), new = change
            old = text[start:end]
            yield Mutant(file, name, old, new, text.count(old, begin, start))


def _change(text: str, node: ast.AST) -> tuple[tuple[int, int], str] | None:
    """Return where and into what a node can be changed; None if it cannot."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            here = _range(text, node)
            return here, f"{_text(text, left)} {_OPPOSITE[type(operator)]} {_text(text, right)}"
        case ast.BoolOp(op=operator, values=[left, right]):
            word = "or" if isinstance(operator, ast.And) else "and"
            return _range(text, node), f"{_text(text, left)} {word} {_text(text, right)}"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right) if not _holds_text(node):
            sign = "-" if isinstance(node.op, ast.Add) else "+"
            return _range(text, node), f"{_text(text, left)} {sign} {_text(text, right)}"
        case ast.If(test=test) if not isinstance(test, ast.Compare | ast.BoolOp):
            return _range(text, test), f"not ({_text(text, test)})"
        case ast.Expr(value=ast.Call()):
            return _range(text, node), "pass"
        case ast.Return(value=ast.Constant(value=bool(value))):
            return _range(text, node), f"return {not value}"
    return None


def _holds_text(node: ast.BinOp) -> bool:
    return any(isinstance(part, ast.JoinedStr | ast.Constant) and not _is_number(part) for part in ast.walk(node))


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _text(text: str, node: ast.AST) -> str:
    start, end = _range(text, node)
    # Parentheses around an operand do not belong to its node.
    compound = isinstance(node, ast.BoolOp | ast.Compare | ast.IfExp | ast.BinOp)
    return f"({text[start:end]})" if compound else text[start:end]


def _range(text: str, node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = text.splitlines(keepends=True)

    def position(line: int, column: int) -> int:
        # The columns of a syntax tree count bytes.
        inside = lines[line - 1].encode()[:column].decode()
        return sum(map(len, lines[: line - 1])) + len(inside)

    return position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset)


def choose(seed: int, count: int) -> list[Mutant]:
    """Return `count` mutants of the source tree: the same ones for the same seed and the same source."""
    found: list[Mutant] = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in LEFT_OUT:
            found += mutants_of(str(path.relative_to(ROOT)), path.read_text())
    return sorted(random.Random(seed).sample(found, count), key=lambda it: (it.file, it.function))


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    for mutant in choose(options.seed, options.count):
        sys.stdout.write(mutant.line() + "\n")


if __name__ == "__main__":
    main()
