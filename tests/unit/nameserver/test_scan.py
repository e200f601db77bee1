"""The periodic scan of a name server."""

from tests.support.cluster.name_server_machine import a_name_server, find_route, register

from holdfast.machine.effects import CloseChannel, Log, SetTimer
from holdfast.machine.events import TimerFired
from holdfast.nameserver.scan import TIMER
from holdfast.wire.frames.codes import RequestCode


def test_a_silent_broker_leaves_at_the_scan_and_the_next_one_is_set():
    """Its log line, the end of its channel, then the timer: in this order."""
    server = a_name_server(broker_timeout_ms=10_000, scan_interval_ms=5_000)
    channel = server.connect()
    register(server, channel=channel)
    server.now_ms += 10_001

    effects = server.feed(TimerFired(TIMER, server.now_ms))

    assert [type(effect) for effect in effects] == [Log, CloseChannel, SetTimer]
    assert effects[1:] == [CloseChannel(channel), SetTimer(TIMER, server.now_ms + 5_000)]
    assert find_route(server, "orders") is None


def test_a_new_interval_counts_from_the_next_scan():
    """The timer that is set is not moved."""
    server = a_name_server(scan_interval_ms=5_000)

    server.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"scanNotActiveBrokerInterval=7000")

    assert server.feed(TimerFired(TIMER, server.now_ms)) == [SetTimer(TIMER, server.now_ms + 7_000)]
