"""Where a static topic is fixed, and the broker names that its logical queues wear.

    scope on wire and disk   for people   mock broker on the wire   mock broker for people
    __global__               global       __syslo__global__         __logic__global
    clusterA                 clusterA     __syslo__clusterA         __logic__clusterA
    clusterA_clusterB        the same     __syslo__clusterA_clusterB, a set of clusters: read, but not made here

Clients hash and compare the text of a broker name, so brokers answer with one form only. Both forms are accepted.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.errors import MappingRefused

GLOBAL: Final = "__global__"
SHOWN_GLOBAL: Final = "global"
WIRE_PREFIX: Final = "__syslo__"
SHOWN_PREFIX: Final = "__logic__"
_BETWEEN: Final = "_"
"""Between the clusters of a set. Sets are not made here, but they are read."""
NOBODY: Final = "__syslo__none__"
"""The broker of a logical queue that has no leader, so that the number of queues stays fixed."""


def find_scope_fault(cluster: str) -> str | None:
    """Return why a cluster of this name cannot be a scope, or None when it can."""
    if not cluster:
        return "a scope needs a name: a cluster's, or 'global'"
    if cluster == SHOWN_GLOBAL:
        return "a cluster named 'global' cannot be a scope: the name means all clusters. Rename the cluster"
    if _BETWEEN in cluster:
        return f"cluster {cluster!r} cannot be a scope: '_' separates names on the wire. Rename the cluster"
    return None


def covers(scope: str, cluster: str) -> bool:
    """Return whether queues of *scope* may be led in *cluster*: it is global, that cluster, or a set with it."""
    # Were a cluster's own name to hold a '_', it would be no scope; but Java may have registered it as one.
    return scope in {GLOBAL, cluster} or cluster in scope.split(_BETWEEN)


def overlap(one: str, other: str) -> bool:
    """Return whether two scopes share a cluster: then only one of them can have a static topic of some name."""
    if one == other or GLOBAL in {one, other}:
        return True
    return not set(one.split(_BETWEEN)).isdisjoint(other.split(_BETWEEN))


def require_home(scope: str, cluster: str, broker: str, topic: str) -> None:
    """See that a broker may have a part in a static topic.

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
    """Return the scope that people wrote, as it is on the wire: `global` and `__global__` are one.

    The name under which its queues are shown, `__logic__CLUSTER`, means it too.

    Raises:
        MappingRefused: no scope can have that name.
    """
    text = find_scope(text) or text
    if text in {SHOWN_GLOBAL, GLOBAL}:
        return GLOBAL
    if fault := find_scope_fault(text):
        raise MappingRefused("scope names", fault)
    return text


def to_shown_scope(scope: str) -> str:
    """Return a scope of the wire as people see it."""
    return SHOWN_GLOBAL if scope == GLOBAL else scope


def mock_broker(scope: str) -> str:
    """Return the broker name that logical queues of *scope* have on the wire."""
    return WIRE_PREFIX + (scope[2:] if scope == GLOBAL else scope)


def shown_broker(scope: str) -> str:
    """Return the broker name that people see for logical queues of *scope*."""
    return SHOWN_PREFIX + to_shown_scope(scope)


def is_mock_broker(name: str) -> bool:
    """Return whether *name* stands for logical queues, in either form."""
    return name.startswith((WIRE_PREFIX, SHOWN_PREFIX))


def find_scope(name: str) -> str | None:
    """Return the scope, as on the wire, that a mock broker name of either form stands for; None for other brokers."""
    if name == NOBODY:
        return None
    for prefix, text_of_global in ((WIRE_PREFIX, GLOBAL[2:]), (SHOWN_PREFIX, SHOWN_GLOBAL)):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return GLOBAL if rest == text_of_global else rest or None
    return None


def to_wire_broker(name: str) -> str:
    """Return a broker name as the wire has it: mock names in their wire form, others as they are."""
    scope = find_scope(name)
    return name if scope is None else mock_broker(scope)


def to_shown_broker(name: str) -> str:
    """Return a broker name as people see it: mock names in their shown form, others as they are."""
    scope = find_scope(name)
    return name if scope is None else shown_broker(scope)
