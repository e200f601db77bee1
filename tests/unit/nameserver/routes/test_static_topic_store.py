"""What a name server knew of static topics outlives it; a file that cannot be read costs that, and nothing more."""

import json

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, a_topic, register
from tests.support.static_reports import (
    a_java_report,
    a_leader_report,
    a_report,
    a_segment,
    address_of,
    leaders,
    register_static,
    request_as,
)

from holdfast.machine.effects import Log, SetTimer, WriteFile
from holdfast.machine.events import DiskFault, FileWritten, TimerFired
from holdfast.machine.kept_file import UNREADABLE
from holdfast.nameserver.routes.static_topic_store import FILE, TIMER
from holdfast.wire.frames.codes import RequestCode


def a_server(static_content: bytes | None = None) -> MachineHarness:
    return a_name_server(static_content=static_content, data="somewhere")


def writes(server: MachineHarness) -> list[bytes]:
    return [effect.data for effect in server.effects if isinstance(effect, WriteFile) and effect.path == FILE]


def save(server: MachineHarness) -> bytes:
    """Let everything that is to be written be written; return the file."""
    count = -1
    while count != len(writes(server)):
        count = len(writes(server))
        server.feed(FileWritten(FILE, server.now_ms))
        server.feed(TimerFired(TIMER, server.now_ms))
    return writes(server)[-1]


def restart(server: MachineHarness) -> MachineHarness:
    """Return a name server that was started on what *server* left."""
    return a_server(save(server))


def forced(broker: str) -> dict[str, object]:
    """Return the report of *broker* after queue 0 was taken from a, which is dead, by force."""
    homes = [a_segment("a", 0), a_segment("b", 7, generation=1, first=1 << 40)]
    return a_report(broker, {0: homes, 1: [a_segment("b", 1)]}, total=2, epoch=5)


def test_a_topic_with_a_dead_leader_is_served_after_a_restart():
    """The dead broker's queues have their place still, and so do those of the living."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0))
    register_static(server, "b", a_leader_report("b", 1))

    again = restart(server)
    register_static(again, "b", a_leader_report("b", 1))

    assert leaders(again) == {0: "a", 1: "b"}


def test_a_topic_is_served_to_nobody_before_one_of_its_brokers_is_back():
    """Clients could reach nobody."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0, 1))

    again = restart(server)

    assert "no broker that has it is alive" in str(leaders(again))


def test_a_replaced_leader_is_not_believed_after_a_restart():
    """It comes first, and alone: who replaced it is away, but is known."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0))
    register_static(server, "b", forced("b"))

    again = restart(server)
    register_static(again, "a", a_leader_report("a", 0))

    assert leaders(again) == {0: "b", 1: "b"}


def test_an_old_copy_is_refused_after_a_restart():
    """A broker that comes back with an older epoch than it had is told so."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0, 1, epoch=9))

    again = restart(server)
    answer = register_static(again, "a", a_leader_report("a", 0, 1, epoch=8))

    assert "was at epoch 9" in (answer.remark or "")


def test_what_was_deleted_stays_deleted_over_a_restart():
    """A broker that was away at the deletion does not bring the topic back."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0, 1))
    server.send_one_way(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})

    again = restart(server)
    answer = register_static(again, "a", a_leader_report("a", 0, 1))

    assert "was deleted" in (answer.remark or "")
    assert leaders(again) is None


def test_the_last_complete_route_is_served_after_a_restart_in_the_middle_of_a_contradiction():
    """Two claim one queue: clients keep what was true before."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0, epoch=1))
    register_static(server, "b", a_leader_report("b", 1, epoch=1))
    register_static(server, "b", a_leader_report("b", 0, 1, epoch=2))
    before = leaders(server)

    again = restart(server)
    register_static(again, "a", a_leader_report("a", 0, epoch=1))
    register_static(again, "b", a_leader_report("b", 0, 1, epoch=2))

    assert before == leaders(again) == {0: "a", 1: "b"}


