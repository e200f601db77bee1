"""The console's HTTP API in front of real brokers: what it reads, what it moves, and what it refuses."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.child import Child
from tests.support.cluster.console import ConsoleProcess
from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.processes import ProcessCluster

import holdfast
from holdfast.console import app
from holdfast.console.endpoints import PREFIX, TABLE, Endpoint

pytestmark = pytest.mark.timeout(180)

QUEUES = 4
JSON_BODY = b'{"order": 17, "lines": [1, 2]}'
BODIES = [b"plain text", JSON_BODY, b"\xff\x00\x01", b"x" * 5000]
# Values for the parameters of paths.
NAMES = {"topic": "orders", "group": "billing", "broker": "broker-a"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Two brokers; a static topic with a message for each body in queue 0, of which a group has consumed one."""
    settings = {"log_file_size": 1 << 20}
    with ProcessCluster(tmp_path_factory.mktemp("console"), "broker-a", "broker-b", settings=settings) as running:
        running.run("topic", "create", "orders", "--logical-queues", str(QUEUES), "--brokers", "broker-a,broker-b")
        running.run("topic", "create", "plain", "--queues", "1")
        asyncio.run(asyncio.wait_for(furnish(running.namesrv), 60))
        yield running


async def furnish(namesrv: str) -> None:
    """Send what tests read, and consume a part of it."""
    async with (
        holdfast.Producer(namesrv) as producer,
        holdfast.PullConsumer(namesrv, "billing", start="earliest") as consumer,
    ):
        # One key keeps all of them in one queue.
        for number, body in enumerate(BODIES):
            await producer.send("orders", body, key="customer", keys=(f"order-{number}",), tags="paid")
        queues = list(await consumer.queues("orders"))
        await consumer.assign(queues)
        while not (messages := await consumer.poll(messages_max=1)):
            pass
        await consumer.commit({messages[0].queue: messages[0].offset + 1})


@pytest.fixture(scope="module")
def console(cluster: ProcessCluster) -> Iterator[ConsoleProcess]:
    """The console of the cluster."""
    with ConsoleProcess(cluster.namesrv) as running:
        yield running


def messages_of(console: ConsoleProcess, **query: object) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = console.get("topics/orders/messages", **query)["messages"]
    return messages


def first_queue(console: ConsoleProcess) -> int:
    """Return the queue that has the messages."""
    number: int = messages_of(console, key="order-0")[0]["facts"]["queue"]
    return number


@pytest.mark.parametrize("endpoint", [row for row in TABLE if row.method == "GET"], ids=lambda row: row.path)
def test_an_answer_has_the_form_that_the_document_promises(console: ConsoleProcess, endpoint: Endpoint):
    """Of every path that reads: decoded as its declared type, nothing is missing and nothing has another type."""
    path = re.sub(r"\{(\w+)\}", lambda match: NAMES[match[1]], endpoint.path)
    if endpoint.path == "/dead-letters/{group}":
        assert console.refused(path.strip("/"))[0] == 404  # it has none
        return

    answer = console.attempt("GET", PREFIX + path)

    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert msgspec.json.decode(answer.body, type=endpoint.result) is not None


def test_the_map_shows_queues_segments_and_consumers(console: ConsoleProcess):
    """Every queue with its leader and its range; the group's position is that of its commit."""
    found = console.get("topics/orders/map")
    number = first_queue(console)

    assert (found["kind"], found["scope"], found["total"]) == ("static", "global", QUEUES)
    assert [row["queue"] for row in found["queues"]] == list(range(QUEUES))
    row = found["queues"][number]
    assert (row["first"], row["end"], row["moving_to"]) == (0, len(BODIES), None)
    (segment,) = row["segments"]
    assert (segment["status"], segment["is_leader"], segment["end"]) == ("Normal", True, len(BODIES))
    assert segment["broker"] == row["leader"]
    assert row["positions"] == [{"group": "billing", "committed": 1, "lag": len(BODIES) - 1}]
    assert [group["group"] for group in found["groups"]] == ["billing"]


def test_the_map_of_a_normal_topic_has_a_row_for_each_queue(console: ConsoleProcess):
    """One segment each, so that readers need one form."""
    found = console.get("topics/plain/map")

    assert (found["kind"], found["scope"], found["total"]) == ("normal", None, 2)
    assert {row["leader"] for row in found["queues"]} == {"broker-a", "broker-b"}
    assert [[each["end"] for each in row["segments"]] for row in found["queues"]] == [
        [row["end"]] for row in found["queues"]
    ]


