"""What the README and the docstrings show works when it is typed: against a cluster that `holdfast up` runs."""

import ast
import asyncio
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.up import Up
from tests.support.pages import (
    ROOT,
    USUAL_ADDRESS,
    blocks,
    pattern_of,
    python_command,
    read_page,
    run_command,
    run_holdfast,
)

import holdfast
from holdfast.admin.operations import Admin
from holdfast.model.message import ReceivedMessage

README = read_page("README.md")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster with the topic and the group that examples speak of."""
    with Up(tmp_path_factory.mktemp("readme")) as up:
        asyncio.run(asyncio.wait_for(furnish(up.namesrv), 60))
        yield up


async def furnish(namesrv: str) -> None:
    """Let there be a message in `orders`, and let `billing` have consumed it."""
    async with (
        holdfast.Producer(namesrv) as producer,
        holdfast.PullConsumer(namesrv, "billing", start="earliest") as consumer,
    ):
        await producer.send("orders", b"first", tags="paid")
        await consumer.assign(await consumer.queues("orders"))
        while not await consumer.poll():
            pass


def test_the_commands_say_what_the_readme_shows(cluster: Up):
    """But for ids and places, which differ every time."""
    (shown,) = (block for block in blocks(README, "console") if "topic create" in block)
    lines = shown.replace("orders", "shell-orders").splitlines()
    commands = [(lines[at].split(" ", 2)[2], lines[at + 1]) for at in range(0, len(lines), 2)]
    assert [words.split()[0] for words, _ in commands] == ["topic", "send", "tail"]

    for words, answer in commands[:2]:
        said = run_holdfast(cluster, words)
        assert re.fullmatch(pattern_of(answer), said.strip()), said


def test_the_python_example_runs(cluster: Up):
    """As a program of its own, with nothing but the address changed."""
    (block,) = (block for block in blocks(README, "python") if "import holdfast\n" in block)

    said = run_command(cluster, python_command(cluster, block))

    assert re.search(r"^stored at .*'orders'.* \d+$", said, re.MULTILINE), said
    assert re.search(r"^b'.*'$", said, re.MULTILINE), said


def test_the_first_five_minutes_work(cluster: Up):
    """The program of `docs/start.md` keeps its order while the commands of that page move its queues."""
    page = read_page("docs/start.md")
    (program,) = blocks(page, "python")
    commands = re.findall(r"^\$ holdfast ((?:topic|send|tail|broker|queue|group) .*)$", page, re.MULTILINE)
    before = [words for words in commands if words.split()[0] in {"topic", "send", "tail"}]
    during = commands[len(before) :]
    assert [words.split()[:2] for words in during] == [
        ["broker", "drain"],
        ["queue", "list"],
        ["broker", "spread"],
        ["group", "lag"],
    ]
    for words in before:
        run_holdfast(cluster, words)

    with subprocess.Popen(python_command(cluster, program, "200"), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "parcel" in running.stdout.readline()
        for words in during:
            run_holdfast(cluster, words)
        said = running.stdout.read()

    assert running.returncode == 0
    assert "parcel 199 " in said


def examples() -> Iterator[tuple[str, str]]:
    """Yield every example in a module's docstring: where it is, and its code."""
    for path in sorted((ROOT / "src" / "holdfast").rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for block in re.findall(r"(?:^ {4}.*\n|^\n)+", text, re.MULTILINE):
            code = textwrap.dedent(block).strip("\n")
            if f'("{USUAL_ADDRESS}"' in code:
                yield path.relative_to(ROOT / "src" / "holdfast").as_posix(), code


def test_the_examples_are_found():
    """Tests of no examples would pass."""
    assert {path for path, _ in examples()} >= {
        "__init__.py",
        "blocking.py",
        "client/producer.py",
        "client/pull_consumer.py",
        "client/push_consumer.py",
    }


@pytest.mark.parametrize(("path", "code"), list(examples()), ids=lambda value: value if value.endswith(".py") else "")
async def test_the_example_of_a_docstring_runs(cluster: Up, path: str, code: str):
    """To its end; or, if it consumes for ever, until it has consumed something."""
    seen = asyncio.Event()

    async def book(message: ReceivedMessage) -> None:
        seen.set()

    names: dict[str, Any] = {name: getattr(holdfast, name) for name in holdfast.__all__}
    names |= {"Admin": Admin, "book": book, "print": lambda *_: seen.set(), "holdfast": holdfast}
    body = textwrap.indent(code.replace(USUAL_ADDRESS, cluster.namesrv), "    ")
    exec(compile(f"async def example():\n{body}", path, "exec"), names)
    async with holdfast.Producer(cluster.namesrv) as producer:
        running = asyncio.create_task(names["example"]())
        if "PushConsumer" in code:
            while not seen.is_set() and not running.done():
                await producer.send("orders", b"one more", tags="paid")
                await asyncio.sleep(0.05)
            running.cancel()
        await asyncio.wait([running])
    assert running.cancelled() or running.exception() is None, repr(running.exception())


def advice() -> list[str]:
    """Return every `pip install` that the pages and the code give as advice."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return [match for text in texts for match in re.findall(r"pip install [^`#\n]+", text)]


def test_no_advice_needs_an_index_that_has_holdfast():
    """It is on none; and brackets are quoted, because zsh expands them."""
    assert len(advice()) > 5
    for command in advice():
        assert not re.search(r"install ['\"]?holdfast", command), command
        assert "[" not in command or re.search(r"\"[^\"]*\[[a-z,]+\]\"", command), command


@pytest.mark.parametrize("source", ["clone", "wheel"])
def test_holdfast_installs_with_an_extra_from_a_clone_and_from_a_wheel(source: str, tmp_path: Path):
    """As the README shows it; without its packages, which need an index."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".*", "tests", "docs", "benchmarks", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=ignored)
    target = str(clone)
    if source == "wheel":
        subprocess.run([*pip, "wheel", "--quiet", *offline, "--wheel-dir", str(tmp_path), target], check=True)
        (wheel,) = tmp_path.glob("*.whl")
        assert f'"dist/{wheel.name}[spark]"' in README
        target = str(wheel)

    done = subprocess.run(
        [*pip, "install", "--dry-run", "--ignore-installed", *offline, f"{target}[spark]"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "Would install holdfast-" in done.stdout, done.stderr


def test_the_reservation_is_as_small_as_the_readme_says(tmp_path: Path):
    """With the option that it names a broker takes 16 MiB of disk, not 1 GiB."""
    (option,) = re.findall(r"--set (log_file_size=\d+)", README)
    with Up(tmp_path, "--brokers", "1", "--set", option) as up:
        run_command(up, [HOLDFAST, "send", "small", "x"])
        used = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())

    assert 16 << 20 <= used < 18 << 20
