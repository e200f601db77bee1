"""Rules that find the permissions that a request needs.

    request ─> Rule ─> Permission ─┬─ Topic orders: Sub        every permission must be granted,
                                   └─ Group readers: Sub       each for one of its actions

A *rule* is a part of a row in the table of requests (`table.py`). Names, types and rules are those of ACL 2.0 in
RocketMQ 5. It checks nothing for some requests, although these reveal or change data: their rules here follow the most
similar request that it does check. `access/door.py` enforces them.

The retry topic of a group belongs to the group: a permission for the topic is one for the group instead. The topics in
which a broker keeps messages of all topics belong to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from holdfast.model.access.resource import THIS_CLUSTER, Action, Permission, Permissions, Resource, ResourceType
from holdfast.model.group import GroupConfig
from holdfast.model.topic import AUTO_CREATE_TOPIC, HALF_TOPIC, MIXED_TOPICS, RETRY_PREFIX
from holdfast.wire.cluster.route import DepartedFields, RouteQueryFields
from holdfast.wire.frames import java_json
from holdfast.wire.requests.admin import ConsumeStatsFields, GroupConfigs, RuntimeInfoFields, TopicConfigs
from holdfast.wire.requests.heartbeat import ClientConfigCheck, decode_heartbeat
from holdfast.wire.requests.offsets import EndTransactionFields, LockBody, ViewMessageFields
from holdfast.wire.requests.pull import PullFields
from holdfast.wire.requests.send import SendFields


class Rule(msgspec.Struct, frozen=True):
    """How to find the permissions that requests of one kind need.

    Attributes:
        needs: What it needs, for readers: `Topic: Get`. Empty if it never needs anything.
        find: Returns all permissions that one request needs, from its decoded header and its body. Raises
            `RemoteProtocolError` for a body that the handler could not decode either.
        can_be_public: Whether there are requests for which it finds no permission: every client may send them.
        is_change: Whether such a request changes topics, groups, offsets or settings, as administrators do: it needs a
            permission for nothing but Create, Update and Delete.
    """

    needs: str
    find: Callable[[Any, bytes], Permissions]
    can_be_public: bool = False
    is_change: bool = False

    @property
    def text(self) -> str:
        """The rule for readers."""
        parts = [self.needs, "else public" if self.needs else "public"] if self.can_be_public else [self.needs]
        return "; ".join(filter(None, parts))


PUBLIC: Final = Rule("", lambda _header, _body: (), can_be_public=True)
"""The rule of requests that every client may send."""

PUB: Final = Action.PUB
SUB: Final = Action.SUB
CREATE: Final = Action.CREATE
UPDATE: Final = Action.UPDATE
DELETE: Final = Action.DELETE
GET: Final = Action.GET
LIST: Final = Action.LIST

_CHANGES: Final = frozenset({CREATE, UPDATE, DELETE})


# Rules by the names in a header.


def cluster(*actions: Action) -> Rule:
    """Return the rule of requests that concern the whole cluster, such as those among its servers."""
    needed = (Permission(THIS_CLUSTER, frozenset(actions)),)
    return Rule(_describe("Cluster", actions), lambda _header, _body: needed, is_change=_CHANGES.issuperset(actions))


def topic(*actions: Action, optional: bool = False) -> Rule:
    """Return the rule of requests whose header names a topic. An *optional* one may be absent or empty."""
    wanted = frozenset(actions)

    def find(header: Any, _body: bytes) -> Permissions:
        name: str = header.topic
        return () if optional and not name else (for_topic(name, wanted),)

    needs = _describe("Topic, if named" if optional else "Topic", actions)
    return Rule(needs, find, can_be_public=optional, is_change=wanted <= _CHANGES)


def group(*actions: Action, field: str = "consumer_group", optional: bool = False) -> Rule:
    """Return the rule of requests whose header names a group. An *optional* one may be absent or empty.

    Args:
        actions: At least one of these must be allowed.
        field: The attribute of the header that holds the name.
        optional: Without a name, no permission is needed.
    """
    wanted = frozenset(actions)

    def find(header: Any, _body: bytes) -> Permissions:
        name: str = getattr(header, field)
        return () if optional and not name else (for_group(name, wanted),)

    needs = _describe("Group, if named" if optional else "Group", actions)
    return Rule(needs, find, can_be_public=optional, is_change=wanted <= _CHANGES)


def every(*rules: Rule) -> Rule:
    """Return the rule that needs the permissions of all *rules*."""

    def find(header: Any, body: bytes) -> Permissions:
        return distinct(needed for rule in rules for needed in rule.find(header, body))

    can_be_public = all(rule.can_be_public for rule in rules)
    is_change = any(rule.is_change for rule in rules)
    return Rule("; ".join(rule.needs for rule in rules), find, can_be_public, is_change)


def for_topic(name: str, actions: frozenset[Action]) -> Permission:
    """Return the permission for a topic.

    For a retry topic it is that for its group. For a topic in which the broker keeps messages of all topics, it is one
    for the cluster: otherwise `Allow Topic:*` would permit to read the delayed messages of a topic that is denied.
    """
    if name.startswith(RETRY_PREFIX):
        return for_group(name[len(RETRY_PREFIX) :], actions)
    if name in MIXED_TOPICS:
        return Permission(THIS_CLUSTER, actions)
    return Permission(Resource(ResourceType.TOPIC, name), actions)


def for_group(name: str, actions: frozenset[Action]) -> Permission:
    """Return the permission for a group."""
    return Permission(Resource(ResourceType.GROUP, name), actions)


def distinct(permissions: Iterable[Permission]) -> Permissions:
    """Return *permissions* in their order, each once."""
    return tuple(dict.fromkeys(permissions))


def _describe(resource: str, actions: Iterable[Action]) -> str:
    return f"{resource}: {' or '.join(action.value for action in actions)}"


_ONLY_PUB: Final = frozenset({PUB})
_ONLY_SUB: Final = frozenset({SUB})
_ONLY_CREATE: Final = frozenset({CREATE})
_ONLY_UPDATE: Final = frozenset({UPDATE})
_ONLY_GET: Final = frozenset({GET})


# Rules that a header alone cannot express, or not by its names.


def _find_for_send(fields: SendFields, _body: bytes) -> Permissions:
    """A consumer without 36 sends a failed message to its retry topic: that needs what consuming needs."""
    is_retry = fields.topic.startswith(RETRY_PREFIX)
    return (for_topic(fields.topic, _ONLY_SUB if is_retry else _ONLY_PUB),)


def _find_for_pull(fields: PullFields, _body: bytes) -> Permissions:
    """RocketMQ permits pulls from the retry topics of all groups. Here that of another group needs Sub for it, too."""
    return distinct((for_group(fields.consumer_group, _ONLY_SUB), for_topic(fields.topic, _ONLY_SUB)))


def _find_for_route(fields: RouteQueryFields, _body: bytes) -> Permissions:
    """A producer whose topic does not exist asks where topics are created for a send. The send needs Create."""
    return () if fields.topic == AUTO_CREATE_TOPIC else (for_topic(fields.topic, frozenset({PUB, SUB, GET})),)


def _find_for_view(fields: ViewMessageFields, _body: bytes) -> Permissions:
    """Clients before 5.0 name no topic: the handler checks the topic of the record that it finds, in any case."""
    return (for_topic(fields.topic, _ONLY_GET),) if fields.topic else ()


def _find_for_decision(fields: EndTransactionFields, _body: bytes) -> Permissions:
    """Old clients name no topic, and after a check new ones name that of all half messages: the handler knows more."""
    return () if fields.topic in (None, "", HALF_TOPIC) else (for_topic(fields.topic, _ONLY_PUB),)


def _find_for_figures(fields: RuntimeInfoFields, _body: bytes) -> Permissions:
    """A replica reports its state in the request, and the master redirects pulls by it: that is more than reading."""
    return (Permission(THIS_CLUSTER, _ONLY_UPDATE if fields.replica_id else _ONLY_GET),)


def _find_for_lag(fields: ConsumeStatsFields, _body: bytes) -> Permissions:
    topics = [fields.topic] if fields.topic else [name for name in fields.topic_list.split(";") if name]
    return distinct((for_group(fields.consumer_group, _ONLY_GET), *(for_topic(name, _ONLY_GET) for name in topics)))


def _find_for_cluster(fields: DepartedFields, body: bytes) -> Permissions:
    """Every client may ask for addresses. The queue counts of departed brokers are part of their topics' routes."""
    if fields.wants_departed is None:
        return ()
    return distinct(for_topic(name, frozenset({PUB, SUB, GET})) for name in java_json.decode(body or b"[]", list[str]))


