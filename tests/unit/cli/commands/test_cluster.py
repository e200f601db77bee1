"""How the whole cluster looks to people."""

import pytest
from tests.support.cluster.scripted import ScriptedAccess

from holdfast.admin.cluster_access import ClusterAccess
from holdfast.admin.route_push import RoutePushStatus
from holdfast.cli.commands.cluster import link_facts, push_table
from holdfast.cli.main import main
from holdfast.wire.cluster.push_state import ReportedLinkCapacity, ReportedReadings
from holdfast.wire.frames.codes import RequestCode


def test_name_servers_are_shown_with_what_they_do_about_changed_routes():
    """Pace with reason and unknown readings; a Java one does not push; one that is silent may do anything."""
    table = push_table(
        [
            RoutePushStatus(
                address="a:1",
                pushes=True,
                watching_clients=3,
                watched_topics=2,
                pending_clients=1,
                pace="paused",
                reason="load 95 %",
                readings=ReportedReadings(memory=41.0, load=95.0),
            ),
            RoutePushStatus(address="b:1", pushes=True, pace="every second", reason=""),
            RoutePushStatus(address="java:1"),
            RoutePushStatus(address="dead:1", fault="cannot connect"),
        ]
    )

    assert [list(row) for row in table.rows] == [
        ["a:1", 3, 2, 1, "paused: load 95 %", "41 %", "95 %", "unknown"],
        ["b:1", None, None, None, "every second", "unknown", "unknown", "unknown"],
        ["java:1", None, None, None, "does not push", None, None, None],
        ["dead:1", None, None, None, "unknown: cannot connect", None, None, None],
    ]


def test_the_capacity_of_a_link_is_shown_with_its_source():
    """Of name servers that push: only their back-off needs it. Where it is unknown, the text says what to do."""
    facts = link_facts(
        [
            RoutePushStatus(address="a:1", pushes=True, link_capacity=ReportedLinkCapacity(mbit=1000, source="stated")),
            RoutePushStatus(
                address="b:1", pushes=True, link_capacity=ReportedLinkCapacity(mbit=25000, source="detected")
            ),
            RoutePushStatus(address="c:1", pushes=True, link_capacity=ReportedLinkCapacity()),
            RoutePushStatus(address="java:1"),
        ]
    )

    assert facts == [
        ("link of a:1", "1000 Mbit/s (stated)"),
        ("link of b:1", "25000 Mbit/s (detected)"),
        ("link of c:1", "unknown: the back-off ignores the network; set link_capacity_mbit"),
    ]


def test_trusted_addresses_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """They get in without a proof, so an operator must see them. A broker without them has no line."""
    cluster = ScriptedAccess(brokers_by_name={"broker-a": "a:1", "broker-b": "b:1"})
    cluster.on(
        RequestCode.GET_BROKER_RUNTIME_INFO,
        lambda asked: b'{"table":{"trustedBrokers":"10.0.0.7,10.1.0.0/16"}}' if asked.address == "a:1" else b"{}",
    )

    async def enter(access: ClusterAccess) -> ClusterAccess:
        return access

    async def leave(*_: object) -> None:
        return None

    monkeypatch.setattr(ScriptedAccess, "__aenter__", enter)
    monkeypatch.setattr(ScriptedAccess, "__aexit__", leave)
    monkeypatch.setattr("holdfast.admin.operations.ClusterAccess", lambda *_, **__: cluster)

    assert main(["cluster", "describe"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trusted by")]
    assert [line.split() for line in lines] == [["trusted", "by", "broker-a", "10.0.0.7,", "10.1.0.0/16"]]
