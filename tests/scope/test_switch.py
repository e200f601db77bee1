"""The disaster switch: what `dr open`, `status` and `close` change for clients of each kind, and what they refuse."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.client_stories import new_name
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import KINDS, OUR_CLIENT, raw_request, wait_until, wait_until_registered
from tests.support.java_heartbeat import a_java_member
from tests.support.watchers import Peer

TOPIC = "TopicTest"
QUEUES = 50


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """The scenario of the proposal: two clusters with a static topic of 50 queues each, and three kinds of others."""
    brokers = {"a1": "clusterA", "b1": "clusterB"}
    with units_cluster(tmp_path_factory.mktemp("switch"), brokers, name_servers=2) as fleet:
        for unit in ("clusterA", "clusterB"):
            fleet.run("topic", "create", TOPIC, "--logical-queues", str(QUEUES), "--scope", unit)
        fleet.run("topic", "create", "normal", "--queues", "2")
        fleet.run("topic", "create", "onlyA", "--queues", "2", "--cluster", "clusterA")
        fleet.run("topic", "create", "everywhere", "--logical-queues", "3", "--scope", "global")
        for broker in fleet.brokers.values():
            for topic in ("%RETRY%fleet", "%DLQ%fleet"):
                create_raw(broker.address, topic)
        wait_until(lambda: all(fleet.route("%DLQ%fleet", at=at).brokers == {"a1", "b1"} for at in range(2)))
        yield fleet


@pytest.fixture
def fleet(whole: ProcessCluster) -> Iterator[ProcessCluster]:
    """The same, closed before and after."""
    assert openings(whole) == []
    yield whole
    for opening in openings(whole):
        close(whole, opening)


def switch(fleet: ProcessCluster) -> tuple[int, list[dict[str, Any]]]:
    """Return the version of what is open, and what that is."""
    found = fleet.run("dr", "status")
    return found["version"], found["openings"]


def openings(fleet: ProcessCluster) -> list[dict[str, Any]]:
    """Return what is open."""
    return switch(fleet)[1]


def close(fleet: ProcessCluster, opening: dict[str, Any]) -> None:
    """Close what is open."""
    unit = ["--all"] if opening["unit"] == "*" else ["--unit", opening["unit"]]
    narrow = [word for name in ("topic", "group") if opening.get(name) for word in (f"--{name}", opening[name])]
    fleet.run("dr", "close", *unit, *narrow)


def create_raw(address: str, topic: str) -> None:
    """Create a topic at one broker as Java's tools do."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert raw_request(address, 17, fields).code == 0


