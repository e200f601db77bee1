"""Name servers and what they do about changed routes, against a scripted cluster."""

from tests.support.cluster.scripted import NAME_SERVER, Reply, ScriptedAccess

from holdfast.admin.route_push import RoutePushStatus, find_route_push
from holdfast.model.errors import ConnectionLost, RequestTimeout
from holdfast.wire.cluster.push_state import PushState, ReportedReadings, encode_push_state
from holdfast.wire.frames.codes import RequestCode

STATE = PushState(
    broker_events="spread",
    watching_clients=3,
    watched_topics=2,
    watches=4,
    pending_clients=1,
    notices_sent=9,
    pace="every 10 s",
    reason="load 61 %",
    readings=ReportedReadings(memory=12.5, load=61.0),
)


async def ask(reply: Reply | None) -> RoutePushStatus:
    """Return what is found of a name server that answers so; None: one of Java's, which would not answer at all."""
    reach = ScriptedAccess()
    settings = b"listenPort=9876\n" if reply is None else b"brokerEvents=spread\nlistenPort=9876\n"
    reach.on(RequestCode.GET_NAMESRV_CONFIG, lambda _: settings)
    reach.on(RequestCode.GET_PUSH_STATE, lambda _: RequestTimeout("never answered") if reply is None else reply)
    (found,) = await find_route_push(reach)
    assert found.address == NAME_SERVER
    return found


async def test_a_name_server_that_pushes_tells_its_figures():
    """Clients, topics, pace with reason, and readings, unknown ones too."""
    found = await ask(encode_push_state(STATE))

    assert (found.pushes, found.fault) == (True, None)
    assert (found.watching_clients, found.watched_topics, found.pending_clients, found.notices_sent) == (3, 2, 1, 9)
    assert (found.broker_events, found.pace, found.reason) == ("spread", "every 10 s", "load 61 %")
    assert found.readings == ReportedReadings(memory=12.5, load=61.0, network="unknown")


async def test_a_name_server_without_settings_for_it_does_not_push():
    """As every Java one; that is no fault, and nobody waits for an answer that does not come."""
    assert await ask(None) == RoutePushStatus(address=NAME_SERVER)


async def test_a_name_server_that_does_not_answer_or_talks_nonsense_is_listed_with_the_reason():
    """Nobody knows then what it does."""
    silent, absurd, refusing = await ask(ConnectionLost("cannot connect")), await ask(b"nonsense"), await ask(1)

    assert (silent.pushes, silent.fault) == (False, "cannot connect")
    assert absurd.fault
    assert refusing.fault
