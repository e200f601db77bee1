"""The numbers that a name server tells about itself."""

from tests.support.name_servers import a_name_server, a_registration, ask_route, register

from holdfast.nameserver.metrics import name_server_samples


def test_every_number_is_told_once_and_moves_with_what_it_counts():
    """Gauges for what is there, counters for what happened."""
    server = a_name_server()
    register(server, body=a_registration("orders", "bills"), channel=server.open())
    ask_route(server, "orders")
    ask_route(server, "nothing")

    samples = list(name_server_samples(server.machine))

    values = {sample.name: sample.value for sample in samples}
    assert len(values) == len(samples)
    assert values["namesrv_brokers"] == 1
    assert values["namesrv_topics"] == 2
    assert values["namesrv_channels"] == 3
    assert values["namesrv_route_queries"] == 2
    assert values["namesrv_route_misses"] == 1
    assert values["namesrv_refusals"] == 1
