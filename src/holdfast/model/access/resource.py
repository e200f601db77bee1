"""Resources, actions, and the permissions that a request needs.

    Permission ─┬─ Topic orders: Sub        all permissions of a request must be granted,
                └─ Group readers: Sub       each for one of its actions

Names and types are those of ACL 2.0 in RocketMQ 5.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class ResourceType(Enum):
    """What a permission is for."""

    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"  # Rules may name one. No request needs one.
    TOPIC = "Topic"
    GROUP = "Group"


class Action(Enum):
    """What a request does to a resource."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Resource(NamedTuple):
    """One resource by its name."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.value}:{self.name}"


class Permission(NamedTuple):
    """A resource, and the actions of which at least one must be allowed."""

    resource: Resource
    actions: frozenset[Action]


Permissions = tuple[Permission, ...]

THIS_CLUSTER: Final = Resource(ResourceType.CLUSTER, "")
"""The cluster of the server that receives the request. Requests do not name it."""
