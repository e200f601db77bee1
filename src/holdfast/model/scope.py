"""The scope of a static topic (where it is fixed), and the mock broker names of its logical queues.

    scope on wire and disk   for people   mock broker on the wire   mock broker for people
    __global__               global       __syslo__global__         __logic__global
    clusterA                 clusterA     __syslo__clusterA         __logic__clusterA
    clusterA_clusterB        the same     __syslo__clusterA_clusterB, a set of clusters: readable, never created here

Clients hash and compare the text of a broker name, so brokers answer with the wire form only. Both forms are accepted.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.errors import MappingRefused

GLOBAL: Final = "__global__"
SHOWN_GLOBAL: Final = "global"
WIRE_PREFIX: Final = "__syslo__"
SHOWN_PREFIX: Final = "__logic__"
_SEPARATOR: Final = "_"
"""Separates the clusters of a set. We never create sets, but we accept them."""
NO_BROKER: Final = "__syslo__none__"
"""The broker of a logical queue that has no leader, so that the number of queues stays fixed."""


def find_scope_fault(cluster: str) -> str | None:
    """Return why a cluster of this name cannot be a scope, or None if it can."""
    if not cluster:
        return "a scope needs a name: that of a cluster, or 'global'"
    if cluster == SHOWN_GLOBAL:
        return "a cluster named 'global' cannot be a scope: the name means all clusters. Rename the cluster"
    if _SEPARATOR in cluster:
        return f"cluster {cluster!r} cannot be a scope: '_' separates names on the wire. Rename the cluster"
    return None


def covers(scope: str, cluster: str) -> bool:
    """Return whether brokers of *cluster* may lead queues of *scope*: it is global, that cluster, or a set with it."""
    # A cluster name with a '_' cannot be a scope here, but Java may have registered it as one.
    return scope in {GLOBAL, cluster} or cluster in scope.split(_SEPARATOR)


def overlap(one: str, other: str) -> bool:
    """Return whether two scopes share a cluster: then they cannot both have a static topic of the same name."""
    if one == other or GLOBAL in {one, other}:
        return True
    return not set(one.split(_SEPARATOR)).isdisjoint(other.split(_SEPARATOR))


def require_in_scope(scope: str, cluster: str, broker: str, topic: str) -> None:
    """Check that a broker may hold queues of a static topic.

    Raises:
        MappingRefused: the topic is fixed elsewhere.
    """
    if not covers(scope, cluster):
        raise MappingRefused(
            "inside the scope",
            f"{topic} is fixed in {to_shown_scope(scope)}, and {broker} belongs to cluster {cluster}: choose a broker"
            " there",
        )


def to_wire_scope(text: str) -> str:
    """Return the wire form of a scope that a person wrote: `global` and `__global__` mean the same.

    The mock broker name of its queues, `__logic__CLUSTER`, is accepted, too.

    Raises:
        MappingRefused: *text* is not a valid scope name.
    """
    text = find_scope(text) or text
    if text in {SHOWN_GLOBAL, GLOBAL}:
        return GLOBAL
    if fault := find_scope_fault(text):
        raise MappingRefused("scope names", fault)
    return text


def to_shown_scope(scope: str) -> str:
    """Return a scope in the form for people."""
    return SHOWN_GLOBAL if scope == GLOBAL else scope


def mock_broker(scope: str) -> str:
    """Return the wire form of the mock broker name of *scope*."""
    return WIRE_PREFIX + (scope[2:] if scope == GLOBAL else scope)


def shown_broker(scope: str) -> str:
    """Return the form for people of the mock broker name of *scope*."""
    return SHOWN_PREFIX + to_shown_scope(scope)


def is_mock_broker(name: str) -> bool:
    """Return whether *name* is a mock broker name, in either form."""
    return name.startswith((WIRE_PREFIX, SHOWN_PREFIX))


def find_scope(name: str) -> str | None:
    """Return the scope, in wire form, of a mock broker name in either form; None for other brokers."""
    if name == NO_BROKER:
        return None
    for prefix, text_of_global in ((WIRE_PREFIX, GLOBAL[2:]), (SHOWN_PREFIX, SHOWN_GLOBAL)):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return GLOBAL if rest == text_of_global else rest or None
    return None


def to_wire_broker(name: str) -> str:
    """Return a broker name in wire form; only mock names change."""
    scope = find_scope(name)
    return name if scope is None else mock_broker(scope)


def to_shown_broker(name: str) -> str:
    """Return a broker name in the form for people; only mock names change."""
    scope = find_scope(name)
    return name if scope is None else shown_broker(scope)
