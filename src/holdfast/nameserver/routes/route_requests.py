"""Answers route queries (105) that the hot loop has no rendered answer for, and compares routes for watching clients.

    viewer: unit, group, zone ─> its visibility (`unit_visibility`) ─┬─ static topics of that name ─> aware, or mock
                                                                     └─ none ─> the normal topic, or no route

If the client's unit has a normal topic of the name, and another unit has a static one, the client gets the normal one:
no client can read both kinds under one name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.machine.component import Component
from holdfast.machine.request import Refusal, Request
from holdfast.machine.sample import Sample
from holdfast.model.scope import covers
from holdfast.nameserver.config.kv_config import ORDER_TOPICS, KvStore
from holdfast.nameserver.config.settings import Settings
from holdfast.nameserver.routes.deletion_markers import DeletionMarkers
from holdfast.nameserver.routes.open_units import OpenUnits
from holdfast.nameserver.routes.route_answer_cache import Proxies, RouteAnswerCache
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_routes import (
    RoutePart,
    aware_body,
    choose_proxies,
    find_proxies,
    host_of,
    mock_body,
    reports_body,
    static_route_digest,
)
from holdfast.nameserver.routes.static_topics import StaticTopic, join_reasons
from holdfast.nameserver.routes.unit_visibility import (
    DEFAULT_VIEWER,
    FULL_VISIBILITY,
    Viewer,
    Visibility,
    find_visibility,
    to_viewer,
)
from holdfast.wire.cluster.deletions import DELETED_FIELD, DELETIONS_FIELD
from holdfast.wire.cluster.route import QUOTED_KEYS_VERSION, CallerFields, RouteAnswer, RouteFields, is_mapping_aware
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField

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
_NO_LIVE_BROKER: Final = "no broker that has it is alive"
_BUSY_DIGEST: Final = 1  # the digest of a topic whose route cannot be served
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


def viewer_of(fields: RouteFields, caller: CallerFields) -> Viewer:
    """Return the viewer that sent a route query.

    Raises:
        BadField: a name is too long.
    """
    unit, zone = fields.scope, fields.zone_filter
    if max(len(unit), len(caller.group), len(zone)) > _NAME_MAX:
        raise BadField(f"a unit, group or zone has at most {_NAME_MAX} characters in its name")
    return to_viewer(unit, caller.group, zone)


class RouteRequests(Component):
    """Answers route queries, and fills the cache of rendered answers."""

    def __init__(
        self,
        routes: RouteTable,
        answer_cache: RouteAnswerCache,
        kv: KvStore,
        deletions: DeletionMarkers,
        settings: Settings,
        open_units: OpenUnits,
        counters: Counters,
    ) -> None:
        self._routes = routes
        self._answer_cache = answer_cache
        self._kv = kv
        self._deletions = deletions
        self._settings = settings
        self._open_units = open_units
        self._counters = counters

    def metrics(self) -> Iterator[Sample]:
        """Yield the numbers of topics, and of queries."""
        counters, static = self._counters, self._routes.static
        yield Sample("namesrv_topics", "gauge", "Topics that at least one broker serves.", len(self._routes.topics))
        withheld = [topic for topic in static.topics.values() if topic.reasons]
        contradicting = sum(topic.merged is not None and bool(topic.merged.contradictions) for topic in withheld)
        yield Sample("namesrv_static_topics", "gauge", "Topics with a reported mapping.", len(static.topics))
        yield Sample("namesrv_static_withheld", "gauge", "Static topics not served as reported.", len(withheld))
        about = "Static topics with contradicting reports."
        yield Sample("namesrv_static_contradictions", "gauge", about, contradicting)
        yield Sample("namesrv_mapping_refusals", "counter", "Mappings that were refused.", static.refusals)
        about = "Route queries answered with busy."
        yield Sample("namesrv_routes_withheld", "counter", about, counters.routes_withheld)
        yield Sample("namesrv_route_queries", "counter", "Route queries answered.", counters.route_queries)
        yield Sample("namesrv_route_misses", "counter", "Route queries for unknown topics.", counters.route_misses)
        yield Sample("namesrv_routes_rendered", "counter", "Route answers rendered.", counters.routes_rendered)

    def find(self, request: Request, fields: RouteFields, viewer: Viewer, caller: CallerFields) -> Command | Refusal:
        """Return the answer to a route query."""
        answer = self._find(request, fields, viewer, caller)
        topic = fields.topic
        if caller.reads_mappings and answer.code == _GONE and self._deletions.is_deleted(topic, viewer.unit):
            answer.fields[DELETED_FIELD] = "true"
        if caller.wants_reports:
            answer.fields[DELETIONS_FIELD] = self._deletions.text_of(topic)
        return answer

    def _find(self, request: Request, fields: RouteFields, viewer: Viewer, caller: CallerFields) -> Command | Refusal:
        topic = fields.topic
        if caller.wants_reports and topic in self._routes.static.by_name:
            return self._answer_reports(request, topic, viewer)
        visibility = find_visibility(self._open_units.switch, topic, viewer)
        is_bare = request.command.version < QUOTED_KEYS_VERSION and not fields.accept_standard_json_only
        try:
            parts = self._find_parts(topic, visibility)
        except _Busy as reason:
            return self._refuse_busy(topic, str(reason))
        if not parts:
            return self._answer_normal(request, topic, visibility, is_bare=is_bare)
        visibility = visibility.without_zone()
        command = request.command
        if caller.reads_mappings or is_mapping_aware(command.language, command.version):
            return request.answer(body=self._render_aware(topic, visibility, parts))
        return self._answer_mock(request, topic, visibility, parts, is_bare=is_bare)

    def find_cached(
        self, topic: str, viewer: Viewer, *, is_aware: bool, peer: str, is_bare: bool
    ) -> RouteAnswer | None:
        """Return the rendered answer for a static topic or for a viewer with a unit or zone; None if there is none.

        Args:
            topic: The queried topic.
            viewer: The client.
            is_aware: Whether it reads mappings.
            peer: Its address.
            is_bare: Whether it expects bare integer keys.
        """
        visibility = find_visibility(self._open_units.switch, topic, viewer)
        answers = self._answer_cache
        found = None
        if topic in self._routes.static.by_name:
            # Clients without a unit share one answer, whichever units are open.
            key_visibility = visibility.without_zone() if visibility.unit else FULL_VISIBILITY
            if is_aware:
                found = self._find_cached_aware(topic, key_visibility)
            elif proxies := answers.find_proxies(topic, key_visibility):
                found = answers.find_special(topic, _mock_form(key_visibility, peer, proxies), is_bare=is_bare)
        if found is None and not visibility.is_common:
            # If the unit has a normal topic of a static one's name, clients of the unit get its route.
            found = answers.find_special(topic, visibility, is_bare=is_bare)
        return found

    def route_digest(self, topic: str, viewer: Viewer) -> int:
        """Return a number that changes when *viewer*'s route of *topic* does, but not when only a fault's text does."""
        visibility = find_visibility(self._open_units.switch, topic, viewer)
        try:
            parts = self._find_parts(topic, visibility)
        except _Busy:
            return _BUSY_DIGEST
        if parts:
            return static_route_digest(parts, self._routes.brokers, self._routes.topics.get(topic, {}))
        return self._routes.route_digest(topic, order_topic_conf=self._order_config(topic), visibility=visibility)

    # Choosing the topics.

    def _find_parts(self, topic: str, visibility: Visibility) -> list[RoutePart]:
        """Return the static topics of the name that are visible and served; empty if the normal topic is to be served.

        Raises:
            _Busy: a static topic of the viewer's own unit, or all that are visible, cannot be served.
        """
        visible = [each for each in self._routes.static.find_all(topic) if visibility.shows_scope(each.scope)]
        own = [each for each in visible if covers(each.scope, visibility.unit)] if visibility.unit else []
        if visibility.unit and visible and not own and self._routes.is_normal_in(topic, visibility.unit):
            return []
        served = [each for each in visible if self._find_fault(each) is None]
        for each in own or (visible if not served else ()):
            fault = self._find_fault(each)
            if fault is not None:
                raise _Busy(fault)
        return [RoutePart(each, is_foreign=not visibility.can_write_scope(each.scope)) for each in served]

    def _find_fault(self, topic: StaticTopic) -> str | None:
        if topic.served is None:
            return join_reasons(topic.reasons)
        return _NO_LIVE_BROKER if topic.holders.isdisjoint(self._routes.brokers) else None

    def _order_config(self, topic: str) -> str | None:
        return self._kv.find(ORDER_TOPICS, topic) if self._settings.order_message_enable else None

    # Rendering.

    def _answer_normal(
        self, request: Request, topic: str, visibility: Visibility, *, is_bare: bool
    ) -> Command | Refusal:
        is_common = visibility.is_common
        answer = (
            self._answer_cache.find(topic, is_bare=is_bare)
            if is_common
            else self._answer_cache.find_special(topic, visibility, is_bare=is_bare)
        )
        if answer is None:
            body = self._routes.find_body(topic, order_topic_conf=self._order_config(topic), visibility=visibility)
            if body is None:
                return self._refuse_missing(topic, visibility)
            self._counters.routes_rendered += 1
            if is_common:
                answer = self._answer_cache.keep(topic, body, is_bare=is_bare)
            else:
                answer = self._keep_special(topic, visibility, visibility, body, is_bare=is_bare)
        return request.answer(body=answer.body)

    def _render_aware(self, topic: str, visibility: Visibility, parts: list[RoutePart]) -> bytes:
        known = self._find_cached_aware(topic, visibility)
        if known is not None:
            return known.body
        self._counters.routes_rendered += 1
        body = aware_body(parts, self._routes.brokers, self._routes.topics.get(topic, {}))
        if visibility.unit:
            return self._keep_special(topic, visibility, (visibility, _AWARE), body).body
        return self._answer_cache.keep_aware(topic, body).body

    def _find_cached_aware(self, topic: str, visibility: Visibility) -> RouteAnswer | None:
        answers = self._answer_cache
        return answers.find_special(topic, (visibility, _AWARE)) if visibility.unit else answers.aware.get(topic)

    def _answer_mock(
        self, request: Request, topic: str, visibility: Visibility, parts: list[RoutePart], *, is_bare: bool
    ) -> Command | Refusal:
        proxies = find_proxies(parts, self._routes.brokers)
        if not any(proxies):
            return self._refuse_busy(topic, _NO_LIVE_BROKER)
        key_visibility = visibility if visibility.unit else FULL_VISIBILITY
        if self._is_cacheable(visibility):
            self._answer_cache.keep_proxies(topic, key_visibility, proxies)
        form = _, chosen = _mock_form(key_visibility, request.peer, proxies)
        answer = self._answer_cache.find_special(topic, form, is_bare=is_bare)
        if answer is None:
            self._counters.routes_rendered += 1
            body = mock_body(parts, chosen, self._routes.brokers, self._routes.topics.get(topic, {}))
            answer = self._keep_special(topic, visibility, form, body, is_bare=is_bare)
        return request.answer(body=answer.body)

    def _keep_special(
        self, topic: str, visibility: Visibility, form: object, body: bytes, *, is_bare: bool = False
    ) -> RouteAnswer:
        return self._answer_cache.keep_special(
            topic, form, body, is_bare=is_bare, is_cacheable=self._is_cacheable(visibility)
        )

    def _is_cacheable(self, visibility: Visibility) -> bool:
        """Return whether to cache a rendered answer: clients may name any number of unknown units and zones."""
        is_unit_known = not visibility.unit or self._routes.has_cluster(visibility.unit)
        return is_unit_known and (not visibility.zone or self._routes.has_zone(visibility.zone))

    def _answer_reports(self, request: Request, topic: str, viewer: Viewer) -> Command:
        """Answer a broker that asks for the registered reports, whatever clients see."""
        answer = self._answer_cache.reports.get(topic) if viewer is DEFAULT_VIEWER else None
        if answer is not None:
            return request.answer(body=answer.body)
        found = self._routes.static.by_name[topic].values()
        visible = [each for each in found if not viewer.unit or covers(each.scope, viewer.unit)]
        body = reports_body(visible, self._routes.brokers)
        if viewer is DEFAULT_VIEWER:
            self._answer_cache.keep_reports(topic, body)
        return request.answer(body=body)

    def _refuse_missing(self, topic: str, visibility: Visibility) -> Refusal:
        fault = self._routes.static.find_fault(topic, visibility.shows)
        known = self._routes.static.by_name.get(topic, {})
        if fault is not None or any(visibility.shows_scope(scope) for scope in known):
            return self._refuse_busy(topic, fault or _NO_LIVE_BROKER)
        self._counters.route_misses += 1
        if self._deletions.is_deleted(topic, visibility.unit):
            return Refusal(_GONE, _DELETED.format(topic))
        return Refusal(_GONE, _MISSING.format(topic))

    def _refuse_busy(self, topic: str, reason: str) -> Refusal:
        # If it were reported as missing, a client would create a normal topic of that name.
        self._counters.routes_withheld += 1
        return Refusal(ResponseCode.SYSTEM_BUSY, _BUSY.format(topic, reason))


def _mock_form(visibility: Visibility, peer: str, proxies: Proxies) -> tuple[Visibility, tuple[str, ...]]:
    """Return the cache key of an answer with mock brokers: the visibility, and the brokers that stand in."""
    return visibility, choose_proxies(host_of(peer), proxies)
