"""Two scripted units: name servers that keep a switch, and a broker in each unit."""

import json
from dataclasses import dataclass, field

import msgspec
from tests.support.cluster.scripted import Reply, ScriptedAccess, ScriptedRequest

from holdfast.model.dr_switch import CLOSED, DrSwitch
from holdfast.wire.cluster.units import KnownUnit, UnitState, decode_switch
from holdfast.wire.frames.codes import RequestCode

SERVERS = ("ns:1", "ns:2")
TWO_UNITS = {"east": KnownUnit(["a"], ["orders"]), "west": KnownUnit(["b"], ["orders"])}
MEMBERS = {"connectionSet": [{"clientId": "me", "clientAddr": "x:1", "language": "PYTHON", "version": 479}]}


@dataclass
class ScriptedUnits(ScriptedAccess):
    """Two name servers, a broker in each of two units."""

    brokers_by_name: dict[str, str] = field(default_factory=lambda: {"a": "a:1", "b": "b:1"})
    clusters: dict[str, str] = field(default_factory=lambda: {"a": "east", "b": "west"})
    switches: dict[str, DrSwitch] = field(default_factory=lambda: dict.fromkeys(SERVERS, CLOSED))
    units: dict[str, KnownUnit] = field(default_factory=lambda: dict(TWO_UNITS))
    ages_ms: dict[str, int] = field(default_factory=dict)  # of name servers that tell
    without_brokers: set[str] = field(default_factory=set)  # name servers to which no broker has come yet

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on(RequestCode.GET_DR_SWITCH, self._get)
        self.on(RequestCode.SET_DR_SWITCH, self._set)
        table = {"subscriptionGroupTable": {"billing": {"groupName": "billing"}, "TOOLS_X": {"groupName": "TOOLS_X"}}}
        self.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda _: json.dumps(table).encode())
        self.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: json.dumps(MEMBERS).encode())
        self.on(
            RequestCode.GET_TOPICS_BY_CLUSTER,
            lambda request: _topics("bills" if request.fields["cluster"] == "east" else ""),
        )

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Two of them."""
        return SERVERS

    def _get(self, request: ScriptedRequest) -> Reply:
        units = {} if request.address in self.without_brokers else self.units
        age_ms = self.ages_ms.get(request.address)
        return msgspec.json.encode(UnitState(switch=self.switches[request.address], units=units, age_ms=age_ms))

    def _cluster_info(self, request: ScriptedRequest) -> Reply:
        if request.address in self.without_brokers:
            return json.dumps({"brokerAddrTable": {}, "clusterAddrTable": {}}).encode()
        return super()._cluster_info(request)

    def _set(self, request: ScriptedRequest) -> Reply:
        self.switches[request.address] = decode_switch(request.body)
        return {}


def _topics(*names: str) -> bytes:
    return json.dumps({"topicList": [name for name in names if name]}).encode()
