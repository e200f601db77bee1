"""The switch that opens units for the loss of a site: 7051 changes it, 7052 returns it, registrations carry it.

operator ─ 7051 ─> newer than ours? ─> saved ─> answered, and watching clients are notified
broker ─── 103 ──> newer than ours? ─> kept, and saved soon (`routes/open_units.py`)
                   older? ─> the answer carries the newer one, and the broker passes it on
"""

from __future__ import annotations

from holdfast.machine.component import Component
from holdfast.machine.request import Answer, Handlers, Refusal, Request
from holdfast.machine.turn import Turn
from holdfast.model.scope import GLOBAL
from holdfast.nameserver.config.kv_config import KvStore
from holdfast.nameserver.routes.open_units import OpenUnits
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.wire.cluster.units import KnownUnit, UnitState, decode_switch
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode


class UnitRequests(Component):
    """Answers operators who open and close units."""

    def __init__(self, turn: Turn, kv: KvStore, routes: RouteTable, open_units: OpenUnits) -> None:
        self._turn = turn
        self._kv = kv
        self._routes = routes
        self._open_units = open_units
        self._since_ms = 0

    def start(self) -> None:
        """Record the time since which brokers can register."""
        self._since_ms = self._turn.now_ms

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.SET_DR_SWITCH: self._set, RequestCode.GET_DR_SWITCH: self._get}

    def _set(self, request: Request) -> Answer:
        requested = decode_switch(request.command.body)
        switch = self._open_units.switch
        if switch.is_newer(requested):
            return Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"version {requested.version} of the open units is older than {switch.version}: read them again",
            )
        if requested != switch:
            self._open_units.adopt(requested)
        # Also save a switch that is already in effect: it may not be on disk yet.
        return self._kv.save(request)

    def _get(self, request: Request) -> Answer:
        units = {unit: KnownUnit(brokers=names) for unit, names in self._routes.clusters().items()}
        for topic in self._routes.static.topics.values():
            if topic.scope != GLOBAL:
                known = units.get(topic.scope, KnownUnit())
                units[topic.scope] = KnownUnit(known.brokers, sorted({*known.topics, topic.name}))
        age_ms = max(0, self._turn.now_ms - self._since_ms)
        return request.answer(
            body=java_json.encode(UnitState(switch=self._open_units.switch, units=units, age_ms=age_ms))
        )
