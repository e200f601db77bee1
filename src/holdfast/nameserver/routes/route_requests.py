"""Answers route queries (105) that the hot loop has no rendered answer for, and compares routes for watching clients.

    viewer: unit, group, zone ─> its vision (`unit_visibility`) ─┬─ static topics of that name ─> aware, or mock
                                                                 └─ none ─> the normal topic, or no route

If the client's unit has a normal topic of the name, and another unit has a static one, the client gets the normal one:
no client can read both kinds under one name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.model.dr_switch import Switch
from holdfast.model.scope import covers
from holdfast.nameserver.config.kv_config import ORDER_TOPICS, KvStore
from holdfast.nameserver.config.settings import Settings
from holdfast.nameserver.request import Refusal, Request
from holdfast.nameserver.routes.deletion_markers import DeletionMarkers
from holdfast.nameserver.routes.route_answer_cache import Proxies, RouteAnswers
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_routes import (
    Part,
    aware_body,
    choose_proxies,
    find_proxies,
    host_of,
    look_at_static,
    mock_body,
    reports_body,
)
from holdfast.nameserver.routes.static_topics import StaticTopic, shorten
from holdfast.nameserver.routes.unit_visibility import ANYBODY, EVERYTHING, Viewer, Vision, see, to_viewer
from holdfast.wire.cluster.deletions import DELETED_FIELD, DELETIONS_FIELD
from holdfast.wire.cluster.route import QUOTED_KEYS_VERSION, AskerFields, RouteAnswer, RouteFields, is_mapping_aware
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields

_MISSING: Final = (
    "No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)
_DELETED: Final = (
    "No topic route info in name server for the topic: {}\n"
    "It was deleted, and no broker creates it for a send: create it again to use it."
)
_GONE: Final = ResponseCode.TOPIC_NOT_EXIST
_BUSY: Final = "the route of static topic {} cannot be served: {}"
_NOBODY_ALIVE: Final = "no broker that has it is alive"
_WAIT: Final = 1  # the sight of a topic whose route cannot be served
_NAME_MAX: Final = 255
_AWARE: Final = "aware"  # the form for clients that read mappings


class Counters(msgspec.Struct):
    """Counters since the start, for metrics."""

    route_queries: int = 0
    route_misses: int = 0
    routes_withheld: int = 0
    routes_rendered: int = 0
    requests: int = 0
    refusals: int = 0
    protocol_faults: int = 0
    disk_faults: int = 0


class _Busy(Exception):
    """The route cannot be served at present; carries the reason."""


def viewer_of(fields: RouteFields, asker: AskerFields) -> Viewer:
    """Return the viewer that sent a route query.

    Raises:
        BadField: a name is too long.
    """
    unit, zone = fields.scope, fields.wanted_zone
    if max(len(unit), len(asker.group), len(zone)) > _NAME_MAX:
        raise BadField(f"a unit, group or zone has at most {_NAME_MAX} characters in its name")
    return to_viewer(unit, asker.group, zone)


class RouteDesk:
    """Answers route queries, and fills the cache of rendered answers."""

    def __init__(
        self,
        routes: RouteTable,
        answers: RouteAnswers,
        kv: KvStore,
        deletions: DeletionMarkers,
        settings: Settings,
        switch: Callable[[], Switch],
        counters: Counters,
    ) -> None:
        self._routes = routes
        self._answers = answers
        self._kv = kv
        self._deletions = deletions
        self._settings = settings
        self._switch = switch
        self._counters = counters

    def find(self, request: Request, fields: RouteFields, viewer: Viewer, asker: AskerFields) -> Command | Refusal:
        """Return the answer to a route query."""
        answer = self._find(request, fields, viewer, asker)
        topic = fields.topic
        if asker.reads_mappings and answer.code == _GONE and self._deletions.is_deleted(topic, viewer.unit):
            answer.fields[DELETED_FIELD] = "true"
        if asker.wants_reports:
            answer.fields[DELETIONS_FIELD] = self._deletions.text_of(topic)
        return answer

    def _find(self, request: Request, fields: RouteFields, viewer: Viewer, asker: AskerFields) -> Command | Refusal:
        topic = fields.topic
        if asker.wants_reports and topic in self._routes.static.by_name:
            return self._reports(request, topic, viewer)
        vision = see(self._switch(), topic, viewer)
        is_bare = request.command.version < QUOTED_KEYS_VERSION and not fields.accept_standard_json_only
        try:
            parts = self._parts(topic, vision)
        except _Busy as reason:
            return self._busy(topic, str(reason))
        if not parts:
            return self._normal(request, topic, vision, is_bare=is_bare)
        vision = vision.in_all_zones()
        command = request.command
        if asker.reads_mappings or is_mapping_aware(command.language, command.version):
            return request.answer(body=self._aware(topic, vision, parts))
        return self._mock(request, topic, vision, parts, is_bare=is_bare)

    def recall(self, topic: str, viewer: Viewer, *, is_aware: bool, peer: str, is_bare: bool) -> RouteAnswer | None:
        """Return the rendered answer for a static topic or for a viewer with a unit or zone; None if there is none.

        Args:
            topic: The queried topic.
            viewer: The client.
            is_aware: Whether it reads mappings.
            peer: Its address.
            is_bare: Whether it expects bare integer keys.
        """
        vision = see(self._switch(), topic, viewer)
        answers = self._answers
        found = None
        if topic in self._routes.static.by_name:
            # Clients without a unit share one answer, whichever units are open.
            seen = vision.in_all_zones() if vision.unit else EVERYTHING
            if is_aware:
                found = self._recall_aware(topic, seen)
            elif proxies := answers.find_proxies(topic, seen):
                found = answers.find_special(topic, _mock_form(seen, peer, proxies), is_bare=is_bare)
        if found is None and not vision.is_common:
            # If the unit has a normal topic of a static one's name, clients of the unit get its route.
            found = answers.find_special(topic, vision, is_bare=is_bare)
        return found

    def look(self, topic: str, viewer: Viewer) -> int:
        """Return a number that changes when *viewer*'s route of *topic* does, but not when only a fault's text does."""
        vision = see(self._switch(), topic, viewer)
        try:
            parts = self._parts(topic, vision)
        except _Busy:
            return _WAIT
        if parts:
            return look_at_static(parts, self._routes.brokers, self._routes.topics.get(topic, {}))
        return self._routes.look(topic, order_topic_conf=self._order(topic), vision=vision)

    # Choosing the topics.

    def _parts(self, topic: str, vision: Vision) -> list[Part]:
        """Return the static topics of the name that are visible and served; empty if the normal topic is to be served.

        Raises:
            _Busy: a static topic of the viewer's own unit, or all that are visible, cannot be served.
        """
        seen = [each for each in self._routes.static.find_all(topic) if vision.shows_scope(each.scope)]
        own = [each for each in seen if covers(each.scope, vision.unit)] if vision.unit else []
        if vision.unit and seen and not own and self._routes.is_normal_in(topic, vision.unit):
            return []
        served = [each for each in seen if self._find_fault(each) is None]
        for each in own or (seen if not served else ()):
            fault = self._find_fault(each)
            if fault is not None:
                raise _Busy(fault)
        return [Part(each, is_foreign=not vision.writes_scope(each.scope)) for each in served]

    def _find_fault(self, topic: StaticTopic) -> str | None:
        if topic.served is None:
            return shorten(topic.reasons)
        return _NOBODY_ALIVE if topic.holders.isdisjoint(self._routes.brokers) else None

    def _order(self, topic: str) -> str | None:
        return self._kv.find(ORDER_TOPICS, topic) if self._settings.order_message_enable else None

    # Rendering.

    def _normal(self, request: Request, topic: str, vision: Vision, *, is_bare: bool) -> Command | Refusal:
        is_common = vision.is_common
        answer = (
            self._answers.find(topic, is_bare=is_bare)
            if is_common
            else self._answers.find_special(topic, vision, is_bare=is_bare)
        )
        if answer is None:
            body = self._routes.find_body(topic, order_topic_conf=self._order(topic), vision=vision)
            if body is None:
                return self._missing(topic, vision)
            self._counters.routes_rendered += 1
            if is_common:
                answer = self._answers.keep(topic, body, is_bare=is_bare)
            else:
                answer = self._keep_special(topic, vision, vision, body, is_bare=is_bare)
        return request.answer(body=answer.body)

    def _aware(self, topic: str, vision: Vision, parts: list[Part]) -> bytes:
        known = self._recall_aware(topic, vision)
        if known is not None:
            return known.body
        self._counters.routes_rendered += 1
        body = aware_body(parts, self._routes.brokers, self._routes.topics.get(topic, {}))
        if vision.unit:
            return self._keep_special(topic, vision, (vision, _AWARE), body).body
        return self._answers.keep_aware(topic, body).body

    def _recall_aware(self, topic: str, vision: Vision) -> RouteAnswer | None:
        answers = self._answers
        return answers.find_special(topic, (vision, _AWARE)) if vision.unit else answers.aware.get(topic)

    def _mock(
        self, request: Request, topic: str, vision: Vision, parts: list[Part], *, is_bare: bool
    ) -> Command | Refusal:
        proxies = find_proxies(parts, self._routes.brokers)
        if not any(proxies):
            return self._busy(topic, _NOBODY_ALIVE)
        seen = vision if vision.unit else EVERYTHING
        if self._is_kept(vision):
            self._answers.keep_proxies(topic, seen, proxies)
        form = _, chosen = _mock_form(seen, request.peer, proxies)
        answer = self._answers.find_special(topic, form, is_bare=is_bare)
        if answer is None:
            self._counters.routes_rendered += 1
            body = mock_body(parts, chosen, self._routes.brokers, self._routes.topics.get(topic, {}))
            answer = self._keep_special(topic, vision, form, body, is_bare=is_bare)
        return request.answer(body=answer.body)

    def _keep_special(
        self, topic: str, vision: Vision, form: object, body: bytes, *, is_bare: bool = False
    ) -> RouteAnswer:
        return self._answers.keep_special(topic, form, body, is_bare=is_bare, is_kept=self._is_kept(vision))

    def _is_kept(self, vision: Vision) -> bool:
        """Return whether to cache a rendered answer: clients may name any number of unknown units and zones."""
        is_unit_known = not vision.unit or self._routes.has_cluster(vision.unit)
        return is_unit_known and (not vision.zone or self._routes.has_zone(vision.zone))

    def _reports(self, request: Request, topic: str, viewer: Viewer) -> Command:
        """Answer a broker that asks for the registered reports, whatever clients see."""
        answer = self._answers.reports.get(topic) if viewer is ANYBODY else None
        if answer is not None:
            return request.answer(body=answer.body)
        found = self._routes.static.by_name[topic].values()
        seen = [each for each in found if not viewer.unit or covers(each.scope, viewer.unit)]
        body = reports_body(seen, self._routes.brokers)
        if viewer is ANYBODY:
            self._answers.keep_reports(topic, body)
        return request.answer(body=body)

    def _missing(self, topic: str, vision: Vision) -> Refusal:
        fault = self._routes.static.find_fault(topic, vision.shows)
        known = self._routes.static.by_name.get(topic, {})
        if fault is not None or any(vision.shows_scope(scope) for scope in known):
            return self._busy(topic, fault or _NOBODY_ALIVE)
        self._counters.route_misses += 1
        if self._deletions.is_deleted(topic, vision.unit):
            return Refusal(_GONE, _DELETED.format(topic))
        return Refusal(_GONE, _MISSING.format(topic))

    def _busy(self, topic: str, reason: str) -> Refusal:
        # If it were reported as missing, a client would create a normal topic of that name.
        self._counters.routes_withheld += 1
        return Refusal(ResponseCode.SYSTEM_BUSY, _BUSY.format(topic, reason))


def _mock_form(vision: Vision, peer: str, proxies: Proxies) -> tuple[Vision, tuple[str, ...]]:
    """Return the cache key of an answer with mock brokers: the vision, and the brokers that stand in."""
    return vision, choose_proxies(host_of(peer), proxies)


def asker_of(request: Request) -> AskerFields:
    """Return the fields in which the sender of a route query describes itself."""
    return from_fields(AskerFields, request.command.fields)
