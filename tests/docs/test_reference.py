"""The reference pages name everything that there is."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer
from tests.support.cluster.broker_machine import BrokerHarness
from typer.core import TyperGroup

from holdfast.broker.metrics import broker_samples
from holdfast.cli.main import NOUNS, build
from holdfast.config import SECTIONS
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.service import NameServerService

DOCS = Path(__file__).parents[2] / "docs"


def commands(command: object, path: str = "holdfast") -> Iterator[str]:
    """Yield the words of every command below *command*."""
    if not isinstance(command, TyperGroup):
        yield path
        return
    for name, below in command.commands.items():
        yield from commands(below, f"{path} {name}")


@pytest.mark.parametrize("words", list(commands(typer.main.get_command(build([])))))
def test_every_command_has_an_example(words: str):
    """Whoever looks for a command finds how it is used."""
    assert f"`{words}" in (DOCS / "cli.md").read_text(encoding="utf-8")


def test_every_noun_is_in_the_tree():
    """A noun that registers nothing would be documented nowhere."""
    found = {words.split()[1] for words in commands(typer.main.get_command(build([])))}

    assert found == set(NOUNS)


@pytest.mark.parametrize("section", list(SECTIONS))
def test_every_option_is_explained(section: str):
    """Each option has a row with its default and its meaning."""
    text = (DOCS / "operating.md").read_text(encoding="utf-8")

    for field in msgspec.structs.fields(SECTIONS[section]):
        assert f"\n| `{field.name}` |" in text, f"{section}.{field.name} is not explained"


def test_every_number_in_the_tables_is_the_default():
    """Defaults in the page are those of the code."""
    text = (DOCS / "operating.md").read_text(encoding="utf-8")

    for kind in SECTIONS.values():
        for field in msgspec.structs.fields(kind):
            if isinstance(field.default, int) and not isinstance(field.default, bool):
                assert re.search(rf"\n\| `{field.name}` \| {field.default} \|", text), field.name


LIMITS = {
    "connections_per_address_max": ("connections_limited_total",),
    "unproven_connections_max": ("connections_limited_total", "connections_unproven"),
    "unproven_timeout_ms": ("connections_limited_total",),
    "user_requests_max": (
        "user_throttles_total",
        "user_throttled_ms_total",
        "user_pauses_total",
        "user_paused_ms_total",
    ),
    "user_bytes_max": ("user_throttles_total", "user_throttled_ms_total", "user_pauses_total", "connections_paused"),
    "request_size_max": ("frames_refused_total",),
    "header_size_max": ("frames_refused_total",),
}
"""The limits for clients, and the metrics that show when they act."""
OFF_BY_DEFAULT = {"connections_per_address_max", "user_requests_max", "user_bytes_max"}


async def test_every_limit_is_an_option_of_both_roles_and_has_metrics_and_a_row_on_both_pages():
    """A limit is never invisible. The limits that could hurt a working client are off by default."""
    operating, security = ((DOCS / page).read_text(encoding="utf-8") for page in ("operating.md", "security.md"))
    table = operating.partition("### Limits: ")[2].partition("\n### ")[0]
    assert set(re.findall(r"\n\| `(\w+)` \|", table)) == set(LIMITS)
    explained = security.partition("\n## Limits\n")[2].partition("\n## ")[0]

    service = NameServerService(NameServerOptions(listen="127.0.0.1:0", connections_per_address_max=9), lambda _: None)
    await service.start()
    serving = service._serving
    assert serving is not None
    shown = {sample.name + ("_total" if sample.kind == "counter" else "") for sample in serving.samples()}
    await service.stop()

    for option, metrics in LIMITS.items():
        assert f"`{option}`" in explained, option
        for section in ("namesrv", "broker"):
            fields = {field.name: field.default for field in msgspec.structs.fields(SECTIONS[section])}
            assert (fields[option] == 0) == (option in OFF_BY_DEFAULT), option
        for metric in metrics:
            assert metric in shown, metric
            assert f"`holdfast_{metric}`" in operating, metric
            assert f"`holdfast_{metric}`" in explained, metric


async def test_every_metric_is_explained():
    """What a scrape shows can be looked up."""
    text = (DOCS / "operating.md").read_text(encoding="utf-8")
    desk = BrokerHarness()
    desk.components.offsets.commit("g", "t", 0, 0)

    async def of_name_server() -> list[str]:
        service = NameServerService(NameServerOptions(listen="127.0.0.1:0"), lambda _: None)
        await service.start()
        found = list(service._serving.samples())
        await service.stop()
        return [sample.name + ("_total" if sample.kind == "counter" else "") for sample in found]

    names = [
        sample.name + ("_total" if sample.kind == "counter" else "")
        for sample in broker_samples(desk.options, desk.store, desk.components)
    ]
    for name in names + await of_name_server():
        assert f"`holdfast_{name}`" in text, name