def test_a_queue_is_read_page_by_page(console: ConsoleProcess):
    """From an offset on, with the offset where the next page begins; null at the end."""
    number = first_queue(console)

    first = console.get("topics/orders/messages", queue=number, offset=0, limit=3)
    last = console.get("topics/orders/messages", queue=number, offset=first["next_offset"], limit=3)

    assert [each["facts"]["offset"] for each in first["messages"]] == [0, 1, 2]
    assert ([each["facts"]["offset"] for each in last["messages"]], last["next_offset"]) == ([3], None)


def test_messages_are_found_by_key_id_and_time(console: ConsoleProcess):
    """And without any of them, the newest ones are returned; tags, keys and sizes come along."""
    (found,) = messages_of(console, key="order-1")
    facts = found["facts"]

    assert (facts["tags"], facts["key"], facts["size"]) == ("paid", "customer", len(JSON_BODY))
    assert sorted(facts["keys"]) == ["customer", "order-1"]
    assert messages_of(console, id=facts["id"])[0]["facts"]["offset"] == facts["offset"]
    since = messages_of(console, time_ms=facts["stored_ms"])
    assert {each["facts"]["offset"] for each in since} >= {facts["offset"]}
    assert messages_of(console, time_ms=facts["stored_ms"] + 3_600_000) == []
    assert [each["facts"]["offset"] for each in messages_of(console, limit=2)] == [2, 3]


def test_a_body_is_text_json_or_hex_and_bounded(console: ConsoleProcess):
    """`auto` chooses; a body that is longer than asked for is cut, and says so."""
    number = first_queue(console)
    bodies = [each["body"] for each in messages_of(console, queue=number, offset=0, body_max=100)]

    assert [body["form"] for body in bodies] == ["text", "json", "hex", "text"]
    assert bodies[0]["text"] == "plain text"
    assert json.loads(bodies[1]["text"]) == json.loads(JSON_BODY)
    assert bodies[2]["text"].startswith("000000  ff 00 01")
    assert [body["is_cut"] for body in bodies] == [False, False, False, True]
    assert bodies[3]["text"] == "x" * 100
    (as_hex,) = messages_of(console, queue=number, offset=0, limit=1, form="hex")
    assert as_hex["body"]["text"].startswith("000000  70 6c 61 69 6e")


def test_committed_offsets_are_listed_by_queue(console: ConsoleProcess):
    """With the range of each queue."""
    found = console.get("topics/orders/offsets", group="billing")
    row = found["queues"][first_queue(console)]

    assert (row["broker"], row["start"], row["end"], row["committed"]) == ("__logic__global", 0, len(BODIES), 1)
    assert found["faults"] == []


@pytest.mark.parametrize(
    ("path", "query", "status", "text"),
    [
        ("topics/ordres", {}, 404, "did you mean 'orders'"),
        ("topics/ordres/map", {}, 404, "did you mean 'orders'"),
        ("brokers/broker-x", {}, 404, "no broker 'broker-x'"),
        ("groups/none", {}, 404, "does not exist"),
        ("topics/orders/messages", {"offset": 0}, 400, "an offset belongs to a queue"),
        ("topics/orders/messages", {"key": "a", "id": "b"}, 400, "exclude each other"),
        ("topics/orders/messages", {"limit": 0}, 400, "limit"),
        ("topics/orders/messages", {"limit": "many"}, 400, "limit"),
        ("topics/orders/messages", {"body_max": 1 << 30}, 400, "body_max"),
        ("topics/orders/messages", {"queue": -1}, 400, "queue"),
        ("topics/orders/messages", {"queue": 99, "offset": 0}, 404, "no such queue"),
        ("topics/orders/messages", {"id": "no such id"}, 404, "no message"),
        ("topics", {"al": "true"}, 400, "did you mean 'all'"),
        ("events", {"topik": "orders"}, 400, "no parameter 'topik'"),
        ("nothing", {}, 404, "nothing at this path"),
    ],
)
def test_an_error_says_what_happened_and_what_to_do(
    console: ConsoleProcess, path: str, query: dict[str, object], status: int, text: str
):
    """As JSON with a fitting status."""
    found, error = console.refused(path, **query)

    assert (found, text in error["message"]) == (status, True), error
    assert error["remedy"]


