"""The table of requests: one row for every request code of every role.

    code ─> row ─┬─ header type            how to decode the fields
                 ├─ path                   whether runs of sends, pulls, or a single handler processes it
                 ├─ relaying               which queue it addresses, and whether it is relayed to the leader
                 ├─ on_replica             whether a replica answers it
                 └─ rule                   the permissions that it needs

A new request is one row here, one header type in the module of its subject, and one handler. `docs/protocol.md` is
generated from this table, and a test compares it with the handlers of each role.

Codes 328 and 329 have a different meaning in each role.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from holdfast.model.access.resource import THIS_CLUSTER, Permission, Permissions
from holdfast.model.queue import QueueKey
from holdfast.wire.access.bodies import (
    DeleteRulesFields,
    ListRulesFields,
    ListUsersFields,
    SubjectFields,
    UpdateUserFields,
    UserNameFields,
)
from holdfast.wire.access.login import LoginFields, LoginProofFields
from holdfast.wire.access.records import SyncAccessFields
from holdfast.wire.access.throttle import ThrottleFields
from holdfast.wire.cluster.registration import BrokerFields, MemberGroupFields, RegisterFields
from holdfast.wire.cluster.route import (
    BrokerNameFields,
    ClusterFields,
    DeleteTopicFields,
    DepartedFields,
    KvFields,
    NamespaceFields,
    RegisterTopicFields,
    RouteQueryFields,
)
from holdfast.wire.cluster.watch import WatchedTopicsFields
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command
from holdfast.wire.frames.fields import NoFields, from_fields
from holdfast.wire.requests.admin import (
    BrokerStatsFields,
    ClientRequestFields,
    CloneOffsetFields,
    ConsumerStatusFields,
    ConsumeStatsFields,
    CreateTopicFields,
    DeleteGroupFields,
    GroupFields,
    PageFields,
    ProducerGroupFields,
    QueueEntriesFields,
    ResetOffsetFields,
    RuntimeInfoFields,
    StatsFields,
    TopicFields,
    TopicQueryFields,
)
from holdfast.wire.requests.forward import ForwardFields
from holdfast.wire.requests.heartbeat import ConsumerGroupFields, UnregisterFields
from holdfast.wire.requests.moves import DeleteMappingFields
from holdfast.wire.requests.offsets import (
    CheckTransactionFields,
    EndTransactionFields,
    QueryMessageFields,
    QueryOffsetFields,
    QueueFields,
    SearchOffsetFields,
    SendBackFields,
    UpdateOffsetFields,
    ViewMessageFields,
)
from holdfast.wire.requests.permissions import (
    CLUSTER_INFO,
    CONSUME_STATS,
    CREATE,
    CREATE_GROUP,
    CREATE_GROUPS,
    CREATE_TOPICS,
    DELETE,
    END_TRANSACTION,
    GET,
    HEARTBEAT,
    LIST,
    LOCKS,
    PUB,
    PUBLIC,
    PULL,
    ROUTE,
    RUNTIME_INFO,
    SEND,
    SUB,
    SUBSCRIPTION_CHECK,
    UPDATE,
    VIEW_MESSAGE,
    Rule,
    cluster,
    distinct,
    every,
    group,
    topic,
)
from holdfast.wire.requests.pull import PullFields
from holdfast.wire.requests.relay import RelayFields, split_envelope
from holdfast.wire.requests.send import LongSendFields, PushedReplyFields, SendFields, send_header


class Role(Enum):
    """Who answers a request. The values are the names for readers."""

    NAME_SERVER = "name server"
    BROKER = "broker"
    CLIENT = "client"


class Path(Enum):
    """Which part of a broker processes a request: the handler of its code, or one of the two hot paths."""

    HANDLER = "handler"
    SEND = "send"  # Sends of several frames and channels are stored as one run.
    PULL = "pull"  # Decoded straight from the receive buffer, and answered by views of the log.


class Relaying(Enum):
    """What a broker does with a request for a logical queue that another broker leads. The values are for readers.

    The addressed queue is in the header fields `topic` and `queue_id`, except for LOCK.
    """

    NEVER = "no"
    SEND = "send"  # Waits in the line of its queue. Several sends share an envelope.
    READ = "read"  # A separate envelope. A former leader still answers it while its queue is sealed.
    LEADER = "leader"  # A separate envelope. Only the leader answers it.
    LOCK = "lock"  # The body names queues of several leaders. The handler relays a part to each leader.


_BY_FIELDS: Final = frozenset({Relaying.SEND, Relaying.READ, Relaying.LEADER})


class RequestSpec(msgspec.Struct, frozen=True):
    """What is known about one request code in one role.

    Attributes:
        code: The request code.
        header: The type of the decoded fields.
        rule: Finds the permissions that it needs.
        meaning: What it asks for, for readers.
        path: Which part of a broker processes it.
        relaying: What a broker does with it if another broker leads the addressed queue.
        on_replica: False if a replica refuses it, because its next sync with the master would undo the change. Requests
            that store a message reach the replica's store, which refuses them.
        by_servers: Servers send it to each other all the time: it is not the change of an administrator.
        shows_body: The audit log contains its body, which has no secrets.
    """

    code: RequestCode
    header: type[msgspec.Struct]
    rule: Rule
    meaning: str
    relaying: Relaying = Relaying.NEVER
    on_replica: bool = True
    path: Path = Path.HANDLER
    by_servers: bool = False
    shows_body: bool = False

    def decode(self, command: Command) -> msgspec.Struct:
        """Return the decoded header of a request with this code.

        Raises:
            BadField: a field is missing or cannot be read.
        """
        if issubclass(self.header, SendFields):
            return send_header(command, self.header).fields
        return from_fields(self.header, command.fields)

    def find_queue(self, header: Any) -> QueueKey | None:
        """Return the logical queue that a decoded header addresses.

        None if it addresses none or any, a physical one, or several in the body.
        """
        is_physical = getattr(header, "is_logical", None) is False
        if self.relaying not in _BY_FIELDS or is_physical or header.queue_id < 0:
            return None
        return header.topic, header.queue_id

    def find_permissions(self, command: Command) -> Permissions:
        """Return all permissions that a request with this code needs.

        Raises:
            BadField: a field is missing or cannot be read.
            RemoteProtocolError: the body cannot be read.
        """
        return self.permissions_of(self.decode(command), command.body)

    def permissions_of(self, header: msgspec.Struct, body: bytes) -> Permissions:
        """Return all permissions that a request with this code needs, given its decoded header.

        Raises:
            RemoteProtocolError: the body cannot be read.
        """
        return self.rule.find(header, body)


def _find_in_envelope(_header: msgspec.Struct, body: bytes) -> Permissions:
    """A broker needs what its clients need, too: an envelope must not be a way around their permissions."""
    needed = [Permission(THIS_CLUSTER, frozenset({UPDATE}))]
    for frame in split_envelope(body):
        command = decode_command(frame)
        if relaying_of(command.code) is not Relaying.NEVER:  # The handler refuses all others.
            needed += BROKER_REQUESTS[command.code].find_permissions(command)
    return distinct(needed)


_ENVELOPE: Final = Rule("Cluster: Update; all permissions of the relayed requests", _find_in_envelope)


def _by_code(*rows: RequestSpec) -> MappingProxyType[int, RequestSpec]:
    table: dict[int, RequestSpec] = {row.code: row for row in sorted(rows, key=lambda row: row.code)}
    assert len(table) == len(rows), "a code has two rows"
    return MappingProxyType(table)


# One or two lines per row: the formatter would make it a list of arguments.
# fmt: off

_OF_USERS_AND_RULES: Final = (
    RequestSpec(RequestCode.AUTH_CREATE_USER, UserNameFields, cluster(UPDATE), "Create a user"),
    RequestSpec(RequestCode.AUTH_UPDATE_USER, UpdateUserFields, cluster(UPDATE), "Change a user"),
    RequestSpec(RequestCode.AUTH_DELETE_USER, UserNameFields, cluster(UPDATE), "Delete a user with its rules"),
    RequestSpec(RequestCode.AUTH_GET_USER, UserNameFields, cluster(GET), "Return a user"),
    RequestSpec(RequestCode.AUTH_LIST_USER, ListUsersFields, cluster(GET), "Return all users"),
    RequestSpec(RequestCode.AUTH_CREATE_ACL, SubjectFields, cluster(UPDATE), "Add rules of a user", shows_body=True),
    RequestSpec(RequestCode.AUTH_UPDATE_ACL, SubjectFields, cluster(UPDATE),
        "Add or replace rules of a user", shows_body=True),
    RequestSpec(RequestCode.AUTH_DELETE_ACL, DeleteRulesFields, cluster(UPDATE), "Delete rules of a user"),
    RequestSpec(RequestCode.AUTH_GET_ACL, SubjectFields, cluster(GET), "Return the rules of a user"),
    RequestSpec(RequestCode.AUTH_LIST_ACL, ListRulesFields, cluster(GET), "Return the rules of all users"),
    # Public: a client has to begin somehow.
    RequestSpec(RequestCode.LOGIN, LoginFields, PUBLIC, "Begin a login"),
    RequestSpec(RequestCode.LOGIN_PROOF, LoginProofFields, PUBLIC, "Prove who logs in"),
    RequestSpec(RequestCode.SYNC_ACCESS, SyncAccessFields, cluster(UPDATE),
        "Exchange users and rules; only servers that have proven the cluster secret may", by_servers=True),
)

NAME_SERVER_REQUESTS: Final = _by_code(
    RequestSpec(RequestCode.PUT_KV_CONFIG, KvFields, cluster(UPDATE),
        "Store a value of the name server's key-value table"),
    RequestSpec(RequestCode.GET_KV_CONFIG, KvFields, cluster(GET), "Return a value of the key-value table"),
    RequestSpec(RequestCode.DELETE_KV_CONFIG, KvFields, cluster(UPDATE), "Delete a value of the key-value table"),
    RequestSpec(RequestCode.REGISTER_BROKER, RegisterFields, cluster(UPDATE),
        "Register a broker with its topics and mappings", by_servers=True),
    RequestSpec(RequestCode.UNREGISTER_BROKER, BrokerFields, cluster(UPDATE),
        "Remove a broker that stops", by_servers=True),
    RequestSpec(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQueryFields, ROUTE,
        "Return the route of a topic; can also watch it"),
    RequestSpec(RequestCode.GET_BROKER_CLUSTER_INFO, DepartedFields, CLUSTER_INFO,
        "Return all clusters and broker addresses"),
    RequestSpec(RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameFields, cluster(UPDATE),
        "Stop sends to a broker by removing its write permission"),
    RequestSpec(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoFields, cluster(GET, LIST),
        "Return the names of all topics"),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFields, cluster(UPDATE),
        "Delete a topic at the name server and mark it as deleted"),
    RequestSpec(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopicFields, cluster(UPDATE),
        "Add a topic to the name server's routes"),
    RequestSpec(RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceFields, cluster(GET),
        "Return a namespace of the key-value table"),
    RequestSpec(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterFields, cluster(GET, LIST), "Return the topics of a cluster"),
    RequestSpec(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoFields, cluster(GET, LIST),
        "Return the system topics of the cluster"),
    RequestSpec(RequestCode.GET_UNIT_TOPIC_LIST, NoFields, cluster(GET, LIST),
        "Return the topics of units (Java's unit mode)"),
    RequestSpec(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, NoFields, cluster(GET, LIST),
        "Return the topics with unit subscriptions"),
    RequestSpec(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoFields, cluster(GET, LIST),
        "Return the topics with unit subscriptions outside units"),
    RequestSpec(RequestCode.UPDATE_NAMESRV_CONFIG, NoFields, cluster(UPDATE),
        "Change options of a running name server"),
    RequestSpec(RequestCode.GET_NAMESRV_CONFIG, NoFields, cluster(GET), "Return the options of a name server"),
    RequestSpec(RequestCode.QUERY_DATA_VERSION, BrokerFields, cluster(GET),
        "Compare the version of a broker's topics with the registered one"),
    RequestSpec(RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameFields, cluster(UPDATE),
        "Give a broker its write permission back"),
    # Public: it only ends what the same connection began.
    RequestSpec(RequestCode.DELETE_EXPIRED_COMMITLOG, WatchedTopicsFields, PUBLIC,
        "End the sender's watches of these routes"),
    RequestSpec(RequestCode.GET_BROKER_MEMBER_GROUP, MemberGroupFields, cluster(GET),
        "Return the addresses of a broker and its replicas"),
    RequestSpec(RequestCode.BROKER_HEARTBEAT, BrokerFields, cluster(UPDATE),
        "Renew a broker's registration", by_servers=True),
    RequestSpec(RequestCode.RENEW_LEASES, NoFields, cluster(UPDATE), "Renew leases of led queues", by_servers=True),
    RequestSpec(RequestCode.GET_PUSH_STATE, NoFields, cluster(GET), "Return the state of route push"),
    RequestSpec(RequestCode.SET_DR_SWITCH, NoFields, cluster(UPDATE), "Set the DR switch", shows_body=True),
    RequestSpec(RequestCode.GET_DR_SWITCH, NoFields, cluster(GET), "Return the DR switch, and the units"),
    *_OF_USERS_AND_RULES,
)

BROKER_REQUESTS: Final = _by_code(
    RequestSpec(RequestCode.SEND_MESSAGE, LongSendFields, SEND,
        "Send a message; header fields with full names", Relaying.SEND, path=Path.SEND),
    RequestSpec(RequestCode.PULL_MESSAGE, PullFields, PULL,
        "Pull messages of a queue; waits for new ones (long poll)", Relaying.READ, path=Path.PULL),
    RequestSpec(RequestCode.QUERY_MESSAGE, QueryMessageFields, topic(SUB, GET), "Find messages by key"),
    RequestSpec(RequestCode.QUERY_CONSUMER_OFFSET, QueryOffsetFields, every(topic(SUB, GET), group(SUB, GET)),
        "Return a group's committed offset in a queue", Relaying.LEADER),
    RequestSpec(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffsetFields, every(topic(SUB, UPDATE), group(SUB, UPDATE)),
        "Commit a group's offset in a queue", Relaying.LEADER),
    RequestSpec(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicFields, topic(CREATE),
        "Create or change a normal topic", on_replica=False),
    RequestSpec(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, NoFields, CREATE_TOPICS,
        "Create or change several normal topics", on_replica=False, shows_body=True),
    RequestSpec(RequestCode.GET_ALL_TOPIC_CONFIG, PageFields, cluster(GET, LIST),
        "Return all topics, for replicas and tools"),
    RequestSpec(RequestCode.UPDATE_BROKER_CONFIG, NoFields, cluster(UPDATE), "Change options of a running broker"),
    RequestSpec(RequestCode.GET_BROKER_CONFIG, NoFields, cluster(GET), "Return the options of a broker"),
    RequestSpec(RequestCode.GET_BROKER_RUNTIME_INFO, RuntimeInfoFields, RUNTIME_INFO,
        "Return the figures that `broker describe` shows"),
    RequestSpec(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetFields, topic(GET),
        "Return the first offset at or after a store time", Relaying.READ),
    RequestSpec(RequestCode.GET_MAX_OFFSET, QueueFields, topic(GET), "Return the end of a queue", Relaying.READ),
    RequestSpec(RequestCode.GET_MIN_OFFSET, QueueFields, topic(GET),
        "Return the first readable offset of a queue", Relaying.READ),
    RequestSpec(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueFields, topic(GET),
        "Return the store time of the first readable message", Relaying.READ),
    RequestSpec(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageFields, VIEW_MESSAGE, "Return a message by its position"),
    RequestSpec(RequestCode.HEART_BEAT, NoFields, HEARTBEAT, "Register a client, its groups and subscriptions"),
    # Public without a group: then it only ends what the same connection began.
    RequestSpec(RequestCode.UNREGISTER_CLIENT, UnregisterFields, group(SUB, optional=True),
        "Remove a client from a group"),
    RequestSpec(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackFields, group(SUB, field="group"),
        "Return a message that failed, to get it again later"),
    # Public without a topic: clients before 5.0 name none. The handler finds the topic in the stored half message.
    RequestSpec(RequestCode.END_TRANSACTION, EndTransactionFields, END_TRANSACTION,
        "Commit or roll back a transactional message"),
    RequestSpec(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupFields, group(SUB, GET),
        "Return the members of a group"),
    # Only brokers send this to a broker: like 7021.
    RequestSpec(RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionFields, cluster(UPDATE),
        "Pass another broker's transaction check on to a producer", by_servers=True),
    RequestSpec(RequestCode.LOCK_BATCH_MQ, NoFields, LOCKS, "Lock queues for an ordered consumer", Relaying.LOCK),
    RequestSpec(RequestCode.UNLOCK_BATCH_MQ, NoFields, LOCKS, "Unlock queues of an ordered consumer", Relaying.LOCK),
    RequestSpec(RequestCode.GET_ALL_CONSUMER_OFFSET, NoFields, cluster(GET),
        "Return all committed offsets, for replicas"),
    RequestSpec(RequestCode.GET_ALL_DELAY_OFFSET, NoFields, cluster(GET),
        "Return the positions of delayed delivery, for replicas"),
    RequestSpec(RequestCode.CHECK_CLIENT_CONFIG, NoFields, SUBSCRIPTION_CHECK, "Check whether a subscription is valid"),
    RequestSpec(RequestCode.GET_TIMER_CHECK_POINT, NoFields, cluster(GET),
        "Return the checkpoint of timer messages; there are none"),
    RequestSpec(RequestCode.GET_TIMER_METRICS, NoFields, cluster(GET),
        "Return the figures of timer messages; there are none"),
    RequestSpec(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoFields, CREATE_GROUP,
        "Create or change a group", on_replica=False, shows_body=True),
    RequestSpec(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, PageFields, cluster(GET, LIST),
        "Return all groups, for replicas and tools"),
    RequestSpec(RequestCode.GET_TOPIC_STATS_INFO, TopicQueryFields, topic(GET),
        "Return the offsets and times of a topic's queues"),
    RequestSpec(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupFields, group(GET),
        "Return the connected consumers of a group"),
    RequestSpec(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupFields, cluster(GET),
        "Return the connected producers of a group"),
    RequestSpec(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupFields, group(DELETE, field="group_name"),
        "Delete a group", on_replica=False),
    RequestSpec(RequestCode.GET_CONSUME_STATS, ConsumeStatsFields, CONSUME_STATS,
        "Return a group's offsets and lag in each queue"),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_BROKER, TopicFields, topic(DELETE),
        "Delete a topic at a broker", on_replica=False),
    RequestSpec(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetFields,
        every(topic(UPDATE), group(UPDATE, field="group")), "Reset a group's offsets to a time", on_replica=False),
    RequestSpec(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusFields,
        every(topic(GET), group(GET, field="group")), "Return the offsets of a group's connected consumers"),
    RequestSpec(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NoFields, CREATE_GROUPS,
        "Create or change several groups", on_replica=False),
    RequestSpec(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicFields, topic(GET),
        "Return the groups that consume a topic"),
    RequestSpec(RequestCode.QUERY_CONSUME_TIME_SPAN, GroupFields,
        every(topic(GET, optional=True), group(GET, field="group")),
        "Return the time span that a group has consumed in each queue"),
    RequestSpec(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoFields, cluster(GET, LIST),
        "Return the system topics of a broker"),
    RequestSpec(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, NoFields, cluster(UPDATE),
        "Remove index files of removed log files"),
    RequestSpec(RequestCode.GET_CONSUMER_RUNNING_INFO, ClientRequestFields, group(GET),
        "Return the state of a connected consumer"),
    RequestSpec(RequestCode.CONSUME_MESSAGE_DIRECTLY, ClientRequestFields, every(topic(SUB, optional=True), group(SUB)),
        "Let one connected consumer handle one message now"),
    RequestSpec(RequestCode.SEND_MESSAGE_V2, SendFields, SEND,
        "Send a message; header fields with one-letter names", Relaying.SEND, path=Path.SEND),
    RequestSpec(RequestCode.CLONE_GROUP_OFFSET, CloneOffsetFields,
        every(topic(UPDATE, optional=True), group(UPDATE, field="dest_group"), group(GET, field="src_group")),
        "Copy a group's offsets to another group", on_replica=False),
    RequestSpec(RequestCode.VIEW_BROKER_STATS_DATA, StatsFields, cluster(GET), "Return rates of sends or consumption"),
    RequestSpec(RequestCode.CLEAN_UNUSED_TOPIC, NoFields, cluster(UPDATE),
        "Remove indexes of deleted topics", on_replica=False),
    RequestSpec(RequestCode.GET_BROKER_CONSUME_STATS, BrokerStatsFields, cluster(GET),
        "Return the lag of all groups of a broker"),
    RequestSpec(RequestCode.SEND_BATCH_MESSAGE, SendFields, SEND,
        "Send a batch of messages", Relaying.SEND, path=Path.SEND),
    RequestSpec(RequestCode.QUERY_CONSUME_QUEUE, QueueEntriesFields, every(topic(GET), group(GET, optional=True)),
        "Return entries of a queue's index"),
    RequestSpec(RequestCode.SEND_REPLY_MESSAGE, LongSendFields, SEND,
        "Send the reply to a request message; full field names"),
    RequestSpec(RequestCode.SEND_REPLY_MESSAGE_V2, SendFields, SEND,
        "Send the reply to a request message; one-letter field names"),
    RequestSpec(RequestCode.GET_ALL_PRODUCER_INFO, NoFields, cluster(GET), "Return all connected producers"),
    RequestSpec(RequestCode.DELETE_EXPIRED_COMMITLOG, NoFields, cluster(UPDATE), "Remove expired log files"),
    RequestSpec(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupFields, group(GET, field="group"),
        "Return the topics that a group consumes"),
    RequestSpec(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupFields,
        every(topic(GET, optional=True), group(GET, field="group")), "Return a group's subscription of a topic"),
    RequestSpec(RequestCode.GET_TOPIC_CONFIG, TopicQueryFields, topic(GET), "Return one topic"),
    RequestSpec(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupFields, group(GET, field="group"), "Return one group"),
    RequestSpec(RequestCode.LITE_PULL_MESSAGE, PullFields, PULL,
        "Pull messages, without a heartbeat before", Relaying.READ, path=Path.PULL),
    # Public: a refusal reveals nothing.
    RequestSpec(RequestCode.QUERY_ASSIGNMENT, NoFields, PUBLIC,
        "Refused: consumers assign queues themselves. Java brokers assign them"),
    RequestSpec(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, NoFields, cluster(GET),
        "Return the request modes of groups, for Java replicas; there are none"),
    RequestSpec(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, CreateTopicFields, topic(CREATE),
        "Store a mapping that a Java tool wrote", on_replica=False),
    RequestSpec(RequestCode.GET_BROKER_HA_STATUS, NoFields, cluster(GET), "Return the state of a broker's replicas"),
    # Holdfast's own. Operators and servers send most of them: they need what RocketMQ asks of servers (103, 901).
    RequestSpec(RequestCode.MOVE_QUEUES, NoFields, cluster(UPDATE),
        "Move logical queues to other brokers", on_replica=False, shows_body=True),
    RequestSpec(RequestCode.LIST_MOVES, NoFields, cluster(GET), "Return the moves of a broker"),
    RequestSpec(RequestCode.CANCEL_MOVE, NoFields, cluster(UPDATE), "Cancel a move before its grant", shows_body=True),
    RequestSpec(RequestCode.RESUME_MOVE, NoFields, cluster(UPDATE), "Continue a move that stopped", shows_body=True),
    RequestSpec(RequestCode.FORCE_QUEUES, NoFields, cluster(UPDATE),
        "Open queues although their leader cannot be reached", on_replica=False, shows_body=True),
    RequestSpec(RequestCode.ABANDON_QUEUE, NoFields, cluster(UPDATE),
        "Fix the end of a segment that a forced move closed", shows_body=True),
    RequestSpec(RequestCode.GET_MAPPINGS, NoFields, cluster(GET), "Return a broker's mappings with their moves"),
    RequestSpec(RequestCode.PUT_QUEUE_TOTAL, NoFields, cluster(UPDATE),
        "Record the epoch and queue count of a static topic", shows_body=True),
    RequestSpec(RequestCode.DELETE_MAPPING, DeleteMappingFields, cluster(UPDATE),
        "Delete a broker's mapping of a topic", on_replica=False),
    RequestSpec(RequestCode.PREPARE_QUEUES, NoFields, cluster(UPDATE),
        "Reserve physical queues for a move", on_replica=False, by_servers=True),
    RequestSpec(RequestCode.OPEN_QUEUES, NoFields, cluster(UPDATE),
        "Begin to accept the writes of moved queues", on_replica=False, by_servers=True),
    RequestSpec(RequestCode.QUERY_MOVE, NoFields, cluster(GET), "Ask the source for the state of a move"),
    RequestSpec(RequestCode.ABORT_MOVE, NoFields, cluster(UPDATE), "Give a prepared move up", by_servers=True),
    RequestSpec(RequestCode.DISCARD_SEGMENTS, NoFields, cluster(UPDATE),
        "Discard the segments of a removed broker", on_replica=False, shows_body=True),
    RequestSpec(RequestCode.FORGET_BROKER, NoFields, cluster(UPDATE), "Forget a removed broker", shows_body=True),
    RequestSpec(RequestCode.SET_DRAINING, NoFields, cluster(UPDATE),
        "Mark a broker as draining, or not", shows_body=True),
    RequestSpec(RequestCode.FIND_FLOORS, NoFields, cluster(GET),
        "Return the lowest offsets at which queues may begin again"),
    RequestSpec(RequestCode.RELAY, RelayFields, _ENVELOPE, "Relay a client's request to the leader of its queue"),
    RequestSpec(RequestCode.FORWARD_MESSAGE, ForwardFields, every(cluster(UPDATE), topic(PUB)),
        "Forward a stored message to the leader of its queue", Relaying.LEADER, by_servers=True),
    # Like 17: creates a topic, though on behalf of a client of another broker.
    RequestSpec(RequestCode.CREATE_FROM_TEMPLATE, CreateTopicFields, topic(CREATE),
        "Create a topic from a template that another broker has", on_replica=False, by_servers=True),
    RequestSpec(RequestCode.SHARE_MEMBERS, NoFields, cluster(UPDATE), "Share the members of groups", by_servers=True),
    RequestSpec(RequestCode.BACKUP_OFFSETS, NoFields, cluster(UPDATE),
        "Back up the offsets of groups in led queues", by_servers=True),
    RequestSpec(RequestCode.GET_OFFSET_BACKUPS, NoFields, cluster(GET), "Return backed-up offsets"),
    RequestSpec(RequestCode.GET_MAPPING_SNAPSHOT, NoFields, cluster(GET), "Return all mappings, for a replica"),
    RequestSpec(RequestCode.GET_REPLICA_COMMITS, NoFields, cluster(GET),
        "Return the commits that a replica accepted in its master's absence"),
    RequestSpec(RequestCode.SHARE_CONSUMED_TOPICS, NoFields, cluster(UPDATE),
        "Share which groups consumed which topics", by_servers=True),
    RequestSpec(RequestCode.SET_DR_SWITCH, NoFields, cluster(UPDATE), "Set the DR switch", shows_body=True),
    RequestSpec(RequestCode.GET_DR_SWITCH, NoFields, cluster(GET), "Return the DR switch"),
    *_OF_USERS_AND_RULES,
)

# Servers do not sign what they send to clients, so clients check no permissions.
CLIENT_REQUESTS: Final = _by_code(
    RequestSpec(RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionFields, PUBLIC,
        "Ask a producer for the state of a transaction"),
    RequestSpec(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroupFields, PUBLIC,
        "The members of the group changed"),
    RequestSpec(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetFields, PUBLIC, "Continue at other offsets"),
    RequestSpec(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatusFields, PUBLIC,
        "Return the consumer's offsets"),
    RequestSpec(RequestCode.GET_CONSUMER_RUNNING_INFO, ClientRequestFields, PUBLIC, "Return the state of the consumer"),
    RequestSpec(RequestCode.CONSUME_MESSAGE_DIRECTLY, ClientRequestFields, PUBLIC, "Handle one message now"),
    RequestSpec(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, PushedReplyFields, PUBLIC,
        "Accept the reply to a request that this producer sent"),
    RequestSpec(RequestCode.GET_ALL_PRODUCER_INFO, WatchedTopicsFields, PUBLIC, "The routes of these topics changed"),
    RequestSpec(RequestCode.THROTTLE, ThrottleFields, PUBLIC,
        "Send nothing more for a time: the user is above its rate"),
)

# fmt: on


def relaying_of(code: int) -> Relaying:
    """Return how a broker relays requests with this code; NEVER if no broker answers such requests."""
    spec = BROKER_REQUESTS.get(code)
    return Relaying.NEVER if spec is None else spec.relaying


REQUESTS: Final = MappingProxyType(
    {
        Role.NAME_SERVER: NAME_SERVER_REQUESTS,
        Role.BROKER: BROKER_REQUESTS,
        Role.CLIENT: CLIENT_REQUESTS,
    }
)
"""The whole table: role, then code."""
