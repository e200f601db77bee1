"""The switch that opens units for the loss of a site: 7051 changes it, 7052 returns it, registrations carry it.

    operator ─ 7051 ─> newer than ours? ─> saved ─> answered, and watching clients are notified
    broker ─── 103 ──> newer than ours? ─> kept, and saved soon
                       older? ─> the answer carries the newer one, and the broker passes it on

A name server that was away learns the switch from the first broker that registers, before it serves any route. The
switch is kept in the KV store, so that it survives the loss of all brokers.
"""

from __future__ import annotations

from typing import Final

from holdfast.machine.effects import Log
from holdfast.model.dr_switch import CLOSED, DrSwitch
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.scope import GLOBAL
from holdfast.nameserver.config.kv_config import UNITS, KvStore, Waiter
from holdfast.nameserver.request import Answer, Handlers, Refusal, Request
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.wire.cluster.units import KnownUnit, UnitState, decode_switch, encode_switch, switch_text
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode

_KEY: Final = "switch"


class UnitRequests:
    """Holds the switch.

    Attributes:
        switch: The newest known version.
        fault: Why the saved switch cannot be read; None if it can.
    """

    def __init__(self, kv: KvStore, routes: RouteTable) -> None:
        self._kv = kv
        self._routes = routes
        self._is_changed = False
        self._since_ms = 0
        self.switch: DrSwitch = CLOSED
        self.fault: str | None = None
        try:
            self.switch = decode_switch(kv.find(UNITS, _KEY) or "")
        except RemoteProtocolError as error:
            self.fault = str(error)

    def started(self, now_ms: int) -> None:
        """Record the time since which brokers can register."""
        self._since_ms = now_ms

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.SET_DR_SWITCH: self._set, RequestCode.GET_DR_SWITCH: self._get}

    def pop_change(self) -> bool:
        """Return whether the switch changed since the last call."""
        is_changed, self._is_changed = self._is_changed, False
        return is_changed

    def _set(self, request: Request) -> Answer:
        requested = decode_switch(request.command.body)
        if self.switch.is_newer(requested):
            return Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"version {requested.version} of the open units is older than {self.switch.version}: read them again",
            )
        if requested != self.switch:
            self._adopt(requested, request)
        # Also save a switch that is already in effect: it may not be on disk yet.
        ready, writes = self._kv.save(Waiter(request.channel, request.command))
        request.effects += writes
        return request.answer() if ready else None

    def _get(self, request: Request) -> Answer:
        units = {unit: KnownUnit(brokers=names) for unit, names in self._routes.clusters().items()}
        for topic in self._routes.static.topics.values():
            if topic.scope != GLOBAL:
                known = units.get(topic.scope, KnownUnit())
                units[topic.scope] = KnownUnit(known.brokers, sorted({*known.topics, topic.name}))
        age_ms = max(0, request.now_ms - self._since_ms)
        return request.answer(body=java_json.encode(UnitState(switch=self.switch, units=units, age_ms=age_ms)))

    # Registrations.

    def merge_from_broker(self, text: str | None, request: Request) -> str | None:
        """Apply a broker's version of the switch; return ours if it is newer."""
        try:
            broker_switch = decode_switch(text or "")
        except RemoteProtocolError as error:
            request.log("warning", "DR switch of a broker cannot be read", reason=str(error))
            return switch_text(self.switch)
        if broker_switch.is_newer(self.switch):
            self._adopt(broker_switch, request)
            request.effects += self._kv.save_without_waiter()
        return switch_text(self.switch) if self.switch.is_newer(broker_switch) else None

    def _adopt(self, switch: DrSwitch, request: Request) -> None:
        self.switch, self._is_changed = switch, True
        self._kv.put(UNITS, _KEY, encode_switch(switch).decode())
        opened = "; ".join(map(str, switch.openings)) or "nothing"
        request.effects.append(Log("warning", "units opened or closed", {"open": opened, "version": switch.version}))