def _find_in_heartbeat(_header: msgspec.Struct, body: bytes) -> Permissions:
    """Consumers need Sub for their groups and topics. Producers are checked when they send."""
    consumers = decode_heartbeat(body).consumer_data_set
    return distinct(
        needed
        for consumer in consumers
        for needed in (
            for_group(consumer.group_name, _ONLY_SUB),
            *(for_topic(subscription.topic, _ONLY_SUB) for subscription in consumer.subscription_data_set),
        )
    )


def _find_in_locks(_header: msgspec.Struct, body: bytes) -> Permissions:
    locks = java_json.decode(body, LockBody)
    return distinct(
        (for_group(locks.consumer_group, _ONLY_SUB), *(for_topic(queue.topic, _ONLY_SUB) for queue in locks.mq_set))
    )


def _find_in_check(_header: msgspec.Struct, body: bytes) -> Permissions:
    check = java_json.decode(body, ClientConfigCheck)
    return distinct((for_group(check.group, _ONLY_SUB), for_topic(check.subscription_data.topic, _ONLY_SUB)))


def _find_in_topics(_header: msgspec.Struct, body: bytes) -> Permissions:
    configs = java_json.decode(body, TopicConfigs).topic_config_list
    return distinct(for_topic(config.name, _ONLY_CREATE) for config in configs)