def test_requests_by_other_names_and_from_other_pages_are_refused(console: ConsoleProcess):
    """A page that has made its name point here (DNS rebinding), and a page of another site; reads and changes."""
    own = {"Origin": f"http://{console.address}"}
    for headers in (
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost"},
    ):
        for path in ("/", "/api/v1/topics", "/api/openapi.json", "/static/console.js", "/api/v1/events"):
            refused = console.attempt("GET", path, headers=headers)
            assert (refused.status, refused.error["kind"]) == (403, "ForeignRequest"), (headers, path)
    assert console.attempt("GET", "/api/v1/moves", headers=own).status == 200
    name = console.address.replace("127.0.0.1", "localhost")
    assert console.attempt("GET", "/api/v1/moves", headers={"Host": name, "Origin": f"http://{name}"}).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_of_another_page_cannot_change_anything(console: ConsoleProcess, kind: str):
    """Browsers send these types without asking; a change must be JSON."""
    body = json.dumps({"kind": "rebalance"}).encode()

    refused = console.attempt("POST", "/api/v1/moves/plan", body, headers={"Content-Type": kind})

    assert (refused.status, refused.error["kind"]) == (403, "ForeignRequest")


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"kind":"explode"}', b'{"kind":"drain"}', b"\xff", b"[" * 60_000])
def test_a_body_of_another_form_is_refused(console: ConsoleProcess, body: bytes):
    """With the reason."""
    refused = console.attempt("POST", "/api/v1/moves/plan", body)

    assert (refused.status, refused.error["kind"]) == (400, "BadParameter")


def test_a_body_without_end_is_refused(console: ConsoleProcess):
    """Before it takes memory."""
    refused = console.attempt("POST", "/api/v1/moves/plan", b" " * (app.BODY_MAX + 1))

    assert (refused.status, "larger than" in refused.error["message"]) == (400, True)


def test_every_answer_forbids_what_is_not_ours(console: ConsoleProcess):
    """Pages, files, the API and refusals: nothing from elsewhere, no script from text, no frame."""
    for path in ("/", "/static/console.css", "/api/docs", "/api/v1/topics", "/api/v1/nothing", "/static/nothing.js"):
        headers = console.attempt("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")


@pytest.mark.parametrize("path", ["/", "/api/docs"])
def test_a_page_loads_nothing_from_elsewhere(console: ConsoleProcess, path: str):
    """And what it loads is there."""
    page = console.attempt("GET", path).body.decode()
    addresses = re.findall(r"""(?:src|href)=["']([^"']+)""", page)

    assert addresses
    assert [each for each in addresses if not re.match(r"/(?!/)|#", each)] == []
    for address in {each for each in addresses if each.startswith("/static/")}:
        assert console.attempt("GET", address).status == 200
    assert "<script>" not in page
    assert " style=" not in page


def test_a_file_is_sent_again_only_if_it_has_changed(console: ConsoleProcess):
    """Browsers ask with the tag that they have."""
    tag = console.attempt("GET", "/static/console.js").headers["etag"]

    assert console.attempt("GET", "/static/console.js", headers={"If-None-Match": tag}).status == 304
    assert console.attempt("GET", "/static/../app.py").status == 404


def test_the_document_describes_every_path_and_value(console: ConsoleProcess):
    """OpenAPI 3.1: every reference leads somewhere, every parameter of a path is declared and has a text."""
    document = console.attempt("GET", "/api/openapi.json").value
    text = json.dumps(document)

    assert document["openapi"] == "3.1.0"
    assert {PREFIX + row.path for row in TABLE} < document["paths"].keys()
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert len(references) > 50
    assert references <= document["components"]["schemas"].keys()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert all(each["description"] for each in operation["parameters"]), path
            assert operation["summary"], path
            assert "Raises:" not in operation["description"], path


def test_the_documentation_can_be_read_without_scripts(console: ConsoleProcess):
    """One page with all paths."""
    page = console.attempt("GET", "/api/docs").body.decode()

    assert "<script" not in page
    assert all(PREFIX + row.path in page for row in TABLE)


# Events.


def test_events_bring_the_state_and_then_its_changes(cluster: ProcessCluster, console: ConsoleProcess):
    """A page that listens sees a send in the map, and a queue's new leader, without asking again."""
    with console.events("orders") as events:
        state = events.wait("cluster")
        assert [broker["name"] for broker in state["brokers"]["brokers"]] == ["broker-a", "broker-b"]
        assert "orders" in state["topics"]
        before = events.wait("topic")["map"]["queues"][3]
        target = "broker-b" if before["leader"] == "broker-a" else "broker-a"

        cluster.run("queue", "migrate", "orders", "3", "--to", target)

        moved = events.wait("topic", lambda value: value["map"]["queues"][3]["leader"] == target)
        assert [segment["broker"] for segment in moved["map"]["queues"][3]["segments"]] == [before["leader"], target]
        ended = events.wait("moves", lambda value: value["ended"])
        assert (ended["ended"][0]["topic"], ended["ended"][0]["state"]) == ("orders", "done")


