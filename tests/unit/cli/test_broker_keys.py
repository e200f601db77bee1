"""The keys of `broker describe` are explained."""

import json

from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.admin.cluster import parse_settings
from holdfast.cli.broker_keys import figure_rows, setting_rows
from holdfast.cli.commands.broker import _HIDDEN_FIGURES
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command


def reported(**options: object) -> tuple[dict[str, str], dict[str, str]]:
    """Return the figures and settings that a broker reports."""
    desk = BrokerHarness(**options)  # type: ignore[arg-type]
    figures, settings = desk.call(
        Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, opaque=1),
        Command(code=RequestCode.GET_BROKER_CONFIG, opaque=2),
    )
    return json.loads(figures.body)["table"], parse_settings(settings.body)


def test_every_key_of_ours_has_a_meaning():
    """Of masters, of synchronous ones and of replicas."""
    for options in ({}, {"replication": "sync"}, {"replica_of": "broker-a", "replica_id": 1}):
        figures, settings = reported(**options)
        shown = {key: value for key, value in figures.items() if not _HIDDEN_FIGURES.search(key)}

        assert [key for key, _, meaning in figure_rows(shown) if meaning is None] == []
        assert [key for key, _, meaning in setting_rows(settings) if meaning is None] == []


def test_keys_of_other_brokers_are_shown_without_one():
    """A Java broker reports hundreds more."""
    assert setting_rows({"sendThreadPoolNums": "4"}) == [("sendThreadPoolNums", "4", None)]


def test_values_are_shown_for_people():
    """Times as times, sizes with their unit; levels of delay by their number."""
    figures = {"bootTimestamp": "1763229023123", "scheduleMessageOffset_3": "5,9"}

    (_, started, _), (_, delayed, meaning) = figure_rows(figures)
    assert started.endswith(".123")
    assert (delayed, meaning) == ("5,9", "delayed messages of level 3: delivered, stored")
    assert setting_rows({"maxMessageSize": "4194304"})[0][1] == "4194304 (4.0 MiB)"