def _find_in_group(_header: msgspec.Struct, body: bytes) -> Permissions:
    return (for_group(java_json.decode(body, GroupConfig).group_name, _ONLY_CREATE),)


def _find_in_groups(_header: msgspec.Struct, body: bytes) -> Permissions:
    configs = java_json.decode(body, GroupConfigs).group_config_list
    return distinct(for_group(config.group_name, _ONLY_CREATE) for config in configs)


SEND: Final = Rule("Topic: Pub, or Group: Sub for its retry topic", _find_for_send)
PULL: Final = Rule("Topic: Sub; Group: Sub", _find_for_pull)
ROUTE: Final = Rule(f"Topic: Pub or Sub or Get, unless it is {AUTO_CREATE_TOPIC}", _find_for_route)
VIEW_MESSAGE: Final = Rule("Topic of the message: Get", _find_for_view, can_be_public=True)
END_TRANSACTION: Final = Rule("Topic of the half message: Pub", _find_for_decision, can_be_public=True)
RUNTIME_INFO: Final = Rule("Cluster: Get, or Update with a replica's report", _find_for_figures)
CONSUME_STATS: Final = Rule("Group: Get; each named Topic: Get", _find_for_lag)
CLUSTER_INFO: Final = Rule(
    "each Topic in the body: Pub or Sub or Get, if departed brokers are asked for",
    _find_for_cluster,
    can_be_public=True,
)
HEARTBEAT: Final = Rule("each consumer Group and its Topics in the body: Sub", _find_in_heartbeat, can_be_public=True)
LOCKS: Final = Rule("Group and each Topic in the body: Sub", _find_in_locks)
SUBSCRIPTION_CHECK: Final = Rule("Group and Topic in the body: Sub", _find_in_check)
CREATE_TOPICS: Final = Rule("each Topic in the body: Create", _find_in_topics, can_be_public=True, is_change=True)
CREATE_GROUP: Final = Rule("Group in the body: Create", _find_in_group, is_change=True)
CREATE_GROUPS: Final = Rule("each Group in the body: Create", _find_in_groups, can_be_public=True, is_change=True)
