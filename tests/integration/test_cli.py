"""Every command against a real cluster: what it does, what it prints, what it returns."""

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.up import READY_TIMEOUT_S, Up

from holdfast.cli.main import main
from holdfast.client.push_consumer import PushConsumer
from holdfast.model.message import ReceivedMessage

Ask = Callable[..., Any]
Say = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two brokers. Tests share them, and use topics and groups of their own."""
    with Up(tmp_path_factory.mktemp("up") / "data", "--flush", "async") as running:
        yield running


@pytest.fixture
def ask(cluster: Up, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command with --json that succeeds and return the document."""

    def run(*words: str) -> Any:
        assert main([*words, "--json", "--namesrv", cluster.namesrv]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def say(cluster: Up, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command for people that succeeds and return what it prints."""

    def run(*words: str) -> str:
        assert main([*words, "--namesrv", cluster.namesrv]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def fail(cluster: Up, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command that fails with status 1 and return its one line."""

    def run(*words: str) -> str:
        assert main([*words, "--namesrv", cluster.namesrv]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        return captured.err

    return run


def test_the_cluster_is_described(cluster: Up, ask: Ask, say: Say):
    """Name servers, brokers by cluster, and a line per broker."""
    found = ask("cluster", "describe")

    assert found["name_servers"] == [cluster.namesrv]
    assert found["clusters"] == {"DefaultCluster": ["broker-a", "broker-b"]}
    assert {broker["name"]: broker["address"] for broker in found["brokers"]} == cluster.brokers
    assert all(broker["fault"] is None for broker in found["brokers"])
    assert "broker-b" in say("cluster", "describe")


def test_the_cluster_tells_how_routes_are_pushed(cluster: Up, ask: Ask, say: Say):
    """Of every name server: who watches, how often they are told, and the readings of the machine."""
    (found,) = ask("cluster", "describe")["route_push"]

    assert (found["address"], found["pushes"], found["fault"]) == (cluster.namesrv, True, None)
    assert found["pace"] in {"every second", "every 10 s", "paused"}
    assert found["readings"]["load"] >= 0
    assert found["pace"] in say("cluster", "describe")


def test_brokers_are_listed_and_described(cluster: Up, ask: Ask, say: Say, fail: Say):
    """A broker is found by name or address; an unknown one is told with those that exist."""
    assert [broker["name"] for broker in ask("broker", "list")["brokers"]] == ["broker-a", "broker-b"]
    (found,) = ask("broker", "describe", "broker-a")["brokers"]
    assert found["config"]["brokerName"] == "broker-a"
    assert ask("broker", "describe", cluster.brokers["broker-a"])["brokers"][0]["status"]["name"] == "broker-a"
    assert "Settings" in say("broker", "describe", "broker-a")
    assert "there is broker-a, broker-b" in fail("broker", "describe", "broker-x")


def test_a_topic_is_created_listed_described_and_deleted(ask: Ask, say: Say, fail: Say):
    """From nothing to nothing; every step shows what is there now."""
    created = ask("topic", "create", "cli-life", "--queues", "3")
    assert created["created"] is True
    assert [host["write_queues"] for host in created["hosts"]] == [3, 3]

    (listed,) = [topic for topic in ask("topic", "list")["topics"] if topic["name"] == "cli-life"]
    assert (listed["queues"], listed["brokers"], listed["permission"]) == (6, ["broker-a", "broker-b"], "rw")
    described = ask("topic", "describe", "cli-life")
    assert len(described["queues"]) == 6
    assert len(ask("topic", "route", "cli-life")["queueDatas"]) == 2
    assert "broker-a" in say("topic", "describe", "cli-life")
    assert "cli-life" in say("topic", "list")

    assert "exists already" in fail("topic", "create", "cli-life")
    assert ask("topic", "create", "cli-life", "--exist-ok")["created"] is False
    assert "index convert cli-life --to batch" in fail("topic", "create", "cli-life", "--batches", "--exist-ok")

    assert ask("topic", "delete", "cli-life", "--dry-run")["deleted"] is False
    assert ask("topic", "delete", "cli-life")["deleted"] is True
    assert "does not exist" in fail("topic", "describe", "cli-life")
    assert "does not exist" in fail("topic", "delete", "cli-life")


def test_a_topic_can_live_on_some_brokers_only(ask: Ask, fail: Say):
    """--brokers names them; one that does not exist is told, and nothing is created."""
    assert "no broker 'broker-x'" in fail("topic", "create", "cli-some", "--brokers", "broker-a,broker-x")

    ask("topic", "create", "cli-some", "--queues", "2", "--brokers", "broker-b")

    assert [host["broker"] for host in ask("topic", "describe", "cli-some")["hosts"]] == ["broker-b"]


def test_a_topic_is_changed_and_a_dry_run_changes_nothing(ask: Ask, say: Say):
    """Before and after are shown; what is not named stays."""
    ask("topic", "create", "cli-change", "--queues", "2")

    planned = say("topic", "update", "cli-change", "--queues", "4", "--dry-run")
    assert "would change" in planned
    assert "2 -> 4" in planned
    assert [host["write_queues"] for host in ask("topic", "describe", "cli-change")["hosts"]] == [2, 2]

    ask("topic", "update", "cli-change", "--queues", "4", "--permission", "r")
    hosts = ask("topic", "describe", "cli-change")["hosts"]
    assert [(host["write_queues"], host["permission"]) for host in hosts] == [(4, "r"), (4, "r")]


def test_system_topics_are_listed_only_on_request(ask: Ask):
    """A newcomer sees their own topics."""
    shown = {topic["name"] for topic in ask("topic", "list")["topics"]}
    everything = {topic["name"] for topic in ask("topic", "list", "--all")["topics"]}

    assert "SCHEDULE_TOPIC_XXXX" in everything - shown
    assert "broker-a" in everything - shown


def test_a_message_is_sent_and_found_by_key_and_by_both_ids(ask: Ask, say: Say, fail: Say):
    """Key, sender's id and broker's id lead to the same message, with tag and properties."""
    sent = ask("send", "cli-find", "hello", "--key", "k1", "--tag", "paid", "--property", "colour=blue")["messages"][0]

    (by_key,) = ask("message", "query", "cli-find", "--key", "k1")["messages"]
    assert (by_key["body"], by_key["tags"], by_key["properties"]) == ("hello", "paid", {"colour": "blue"})
    (by_id,) = ask("message", "query", "cli-find", "--id", sent["id"])["messages"]
    (by_place,) = ask("message", "query", "cli-find", "--id", sent["offset_id"])["messages"]
    assert by_key == by_id == by_place
    assert (by_key["broker"], by_key["queue"], by_key["offset"]) == (sent["broker"], sent["queue"], sent["offset"])

    assert "blue" in say("message", "query", "cli-find", "--key", "k1")
    assert ask("message", "query", "cli-find", "--key", "other")["messages"] == []
    assert "no message" in fail("message", "query", "cli-find", "--id", "0" * 32)


def test_a_topic_that_a_message_creates_is_announced(cluster: Up, ask: Ask, capsys: pytest.CaptureFixture[str]):
    """A typing error makes a topic: people read it on standard error, programs find it in the document."""
    ask("topic", "create", "cli-announced", "--queues", "1")

    assert ask("send", "cli-announced", "x")["created"] is False
    assert main(["send", "cli-anounced", "x", "--namesrv", cluster.namesrv]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("sent ")
    assert "topic cli-anounced did not exist and was created" in said.err
    assert "If you meant cli-announced: `holdfast topic delete cli-anounced` removes it" in said.err
    assert main(["send", "cli-anounced", "x", "--namesrv", cluster.namesrv]) == 0
    assert capsys.readouterr().err == ""
    assert ask("send", "cli-another", "x")["created"] is True


def test_a_misspelt_topic_or_group_gets_the_one_that_was_meant(ask: Ask, fail: Say):
    """One good guess; where there is none, the command that lists them."""
    ask("topic", "create", "cli-invoices", "--queues", "1")
    ask("group", "create", "cli-bookkeeping")

    assert "topic 'cli-invoces' does not exist; did you mean 'cli-invoices'?" in fail("tail", "cli-invoces")
    assert "group 'cli-bookeeping' does not exist; did you mean 'cli-bookkeeping'?" in fail(
        "group", "lag", "cli-bookeeping"
    )
    assert "does not exist; `holdfast topic list` shows those that do" in fail("topic", "describe", "xyzzy")


def test_dead_letters_show_where_they_came_from(cluster: Up, ask: Ask, say: Say):
    """Topic, queue and offset of the message that could not be consumed, of a normal and of a static topic."""
    ask("topic", "create", "cli-dead", "--queues", "3")
    ask("topic", "create", "cli-dead-static", "--logical-queues", "3")
    sent = {topic: ask("send", topic, "x", "--key", "k1")["messages"][0] for topic in ("cli-dead", "cli-dead-static")}

    async def scenario() -> None:
        failed: set[str] = set()
        all_failed = asyncio.Event()

        async def listen(message: ReceivedMessage) -> None:
            failed.add(message.topic)
            if failed == set(sent):
                all_failed.set()
            raise ValueError("cannot be consumed")

        consumer = PushConsumer(cluster.namesrv, "cli-dying", listener=listen, start="earliest", retries_max=0)
        for topic in sent:
            consumer.subscribe(topic)
        async with consumer:
            await all_failed.wait()

    asyncio.run(scenario())

    letters = ask("tail", "%DLQ%cli-dying")["messages"]
    assert {letter["origin"]["topic"] for letter in letters} == set(sent)
    for letter in letters:
        origin, was = letter["origin"], sent[letter["origin"]["topic"]]
        assert (origin["broker"], origin["queue"], origin["offset"]) == (was["broker"], was["queue"], was["offset"])
        assert f"from {origin['topic']} {origin['broker']}/" in say("tail", "%DLQ%cli-dying")
    assert "from  " in say("message", "query", "%DLQ%cli-dying", "--id", sent["cli-dead"]["id"])


def test_lines_of_standard_input_are_messages(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    """One message per line that is not empty; keys before a separator."""
    lines = io.TextIOWrapper(io.BytesIO(b"a|one\n\nb|two\r\n"))
    monkeypatch.setattr(sys, "stdin", lines)

    assert ask("send", "cli-lines", "--key-separator", "|")["sent"] == 2

    messages = ask("tail", "cli-lines", "--from", "earliest")["messages"]
    assert sorted((message["key"], message["body"]) for message in messages) == [("a", "one"), ("b", "two")]


def test_a_line_without_its_separator_is_named(fail: Say, monkeypatch: pytest.MonkeyPatch):
    """What was read before it has been sent, and is counted."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a|one\nno key\n")))

    said = fail("send", "cli-lines", "--key-separator", "|")

    assert "1 messages sent, then 1 failed: line 'no key' has no '|' between key and message" in said


def test_a_file_is_one_message_or_its_lines(ask: Ask, tmp_path: Path):
    """The whole content, byte for byte, or with --lines a message each."""
    file = tmp_path / "body"
    file.write_bytes(b"one\ntwo\n")

    assert ask("send", "cli-file", "--file", str(file))["sent"] == 1
    assert ask("send", "cli-file", "--file", str(file), "--lines")["sent"] == 2

    bodies = [message["body"] for message in ask("tail", "cli-file", "--from", "earliest")["messages"]]
    assert sorted(bodies) == ["one", "one\ntwo\n", "two"]


def test_tail_shows_the_last_the_matching_and_the_tagged(ask: Ask, say: Say):
    """-N over all queues, a regular expression, a tag, a limit; in the order of storing."""
    ask("topic", "create", "cli-tail", "--queues", "2")
    for number in range(12):
        ask("send", "cli-tail", f"m{number}", "--tag", "even" if number % 2 == 0 else "odd")

    def bodies(*options: str) -> list[str]:
        return [message["body"] for message in ask("tail", "cli-tail", *options)["messages"]]

    assert bodies("--from", "earliest") == [f"m{number}" for number in range(12)]
    assert bodies("--from", "-3") == ["m9", "m10", "m11"]
    assert bodies() == [f"m{number}" for number in range(2, 12)]
    assert bodies("-n", "1") == bodies("--max", "1") == ["m11"]
    assert bodies("-n", "2", "--tag", "even") == ["m8", "m10"]
    assert bodies("-n", "1", "--filter", "^m.$") == ["m9"]
    assert bodies("--from", "earliest", "--tag", "odd", "--max", "2") == ["m1", "m3"]
    assert bodies("--from", "1h", "--filter", "^m1.$") == ["m10", "m11"]
    assert bodies("--from", "latest") == []
    assert say("tail", "cli-tail", "--from", "-1").endswith("[odd]  m11\n")


def test_tail_follows_what_arrives(cluster: Up, ask: Ask):
    """--follow prints the old ones, then each message as it comes; an interrupt ends it."""
    ask("send", "cli-follow", "before")
    words = ["tail", "cli-follow", "--from", "earliest", "--follow", "--format", "body", "--namesrv", cluster.namesrv]
    with Child([HOLDFAST, *words], name="tail") as tail:
        tail.wait_for_line("^before$", timeout_s=READY_TIMEOUT_S)

        ask("send", "cli-follow", "after")

        tail.wait_for_line("^after$", timeout_s=READY_TIMEOUT_S)
        assert tail.lines() == ["before", "after"]
        os.kill(tail.pid, signal.SIGINT)
        assert tail.wait(timeout_s=READY_TIMEOUT_S) == 130


def test_tail_shows_the_newest_of_a_static_topic_and_follows_from_there(cluster: Up, ask: Ask):
    """Over a queue that has moved, one that is empty, and those of another broker; no message is lost or repeated."""
    ask("topic", "create", "cli-static-tail", "--logical-queues", "3", "--brokers", "broker-a")
    for number in range(4):
        ask("send", "cli-static-tail", f"m{number}", "--key", f"k{number % 2}")
    ask("topic", "move", "cli-static-tail", "--to", "broker-b")
    ask("send", "cli-static-tail", "m4", "--key", "k0")

    found = ask("tail", "cli-static-tail", "-n", "3")["messages"]
    words = ["tail", "cli-static-tail", "-n", "2", "-f", "--max", "4", "--format", "body", "--namesrv", cluster.namesrv]
    with Child([HOLDFAST, *words], name="tail") as tail:
        tail.wait_for_line("^m4$", timeout_s=READY_TIMEOUT_S)
        for number in (5, 6):
            ask("send", "cli-static-tail", f"m{number}", "--key", f"k{number}")
        assert tail.wait(timeout_s=READY_TIMEOUT_S) == 0

    assert [message["body"] for message in found] == ["m2", "m3", "m4"]
    assert tail.lines()[:2] == ["m3", "m4"]
    assert sorted(tail.lines()[2:]) == ["m5", "m6"]


def test_a_group_lives_and_its_lag_and_offsets_are_shown_and_reset(ask: Ask, say: Say, fail: Say):
    """Create, reset to an end, to an offset, dry run, lag, delete."""
    ask("topic", "create", "cli-lag", "--queues", "1", "--brokers", "broker-a")
    ask("send", "cli-lag", "x", "--count", "10")
    assert "does not exist" in fail("group", "describe", "cli-group")
    assert "does not exist" in fail("group", "reset", "cli-group", "cli-lag", "--to", "earliest", "--yes")

    ask("group", "create", "cli-group", "--retry-max", "3")
    assert ask("group", "describe", "cli-group")["config"]["retryMaxTimes"] == 3
    assert "cli-group" in {group["name"] for group in ask("group", "list")["groups"]}

    planned = ask("group", "reset", "cli-group", "cli-lag", "--to", "earliest", "--dry-run")
    assert [(change["before"], change["after"]) for change in planned["changes"]] == [(None, 0)]
    assert ask("group", "lag", "cli-group")["queues"] == []
    ask("group", "reset", "cli-group", "cli-lag", "--to", "earliest")
    assert ask("group", "lag", "cli-group")["lag"] == 10
    ask("group", "reset", "cli-group", "cli-lag", "--to", "7")
    assert ask("group", "lag", "cli-group", "cli-lag")["lag"] == 3
    ask("group", "reset", "cli-group", "cli-lag", "--to", "1h")
    assert ask("group", "lag", "cli-group")["lag"] == 10
    ask("group", "reset", "cli-group", "cli-lag", "--to", "latest")
    assert ask("group", "lag", "cli-group")["lag"] == 0
    assert "broker-a" in say("group", "lag", "cli-group")

    assert ask("group", "delete", "cli-group")["deleted"] is True
    assert "does not exist" in fail("group", "lag", "cli-group")


def test_the_members_of_a_group_are_shown_and_protect_it(cluster: Up, ask: Ask, fail: Say):
    """A consumer that is online is listed with its subscription; its group is not deleted under it."""
    ask("topic", "create", "cli-members", "--queues", "1")

    async def scenario() -> None:
        got = asyncio.Event()

        async def listen(message: ReceivedMessage) -> None:
            del message
            got.set()

        consumer = PushConsumer(cluster.namesrv, "cli-online", listener=listen, start="earliest")
        consumer.subscribe("cli-members", "a || b")
        async with consumer:
            await asyncio.to_thread(ask, "send", "cli-members", "x", "--tag", "a")
            await got.wait()
            found = await asyncio.to_thread(ask, "group", "describe", "cli-online")
            assert [member["client_id"] for member in found["members"]] == [consumer.client_id]
            assert found["subscriptions"]["cli-members"] == "a || b"
            assert (found["kind"], found["model"]) == ("push", "clustering")
            assert "1 members online" in await asyncio.to_thread(fail, "group", "delete", "cli-online")

    asyncio.run(scenario())


def test_a_small_load_gives_rates_and_leaves_nothing_behind(ask: Ask):
    """Everything sent is acknowledged and consumed; topic and group are gone afterwards."""
    found = ask("bench", "--seconds", "0.5", "--producers", "1", "--in-flight", "8", "--queues", "2")

    figures = found["figures"]
    assert figures["sent"] > 0
    assert figures["failed"] == 0
    assert figures["consumed"] == figures["sent"]
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert "holdfast-bench" not in {topic["name"] for topic in ask("topic", "list")["topics"]}
    assert "holdfast-bench" not in {group["name"] for group in ask("group", "list")["groups"]}


def test_topic_stats_count_messages(ask: Ask, say: Say):
    """The sum over the queues, and rates."""
    ask("send", "cli-stats", "x", "--count", "5")

    found = ask("topic", "stats", "cli-stats")

    assert found["messages"] == 5
    assert found["puts_per_second"] >= 0
    assert "puts per second" in say("topic", "stats", "cli-stats")
