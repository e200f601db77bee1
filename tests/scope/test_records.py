"""The record of a static topic on a broker's disk: where it is fixed, whose it is, which change it is of."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.client_stories import new_name
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import KINDS, wait_until

RECORDS = "config/topicQueueMapping.json"
# Keys that are numbers, as Java writes them: without quotes.
_BARE = re.compile(r"\b(\d+):")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Two brokers in the east, one in the west."""
    with units_cluster(tmp_path_factory.mktemp("records"), {"e1": "east", "e2": "east", "w1": "west"}) as fleet:
        yield fleet


def record(fleet: ProcessCluster, broker: str, topic: str) -> dict[str, Any]:
    """Return what a broker has on its disk of a topic, once it has it."""
    file = fleet.brokers[broker].store / RECORDS
    found: dict[str, Any] = {}

    def is_there() -> bool:
        if file.exists():
            found.update(json.loads(_BARE.sub(r'"\1":', file.read_text()))["topicQueueMappingInfoMap"].get(topic, {}))
        return bool(found)

    wait_until(is_there, f"{broker} writes nothing of {topic}")
    return found


@pytest.mark.parametrize(("scope", "stored"), [("east", "east"), ("global", "__global__")])
def test_a_record_has_the_fields_of_the_proposal(fleet: ProcessCluster, scope: str, stored: str):
    """Version, scope, the broker's own name, epoch and how many queues there are in all; whoever leads how many."""
    topic = new_name("topic")
    fleet.run("topic", "create", topic, "--logical-queues", "5", "--scope", scope, "--brokers", "e1,e2")

    for broker in ("e1", "e2"):
        found = record(fleet, broker, topic)
        assert (found["scope"], found["bname"], int(found["totalQueues"])) == (stored, broker, 5)
        assert found["version"] in {"1", 1}
        assert int(found["epoch"]) >= 0
    assert record(fleet, "e1", topic)["epoch"] == record(fleet, "e2", topic)["epoch"]


def test_the_epoch_rises_with_every_change_and_is_the_same_everywhere(fleet: ProcessCluster):
    """It is there to compare records by."""
    topic = new_name("topic")
    fleet.run("topic", "create", topic, "--logical-queues", "2", "--scope", "east")
    before = record(fleet, "e1", topic)["epoch"]

    fleet.run("topic", "grow", topic, "--logical-queues", "3")

    wait_until(lambda: record(fleet, "e1", topic)["epoch"] > before)
    wait_until(lambda: record(fleet, "e1", topic)["epoch"] == record(fleet, "e2", topic)["epoch"])
    assert {int(record(fleet, broker, topic)["totalQueues"]) for broker in ("e1", "e2")} == {3}


@pytest.mark.parametrize(("name", "cluster"), [("stranger", "east"), ("e1", "west")])
def test_a_folder_that_was_copied_to_another_broker_is_found_by_its_name(
    fleet: ProcessCluster, tmp_path: Path, name: str, cluster: str
):
    """Or to another cluster. It is said whose it is, and nobody is led there."""
    topic = new_name("topic")
    fleet.run("topic", "create", topic, "--logical-queues", "3", "--scope", "east", "--brokers", "e1")
    record(fleet, "e1", topic)
    fleet.kill("e1", until_gone=True)
    shutil.copytree(fleet.brokers["e1"].store, tmp_path / "copy")
    fleet.restart("e1")
    before = fleet.leaders(topic)
    wrong = fleet.start(name, cluster=cluster, store=tmp_path / "copy")
    try:
        said = wrong.child.wait_for_line(f"error.*not this broker's.*{topic}", timeout_s=20)
        assert ("recorded here for broker e1" if name == "stranger" else "fixed in east") in said
        assert fleet.leaders(topic) == before
        for kind in KINDS.values():
            assert not [place for place in fleet.route(topic, "west", kind=kind).writes if place[0].startswith("__")]
    finally:
        fleet.kill(wrong)
        fleet.kill("e1")
        fleet.restart("e1")


