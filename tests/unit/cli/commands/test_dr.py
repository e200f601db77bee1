"""Losing a site, on the command line."""

import json

import pytest
from tests.support.cluster.scripted_units import ScriptedUnits

from holdfast.cli.main import main
from holdfast.model.dr_switch import CLOSED, DrSwitch, UnitOpening
from holdfast.wire.frames.codes import RequestCode


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedUnits:
    """A cluster that every command talks to."""
    found = ScriptedUnits()

    async def enter(_: object) -> ScriptedUnits:
        return found

    async def leave(*_: object) -> None:
        return None

    monkeypatch.setattr(ScriptedUnits, "__aenter__", enter, raising=False)
    monkeypatch.setattr(ScriptedUnits, "__aexit__", leave, raising=False)
    monkeypatch.setattr("holdfast.admin.operations.ClusterAccess", lambda *_, **__: found)
    return found


def test_a_unit_is_opened_and_closed(cluster: ScriptedUnits, capsys: pytest.CaptureFixture[str]):
    """In one sentence each."""
    assert main(["dr", "open", "--unit", "east", "--topic", "orders"]) == 0
    assert capsys.readouterr().out == "unit east, topic orders is open to the consumers of all units\n"
    assert cluster.switches["ns:1"].openings == (UnitOpening("east", topic="orders"),)

    assert main(["dr", "close", "--unit", "east"]) == 0
    assert capsys.readouterr().out == "unit east is closed: every unit reads its own\n"
    assert cluster.switches["ns:2"].openings == ()


def test_all_units_go_by_a_word_of_their_own(cluster: ScriptedUnits):
    """Neither is a mistake of usage."""
    assert main(["dr", "open", "--all"]) == 0
    assert cluster.switches["ns:1"].openings == (UnitOpening("*"),)
    assert main(["dr", "open"]) == 2


def test_what_would_change_nothing_fails(cluster: ScriptedUnits, capsys: pytest.CaptureFixture[str]):
    """With the reason, and nothing done."""
    assert main(["dr", "close", "--unit", "east"]) == 1
    assert "nothing would change" in capsys.readouterr().err
    assert cluster.requests_of(RequestCode.SET_DR_SWITCH) == []


def test_who_was_not_told_is_named(cluster: ScriptedUnits, capsys: pytest.CaptureFixture[str]):
    """A warning: it comes right by itself."""
    cluster.kill("ns:2")

    assert main(["dr", "open", "--unit", "east"]) == 0
    assert "warning: ns:2 was not notified" in capsys.readouterr().err


def test_the_status_is_three_tables_or_one_document(cluster: ScriptedUnits, capsys: pytest.CaptureFixture[str]):
    """Name servers that differ are warned of."""
    cluster.switches = {"ns:1": DrSwitch(7, (UnitOpening("*"),)), "ns:2": CLOSED}
    cluster.units = {name: type(unit)([], []) for name, unit in cluster.units.items()}

    assert main(["dr", "status"]) == 0
    said = capsys.readouterr()
    assert "name servers disagree" in said.err
    assert "Left to read in east\nunknown: none of its brokers is up" in said.out
    assert main(["dr", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 7
