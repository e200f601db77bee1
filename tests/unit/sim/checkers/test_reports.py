from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.sim.checkers.reports import ReportChecker
from holdfast.sim.world.world import Violation


def a_name_server(epoch: int, *, reasons: list[str] | None = None) -> Any:
    """Return what stands in for a name server that knows one broker of one topic."""
    report = SimpleNamespace(mapping=SimpleNamespace(epoch=epoch))
    topic = SimpleNamespace(name="t", reports={"a": report}, reasons=reasons or [], served=object())
    return SimpleNamespace(routes=SimpleNamespace(static=SimpleNamespace(topics={"t": topic})))


def test_what_a_name_server_knows_becomes_newer():
    """Or stays."""
    server = a_name_server(5)
    reports = ReportChecker(lambda: {"n": server})
    reports.check()
    reports.check()

    server.routes.static.topics["t"].reports["a"].mapping.epoch = 6
    reports.check()

    server.routes.static.topics["t"].reports["a"].mapping.epoch = 5
    with pytest.raises(Violation, match="epoch 6 of t, and now at 5"):
        reports.check()


def test_what_a_name_server_knows_never_becomes_older():
    """A registration that was overtaken is refused."""
    server = a_name_server(5)
    reports = ReportChecker(lambda: {"n": server})
    reports.check()

    server.routes.static.topics["t"].reports["a"].mapping.epoch = 4

    with pytest.raises(Violation, match="never goes back"):
        reports.check()


def test_a_name_server_that_was_started_again_begins_anew():
    """It keeps nothing of this."""
    servers = {"n": a_name_server(5)}
    reports = ReportChecker(lambda: servers)
    reports.check()

    servers["n"] = a_name_server(4)

    reports.check()
    servers["n"].routes.static.topics["t"].reports["a"].mapping.epoch = 3
    with pytest.raises(Violation, match="epoch 4 of t, and now at 3"):
        reports.check()


def test_a_topic_that_is_not_served_as_it_is_is_told():
    """With the reasons."""
    server = a_name_server(5, reasons=["nobody leads 3"])

    assert ReportChecker(lambda: {"n": server}).find_unfinished() == ["n: t: nobody leads 3"]