A, B = ({(f"__syslo__cluster{unit}", number) for number in range(QUEUES)} for unit in "AB")
SEEN = {
    TOPIC: {"clusterA": A, "clusterB": B},
    "normal": {"clusterA": {("a1", 0), ("a1", 1)}, "clusterB": {("b1", 0), ("b1", 1)}},
    "onlyA": {"clusterA": {("a1", 0), ("a1", 1)}, "clusterB": set()},
    "%RETRY%fleet": {"clusterA": {("a1", 0)}, "clusterB": {("b1", 0)}},
    "%DLQ%fleet": {"clusterA": {("a1", 0)}, "clusterB": {("b1", 0)}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_site_sees_its_own_while_nothing_is_open(fleet: ProcessCluster, kind: str):
    """Producers and consumers."""
    for topic, units in SEEN.items():
        for unit, queues in units.items():
            told = fleet.route(topic, unit, kind=KINDS[kind])
            assert told.writes == told.reads == queues


@pytest.mark.parametrize("opened", [("--unit", "clusterA"), ("--all",)])
def test_while_a_site_is_open_its_queues_are_read_and_not_written_by_the_other(
    fleet: ProcessCluster, opened: tuple[str, ...]
):
    """By no client of any kind; and all of them see the same queues, so that no two share one."""
    fleet.run("dr", "open", *opened)

    for (topic, units), kind, at in itertools.product(SEEN.items(), KINDS.values(), range(2)):
        for unit, queues in units.items():
            told = fleet.route(topic, unit, kind=kind, at=at)
            assert told.writes == queues, (topic, unit, kind)
            assert told.reads == set.union(*units.values()), (topic, unit, kind)
    for kind in KINDS.values():
        told = fleet.route("everywhere", "clusterB", kind=kind)
        assert told.reads == told.writes == {("__syslo__global__", number) for number in range(3)}
        assert fleet.route("TBW102", "clusterB", kind=kind).brokers == {"b1"}


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_has_no_unit_reads_all_and_writes_nothing_into_a_lost_one(fleet: ProcessCluster, kind: str):
    """Opened by its name it may be lost; where all are open nothing changes."""
    before = {topic: fleet.route(topic, kind=KINDS[kind]) for topic in SEEN}

    fleet.run("dr", "open", "--unit", "clusterA")

    for topic, units in SEEN.items():
        told = fleet.route(topic, kind=KINDS[kind])
        assert told.reads == before[topic].reads == set.union(*units.values())
        assert told.writes == units["clusterB"]
    fleet.run("dr", "close", "--unit", "clusterA")
    fleet.run("dr", "open", "--all")
    assert {topic: fleet.route(topic, kind=KINDS[kind]) for topic in SEEN} == before


@pytest.mark.parametrize("kind", KINDS)
def test_closing_takes_everything_back(fleet: ProcessCluster, kind: str):
    """At all name servers, at once."""
    before = {topic: fleet.request_route(topic, "clusterB", kind=KINDS[kind]).body for topic in SEEN}
    fleet.run("dr", "open", "--unit", "clusterA")
    fleet.run("dr", "close", "--unit", "clusterA")

    for at in range(2):
        assert {topic: fleet.request_route(topic, "clusterB", kind=KINDS[kind], at=at).body for topic in SEEN} == before


def readable(fleet: ProcessCluster, topic: str, **how: Any) -> bool:
    """Say whether B reads A's queues of a topic."""
    units = SEEN[topic]
    return fleet.route(topic, "clusterB", **how).reads == set.union(*units.values())


def test_a_topic_is_opened_alone(fleet: ProcessCluster):
    """With what groups retry and what is dead: that has no topic. Others stay closed, and can be opened beside it."""
    fleet.run("dr", "open", "--unit", "clusterA", "--topic", TOPIC)

    assert [readable(fleet, topic) for topic in SEEN] == [True, False, False, True, True]
    fleet.run("dr", "open", "--unit", "clusterA", "--topic", "onlyA")
    assert [readable(fleet, topic) for topic in SEEN] == [True, False, True, True, True]
    fleet.run("dr", "close", "--unit", "clusterA", "--topic", TOPIC)
    assert [readable(fleet, topic) for topic in SEEN] == [False, False, True, True, True]


def in_group(group: str) -> dict[str, Any]:
    return {**OUR_CLIENT, "extFields": {**OUR_CLIENT["extFields"], "hf.group": group}}  # type: ignore[dict-item]


@pytest.mark.parametrize("topic", [None, TOPIC])
def test_a_unit_is_opened_for_one_group(fleet: ProcessCluster, topic: str | None):
    """Its own retries and no others, whatever it is narrowed to besides; other kinds of clients see their unit."""
    narrow = ["--topic", topic] if topic else []
    fleet.run("group", "create", "fleet")

    fleet.run("dr", "open", "--unit", "clusterA", "--group", "fleet", *narrow)

    seen = [readable(fleet, each, kind=in_group("fleet")) for each in SEEN]
    assert seen == ([True, False, False, True, True] if topic else [True] * 5)
    for kind in (in_group("others"), *KINDS.values()):
        assert not any(readable(fleet, each, kind=kind) for each in (TOPIC, "normal"))
    for kind in (in_group("fleet"), *KINDS.values()):
        assert fleet.route(TOPIC, "clusterB", kind=kind).writes == B


def test_a_group_with_strange_members_is_not_opened_alone(fleet: ProcessCluster):
    """They tell no name server their group, and would share queues out differently."""
    group = new_name("group")

    with a_java_member(fleet.brokers["b1"].address, group, "normal"):
        said = fleet.run_refused("dr", "open", "--unit", "clusterA", "--group", group)
    assert group in said
    assert "JAVA" in said or "Java" in said


NOTHING = {
    "nothing named": (("open",), 2, "--unit"),
    "nothing named to close": (("close",), 2, "--unit"),
    "both": (("open", "--unit", "clusterA", "--all"), 2, "--all"),
    "an empty name": (("open", "--unit", ""), 2, "--unit"),
    "a unit that is none": (("open", "--unit", "nowhere"), 1, "clusterA, clusterB"),
    "a unit that was mistyped": (("open", "--unit", "ClusterA"), 1, "clusterA"),
    "global": (("open", "--unit", "global"), 1, "clusterA"),
    "a star": (("open", "--unit", "*"), 2, "--all"),
    "a topic that is none": (("open", "--unit", "clusterA", "--topic", "nothing"), 1, "nothing"),
    "an empty topic": (("open", "--unit", "clusterA", "--topic", ""), 2, "--topic"),
    "an empty group": (("open", "--unit", "clusterA", "--group", ""), 2, "--group"),
    "a topic of the other unit": (("open", "--unit", "clusterB", "--topic", "onlyA"), 1, "onlyA"),
    "a global topic": (("open", "--unit", "clusterA", "--topic", "everywhere"), 1, "everywhere"),
    "a group that is none": (("open", "--unit", "clusterA", "--group", "nobody"), 1, "nobody"),
    "closed already": (("close", "--unit", "clusterA"), 1, "nothing would change"),
    "all closed already": (("close", "--all"), 1, "nothing would change"),
    "a unit that is none to close": (("close", "--unit", "clusterC"), 1, "clusterC"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_what_would_change_nothing_is_refused(fleet: ProcessCluster, case: str):
    """One line, which says what to do; the switch is as it was."""
    words, status, named = NOTHING[case]
    before = switch(fleet)

    said = fleet.run_refused("dr", *words, status=status)

    assert named in said
    assert switch(fleet) == before


def test_what_is_open_already_is_not_opened_again(fleet: ProcessCluster):
    """Nor a part of it."""
    fleet.run("group", "create", "fleet")
    fleet.run("dr", "open", "--unit", "clusterA")
    version = fleet.run("dr", "status")["version"]

    for narrow in ((), ("--topic", TOPIC), ("--group", "fleet"), ("--topic", TOPIC, "--group", "fleet")):
        assert "nothing would change" in fleet.run_refused("dr", "open", "--unit", "clusterA", *narrow)
    assert fleet.run("dr", "status")["version"] == version


def test_a_part_of_what_is_open_cannot_be_closed(fleet: ProcessCluster):
    """Only what was opened, as it was opened, or all of a unit: the error says what is open."""
    fleet.run("dr", "open", "--unit", "clusterA", "--topic", TOPIC)
    fleet.run("dr", "open", "--unit", "clusterA", "--topic", "normal")

    said = fleet.run_refused("dr", "close", "--unit", "clusterA", "--topic", "onlyA")

    assert "nothing would change" in said
    assert TOPIC in said
    fleet.run("dr", "close", "--unit", "clusterA")
    assert openings(fleet) == []


def test_one_unit_stays_open_when_another_is_closed(fleet: ProcessCluster):
    """Each by its name; `--all` closes all of them."""
    for unit in ("clusterA", "clusterB"):
        fleet.run("dr", "open", "--unit", unit)
    fleet.run("dr", "close", "--unit", "clusterB")

    assert [opening["unit"] for opening in openings(fleet)] == ["clusterA"]
    fleet.run("dr", "open", "--unit", "clusterB")
    fleet.run("dr", "close", "--all")
    assert openings(fleet) == []


def test_a_dry_run_changes_nothing(fleet: ProcessCluster):
    """It says what would be."""
    said = fleet.attempt("dr", "open", "--unit", "clusterA", "--dry-run")

    assert said.status == 0
    assert "clusterA" in said.out
    assert openings(fleet) == []


async def test_clients_that_watch_are_told_within_a_second(fleet: ProcessCluster):
    """Of both units, of the opening and of the closing."""
    host, port = fleet.name_servers[0].rsplit(":", 1)
    peers = [Peer(*await asyncio.open_connection(host, int(port))) for _ in range(2)]
    for peer, unit in zip(peers, ("clusterA", "clusterB"), strict=True):
        await peer.request_route(TOPIC, watch="true", scope=unit)
    for verb in ("open", "close"):
        await asyncio.to_thread(fleet.run, "dr", verb, "--unit", "clusterA")
        ended = time.monotonic()
        for peer in peers:
            assert TOPIC in await peer.next_notice()
        assert time.monotonic() - ended < 5  # A second, on a machine that has time.
    for peer in peers:
        await peer.close()


def test_it_is_durable_over_the_death_of_all_name_servers(fleet: ProcessCluster):
    """What is open is open when the first broker is back."""
    fleet.run("dr", "open", "--unit", "clusterA", "--topic", TOPIC)
    before = switch(fleet)

    for at in range(2):
        fleet.kill(fleet.name_servers[at])
    for at in range(2):
        fleet.restart(fleet.name_servers[at])

    first_answers_are_right(fleet, 0)
    fleet.wait_until_registered("a1", "b1")
    assert switch(fleet) == before
    assert all(readable(fleet, TOPIC, at=at) for at in range(2))


def first_answers_are_right(fleet: ProcessCluster, at: int) -> None:
    """See that a name server that was down tells no route of before: none at first, then the right one."""
    right = dict.fromkeys(KINDS, A | B)
    missing = set(KINDS)
    deadline = time.monotonic() + 30
    while missing:
        assert time.monotonic() < deadline
        for kind in sorted(missing):
            told = fleet.route(TOPIC, "clusterB", kind=KINDS[kind], at=at)
            if told.code != 0:
                continue
            assert told.writes <= B
            if told.reads != B:  # A's broker may be the second to register.
                assert told.reads == right[kind]
                missing.discard(kind)
            elif {"a1"} <= fleet.route("onlyA", kind=KINDS[kind], at=at).brokers:
                told = fleet.route(TOPIC, "clusterB", kind=KINDS[kind], at=at)
                assert told.reads == right[kind], "closed, though both brokers are here"


@pytest.mark.parametrize("verb", ["open", "close"])
def test_a_name_server_that_was_down_has_it_before_its_first_answer(fleet: ProcessCluster, verb: str):
    """Of an opening and of a closing."""
    if verb == "close":
        fleet.run("dr", "open", "--unit", "clusterA")
    fleet.kill(fleet.name_servers[1])
    said = fleet.attempt("dr", verb, "--unit", "clusterA")
    assert said.status == 0
    assert fleet.name_servers[1] in said.err

    fleet.restart(fleet.name_servers[1])

    if verb == "open":
        first_answers_are_right(fleet, 1)
    else:
        wait_until_registered(fleet.name_servers[1], ["a1", "b1"])
        for topic, units in SEEN.items():
            assert fleet.route(topic, "clusterB", at=1).reads == units["clusterB"]
    found = fleet.run("dr", "status")
    assert found["is_equal"] is True


def test_a_name_server_alone_is_enough_to_open_and_says_who_was_not_told(fleet: ProcessCluster):
    """With all of them down nothing is done."""
    for at in range(2):
        fleet.kill(fleet.name_servers[at])
    said = fleet.run_refused("dr", "open", "--unit", "clusterA")
    assert fleet.name_servers[0] in said
    for at in range(2):
        fleet.restart(fleet.name_servers[at])
        wait_until_registered(fleet.name_servers[at], ["a1", "b1"])
    assert openings(fleet) == []


def test_the_status_tells_how_much_is_left_and_what_cannot_be_read(fleet: ProcessCluster):
    """By group; what lies on a broker that is gone is said to be there, and nothing is said to be read."""
    fleet.run("send", TOPIC, "left", "--count", "12", "--unit", "clusterA")
    fleet.run("group", "create", "fleet")
    fleet.run("group", "reset", "fleet", TOPIC, "--to", "earliest", "--yes", "--unit", "clusterA")
    fleet.run("dr", "open", "--unit", "clusterA")

    (unit,) = [each for each in fleet.run("dr", "status")["units"] if each["name"] == "clusterA"]
    assert {(each["group"], each["lag"]) for each in unit["backlogs"]} == {("fleet", 12)}
    assert unit["unreadable"] == []
    fleet.kill("a1")
    try:
        wait_until(lambda: "a1" not in fleet.route("normal").brokers)
        (unit,) = [each for each in fleet.run("dr", "status")["units"] if each["name"] == "clusterA"]
        assert "a1" in json.dumps(unit["unreadable"])
        out = fleet.attempt("dr", "status").out
        assert "a1" in out
        assert "clusterA" in out
    finally:
        fleet.restart("a1")
        fleet.wait_until_registered("a1")
        wait_until(lambda: fleet.route(TOPIC, "clusterA").writes == A)


def test_the_route_of_a_topic_shows_what_its_unit_may_read(fleet: ProcessCluster):
    """As clients are told: logical queues under their names, and those of others only to read."""
    fleet.run("dr", "open", "--unit", "clusterA")

    out = fleet.attempt("topic", "route", TOPIC, "--unit", "clusterB").out
    rows = [line.split() for line in out.splitlines()]
    assert ["__logic__clusterA", "50", "0", "r"] in rows
    assert ["__logic__clusterB", "50", "50", "rw"] in rows
    assert "a1" in fleet.attempt("topic", "route", "onlyA", "--unit", "clusterB").out


def test_what_is_looked_at_all_day_is_not_what_is_opened(fleet: ProcessCluster):
    """An environment names the own unit: to open one it has to be said."""
    for verb in ("open", "close"):
        assert "--unit" in fleet.run_refused("dr", verb, unit="clusterB", status=2)
    fleet.run("dr", "open", "--all", unit="clusterB")

    assert openings(fleet) == [{"unit": "*"}]


def test_a_unit_without_a_broker_is_still_known(fleet: ProcessCluster):
    """What it has is shown from what name servers remember, and who would have to be started."""
    fleet.kill("a1", until_gone=True)
    try:
        assert len(fleet.mapping(TOPIC, "clusterA")["queues"]) == QUEUES
        assert "clusterA, clusterB: choose one with --unit" in fleet.run_refused("queue", "list", TOPIC)
        assert "a1 is down and leads" in fleet.attempt("broker", "list").out
        fleet.run("dr", "open", "--unit", "clusterA")
        assert "unknown: none of its brokers is up" in fleet.attempt("dr", "status").out
    finally:
        fleet.restart("a1")
        wait_until(lambda: fleet.route(TOPIC, "clusterA").writes == A)


def test_a_broker_is_no_name_server_to_ask_what_is_open(fleet: ProcessCluster):
    """It knows the switch as well, and no units."""
    said = fleet.run_refused("dr", "status", namesrv=fleet.brokers["a1"].address)

    assert "no name server answers" in said


def test_a_closed_status_says_so(fleet: ProcessCluster):
    """And which units there are."""
    out = fleet.attempt("dr", "status").out

    assert "clusterA" in out
    assert "clusterB" in out
    assert "clusterA        1  no" in out
