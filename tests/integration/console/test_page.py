"""The pages of the console in a real browser: what they show, how they are used, and what cannot run in them."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from tests.support.cluster.console import ConsoleProcess
from tests.support.cluster.processes import ProcessCluster

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

PATIENCE_MS = 60_000
WIDTHS = (390, 1280)
# What a hostile peer would call a topic, a broker or a group if servers let it.
HOSTILE = "<img src=x onerror='window.ran=1'><script>window.ran=1</script>\"'><b onclick=alert(1)>"

expect.set_options(timeout=PATIENCE_MS)


def operate(cluster: ProcessCluster, *words: str) -> Any:
    """Run a command in a thread: Playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(cluster.run, *words).result()


def leaders(cluster: ProcessCluster) -> dict[int, str]:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(cluster.leaders, "orders").result()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Two brokers and a static topic on one of them."""
    with ProcessCluster(
        tmp_path_factory.mktemp("pages"), "broker-a", "broker-b", settings={"log_file_size": 1 << 20}
    ) as running:
        operate(running, "topic", "create", "orders", "--logical-queues", "4", "--brokers", "broker-a")
        operate(running, "send", "orders", "hello")
        yield running


@pytest.fixture(scope="module")
def console(cluster: ProcessCluster) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(cluster.namesrv) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=120_000)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, console: ConsoleProcess) -> Iterator[Page]:
    """A page that may neither fail nor break its own policy."""
    context = browser.new_context(base_url=f"http://{console.address}", viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None)
    yield opened
    context.close()
    assert faults == []


def open_live(page: Page, path: str) -> None:
    """Open a page and wait until it shows the cluster."""
    page.goto(path)
    expect(page.locator("#connection")).to_have_text("live")


def test_the_overview_shows_brokers_and_what_needs_attention(page: Page):
    """Each broker with what it leads."""
    open_live(page, "/")

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    table = page.get_by_role("table", name="Brokers")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table.get_by_title("broker-a leads 4 logical queues")).to_be_visible()
    expect(table.get_by_title("broker-b leads 0 logical queues")).to_be_visible()


def test_the_way_from_the_topics_to_a_map(page: Page):
    """The list can be filtered; a topic leads to its map, with a row for each queue."""
    open_live(page, "/#/topics")
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.get_by_text("no topic matches")).to_be_visible()
    page.get_by_role("searchbox").fill("ord")
    page.get_by_role("link", name="orders").click()

    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    expect(page.locator(".row")).to_have_count(4)
    expect(page.locator(".row .block.is-leader")).to_have_count(4)
    assert page.title() == "orders · Holdfast"


def test_a_move_shows_as_it_happens(page: Page, cluster: ProcessCluster):
    """Without a reload: the old segment is striped, the new leader's block follows it."""
    open_live(page, "/#/topics/orders")
    row = page.locator(".row", has=page.get_by_role("button", name="Queue 1,"))
    expect(row.locator(".block")).to_have_count(1)

    operate(cluster, "queue", "migrate", "orders", "1", "--to", "broker-b")

    expect(page.get_by_role("button", name="Queue 1, led by broker-b")).to_be_visible()
    operate(cluster, "queue", "migrate", "orders", "1", "--to", "broker-a")
    expect(page.get_by_role("button", name="Queue 1, led by broker-a")).to_be_visible()


def test_the_map_is_used_with_the_keyboard(page: Page):
    """Arrow keys move between queues, Enter shows the segments of one; another filter has none."""
    open_live(page, "/#/topics/orders")
    page.get_by_role("button", name="Queue 0,").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("button", name="Queue 2,")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Logical queue 2")).to_be_visible()
    expect(page.get_by_role("table", name="Segments").get_by_role("row")).to_have_count(2)
    page.get_by_role("searchbox").fill("3")
    expect(page.locator(".row")).to_have_count(1)
    page.get_by_role("searchbox").fill("broker-x")
    expect(page.get_by_text("no queue matches")).to_be_visible()


def test_a_queue_is_moved_with_a_preview(page: Page, cluster: ProcessCluster):
    """The dialog shows the tables; nothing moves before it is confirmed, and the end is shown."""
    open_live(page, "/#/topics/orders")
    page.get_by_role("button", name="Queue 3,").click()
    page.get_by_role("combobox", name="New leader").select_option("broker-b")
    page.get_by_role("button", name="Plan…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("table", name="orders before")).to_be_visible()
    expect(dialog.get_by_role("table", name="orders after")).to_be_visible()
    assert leaders(cluster)[3] == "broker-a"

    dialog.get_by_role("button", name="Move 1 queue").click()

    expect(dialog.get_by_text("1 of 1 queue moved")).to_be_visible()
    assert leaders(cluster)[3] == "broker-b"
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("button", name="Queue 3, led by broker-b")).to_be_visible()