def test_a_report_of_a_java_broker_survives_as_it_was():
    """It told no homes; an older client is sent to one of ours."""
    server = a_server()
    register_static(server, "a", a_java_report("a", {0: 3}, total=2))
    register_static(server, "b", a_leader_report("b", 1))

    again = restart(server)
    register_static(again, "b", a_leader_report("b", 1))
    register_static(again, "a", a_java_report("a", {0: 3}, total=2))

    assert leaders(again) == {0: "a", 1: "b"}
    assert address_of("b").encode() in request_as(again, "PYTHON", 300).body
    assert json.loads(save(server))["topics"]["orders"]["reports"]["a"]["holdfast"] is None


def test_a_topic_that_was_deleted_while_we_were_away_is_forgotten():
    """Its brokers tell everything they have, and it is not among that."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0, 1))

    again = restart(server)
    body = a_registration(a_topic("SELF_TEST_TOPIC", 1))
    register(again, "a", address_of("a"), body=body, channel=again.connect())

    assert leaders(again) is None


def test_a_broker_that_tells_only_what_changed_keeps_the_rest():
    """Java brokers register single topics."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0, 1))

    again = restart(server)
    register(again, "a", address_of("a"), body=a_registration("another"), channel=again.connect())

    assert leaders(again) == {0: "a", 1: "a"}


def test_a_topic_that_was_a_normal_one_stays_that_until_it_is_complete():
    """Also when the name server is restarted half way."""
    server = a_server()
    register(server, "a", address_of("a"), body=a_registration(a_topic("orders", 2)), channel=server.connect())
    register_static(server, "a", a_leader_report("a", 0))

    again = restart(server)
    register_static(again, "a", a_leader_report("a", 0))

    answer = again.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert answer.code == 0
    assert b"topicQueueMappingByBroker" not in answer.body


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"topics":{"orders":7}}', b"[" * 100_000])
def test_a_damaged_file_is_told_kept_aside_and_started_without(content: bytes):
    """Never a crash: brokers tell again what they have."""
    server = a_server(content)
    register_static(server, "a", a_leader_report("a", 0, 1))

    assert WriteFile(FILE + UNREADABLE, content) in server.effects
    assert "static topics forgotten: their file cannot be read" in server.logged()
    assert leaders(server) == {0: "a", 1: "a"}


def test_a_damaged_report_costs_that_report():
    """The others are as good as ever."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0))
    register_static(server, "b", a_leader_report("b", 1))
    kept = json.loads(save(server))
    kept["topics"]["orders"]["reports"]["b"]["bname"] = "c"

    again = a_server(json.dumps(kept).encode())

    (told,) = [effect for effect in again.effects if isinstance(effect, Log) and "forgotten" in effect.event]
    assert (told.fields["broker"], told.fields["topic"]) == ("b", "orders")
    assert again.machine.routes.static.find_reported("a", "orders") is not None


def test_one_write_is_under_way_and_the_next_has_everything():
    """A thousand registrations are not a thousand files; after a large file there is a rest."""
    server = a_server()
    for epoch in range(1, 20):
        register_static(server, "a", a_leader_report("a", 0, 1, epoch=epoch))
    assert len(writes(server)) == 1

    assert json.loads(save(server))["topics"]["orders"]["reports"]["a"]["epoch"] == 19
    assert len(writes(server)) == 2


def test_nothing_is_written_when_nothing_changed():
    """Registrations that only renew cost nothing; neither do normal topics."""
    server = a_server()
    register(server, "b", "10.0.0.9:10911", body=a_registration("plain"), channel=server.connect())
    assert writes(server) == []
    register_static(server, "a", a_leader_report("a", 0, 1))
    save(server)
    count = len(writes(server))

    register_static(server, "a", a_leader_report("a", 0, 1))

    assert len(writes(server)) == count


def test_a_write_that_failed_is_tried_again():
    """A full disk is not for ever."""
    server = a_server()
    register_static(server, "a", a_leader_report("a", 0, 1))

    effects = server.feed(DiskFault("no space left", server.now_ms, path=FILE))

    assert [effect.name for effect in effects if isinstance(effect, SetTimer)] == [TIMER]
    server.feed(TimerFired(TIMER, server.now_ms))
    assert len(writes(server)) == 2


def test_without_a_folder_nothing_is_written():
    """Such a name server forgets everything at its end."""
    server = a_name_server()

    register_static(server, "a", a_leader_report("a", 0, 1))

    assert writes(server) == []
