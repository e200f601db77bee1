"""A fused cluster of two units behind a scripted reach: name servers that keep a switch, a broker in each unit."""

import json
from dataclasses import dataclass, field

import msgspec
from tests.support.scripted_reach import Asked, Reply, ScriptedReach

from holdfast.model.dr_switch import CLOSED, Switch
from holdfast.model.errors import ConnectionLost
from holdfast.wire.cluster.units import KnownUnit, UnitState, decode_switch
from holdfast.wire.frames.codes import RequestCode

SERVERS = ("ns:1", "ns:2")
TWO = {"east": KnownUnit(["a"], ["orders"]), "west": KnownUnit(["b"], ["orders"])}
MEMBERS = {"connectionSet": [{"clientId": "me", "clientAddr": "x:1", "language": "PYTHON", "version": 479}]}


@dataclass
class Fused(ScriptedReach):
    """Two name servers, a broker in each of two units."""

    brokers_by_name: dict[str, str] = field(default_factory=lambda: {"a": "a:1", "b": "b:1"})
    clusters: dict[str, str] = field(default_factory=lambda: {"a": "east", "b": "west"})
    switches: dict[str, Switch] = field(default_factory=lambda: dict.fromkeys(SERVERS, CLOSED))
    units: dict[str, KnownUnit] = field(default_factory=lambda: dict(TWO))
    away: set[str] = field(default_factory=set)
    ages_ms: dict[str, int] = field(default_factory=dict)  # of name servers that tell
    unheard: set[str] = field(default_factory=set)  # name servers to which no broker has come yet

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on(RequestCode.GET_SWITCH, self._get)
        self.on(RequestCode.SET_SWITCH, self._set)
        table = {"subscriptionGroupTable": {"billing": {"groupName": "billing"}, "TOOLS_X": {"groupName": "TOOLS_X"}}}
        self.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda _: json.dumps(table).encode())
        self.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: json.dumps(MEMBERS).encode())
        self.on(
            RequestCode.GET_TOPICS_BY_CLUSTER,
            lambda asked: _topics("bills" if asked.fields["cluster"] == "east" else ""),
        )

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Two of them."""
        return SERVERS

    def _get(self, asked: Asked) -> Reply:
        if asked.address in self.away:
            return ConnectionLost(f"cannot connect to {asked.address}")
        units = {} if asked.address in self.unheard else self.units
        age_ms = self.ages_ms.get(asked.address)
        return msgspec.json.encode(UnitState(switch=self.switches[asked.address], units=units, age_ms=age_ms))

    def _cluster_info(self, asked: Asked) -> Reply:
        if asked.address in self.unheard:
            return json.dumps({"brokerAddrTable": {}, "clusterAddrTable": {}}).encode()
        return super()._cluster_info(asked)

    def _set(self, asked: Asked) -> Reply:
        if asked.address in self.away:
            return ConnectionLost(f"cannot connect to {asked.address}")
        self.switches[asked.address] = decode_switch(asked.body)
        return {}


def _topics(*names: str) -> bytes:
    return json.dumps({"topicList": [name for name in names if name]}).encode()