def test_a_watched_topic_that_does_not_exist_is_an_event_with_the_reason(console: ConsoleProcess):
    """The stream stays open: the topic may be created."""
    with console.events("nope") as events:
        found = events.wait("topic")

    assert (found["map"], found["error"]["kind"]) == (None, "RouteNotFound")


def test_listeners_are_counted_while_they_are_connected(console: ConsoleProcess):
    """A page that is closed no longer costs anything."""
    with console.events() as one, console.events() as other:
        one.wait("cluster")
        other.wait("cluster")
        assert console.get("console")["listeners"] == 2

    deadline = time.monotonic() + 30
    while console.get("console")["listeners"]:
        assert time.monotonic() < deadline


def test_a_lost_cluster_is_reported_and_found_again(cluster: ProcessCluster, console: ConsoleProcess):
    """The console itself stays up, says what to do, and reconnects."""
    (name_server,) = cluster.name_servers
    with console.events() as events:
        events.wait("connection", lambda value: value["is_connected"])
        cluster.kill(name_server)

        lost = events.wait("connection", lambda value: not value["is_connected"])
        status, error = console.refused("topics")
        cluster.restart(name_server)

        assert lost["error"]["kind"] == "NameServerUnreachable"
        assert (status, "holdfast up" in error["remedy"]) == (503, True)
        assert events.wait("connection", lambda value: value["is_connected"])["error"] is None
    cluster.wait_until_registered()


# Changes.


def wait_for_moves(console: ConsoleProcess, moves: list[dict[str, Any]]) -> None:
    """Return once these moves are done."""
    ids = {move["id"] for move in moves}
    deadline = time.monotonic() + 60
    while not all(move["state"] == "done" for move in console.get("moves", all="true")["moves"] if move["id"] in ids):
        assert time.monotonic() < deadline


def make_topic(cluster: ProcessCluster, name: str, *brokers: str) -> None:
    cluster.run("topic", "create", name, "--logical-queues", "2", "--brokers", ",".join(brokers))


def test_a_plan_shows_its_tables_and_its_token_carries_it_out_once(cluster: ProcessCluster, console: ConsoleProcess):
    """Nothing moves before the token is applied; a second application is refused."""
    make_topic(cluster, "planned", "broker-a")
    plan = console.post("moves/plan", {"kind": "migrate", "topic": "planned", "queue": 1, "to": "broker-b"}).value

    assert plan["moves"] == [{"topic": "planned", "queue": 1, "source": "broker-a", "target": "broker-b"}]
    (tables,) = plan["tables"]
    assert [row["broker"] for row in tables["before"] if row["queue"] == 1] == ["broker-a"]
    assert {row["broker"] for row in tables["after"] if row["queue"] == 1} == {"broker-a", "broker-b"}
    assert cluster.leaders("planned") == {0: "broker-a", 1: "broker-a"}

    started = console.post("moves/apply", {"token": plan["token"]})
    assert started.status == 200, started.body
    wait_for_moves(console, started.value["moves"])
    assert cluster.leaders("planned") == {0: "broker-a", 1: "broker-b"}

    again = console.post("moves/apply", {"token": plan["token"]})
    assert (again.status, again.error["kind"]) == (409, "UnknownPlan")


def test_a_plan_is_refused_when_the_cluster_has_changed_since(cluster: ProcessCluster, console: ConsoleProcess):
    """The refusal names what has changed, and nothing moves. Changes of other topics do not matter to one queue."""
    make_topic(cluster, "changing", "broker-a")
    make_topic(cluster, "beside", "broker-a")
    order = {"kind": "migrate", "topic": "changing", "queue": 0, "to": "broker-b"}
    plan = console.post("moves/plan", order).value
    unaffected = console.post("moves/plan", {**order, "topic": "beside"}).value

    cluster.run("queue", "migrate", "changing", "1", "--to", "broker-b")
    refused = console.post("moves/apply", {"token": plan["token"]})

    assert (refused.status, refused.error["kind"]) == (409, "PlanOutdated")
    assert refused.error["details"] == ["topic changing of global"]
    assert cluster.leaders("changing") == {0: "broker-a", 1: "broker-b"}
    started = console.post("moves/apply", {"token": unaffected["token"]}).value["moves"]
    wait_for_moves(console, started)
    assert cluster.leaders("beside")[0] == "broker-b"


