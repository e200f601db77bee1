"""Whatever a stranger asks, the broker answers or keeps silent; it neither breaks nor stops."""

import inspect
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.broker_clients import a_heartbeat, a_subscription, connect_client
from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.machine.events import Stopping
from holdfast.wire.frames.command import BINARY, JSON, Command
from holdfast.wire.requests import admin, heartbeat, offsets, send

TIMERS = ("clients", "kept files", "stats", "calls", "delays", "transactions", "registration", "flush", "housekeep")


def names_in(*modules: Any) -> dict[str, list[str]]:
    """Return the wire names of all structs in *modules*, by the kind of their values."""
    found: dict[str, list[str]] = {"int": [], "str": [], "bool": [], "other": []}
    for module in modules:
        for _, struct in inspect.getmembers(module, inspect.isclass):
            if not issubclass(struct, msgspec.Struct):
                continue
            for field in msgspec.structs.fields(struct):
                kind = next((kind for kind in ("int", "bool", "str") if str(field.type).find(kind) >= 0), "other")
                found[kind].append(field.encode_name)
    return {kind: sorted(set(names)) for kind, names in found.items()}


CODES = sorted(BrokerHarness().components.handlers())
NAMES = names_in(admin, heartbeat, offsets, send)
NUMBERS = st.one_of(
    st.integers(-2, 5).map(str),
    st.sampled_from([str(2**31), str(-(2**31) - 1), str(2**63 - 1), str(2**63), str(-(2**63) - 1), "9" * 40, "x", ""]),
)
TEXTS = st.one_of(
    st.sampled_from(["T", "g", "c", "p", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "", "a b"]),
    st.text(max_size=20),
)
# Each kind of field has few values in a request, wherever it looks for them: most are there, as in a real one.
strange_fields = st.builds(
    lambda number, texts, flag, decision, missing: {
        name: value
        for name, value in (
            dict.fromkeys(NAMES["int"], number)
            | dict.fromkeys(NAMES["str"][::2], texts[0])
            | dict.fromkeys(NAMES["str"][1::2], texts[1])
            | dict.fromkeys(NAMES["bool"], flag)
            | {"commitOrRollback": decision}
        ).items()
        if name not in missing
    },
    NUMBERS,
    st.tuples(TEXTS, TEXTS),
    st.sampled_from(["true", "false", "1", "maybe"]),
    st.sampled_from(["0", "8", "12", "5"]),
    st.sets(st.sampled_from(NAMES["int"] + NAMES["str"]), max_size=2),
)
strange_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([name for names in NAMES.values() for name in names]), inner, max_size=5),
    ),
    max_leaves=12,
)
strange_requests = st.builds(
    Command,
    code=st.sampled_from(CODES),
    opaque=st.integers(0, 9),
    flag=st.sampled_from([0, 0, 2]),
    fields=strange_fields,
    body=st.one_of(st.just(b""), st.binary(max_size=40), strange_values.map(lambda value: json.dumps(value).encode())),
    serializer=st.sampled_from([JSON, JSON, BINARY]),
)


def a_busy_desk() -> BrokerHarness:
    """Return a broker that has something of everything."""
    desk = BrokerHarness()
    desk.make_topic("T")
    connect_client(desk, 2, a_heartbeat("c", consumer_group="g", topics=(a_subscription("T"),), producer_group="p"))
    desk.call(a_send(), a_send(i="UNIQ_KEY\x01u\x02DELAY\x011\x02"))
    desk.call(a_send(f="4", i="UNIQ_KEY\x01u\x02PGROUP\x01p\x02"))
    desk.components.offsets.commit("g", "T", 0, 1)
    desk.pass_time(0, "transactions")
    return desk


@settings(deadline=None, max_examples=150)
@given(st.lists(strange_requests, min_size=1, max_size=4))
def test_strange_requests_do_no_harm(requests: list[Command]) -> None:
    """Every two-way request gets one answer or none, timers go on, and the broker stops in order and starts again."""
    desk = a_busy_desk()

    answers = desk.call(*requests)

    assert len([answer for answer in answers if answer.is_response]) <= len(requests)
    desk.pass_time(10_000, *TIMERS)
    desk.feed(Stopping(desk.now_ms))
    desk.store.close(desk.now_ms)
    again = BrokerHarness(disk=desk.disk)
    assert again.components.topics.find("TBW102") is not None