def java_topics(topic: str, queues: int) -> dict[str, Any]:
    config = {
        "order": False,
        "perm": 6,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }
    return {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}, "topicConfigTable": {topic: config}}


def a_record(topic: str, broker: str, queues: int, **parts: Any) -> dict[str, Any]:
    """Return a record as upstream's broker writes it."""
    homes = {
        str(number): [
            {
                "bname": broker,
                "endOffset": -1,
                "gen": 0,
                "logicOffset": 0,
                "queueId": number,
                "startOffset": 0,
                "timeOfEnd": -1,
                "timeOfStart": -1,
            }
        ]
        for number in range(queues)
    }
    plain = {
        "bname": broker,
        "currIdMap": {},
        "dirty": False,
        "epoch": 1,
        "hostedQueues": homes,
        "scope": "__global__",
        "topic": topic,
        "totalQueues": queues,
    }
    return {**plain, **parts}


def folder_with(folder: Path, found: Mapping[str, Any]) -> Path:
    """Return a store folder in which nothing is but a record, and the topic that it is of."""
    (folder / "config").mkdir(parents=True)
    topic = found["topic"]
    (folder / "config" / "topics.json").write_text(json.dumps(java_topics(topic, len(found["hostedQueues"]))))
    records = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
        "topicQueueMappingInfoMap": {topic: found},
    }
    (folder / RECORDS).write_text(json.dumps(records))
    return folder


def test_a_file_that_was_copied_alone_is_found_by_its_name_too(fleet: ProcessCluster, tmp_path: Path):
    """As operators copy topics.json."""
    topic = new_name("topic")
    store = folder_with(tmp_path / "copy", a_record(topic, "e1", 2, scope="east"))

    wrong = fleet.start("w9", cluster="west", store=store)

    try:
        assert "e1" in wrong.child.wait_for_line(topic, timeout_s=20)
        for kind in KINDS.values():
            told = fleet.route(topic, "west", kind=kind)
            assert not [place for place in told.writes if place[0].startswith("__syslo__")]
    finally:
        fleet.kill(wrong)


def test_a_set_of_clusters_is_read(fleet: ProcessCluster, tmp_path: Path):
    """Clients of each of them see it; those of others do not. Its name has them all."""
    topic = new_name("topic")
    store = folder_with(tmp_path / "set", a_record(topic, "e9", 4, scope="east_west"))

    maker = fleet.start("e9", cluster="east", store=store)

    try:
        queues = {("__syslo__east_west", number) for number in range(4)}
        for kind in KINDS.values():
            wait_until(lambda kind=kind: fleet.route(topic, kind=kind).writes == queues)  # type: ignore[misc]
            for unit in ("east", "west"):
                assert fleet.route(topic, unit, kind=kind).writes == queues
            assert fleet.route(topic, "north", kind=kind).code == 17
        assert "__logic__east_west" in fleet.attempt("topic", "route", topic).out
        for scope in ("east", "west", "global"):
            said = fleet.run_refused("topic", "create", topic, "--logical-queues", "2", "--scope", scope)
            assert "east_west" in said
    finally:
        fleet.kill(maker)


def test_a_record_in_the_words_of_the_proposal_is_read(fleet: ProcessCluster, tmp_path: Path):
    """Numbers as texts, a version, the scope of a cluster."""
    topic = new_name("topic")
    words = {"version": "1", "scope": "west", "epoch": 0, "totalQueues": "3"}
    store = folder_with(tmp_path / "words", a_record(topic, "w8", 3, **words))

    maker = fleet.start("w8", cluster="west", store=store)

    try:
        wait_until(lambda: len(fleet.route(topic, "west").writes) == 3, maker.child.last_lines())
        assert fleet.route(topic, "west").written_at == {"__syslo__west"}
        assert fleet.route(topic, "east").code == 17
    finally:
        fleet.kill(maker)
