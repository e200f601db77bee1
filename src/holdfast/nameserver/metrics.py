"""Metrics of a name server, read from the machine on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.machine.sample import Sample
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.push.route_push import RoutePush

_INTERVAL: Final = "Seconds between notices of changed routes at the current pace; 0 while they are paused."
_READINGS: Final = {
    "memory": "Memory in use, in percent of the total; absent while unknown.",
    "load": "Runnable tasks per processor, in percent; absent while unknown.",
    "network": "Use of the busiest network interface; absent while its capacity is unknown.",
}


def name_server_samples(server: NameServer) -> Iterator[Sample]:
    """Yield all metrics of the name server."""
    counters = server.counters
    yield Sample("namesrv_brokers", "gauge", "Broker addresses that are alive.", len(server.liveness))
    yield Sample("namesrv_topics", "gauge", "Topics that at least one broker serves.", len(server.routes.topics))
    static = server.routes.static.topics.values()
    withheld = [topic for topic in static if topic.reasons]
    contradicting = sum(topic.merged is not None and bool(topic.merged.contradictions) for topic in withheld)
    yield Sample("namesrv_static_topics", "gauge", "Topics with a reported mapping.", len(static))
    yield Sample("namesrv_static_withheld", "gauge", "Static topics not served as reported.", len(withheld))
    yield Sample("namesrv_static_contradictions", "gauge", "Static topics with contradicting reports.", contradicting)
    yield Sample("namesrv_mapping_refusals", "counter", "Mappings that were refused.", server.routes.static.refusals)
    yield Sample("namesrv_routes_withheld", "counter", "Route queries answered with busy.", counters.routes_withheld)
    yield Sample("namesrv_channels", "gauge", "Open connections.", server.channel_count)
    yield Sample("namesrv_route_queries", "counter", "Route queries answered.", counters.route_queries)
    yield Sample("namesrv_route_misses", "counter", "Route queries for unknown topics.", counters.route_misses)
    yield Sample("namesrv_routes_rendered", "counter", "Route answers rendered.", counters.routes_rendered)
    yield Sample("namesrv_requests", "counter", "Requests off the hot path.", counters.requests)
    yield Sample("namesrv_refusals", "counter", "Requests answered with a failure code.", counters.refusals)
    yield Sample("namesrv_protocol_faults", "counter", "Peers disconnected.", counters.protocol_faults)
    yield Sample("namesrv_disk_faults", "counter", "Writes that the disk refused.", counters.disk_faults)
    yield from _push_samples(server.push)


def _push_samples(push: RoutePush) -> Iterator[Sample]:
    watches, notices = push.watches, push.notices
    yield Sample("namesrv_watching_clients", "gauge", "Connections that watch routes.", watches.channel_count)
    yield Sample("namesrv_watched_topics", "gauge", "Topics whose routes are watched.", watches.topic_count)
    yield Sample("namesrv_watches", "gauge", "Topics watched, counted for each connection.", len(watches))
    yield Sample("namesrv_notices_pending_clients", "gauge", "Clients with pending notices.", len(notices))
    yield Sample("namesrv_notices_sent", "counter", "Notices of changed routes sent.", notices.sent)
    interval_ms = push.load_pace.pace.interval_ms
    yield Sample("namesrv_notice_interval_seconds", "gauge", _INTERVAL, (interval_ms or 0) / 1000)
    readings = {name: getattr(push.readings, name) for name in _READINGS}
    known = {name: percent for name, percent in readings.items() if percent is not None}
    yield Sample("namesrv_readings_known", "gauge", "How many of memory, load and network are known.", len(known))
    for name, percent in known.items():
        yield Sample(f"namesrv_{name}_percent", "gauge", _READINGS[name], percent)
