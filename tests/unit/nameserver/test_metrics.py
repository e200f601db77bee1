"""The numbers that a name server tells about itself."""

from tests.support.cluster.name_server_machine import a_name_server, a_registration, register, request_route
from tests.support.static_reports import a_leader_report, register_static
from tests.support.watching import tick, watch

from holdfast.wire.frames.codes import RequestCode


def test_every_number_is_told_once_and_moves_with_what_it_counts():
    """Gauges for what is there, counters for what happened."""
    server = a_name_server()
    register(server, body=a_registration("orders", "bills"), channel=server.connect())
    request_route(server, "orders")
    request_route(server, "nothing")

    samples = list(server.machine.metrics())

    values = {sample.name: sample.value for sample in samples}
    assert len({(sample.name, *sample.labels.values()) for sample in samples}) == len(samples)
    assert values["namesrv_brokers"] == 1
    assert values["namesrv_topics"] == 2
    assert values["namesrv_channels"] == 3
    assert values["namesrv_route_queries"] == 2
    assert values["namesrv_route_misses"] == 1
    assert values["namesrv_refusals"] == 1


def test_static_topics_are_counted_with_what_is_wrong_with_them():
    """One served, one that contradicts itself, one never complete, one refused."""
    server = a_name_server()
    register_static(
        server, "a", *(a_leader_report("a", 0, 1) | {"topic": topic} for topic in ("orders", "bills", "mails"))
    )
    register_static(
        server,
        "b",
        a_leader_report("b", 0) | {"topic": "bills"},
        a_leader_report("b", 0, total=3) | {"topic": "calls"},
        a_leader_report("a", 0, 1) | {"topic": "copied"},
    )
    request_route(server, "calls")

    values = {sample.name: sample.value for sample in server.machine.metrics()}

    assert values["namesrv_static_topics"] == 4
    assert values["namesrv_static_withheld"] == 2
    assert values["namesrv_static_contradictions"] == 1
    assert values["namesrv_mapping_refusals"] == 1
    assert values["namesrv_routes_withheld"] == 1
    assert values["namesrv_route_misses"] == 0


def test_who_watches_and_how_often_they_are_told_is_counted():
    """Readings that are not known are left out, not 0; a pause shows as no interval."""
    server = a_name_server()
    register(server, body=a_registration("orders", "bills"), channel=server.connect())
    watch(server, "orders", "bills")
    watch(server, "orders")
    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    before = {sample.name: sample.value for sample in server.machine.metrics()}
    tick(server)
    server.machine.push.readings.load = 95.5

    after = {sample.name: sample.value for sample in server.machine.metrics()}

    names = ("watching_clients", "watched_topics", "watches", "notices_pending_clients", "notices_sent")
    assert [before[f"namesrv_{name}"] for name in names] == [2, 2, 3, 2, 0]
    assert [after[f"namesrv_{name}"] for name in names] == [2, 2, 3, 0, 2]
    assert (before["namesrv_notice_interval_seconds"], before["namesrv_readings_known"]) == (1, 0)
    assert (after["namesrv_notice_interval_seconds"], after["namesrv_readings_known"]) == (0, 1)
    assert after["namesrv_load_percent"] == 95.5
    assert "namesrv_load_percent" not in before
    assert "namesrv_memory_percent" not in after