def test_a_queue_is_dragged_to_a_broker(page: Page):
    """Dropping it opens the plan; closing that changes nothing."""
    open_live(page, "/#/topics/orders")
    target = page.locator(".legend .chip[data-broker='broker-b']")
    target.wait_for()

    page.locator(".row", has=page.get_by_role("button", name="Queue 0,")).locator(".line").drag_to(target)

    dialog = page.get_by_role("dialog", name="Move queue 0 of orders")
    expect(dialog.get_by_role("button", name="Move 1 queue")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("button", name="Queue 0, led by broker-a")).to_be_visible()


@pytest.mark.slow
def test_a_lost_name_server_is_shown_and_found_again(page: Page, cluster: ProcessCluster):
    """By itself; the page keeps what it showed."""
    open_live(page, "/#/topics/orders")
    (name_server,) = cluster.name_servers
    cluster.kill(name_server)
    expect(page.locator("#connection")).to_contain_text("cluster unreachable")
    expect(page.locator(".row")).to_have_count(4)

    cluster.restart(name_server)

    expect(page.locator("#connection")).to_have_text("live")
    cluster.wait_until_registered()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_phones_and_desks(browser: Browser, console: ConsoleProcess, width: int, scheme: Any):
    """Nothing is wider than the window; the text differs from its ground in both schemes."""
    context = browser.new_context(
        base_url=f"http://{console.address}", viewport={"width": width, "height": 800}, color_scheme=scheme
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    grounds = []
    for path in ("/", "/#/topics", "/#/topics/orders", "/api/docs"):
        page.goto(path)
        page.locator("table, .row").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    context.close()

    (ground,) = set(grounds)
    assert (max(map(int, re.findall(r"\d+", ground)[:3])) < 80) == (scheme == "dark")


def to_events(values: dict[str, Any]) -> str:
    return "".join(f"event: {name}\ndata: {json.dumps(value)}\n\n" for name, value in values.items())


def answer_with(page: Page, paths: dict[str, object], events: dict[str, Any]) -> None:
    """Let the page get these values in place of the console's."""

    def answer(route: Route) -> None:
        path = route.request.url.partition("/api/v1/")[2].partition("?")[0]
        if path == "events":
            route.fulfill(content_type="text/event-stream", body=to_events(events))
        else:
            route.fulfill(json=paths.get(path, {}))

    page.route("**/api/v1/**", answer)


def a_map(topic: str, queues: int, name: str) -> dict[str, Any]:
    segments = [
        {
            "generation": number,
            "broker": f"{name}{number}",
            "physical_queue": 0,
            "first": 100 * number,
            "end": 100 * number + 100,
            "status": "Normal" if number else "ReadOnly",
            "is_leader": bool(number),
            "gap_after": False,
            "note": name,
            "first_ms": None,
            "last_ms": 1,
        }
        for number in range(2)
    ]
    row = {
        "leader": f"{name}1",
        "first": 0,
        "end": 200,
        "segments": segments,
        "positions": [{"group": name, "committed": 50, "lag": 150}],
        "moving_to": None,
    }
    return {
        "topic": topic,
        "kind": "static",
        "scope": name,
        "shown_to_clients_as": name,
        "epoch": 1,
        "total": queues,
        "queues": [{"queue": number, **row} for number in range(queues)],
        "unled": [],
        "groups": [{"group": name, "lag": 150, "fault": None}],
        "groups_left_out": 0,
        "moves": [],
        "problems": [name],
    }


def a_state(name: str) -> dict[str, Any]:
    broker = {
        "name": name,
        "cluster": name,
        "id": 0,
        "address": name,
        "version": name,
        "puts_per_second": 1.0,
        "gets_per_second": 1.0,
        "puts_today": 1,
        "gets_today": 1,
        "disk_used_percent": 1.0,
        "up_since_ms": 1,
        "fault": name,
        "leads": 1,
        "draining": False,
        "replication": name,
        "trusted_brokers": [],
    }
    move = {
        "id": name,
        "topic": name,
        "queues": [1],
        "source": name,
        "target": name,
        "state": "failed",
        "reason": name,
        "started_ms": 1,
        "changed_ms": 1,
        "copied": None,
    }
    return {
        "connection": {"is_connected": True, "error": None},
        "cluster": {
            "brokers": {"brokers": [broker], "down": {name: 1}},
            "leads": {name: 1},
            "topics": [name],
            "problems": [name],
        },
        "moves": {"moves": [move], "ended": [{**move, "state": "done"}]},
        "topic": {"topic": name, "map": a_map(name, 2, name), "error": None},
    }


def test_names_from_outside_are_text_and_never_run(page: Page):
    """In every field of every page; the text is shown as it is, and nothing that it looks like exists."""
    summary = {
        "name": HOSTILE,
        "kind": HOSTILE,
        "queues": 1,
        "brokers": [HOSTILE],
        "permission": HOSTILE,
        "batches": False,
    }
    plan = {"token": "t", "goal": HOSTILE, "moves": [], "tables": [], "marks": HOSTILE, "until_ms": 1}
    answer_with(page, {"topics": {"topics": [summary]}, "moves/plan": plan}, a_state(HOSTILE))
    for path in ("/", "/#/topics", f"/#/topics/{'%'.join(['', *re.findall('..', HOSTILE.encode().hex())])}"):
        page.goto(path)
        expect(page.get_by_text(HOSTILE).first).to_be_visible()
        if path == "/":
            page.get_by_role("button", name="Drain").click()
            expect(page.get_by_role("dialog").get_by_text(HOSTILE).first).to_be_visible()
            page.get_by_role("button", name="Close").click()
        if "topics/" in path:
            page.locator(".queue").first.click()
            expect(page.get_by_role("table", name="Segments").get_by_text(HOSTILE).first).to_be_visible()
        assert page.evaluate("document.querySelectorAll('main img, main script, main b[onclick]').length") == 0
        assert page.evaluate("window.ran") is None


def test_offsets_are_where_their_segments_are(page: Page):
    """A forced move's gap of 2^40 offsets does not squeeze the messages; marks rise with their offsets."""
    page.goto("/")
    first = {"generation": 0, "first": 0, "end": 100, "status": "ReadOnly", "is_leader": False, "gap_after": True}
    last = {"generation": 2, "first": 2**40, "end": 2**40 + 300, "status": "Normal", "is_leader": True}
    queue = {"first": 40, "end": 2**40 + 300, "segments": [first, {**last, "gap_after": False}]}
    script = """async ([queue, offsets]) => {
        const { pieces, place, locate, size } = await import("/static/scale.js");
        const placed = place(pieces(queue), 1000, 360);
        const rounded = placed.map((part) => [part.kind, Math.round(part.left), Math.round(part.width)]);
        return [size(pieces(queue)), rounded, offsets.map((offset) => Math.round(locate(placed, offset)))];
    }"""

    size, placed, marks = page.evaluate(script, [queue, [0, 40, 100, 2**39, 2**40, 2**40 + 150, 2**40 + 300]])

    assert size == 60 + 300
    # 1000 pixels: 26 for the gap, 9 for each segment, and the rest by messages.
    assert placed == [["sealed", 0, 168], ["gap", 168, 26], ["leader", 194, 806]]
    assert marks == [0, 0, 168, 181, 194, 597, 1000]


def test_markup_cannot_be_made_from_text(page: Page):
    """Even a mistake of ours would fail: the policy demands what no code of the page can make."""
    page.goto("/")

    script = "() => { try { document.body.innerHTML = '<b>x</b>'; return 'ran' } catch { return 'refused' } }"
    assert page.evaluate(script) == "refused"


def test_a_thousand_queues_are_a_few_rows_of_the_document(page: Page):
    """Only those in view exist; the last one is there when it is scrolled to."""
    big = a_state("broker")
    big["topic"] = {"topic": "big", "map": a_map("big", 1000, "broker"), "error": None}
    answer_with(page, {"topics/big/map": big["topic"]["map"]}, big)
    page.goto("/#/topics/big")
    page.get_by_role("button", name="Queue 0,").wait_for()
    assert page.locator(".row").count() < 60

    page.get_by_role("button", name="Queue 0,").focus()
    page.keyboard.press("End")

    expect(page.get_by_role("button", name="Queue 999,")).to_be_focused()
    assert page.locator(".row").count() < 60


def test_a_read_only_console_offers_no_change(browser: Browser, cluster: ProcessCluster):
    """It would only be refused."""
    with ConsoleProcess(cluster.namesrv, "--read-only") as console:
        context = browser.new_context(base_url=f"http://{console.address}")
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        open_live(page, "/")
        expect(page.locator("body")).to_have_class(re.compile("is-read-only"))
        expect(page.get_by_role("table", name="Brokers")).to_be_visible()
        assert page.get_by_role("button").count() == 0
        context.close()
