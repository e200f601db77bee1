"""Static topics: the reports of each broker, their merged state, and the state that is served.

    report --for another broker, of an older epoch, of a deleted topic, unreadable--> refused; the last one stays
           --accepted--> merged --every queue has one leader-------------------> served
                                --more queues, some new ones without a leader--> served with as many queues as before
                                --anything else: withheld----------------------> the last served state stays, or busy

A report outlives its broker: a queue whose leader is away stays in the route. A report is removed when the topic is
deleted, or when its broker is away and other brokers have taken over all its segments. A topic that was a normal one
before its first report stays normal, on the brokers that had it, until its reports are complete for the first time.

Several static topics may share a name if each is fixed in a cluster of its own: their scopes must not overlap. A report
in an overlapping scope is refused, so that the first topic stays.

Does not know addresses, permissions or encoded answers (`static_routes.py`). It learns which brokers are alive only
from the container of names that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator
from typing import Any, Final

import msgspec

from holdfast.machine.turn import Turn
from holdfast.model.errors import MappingRefused, RemoteProtocolError
from holdfast.model.mapping import MergedTopic, TopicMapping, check, merge
from holdfast.model.scope import GLOBAL, covers, overlap, to_shown_scope
from holdfast.model.segment import is_newer
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.wire.cluster.mapping import MappingInfo, convert_info, from_info

SEGMENTS_MAX: Final = 4_000_000
"""Limit of the segments kept for all topics together: reports outlive their brokers, so memory needs a bound."""
_DELETED_MAX: Final = 1000
_REASONS_SHOWN: Final = 8
_LASTING_CHECKS: Final = 2
_NUMBERS_SHOWN: Final = 16
_BEFORE_SCOPE: Final = "@"  # Topic names cannot contain it.


def key_of(name: str, scope: str) -> str:
    """Return the key of a topic: its name, followed by its scope unless it is global."""
    return name if scope == GLOBAL else f"{name}{_BEFORE_SCOPE}{scope}"


def name_of(key: str) -> str:
    """Return the name of the topic with this *key*."""
    return key.partition(_BEFORE_SCOPE)[0]


class Report(msgspec.Struct, frozen=True):
    """A broker's registration of a topic.

    Attributes:
        has_segments: Whether it includes the segments of its queues, as Holdfast's do, and not only the queues it
            leads.
    """

    mapping: TopicMapping
    has_segments: bool

    @property
    def size(self) -> int:
        """How many segments it counts for; at least one, for the report itself."""
        return 1 + sum(len(queue.segments) for queue in self.mapping.queues.values())


class StaticTopic:
    """One static topic.

    Attributes:
        scope: Its scope, as on the wire.
        reports: By broker.
        normal_hosts: Brokers that had it as a normal topic before its first report; empty once it was complete.
        merged: The merged state of all reports.
        served: The newest merged state that clients can use; None while there was none.
        holders: The brokers that report, or hold readable records.
        conflicting_hosts: Brokers that have a normal topic of this name.
        logged: The reasons and the stale claims that were logged last.
        withheld_checks: How many checks in a row found it withheld.
    """

    __slots__ = (
        "conflicting_hosts",
        "holders",
        "logged",
        "merged",
        "name",
        "normal_hosts",
        "reports",
        "scope",
        "served",
        "withheld_checks",
    )

    def __init__(self, name: str, scope: str, normal_hosts: frozenset[str]) -> None:
        self.name = name
        self.scope = scope
        self.reports: dict[str, Report] = {}
        self.normal_hosts = normal_hosts
        self.merged: MergedTopic | None = None
        self.served: MergedTopic | None = None
        self.holders: frozenset[str] = frozenset()
        self.conflicting_hosts: frozenset[str] = frozenset()
        self.logged: tuple[list[str], list[str]] = ([], [])
        self.withheld_checks = 0

    @property
    def key(self) -> str:
        """Its key in `StaticTopics.topics`."""
        return key_of(self.name, self.scope)

    @property
    def is_normal(self) -> bool:
        """Whether clients still see the normal topic that it was before."""
        return self.served is None and bool(self.normal_hosts)

    @property
    def reasons(self) -> list[str]:
        """Why the served state is not the merged one; empty if it is."""
        if self.merged is None or self.merged is self.served:
            return []
        return self.merged.contradictions + _describe_unled(self.merged)


class StaticTopics:
    """All static topics.

    Args:
        turn: The turn of the name server.
        alive: The names of the live brokers.
        changes: Learns which routes change.
        cluster_of: Returns the cluster of a broker; None if unknown.

    Attributes:
        topics: By key.
        by_name: By name and scope. Every name in it has at least one topic.
        refusals: How many reports were refused so far.
        deleted: Key of a deleted topic to broker to the epoch of its last report.
        is_unsaved: Whether something changed that should be saved; reset by the code that saves.
    """

    def __init__(
        self,
        turn: Turn,
        alive: Container[str],
        changes: RouteChanges,
        cluster_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._turn = turn
        self.topics: dict[str, StaticTopic] = {}
        self.by_name: dict[str, dict[str, StaticTopic]] = {}
        self.refusals = 0
        self._alive = alive
        self._changes = changes
        self._cluster_of = cluster_of
        self._faults: dict[str, dict[str, MappingRefused]] = {}  # broker -> topic -> why its last report was refused
        self.deleted: dict[str, dict[str, int]] = {}
        self.is_unsaved = False
        self._unconfirmed: dict[str, set[str]] = {}  # broker -> keys that were restored and not reported again yet
        self._segment_count = 0

    # Queries.

    def find(self, name: str, scope: str = GLOBAL) -> StaticTopic | None:
        """Return the topic if clients see it as a static one; None otherwise."""
        topic = self.topics.get(key_of(name, scope))
        return None if topic is None or topic.is_normal else topic

    def find_all(self, name: str) -> list[StaticTopic]:
        """Return the topics of this name that clients see as static ones, by scope."""
        found = self.by_name.get(name)
        return [found[scope] for scope in sorted(found) if not found[scope].is_normal] if found else []

    def find_reported(self, broker: str, name: str) -> StaticTopic | None:
        """Return the topic of this name that has a report of *broker*; None if there is none."""
        return next((topic for topic in self.by_name.get(name, {}).values() if broker in topic.reports), None)

    def topics_held_by(self, broker: str) -> Iterator[StaticTopic]:
        """Yield the topics in which *broker* is a holder."""
        return (topic for topic in self.topics.values() if broker in topic.holders)

    def find_fault(self, name: str, is_visible: Callable[[str], bool] = lambda _: True) -> str | None:
        """Return why a mapping of a topic, reported from a visible cluster, was refused; None if none was."""
        for broker, faults in self._faults.items():
            fault = faults.get(name)
            if fault is not None and fault.rule != _DELETED and is_visible(self._cluster_of(broker) or ""):
                return str(fault)
        return None

    # Reports.

    def accept_report(self, broker: str, name: str, plain: Any, *, normal_hosts: Collection[str]) -> str | None:
        """Apply a broker's registration of a topic; return the reason if it is refused.

        Args:
            broker: The broker that registered it.
            name: The topic.
            plain: The registered object, decoded but not validated.
            normal_hosts: The brokers that have the topic as a normal one, before this registration.
        """
        unconfirmed = self._unconfirmed.get(broker)
        if unconfirmed:
            unconfirmed.difference_update(topic.key for topic in self.by_name.get(name, {}).values())
        try:
            report = self._validate(broker, name, convert_info(plain))
        except MappingRefused as fault:
            return self._refuse(broker, name, fault)
        except RemoteProtocolError as error:
            return self._refuse(broker, name, MappingRefused("readable", f"{broker} has a mapping of {name}: {error}"))
        self._faults.get(broker, {}).pop(name, None)
        self._store_report(broker, name, report, normal_hosts)
        return None

    def _store_report(self, broker: str, name: str, report: Report, normal_hosts: Collection[str]) -> None:
        scope = report.mapping.scope
        before = self.find_reported(broker, name)
        if before is not None and before.scope != scope:
            # A broker has one topic of a name: the earlier one was deleted without our notice.
            self._remove_report(before, broker)
        key = key_of(name, scope)
        topic = self.topics.get(key)
        if topic is None:
            topic = self.topics[key] = StaticTopic(name, scope, self._hosts_in_scope(scope, normal_hosts))
            self.by_name.setdefault(name, {})[scope] = topic
            self.deleted.pop(key, None)
        known = topic.reports.get(broker)
        if known != report:
            self._segment_count += report.size - (known.size if known is not None else 0)
            topic.reports[broker] = report
            self._update(topic)

    def _remove_report(self, topic: StaticTopic, broker: str) -> None:
        self._segment_count -= topic.reports.pop(broker).size
        if topic.reports:
            self._update(topic)
        else:
            self._forget(topic)

    def _forget(self, topic: StaticTopic) -> None:
        del self.topics[topic.key]
        scopes = self.by_name[topic.name]
        del scopes[topic.scope]
        if not scopes:
            del self.by_name[topic.name]
        self._note_change(topic.name)

    def _hosts_in_scope(self, scope: str, hosts: Collection[str]) -> frozenset[str]:
        """Return those of *hosts* that are in *scope*, or whose cluster is unknown."""
        if scope == GLOBAL:
            return frozenset(hosts)
        clusters = {host: self._cluster_of(host) for host in hosts}
        return frozenset(host for host, cluster in clusters.items() if cluster is None or covers(scope, cluster))

    def _validate(self, broker: str, name: str, info: MappingInfo) -> Report:
        """Validate a registered object and return the report.

        Raises:
            MappingRefused: it breaks a rule.
            RemoteProtocolError: it cannot be decoded.
        """
        mapping = from_info(info)
        if mapping.topic != name:
            raise MappingRefused("own name", f"{broker} records {mapping.topic[:80]} under the name of {name}")
        check(mapping, owner=broker, cluster=self._cluster_of(broker))
        report = Report(mapping, info.extras is not None)
        key = key_of(name, mapping.scope)
        if self.deleted.get(key, {}).get(broker) == mapping.epoch:
            raise MappingRefused(_DELETED, f"{name} was deleted, but {broker} still has it: delete it there too")
        self._require_scope_free(broker, name, mapping.scope)
        known = self.topics[key].reports.get(broker) if key in self.topics else None
        if known is not None:
            _require_newer(known.mapping, mapping)
        if self._segment_count + report.size - (known.size if known is not None else 0) > SEGMENTS_MAX:
            raise MappingRefused(
                "bounded memory",
                f"{SEGMENTS_MAX} segments are known already: {name} on {broker} exceeds the limit. Delete unused "
                "topics",
            )
        return report

    def _require_scope_free(self, broker: str, name: str, scope: str) -> None:
        """Check that no static topic of the name has a scope that overlaps *scope*.

        Raises:
            MappingRefused: another broker reports such a topic.
        """
        for topic in self.by_name.get(name, {}).values():
            other_brokers = topic.reports.keys() - {broker}
            if topic.scope != scope and other_brokers and overlap(topic.scope, scope):
                raise MappingRefused(
                    "one scope",
                    f"{broker} has {name} in scope {to_shown_scope(scope)}, but {min(other_brokers)} has it in"
                    f" {to_shown_scope(topic.scope)}: delete one of the two",
                )

    def _refuse(self, broker: str, name: str, fault: MappingRefused) -> str:
        faults = self._faults.setdefault(broker, {})
        if name not in faults or str(faults[name]) != str(fault):
            faults[name] = fault
            self.refusals += 1
            self._turn.log("warning", "mapping refused", topic=name, broker=broker, reason=str(fault))
        return str(fault)

    def broker_left(self, broker: str) -> None:
        """Record that *broker* is away. Its reports stay while they contain something that no other report does."""
        self._faults.pop(broker, None)
        for topic in list(self.topics_held_by(broker)):
            self._update(topic)

    def drop(self, name: str, brokers: Collection[str]) -> bool:
        """Remove the reports of *brokers* about a deleted topic; return whether there were any."""
        for faults in self._faults.values():
            faults.pop(name, None)
        found = list(self.by_name.get(name, {}).values())
        return sum(self._drop(topic, brokers) for topic in found) > 0

    def _drop(self, topic: StaticTopic, brokers: Collection[str]) -> bool:
        dropped = {broker: topic.reports.pop(broker) for broker in brokers if broker in topic.reports}
        if not dropped:
            return False
        self._segment_count -= sum(report.size for report in dropped.values())
        self._note_change(topic.name)
        if topic.reports:
            # Only a part of the topic is left: its last served state is no longer valid.
            topic.served = None
            self._update(topic)
        else:
            self._forget(topic)
            # A registration in flight, or of a broker that was away, must not bring it back.
            self.deleted[topic.key] = {broker: report.mapping.epoch for broker, report in dropped.items()}
            if len(self.deleted) > _DELETED_MAX:
                del self.deleted[next(iter(self.deleted))]
        return True

    def note_normal_hosts(self, name: str, hosts: Collection[str]) -> None:
        """Record the brokers that have a normal topic of this name: next to a static topic it is not served."""
        for topic in self.by_name.get(name, {}).values():
            in_scope = self._hosts_in_scope(topic.scope, hosts) if topic.served is not None else frozenset()
            conflicting_hosts = in_scope - topic.reports.keys()
            for broker in sorted(conflicting_hosts - topic.conflicting_hosts):
                self._turn.log(
                    "warning", "normal topic not served", topic=name, broker=broker, reason=NORMAL_TOPIC_CONFLICT
                )
            topic.conflicting_hosts = conflicting_hosts

    # Restoring.

    def restore(self, broker: str, name: str, info: MappingInfo, *, normal_hosts: Collection[str]) -> str | None:
        """Apply a saved report; return the reason if it cannot be used."""
        try:
            report = self._validate(broker, name, info)
        except (MappingRefused, RemoteProtocolError) as error:
            return str(error)
        self._store_report(broker, name, report, normal_hosts)
        self._unconfirmed.setdefault(broker, set()).add(key_of(name, report.mapping.scope))
        return None

    def restore_served(self, topic: StaticTopic, served: MergedTopic) -> None:
        """Serve the saved state, unless the reports allow a better one."""
        if topic.served is None:
            topic.served = served
            self._update(topic)

    def restore_deleted(self, deleted: dict[str, dict[str, int]]) -> None:
        """Restore the deleted topics."""
        self.deleted.update({key: epochs for key, epochs in deleted.items() if key not in self.topics})

    def drop_unconfirmed(self, broker: str) -> None:
        """Remove restored reports of *broker* that it did not repeat: it has registered all its topics now."""
        for key in self._unconfirmed.pop(broker, ()):
            topic = self.topics.get(key)
            if topic is not None and broker in topic.reports:
                self._remove_report(topic, broker)

    # Merging.

    def _note_change(self, name: str) -> None:
        self._changes.add([name])
        self.is_unsaved = True

    def _update(self, topic: StaticTopic) -> None:
        merged = _merge(topic)
        superseded = self._find_superseded(topic, merged)
        if superseded:
            for broker in superseded:
                self._segment_count -= topic.reports.pop(broker).size
            merged = _merge(topic)
        topic.merged = merged
        if merged.is_complete:
            topic.served, topic.normal_hosts = merged, frozenset()
        elif topic.served is not None and _covers(merged, topic.served.total):
            topic.served = _narrow(merged, topic.served.total)
        brokers = set() if topic.served is None else _brokers_of(topic.served)
        topic.holders = frozenset(topic.reports.keys() | brokers)
        self._note_change(topic.name)
        self._log_changes(topic, merged)

    def _find_superseded(self, topic: StaticTopic, merged: MergedTopic) -> list[str]:
        """Return the absent brokers whose reports are no longer needed."""
        if not merged.is_complete:
            return []
        used = _brokers_of(merged)
        kept = [
            report.mapping.epoch for broker, report in topic.reports.items() if broker in used or broker in self._alive
        ]
        return [
            broker
            for broker, report in topic.reports.items()
            if broker not in used and broker not in self._alive and kept and report.mapping.epoch <= max(kept)
        ]

    def warn_withheld(self) -> None:
        """Log a warning for each topic that the last two checks found withheld, once."""
        for topic in self.topics.values():
            topic.withheld_checks = topic.withheld_checks + 1 if topic.reasons else 0
            if topic.withheld_checks == _LASTING_CHECKS:
                self._turn.log("warning", "static topic stays withheld", **_describe_withheld(topic))

    def _log_changes(self, topic: StaticTopic, merged: MergedTopic) -> None:
        """Log why the topic is withheld, and when it is complete again; each change once."""
        reasons, claims = topic.logged
        topic.logged = (topic.reasons, merged.superseded)
        if topic.reasons and topic.reasons != reasons:
            # No warning yet: while a topic is created or grows, its brokers register one after the other.
            self._turn.log("info", "static topic withheld", **_describe_withheld(topic))
        elif reasons and not topic.reasons:
            self._turn.log("info", "static topic complete", topic=topic.name, queues=merged.total, epoch=merged.epoch)
        if merged.superseded and merged.superseded != claims:
            # No warning: during a move the new leader registers before the old one.
            superseded = join_reasons(merged.superseded)
            self._turn.log("info", "stale claim not served", topic=topic.name, reasons=superseded)


NORMAL_TOPIC_CONFLICT: Final = (
    "a static topic of this name is served: delete the normal one there, or the static one everywhere"
)
_DELETED: Final = "deleted stays deleted"


def join_reasons(reasons: list[str]) -> str:
    """Join *reasons* into one text, limited in length."""
    more = [f"and {len(reasons) - _REASONS_SHOWN} more"] if len(reasons) > _REASONS_SHOWN else []
    return "; ".join([*reasons[:_REASONS_SHOWN], *more])


def _require_newer(known: TopicMapping, reported: TopicMapping) -> None:
    """Check that a report is not older than the last one of the same broker.

    Raises:
        MappingRefused: its epoch is lower, or, in the same epoch, the generation of a queue.
    """
    if reported.epoch < known.epoch:
        raise MappingRefused(
            "rising epochs",
            f"{known.broker} was at epoch {known.epoch} of {known.topic} and comes back with {reported.epoch}: its"
            " mapping is an old copy. Repair it from its peers",
        )
    for number, queue in reported.queues.items() if reported.epoch == known.epoch else ():
        before = known.queues.get(number)
        # After a Java broker took over the store, its reports have no generations.
        if before is not None and queue.generation is not None and is_newer(before.generation, queue.generation):
            raise MappingRefused(
                "rising generations",
                f"{known.broker} was at generation {before.generation} of logical queue {number} of {known.topic} and"
                f" comes back with {queue.generation}: the report was overtaken on its way, or is an old copy",
            )


def _merge(topic: StaticTopic) -> MergedTopic:
    return merge({broker: report.mapping for broker, report in topic.reports.items()})


def _covers(merged: MergedTopic, total: int) -> bool:
    """Return whether the first *total* queues are led without contradiction."""
    return not merged.contradictions and merged.total >= total and all(number >= total for number in merged.unled)


def _narrow(merged: MergedTopic, total: int) -> MergedTopic:
    queues = {number: queue for number, queue in merged.queues.items() if number < total}
    return msgspec.structs.replace(merged, total=total, queues=queues, unled=[])


def _brokers_of(merged: MergedTopic) -> set[str]:
    """Return the brokers that clients read from or write to."""
    return {segment.broker for queue in merged.queues.values() for segment in queue.readable}


def _describe_withheld(topic: StaticTopic) -> dict[str, object]:
    serves = "the normal topic" if topic.is_normal else "busy"
    if topic.served is not None:
        serves = f"{topic.served.total} queues of epoch {topic.served.epoch}"
    return {"topic": topic.name, "reasons": join_reasons(topic.reasons), "serves": serves}


def _describe_unled(merged: MergedTopic) -> list[str]:
    if not merged.unled:
        return []
    numbers = ", ".join(map(str, merged.unled[:_NUMBERS_SHOWN]))
    more = f" and {len(merged.unled) - _NUMBERS_SHOWN} more" if len(merged.unled) > _NUMBERS_SHOWN else ""
    return [f"no broker leads logical queues {numbers}{more} of {merged.total}"]
