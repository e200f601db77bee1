"""The commands of logical queues, run as a whole against brokers that keep mappings."""

import json

import msgspec
import pytest
from tests.support.cluster.scripted import Reply, ScriptedRequest
from tests.support.cluster.scripted_topics import JAVA_4, ScriptedTopics

from holdfast.cli.main import ALIASES, main
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import Move


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> ScriptedTopics:
    for name in ("HOLDFAST_NAMESRV", "HOLDFAST_PROFILE", "HOLDFAST_CONFIG", "HOLDFAST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    brokers = {"broker1": "a:1", "broker2": "b:1", "broker3": "c:1"}
    return ScriptedTopics(brokers_by_name=brokers).use_for_commands(monkeypatch)


@pytest.fixture
def orders(cluster: ScriptedTopics) -> ScriptedTopics:
    """The first table of the proposal."""
    cluster.put_topic("orders", {0: "broker1", 1: "broker1", 2: "broker2", 3: "broker2"})
    return cluster


def run(words: str, capsys: pytest.CaptureFixture[str], *, status: int = 0) -> str:
    """Return what a command printed: on standard output, or when it failed on standard error."""
    assert main(words.split()) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def answer(words: str, capsys: pytest.CaptureFixture[str], *, status: int = 0) -> dict[str, object]:
    """Return the one JSON document that a command printed."""
    assert main([*words.split(), "--json"]) == status
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_unknown_offsets_and_times_are_printed_as_minus_one(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """Scripts read the numbers; only the model has no number for them."""
    by_list, described = answer("queue list orders", capsys), answer("topic describe orders", capsys)

    for shown in (by_list, described):
        (segment,) = shown["mapping"]["queues"]["0"]["segments"]  # type: ignore[index]
        assert [segment[name] for name in ("first", "start", "end", "first_ms", "last_ms")] == [0, 0, -1, -1, -1]


def test_a_dry_run_prints_both_tables_and_changes_nothing(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """The proposal's columns, its first and its second table. Nothing was copied or not yet: nothing is said of it."""
    orders.ends["orders", 0] = 101

    printed = run("queue migrate orders 0 --to broker2 --dry-run", capsys)

    header = "brokerName  MessageQueue  LogicalQueue  QueueStatus"
    before, after = printed.split(header)[1:]
    assert "broker1                0  0             Normal" in before
    assert "broker1                0  0(0-100)      ReadOnly" in after
    assert "broker2                2  0(101-)       Normal" in after
    assert "copied" not in printed
    assert "bytes_copied" not in answer("queue migrate orders 0 --to broker2 --dry-run", capsys)
    assert orders.requests_of(RequestCode.MOVE_QUEUES) == []


@pytest.mark.parametrize(("counted", "said"), [(0, "; bytes copied: 0"), (1_234, "; bytes copied: 1,234"), (None, "")])
def test_the_bytes_are_printed_that_the_new_leader_counted(
    counted: int | None, said: str, orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """And none where it did not."""
    orders.copied_offsets = counted

    assert run("queue migrate orders 0 --to broker2", capsys) == f"broker2 took over 1 logical queue{said}\n"
    assert answer("queue migrate orders 0 --to broker1", capsys)["bytes_copied"] == counted


def test_a_queue_is_migrated_and_listed(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """Every segment with its offsets and status."""
    orders.ends["orders", 0] = 101

    moved = run("queue migrate orders 0 --to broker2", capsys)
    listed = run("queue list orders", capsys)

    assert moved == "broker2 took over 1 logical queue; bytes copied: 0\n"
    assert "    0        0  broker1         0      0  101  ReadOnly" in listed
    assert "    0        1  broker2         2    101    -  Normal" in listed


@pytest.mark.parametrize("name", ["migrateLogicalQueue", "MigrateLogicalQueue"])
def test_the_proposals_names_are_commands(name: str, orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """In the spelling of the proposal and in that of tools."""
    run(f"{name} orders 0 --to broker3", capsys)

    assert orders.leader("orders", 0) == "broker3"


def test_all_five_names_lead_somewhere(capsys: pytest.CaptureFixture[str]):
    """Each to a verb that exists."""
    assert len(ALIASES) == 5
    for name in ALIASES:
        assert "Usage" in run(f"{name} --help", capsys)


def test_a_topic_that_keeps_batches_whole_is_created_by_one_word(
    cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """Static or not: every broker that hosts it is told how to index it."""
    run("topic create orders --logical-queues 4 --batches --attribute message.type=NORMAL", capsys)
    described = run("topic describe orders", capsys)
    run("topic create plain --queues 2 --batches --dry-run", capsys)

    told = {asked.fields["attributes"] for asked in cluster.requests_of(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)}
    assert told == {"+message.type=NORMAL,+queue.type=BatchCQ"}
    assert "batches" in described


def test_an_existing_topic_is_no_success_if_it_has_another_index(
    orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """Whoever asks for batches must not believe to have them; nor the other way round."""
    told = run("topic create orders --logical-queues 4 --batches --exist-ok", capsys, status=1)
    assert "stop broker1 and run `holdfast index convert orders --to batch --store DIR`" in told
    run("topic create orders --logical-queues 4 --queue-type simple --exist-ok", capsys)

    run("topic create whole --logical-queues 4 --batches", capsys)
    run("topic create whole --logical-queues 4 --batches --exist-ok", capsys)
    run("topic create whole --logical-queues 4 --exist-ok", capsys)
    told = run("topic create whole --logical-queues 4 --queue-type simple --exist-ok", capsys, status=1)
    assert "--to simple" in told


def test_a_static_topic_is_created_shown_and_deleted(cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """With the number of queues that was asked for, whatever the number of brokers."""
    created = run("topic create orders --logical-queues 4 --brokers broker1,broker2", capsys)
    listed = answer("topic list", capsys)
    described = run("topic describe orders", capsys)
    again = run("topic create orders --logical-queues 4", capsys, status=1)
    run("topic create orders --logical-queues 4 --exist-ok", capsys)
    run("topic delete orders --yes", capsys)

    assert created == "static topic orders created: 4 logical queues on broker1, broker2\n"
    assert listed["topics"] == [
        {
            "name": "orders",
            "kind": "static",
            "queues": 4,
            "brokers": ["broker1", "broker2"],
            "permission": "rw",
            "batches": False,
        }
    ]
    assert "logical queues       4" in described
    assert "holdfast topic grow" in again
    assert all(not records for records in cluster.records.values())


def test_growing_says_what_it_means_for_order(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """And shrinking is refused with the reason."""
    grown = run("topic grow orders --logical-queues 8", capsys)
    refused = run("topic grow orders --logical-queues 7", capsys, status=1)

    assert "order per key: 50% of all keys keep their queue" in grown
    assert "cannot have 7: their records and consumers would lose their place" in refused
    assert "grow orders --logical-queues N" in run("topic update orders --queues 9", capsys, status=1)


def test_a_normal_topic_becomes_static_in_place(cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """Nobody may write in between; committed offsets follow their queues; order per key is spoken of."""
    cluster.put_normal("pay", {"broker1": 2, "broker2": 1})
    cluster.offsets["broker2", "g", "pay", 0] = 41

    foreseen = run("topic make-static pay --dry-run", capsys)
    clash = run("topic create pay --logical-queues 3", capsys, status=1)
    done = run("topic make-static pay --pause 0 --yes", capsys)

    assert "sends would be refused for 30 s" in foreseen
    assert "order per key" in foreseen
    assert "make-static pay" in clash
    assert done.startswith("pay is static: 3 logical queues, no message copied\n")
    permissions = [asked.fields["perm"] for asked in cluster.requests_of(RequestCode.UPDATE_AND_CREATE_TOPIC)]
    assert permissions == ["4", "4"]
    assert cluster.offsets["broker2", "g", "pay", 2] == 41
    assert cluster.configs["broker1"]["pay"].permission == 6


def test_a_conversion_that_fails_leaves_a_normal_topic(cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """It may be written as before."""
    cluster.put_normal("pay", {"broker1": 2})
    cluster.on(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, lambda _: 1)

    assert "accepts sends again" in run("topic make-static pay --pause 0", capsys, status=1)
    assert cluster.configs["broker1"]["pay"].permission == 6


def test_a_conversion_that_went_through_is_not_undone(cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """Offsets that could not be carried over are told; the topic stays static."""
    cluster.put_normal("pay", {"broker1": 2})
    cluster.offsets["broker1", "g", "pay", 0] = 41
    cluster.on(RequestCode.UPDATE_CONSUMER_OFFSET, lambda _: 1)

    told = run("topic make-static pay --pause 0", capsys, status=1)

    assert "holdfast group reset" in told
    assert [asked.fields["perm"] for asked in cluster.requests_of(RequestCode.UPDATE_AND_CREATE_TOPIC)] == ["4"]


def test_a_broker_is_drained_waited_for_and_removed(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """With old messages it says what holds it; consumed ones can be dropped; then it goes."""
    orders.ends.update({("orders", 0): 10, ("orders", 1): 20})
    orders.put_normal("plain", {"broker2": 1})

    drained = run("broker drain broker1", capsys)
    planned = run("broker remove broker1 --dry-run", capsys)
    kept = run("broker remove broker1", capsys, status=1)
    for queue in (0, 1):
        for name in orders.brokers_by_name:
            orders.offsets[name, "g", "orders", queue] = 20
    misspelled = run("broker drain broker1 --discard-consumed gg", capsys, status=1)
    done = answer("broker drain broker1 --discard-consumed g --wait", capsys)
    removed = run("broker remove broker1 --yes", capsys)

    assert drained.startswith("broker1 leads nothing; 2 logical queues moved; bytes copied: 0")
    for text in (drained, planned):
        assert "30 messages of orders are in its old segments" in text
    assert "group 'gg' does not exist" in misspelled
    assert "still needed" in kept
    assert (done["removable"], done["holds"], len(done["discarded"])) == (True, [], 2)  # type: ignore[arg-type]
    assert "stop its process now" in removed


def test_a_new_broker_gets_its_share(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """And then there is nothing to rebalance."""
    spread = run("broker spread broker3", capsys)
    balanced = run("cluster rebalance", capsys)

    assert spread.startswith("broker3 took over 1 logical queue")
    assert balanced == "nothing to move: every broker leads its share\n"


def test_a_dead_broker_is_evacuated_by_force(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """Only with the word for it, only when it is silent; the table says what is unknown and what to do."""
    asked_for = run("broker evacuate broker1", capsys, status=1)
    alive = run("broker evacuate broker1 --force", capsys, status=1)
    orders.kill("broker1")
    stuck = run("queue migrate orders 0 --to broker2", capsys, status=1)
    done = answer("broker evacuate broker1 --force --yes", capsys)
    listed = run("queue list orders", capsys)
    given_up = run("queue abandon orders 0 --yes", capsys)

    assert "add --force to confirm that" in asked_for
    assert "broker1 answers" in alive
    assert "holdfast broker evacuate broker1 --force" in stuck
    assert done["done"] == 2
    assert "end unknown: wait for broker1" in listed
    assert "consumers continue" in given_up


def test_the_list_of_brokers_says_how_far_one_is_drained_and_which_is_down(
    orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """A broker that is down is known only by what it leads."""
    led = {"a:1": (0, "true"), "b:1": (2, "true"), "c:1": (1, "false")}

    def runtime(asked: ScriptedRequest) -> Reply:
        leads, draining = led[asked.address]
        return msgspec.json.encode({"table": {"logicalQueuesLed": str(leads), "draining": draining}})

    orders.on(RequestCode.GET_BROKER_RUNTIME_INFO, runtime)
    printed = run("broker list", capsys)
    states = [line.split("  ")[-1].strip() for line in printed.splitlines()]
    assert states == ["STATE", "drained", "draining, 2 queues to go", "in service"]

    orders.forget("broker1")
    printed = run("broker list", capsys)

    assert "broker1 is down and leads 2 logical queues" in printed


def test_a_topic_that_the_name_server_withholds_can_be_looked_at_and_deleted(
    cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """The brokers know of it: nobody is stuck with half a topic."""
    cluster.put_topic("orders", {0: "broker1"}, total=2)
    cluster.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _: Command(code=ResponseCode.SYSTEM_BUSY, remark="withheld"))

    described = run("topic describe orders", capsys)
    created = run("topic create orders --logical-queues 2", capsys, status=1)
    run("topic delete orders --yes", capsys)

    assert "no broker leads 1 queue: run `holdfast queue repair orders`" in described
    assert "`holdfast topic delete orders` deletes it" in created
    assert not any("orders" in records for records in cluster.records.values())


def test_what_a_dead_broker_should_have_led_is_repaired_by_force(
    cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """The refusal names the way."""
    cluster.put_topic("orders", {0: "broker1"}, total=2)
    cluster.kill("broker2")

    refused = answer("queue repair orders", capsys, status=1)
    repaired = answer("queue repair orders --force --yes", capsys)

    assert "holdfast queue repair orders --force" in str(refused["faults"])
    assert (refused["given_homes"], repaired["given_homes"]) == ([], [1])
    assert cluster.leader("orders", 1) in {"broker1", "broker3"}


def test_moves_are_listed_cancelled_and_resumed(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """What ended well is left out unless asked for."""
    states = {"m1": "failed", "m2": "planned", "m3": "done"}
    orders.moves["broker1"] = [
        Move(id=name, topic="orders", queues=[0, 1], source="broker1", target="broker2", state=state)
        for name, state in states.items()
    ]

    listed = answer("move list", capsys)
    everything = answer("move list --all", capsys)
    cancelled = run("move cancel m2", capsys)
    resumed = run("move resume m1", capsys)
    missing = run("move cancel m9", capsys, status=1)

    assert [move["id"] for move in listed["moves"]] == ["m1", "m2"]  # type: ignore[attr-defined]
    assert len(everything["moves"]) == 3  # type: ignore[arg-type]
    assert "move m2 is cancelled: broker1 still leads" in cancelled
    assert "0-1" in cancelled
    assert "move m1 is done" in resumed
    assert "no move 'm9'" in missing


def test_a_move_that_fails_is_status_1_with_the_reason(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """The document tells it too."""
    orders.state_of_new_moves = "failed"

    found = answer("queue migrate orders 0 --to broker2", capsys, status=1)

    assert found["outcome"][0]["state"] == "failed"  # type: ignore[index]
    assert found["bytes_copied"] is None, "there is no new leader that could have counted"


def test_half_a_change_is_repaired(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """The failure names the command that mends it."""
    orders.refusing["broker3"] = "disk full"
    failed = run("topic grow orders --logical-queues 8", capsys, status=1)
    listed = run("queue list orders", capsys)
    orders.refusing.clear()
    repaired = run("queue repair orders", capsys)
    again = run("queue repair orders", capsys)

    assert "run `holdfast queue repair orders`" in failed
    assert "run `holdfast queue repair orders`" in listed
    assert "gave a leader to" in repaired
    assert again == "orders is complete: there is nothing to repair\n"


def test_a_queue_is_unset_and_set_by_hand(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """One that has a leader is not set over it."""
    foreseen = run("queue unset orders 1 --dry-run", capsys)
    refused = run("queue set orders 1 --broker broker3", capsys, status=1)
    run("queue unset orders 1 --yes", capsys)
    run("queue set orders 1 --broker broker3 --first 500", capsys)

    assert foreseen.startswith("would forget logical queue 1 of orders")
    assert "holdfast queue migrate orders 1 --to broker3" in refused
    assert orders.records["broker3"]["orders"].queues[1].leader.first == 500


@pytest.mark.parametrize(
    "words",
    [
        "topic create x --logical-queues 3",
        "topic grow orders --logical-queues 9",
        "topic make-static orders",
        "queue migrate orders 0 --to broker2",
        "broker drain broker1",
        "cluster rebalance",
    ],
)
def test_under_an_old_name_server_nothing_static_happens(
    words: str, orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """Refused with the reason, before anybody is told anything."""
    orders.name_server_version = JAVA_4

    assert "older than RocketMQ 5.0" in run(words, capsys, status=1)
    assert orders.requests_of(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC) == []
    assert orders.requests_of(RequestCode.MOVE_QUEUES) == []


def test_wrong_usage_is_status_2(orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """Options that contradict each other, numbers that cannot be: the text names them, and no broker is asked."""
    assert "cannot be combined with --queues" in run("topic create x --logical-queues 2 --queues 2", capsys, status=2)
    assert "--scope is for static topics: add --logical-queues" in run("topic create x --scope west", capsys, status=2)
    assert "Invalid value for '--logical-queues'" in run("topic create x --logical-queues 0", capsys, status=2)
    assert "No such option: -1" in run("queue migrate orders -1 --to broker2", capsys, status=2)
    assert "--to needs the name of a broker" in run("topic move orders --to ,", capsys, status=2)

    assert orders.requests_of(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC) == []
    assert orders.requests_of(RequestCode.MOVE_QUEUES) == []


def test_a_large_table_shows_only_what_changes(cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """A thousand rows would hide the one that matters."""
    cluster.put_topic("big", dict.fromkeys(range(200), "broker1"))

    printed = run("queue migrate big 7 --to broker2 --dry-run", capsys)

    assert "big before (only the queues that change)" in printed
    assert printed.count("\n") < 20


def test_a_drained_broker_gets_nothing_until_it_is_spread_to(
    orders: ScriptedTopics, capsys: pytest.CaptureFixture[str]
):
    """Growing, creating and rebalancing pass it over; a dry run marks nothing."""
    run("broker drain broker3 --dry-run", capsys)
    assert orders.draining == set()

    assert "until `holdfast broker spread broker3`" in run("broker drain broker3", capsys)
    run("topic create more --logical-queues 6", capsys)
    run("topic grow orders --logical-queues 9", capsys)
    run("cluster rebalance", capsys)
    assert {orders.leader("more", queue) for queue in range(6)} == {"broker1", "broker2"}
    assert {orders.leader("orders", queue) for queue in range(9)} == {"broker1", "broker2"}

    run("broker spread broker3 --dry-run", capsys)
    assert orders.draining == {"broker3"}
    run("broker spread broker3", capsys)
    assert orders.draining == set()
    assert "broker3" in {orders.leader("orders", queue) for queue in range(9)}


@pytest.mark.parametrize("style", ["", " --json"])
def test_tail_says_what_it_cannot_show(style: str, cluster: ScriptedTopics, capsys: pytest.CaptureFixture[str]):
    """A queue without a leader looks empty otherwise; a program is told as well, beside its document."""
    cluster.forget("broker2")
    cluster.put_topic("orders", {0: "broker1", 1: "broker2", 2: "broker2"})
    cluster.on(RequestCode.GET_MIN_OFFSET, lambda _: {"offset": "0"})

    assert main(f"tail orders{style}".split()) == 0

    assert "queues 1, 2 of orders are led by broker2, which is down: their messages" in capsys.readouterr().err
