"""Every program of the client page does what the page shows, against a cluster that `holdfast up` runs."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.support.cluster.up import Up
from tests.support.pages import blocks, pattern_of, python_command, read_page, run_command, run_holdfast

PAGE = read_page("docs/clients.md")
IS_PROGRAM = re.compile(r"^(?:asyncio\.run\(main\(\)\)|main\(\))$", re.MULTILINE)


class Example(NamedTuple):
    """A program of the page, its output, and the commands that follow it, each with its output."""

    heading: str
    program: str
    output: str
    commands: list[tuple[str, str]]


def examples() -> Iterator[Example]:
    """Yield the example of each section that has one."""
    for section in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        programs = [block for block in blocks(text, "python") if IS_PROGRAM.search(block)]
        if programs:
            (program,), (output,) = programs, blocks(text, "text")
            commands = re.findall(r"^\$ holdfast (.*)\n(.*)$", "".join(blocks(text, "console")), re.MULTILINE)
            yield Example(heading, program, output, commands)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster with the topics that the page creates."""
    with Up(tmp_path_factory.mktemp("clients"), "--set", "log_file_size=16777216") as up:
        for words in re.findall(r"^\$ holdfast (topic create .*)$", PAGE, re.MULTILINE):
            run_holdfast(up, words)
        yield up


def test_each_kind_of_client_has_an_example():
    """Tests of no examples would pass."""
    assert [example.heading for example in examples()] == [
        "Push consumer",
        "Ordered consumer",
        "Retry and dead letters",
        "Transaction with check-back",
        "Request and reply",
        "Pull consumer",
        "Without asyncio",
    ]
    assert [example.heading for example in examples() if example.commands] == ["Retry and dead letters"]


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.heading)
def test_the_example_prints_what_the_page_shows(cluster: Up, example: Example):
    """To its end, with nothing but the address changed; only concurrent listeners print in any order."""
    said = run_command(cluster, python_command(cluster, example.program)).splitlines()

    in_order = sorted if example.heading == "Push consumer" else list
    assert in_order(said) == in_order(example.output.splitlines())
    for words, answer in example.commands:
        said_then = run_holdfast(cluster, words)
        assert re.fullmatch(pattern_of(answer), said_then.strip()), said_then