def test_a_plan_is_refused_when_a_setting_or_a_broker_has_changed(cluster: ProcessCluster, console: ConsoleProcess):
    """A permission, and a draining mark."""
    make_topic(cluster, "settings", "broker-a")
    order = {"kind": "migrate", "topic": "settings", "queue": 0, "to": "broker-b"}

    plan = console.post("moves/plan", order).value
    cluster.run("topic", "update", "settings", "--permission", "r", "--brokers", "broker-a")
    assert console.post("moves/apply", {"token": plan["token"]}).error["details"] == ["topic settings of global"]

    plan = console.post("moves/plan", order).value
    cluster.run("broker", "drain", "broker-b")
    try:
        refused = console.post("moves/apply", {"token": plan["token"]})
        assert "broker broker-b" in refused.error["details"]
    finally:
        cluster.run("broker", "spread", "broker-b")


def test_a_broker_is_drained_and_gets_its_share_again(cluster: ProcessCluster, console: ConsoleProcess):
    """Draining marks it; what keeps it from being removed is listed; spreading ends the mark."""
    make_topic(cluster, "drained", "broker-a", "broker-b")
    drain = console.post("moves/plan", {"kind": "drain", "broker": "broker-a"}).value
    assert drain["marks"] == "drained"
    wait_for_moves(console, console.post("moves/apply", {"token": drain["token"]}).value["moves"])

    assert set(cluster.leaders("drained").values()) == {"broker-b"}
    (status, _) = console.get("brokers")["brokers"]
    assert (status["name"], status["draining"], status["leads"]) == ("broker-a", True, 0)
    blockers = console.get("brokers/broker-a/blockers")
    assert not blockers["is_removable"]
    assert any("plain" in each["text"] for each in blockers["blockers"])
    # The mark is part of the order, so a plan without moves can be applied, too.
    assert console.post("moves/plan", {"kind": "drain", "broker": "broker-a"}).value["token"] is not None

    spread = console.post("moves/plan", {"kind": "spread", "broker": "broker-a"}).value
    wait_for_moves(console, console.post("moves/apply", {"token": spread["token"]}).value["moves"])
    assert "broker-a" in cluster.leaders("drained").values()
    assert not console.get("brokers")["brokers"][0]["draining"]


def test_a_plan_without_anything_to_do_has_no_token(cluster: ProcessCluster, console: ConsoleProcess):
    """It says what holds already."""
    make_topic(cluster, "even", "broker-a", "broker-b")

    plan = console.post("moves/plan", {"kind": "rebalance", "topic": "even"}).value

    assert (plan["token"], plan["moves"], plan["goal"]) == (None, [], "every broker leads its share")


@pytest.mark.parametrize(
    ("order", "status", "text"),
    [
        ({"kind": "migrate", "topic": "orders", "queue": 99, "to": "broker-b"}, 404, "no 99"),
        ({"kind": "migrate", "topic": "orders", "queue": 0, "to": "broker-x"}, 404, "no broker 'broker-x'"),
        ({"kind": "migrate", "topic": "plain", "queue": 0, "to": "broker-b"}, 404, "no static topic"),
        ({"kind": "drain", "broker": "broker-x"}, 404, "no broker"),
        ({"kind": "move", "topic": "none", "to": ["broker-a"]}, 404, "no static topic"),
    ],
)
def test_an_impossible_plan_is_refused(console: ConsoleProcess, order: dict[str, Any], status: int, text: str):
    """With the reason of the operation."""
    refused = console.post("moves/plan", order)

    assert (refused.status, text in refused.error["message"]) == (status, True), refused.body


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_an_unknown_move_can_neither_be_cancelled_nor_resumed(console: ConsoleProcess, verb: str):
    """404 with a hint."""
    refused = console.post(f"moves/nope/{verb}", {})

    assert (refused.status, refused.error["kind"]) == (404, "NotFound")


def test_a_read_only_console_changes_nothing(cluster: ProcessCluster):
    """It refuses before it plans; reading goes on as ever."""
    with ConsoleProcess(cluster.namesrv, "--read-only") as console:
        assert console.get("console")["is_read_only"]
        for path in ("moves/plan", "moves/apply", "moves/x/cancel", "moves/x/resume"):
            refused = console.post(path, {"kind": "rebalance"})
            assert (refused.status, refused.error["kind"]) == (403, "ReadOnlyConsole")
        assert console.get("topics/orders/map")["total"] == QUEUES


def test_it_listens_on_this_machine_only(tmp_path: Path):
    """There is no login yet: the refusal says how to reach it from elsewhere, with status 2."""
    words = ["serve", "console", "--namesrv", "127.0.0.1:1", "--listen", "0.0.0.0:0"]
    refused = Child([HOLDFAST, *words], name="console")

    assert refused.wait(timeout_s=60) == 2
    assert "beyond loopback" in refused.last_lines()
    assert "ssh -L" in refused.last_lines()
