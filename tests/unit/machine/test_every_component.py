"""Every component of both roles, built alone: with its own collaborators, and without the rest of its role.

`ROWS` states what each component offers. A new component needs a row here. A change of what a component offers is a
change of its row.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.components import ACL_FILE, Alone, Role, a_minimal_request, find_components, outcome_of

from holdfast.machine.component import Component
from holdfast.machine.effects import Log, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.codes import RequestCode

COMPONENTS = find_components()
HOOKS = ("start", "stop", "channel_closed", "on_synced")


@dataclass(frozen=True)
class Row:
    """What a component offers.

    Attributes:
        requests: The codes that it handles, each with how the answer to a request without a body begins.
        hooks: What else it wants to know.
    """

    requests: dict[RequestCode, str] = field(default_factory=dict)
    timers: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()


ROWS: dict[str, Row] = {
    # access/
    "AccessStore": Row(files=("config/holdfastAccess.json",), metrics=("access_records", "access_users")),
    "AclFollower": Row(timers=("acl-files",), metrics=("access_acl_file_faults",), hooks=("start",)),
    "Door": Row(
        metrics=(
            "broker_audit_lines",
            "broker_requests_refused",
            "broker_signatures_refused",
            "broker_signatures_verified",
        ),
        hooks=("channel_closed",),
    ),
    "LoginServer": Row(
        requests={RequestCode.LOGIN: "INVALID_PARAMETER", RequestCode.LOGIN_PROOF: "NO_PERMISSION"},
        metrics=("broker_login_failures", "broker_logins"),
        hooks=("channel_closed",),
    ),
    "RuleRequests": Row(
        requests={
            RequestCode.AUTH_CREATE_ACL: "unreadable",
            RequestCode.AUTH_UPDATE_ACL: "unreadable",
            RequestCode.AUTH_DELETE_ACL: "NO_PERMISSION",
            RequestCode.AUTH_GET_ACL: "NO_PERMISSION",
            RequestCode.AUTH_LIST_ACL: "SUCCESS",
        }
    ),
    "SyncRequests": Row(requests={RequestCode.SYNC_ACCESS: "NO_PERMISSION"}),
    "UserRequests": Row(
        requests={
            RequestCode.AUTH_CREATE_USER: "unreadable",
            RequestCode.AUTH_UPDATE_USER: "unreadable",
            RequestCode.AUTH_DELETE_USER: "INVALID_PARAMETER",
            RequestCode.AUTH_GET_USER: "INVALID_PARAMETER",
            RequestCode.AUTH_LIST_USER: "SUCCESS",
        }
    ),
    # broker/
    "AccessSync": Row(timers=("access-changed",), metrics=("broker_access_unsynced",)),
    "AutoCreateGuard": Row(requests={RequestCode.CREATE_FROM_TEMPLATE: "SUCCESS"}),
    "BrokerAdmin": Row(
        requests={
            RequestCode.UPDATE_BROKER_CONFIG: "SUCCESS",
            RequestCode.GET_BROKER_CONFIG: "SUCCESS",
            RequestCode.GET_BROKER_RUNTIME_INFO: "waits: LogRange",
            RequestCode.GET_ALL_DELAY_OFFSET: "SUCCESS",
            RequestCode.GET_TIMER_CHECK_POINT: "SUCCESS",
            RequestCode.GET_TIMER_METRICS: "SUCCESS",
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "SUCCESS",
            RequestCode.VIEW_BROKER_STATS_DATA: "SYSTEM_ERROR",
            RequestCode.DELETE_EXPIRED_COMMITLOG: "SUCCESS",
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: "SUCCESS",
            RequestCode.GET_BROKER_HA_STATUS: "SUCCESS",
        }
    ),
    "BrokerStats": Row(
        timers=("stats",),
        metrics=("broker_gets", "broker_pulls_found", "broker_pulls_missed", "broker_puts"),
        hooks=("start",),
    ),
    "ClientAdmin": Row(
        requests={
            RequestCode.GET_CONSUMER_CONNECTION_LIST: "CONSUMER_NOT_ONLINE",
            RequestCode.GET_PRODUCER_CONNECTION_LIST: "SYSTEM_ERROR",
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "SYSTEM_ERROR",
            RequestCode.GET_CONSUMER_RUNNING_INFO: "SYSTEM_ERROR",
            RequestCode.CONSUME_MESSAGE_DIRECTLY: "SYSTEM_ERROR",
            RequestCode.GET_ALL_PRODUCER_INFO: "SUCCESS",
            RequestCode.QUERY_ASSIGNMENT: "REQUEST_CODE_NOT_SUPPORTED",
        }
    ),
    "ClientTable": Row(
        requests={
            RequestCode.HEART_BEAT: "unreadable",
            RequestCode.UNREGISTER_CLIENT: "SUCCESS",
            RequestCode.CHECK_CLIENT_CONFIG: "unreadable",
        },
        timers=("clients",),
        metrics=("broker_consumers", "broker_producers"),
        hooks=("start", "channel_closed"),
    ),
    "ConsumedTopics": Row(
        requests={RequestCode.SHARE_CONSUMED_TOPICS: "unreadable"}, timers=("consumed topics",), hooks=("start",)
    ),
    "DelayedDelivery": Row(timers=("delays",), files=("config/delayOffset.json",), hooks=("start", "stop")),
    "DrSwitchSync": Row(
        requests={RequestCode.SET_DR_SWITCH: "SUCCESS", RequestCode.GET_DR_SWITCH: "SUCCESS"},
        files=("config/holdfastUnits.json",),
    ),
    "ForcedMoves": Row(
        requests={RequestCode.FORCE_QUEUES: "INVALID_PARAMETER", RequestCode.ABANDON_QUEUE: "INVALID_PARAMETER"},
        timers=("forced moves", "suspects"),
        hooks=("start",),
    ),
    "GroupAdmin": Row(
        requests={
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "unreadable",
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "SUCCESS",
            RequestCode.DELETE_SUBSCRIPTIONGROUP: "SUCCESS",
            RequestCode.GET_CONSUME_STATS: "SUCCESS",
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "unreadable",
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "SUCCESS",
            RequestCode.QUERY_CONSUME_TIME_SPAN: "TOPIC_NOT_EXIST",
            RequestCode.CLONE_GROUP_OFFSET: "SUCCESS",
            RequestCode.GET_BROKER_CONSUME_STATS: "SUCCESS",
            RequestCode.QUERY_TOPICS_BY_CONSUMER: "SUCCESS",
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "SUCCESS",
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "SUBSCRIPTION_GROUP_NOT_EXIST",
        }
    ),
    "GroupMembers": Row(
        requests={RequestCode.GET_CONSUMER_LIST_BY_GROUP: "SYSTEM_ERROR", RequestCode.SHARE_MEMBERS: "unreadable"},
        timers=("changed groups", "members"),
        hooks=("start", "stop"),
    ),
    "GroupTable": Row(files=("config/subscriptionGroup.json",), metrics=("broker_groups",)),
    "HaMaster": Row(timers=("replicas",), files=("holdfast/replicated",), hooks=("channel_closed",)),
    "HaReplica": Row(timers=("master",), hooks=("start", "channel_closed")),
    "LeaseRenewal": Row(timers=("leases",), hooks=("start",)),
    "LockRequests": Row(requests={RequestCode.LOCK_BATCH_MQ: "unreadable", RequestCode.UNLOCK_BATCH_MQ: "unreadable"}),
    "MappingAdmin": Row(
        requests={
            RequestCode.GET_MAPPINGS: "SUCCESS",
            RequestCode.DELETE_MAPPING: "SUCCESS",
            RequestCode.DISCARD_SEGMENTS: "INVALID_PARAMETER",
            RequestCode.FORGET_BROKER: "INVALID_PARAMETER",
            RequestCode.SET_DRAINING: "INVALID_PARAMETER",
            RequestCode.GET_MAPPING_SNAPSHOT: "waits: Synced",
        }
    ),
    "Mappings": Row(files=("config/holdfastMapping.json", "config/topicQueueMapping.json"), hooks=("on_synced",)),
    "MasterReturn": Row(hooks=("start",)),
    "MessageForwarder": Row(requests={RequestCode.FORWARD_MESSAGE: "SUCCESS"}),
    "MoveSource": Row(
        requests={
            RequestCode.MOVE_QUEUES: "unreadable",
            RequestCode.LIST_MOVES: "SUCCESS",
            RequestCode.CANCEL_MOVE: "unreadable",
            RequestCode.RESUME_MOVE: "unreadable",
            RequestCode.QUERY_MOVE: "unreadable",
        },
        hooks=("start",),
    ),
    "MoveTarget": Row(
        requests={
            RequestCode.PUT_QUEUE_TOTAL: "INVALID_PARAMETER",
            RequestCode.PREPARE_QUEUES: "INVALID_PARAMETER",
            RequestCode.OPEN_QUEUES: "INVALID_PARAMETER",
            RequestCode.ABORT_MOVE: "INVALID_PARAMETER",
        },
        hooks=("start",),
    ),
    "OffsetBackup": Row(
        requests={RequestCode.BACKUP_OFFSETS: "unreadable", RequestCode.GET_OFFSET_BACKUPS: "unreadable"},
        timers=("offset backups",),
        files=("config/holdfastOffsetCopies.json",),
        hooks=("start",),
    ),
    "OffsetFloors": Row(requests={RequestCode.FIND_FLOORS: "unreadable"}),
    "OffsetRequests": Row(
        requests={
            RequestCode.QUERY_CONSUMER_OFFSET: "QUERY_NOT_FOUND",
            RequestCode.UPDATE_CONSUMER_OFFSET: "TOPIC_NOT_EXIST",
            RequestCode.GET_ALL_CONSUMER_OFFSET: "SUCCESS",
        }
    ),
    "OffsetResetHandler": Row(requests={RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "TOPIC_NOT_EXIST"}),
    "OffsetTable": Row(files=("config/consumerOffset.json",), hooks=("stop",)),
    "RefusedPulls": Row(
        timers=("access-changed", "refused pulls"),
        metrics=("broker_refused_pulls_parked",),
        hooks=("channel_closed",),
    ),
    "ParkedPullCheck": Row(timers=("access-changed",)),
    "PullHandler": Row(
        metrics=("broker_batches_opened", "broker_batches_unreadable", "broker_inflations", "broker_parked_pulls"),
        hooks=("channel_closed",),
    ),
    "QueryHandler": Row(
        requests={
            RequestCode.QUERY_MESSAGE: "QUERY_NOT_FOUND",
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "SUCCESS",
            RequestCode.GET_MAX_OFFSET: "SUCCESS",
            RequestCode.GET_MIN_OFFSET: "SUCCESS",
            RequestCode.GET_EARLIEST_MSG_STORETIME: "SUCCESS",
            RequestCode.VIEW_MESSAGE_BY_ID: "waits: LogRange",
            RequestCode.QUERY_CONSUME_QUEUE: "SYSTEM_ERROR",
        }
    ),
    "QueueLocks": Row(timers=("clients",)),
    "Registrar": Row(
        timers=("held answers", "registration", "registration news"),
        metrics=("broker_registered",),
        hooks=("stop", "channel_closed"),
    ),
    "Relay": Row(
        timers=("held requests",),
        metrics=("broker_relayed_sends", "broker_static_queues_held"),
        hooks=("stop", "channel_closed"),
    ),
    "RelayedClients": Row(requests={RequestCode.RELAY: "NO_PERMISSION"}),
    "RemoteTransactions": Row(requests={RequestCode.CHECK_TRANSACTION_STATE: "INVALID_PARAMETER"}),
    "ReplicaMappings": Row(
        files=("config/holdfastMapping.json", "config/topicQueueMapping.json"), hooks=("on_synced",)
    ),
    "ReplicaReport": Row(metrics=("broker_replicas", "broker_replicas_in_sync", "broker_unreplicated_sends")),
    "ReplyGate": Row(timers=("replica acks",)),
    "ReplyHandler": Row(
        requests={RequestCode.SEND_REPLY_MESSAGE: "TOPIC_NOT_EXIST", RequestCode.SEND_REPLY_MESSAGE_V2: "SYSTEM_ERROR"}
    ),
    "SegmentExpiry": Row(timers=("expiry",), hooks=("start",)),
    "SendBackHandler": Row(requests={RequestCode.CONSUMER_SEND_MSG_BACK: "waits: LogRange"}),
    "SinkProgress": Row(timers=("kept files",), files=("config/holdfastSink.json",)),
    "StaticAdmin": Row(requests={RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "waits: ParallelCalls"}),
    "TableSync": Row(
        requests={RequestCode.GET_REPLICA_COMMITS: "SUCCESS"},
        timers=("table sync",),
        files=("config/replicaCommits.json",),
        hooks=("start", "stop"),
    ),
    "TopicAdmin": Row(
        requests={
            RequestCode.UPDATE_AND_CREATE_TOPIC: "waits: ParallelCalls",
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "unreadable",
            RequestCode.GET_ALL_TOPIC_CONFIG: "SUCCESS",
            RequestCode.GET_TOPIC_STATS_INFO: "TOPIC_NOT_EXIST",
            RequestCode.DELETE_TOPIC_IN_BROKER: "SUCCESS",
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "SUCCESS",
            RequestCode.CLEAN_UNUSED_TOPIC: "SUCCESS",
            RequestCode.GET_TOPIC_CONFIG: "TOPIC_NOT_EXIST",
        }
    ),
    "TopicTable": Row(files=("config/holdfastDeletions.json", "config/topics.json"), metrics=("broker_topics",)),
    "TransactionHandler": Row(
        requests={RequestCode.END_TRANSACTION: "nothing yet"}, timers=("transactions",), hooks=("start",)
    ),
    # nameserver/
    "AccessPush": Row(timers=("access-changed",)),
    "KvRequests": Row(
        requests={
            RequestCode.PUT_KV_CONFIG: "unreadable",
            RequestCode.GET_KV_CONFIG: "QUERY_NOT_FOUND",
            RequestCode.DELETE_KV_CONFIG: "nothing yet",
            RequestCode.GET_KVLIST_BY_NAMESPACE: "QUERY_NOT_FOUND",
        }
    ),
    "KvStore": Row(files=("kvConfig.json",)),
    "Publication": Row(hooks=("start", "channel_closed")),
    "QueueLeases": Row(requests={RequestCode.RENEW_LEASES: "unreadable"}, files=("queueLeases.json",)),
    "Registry": Row(
        requests={
            RequestCode.REGISTER_BROKER: "SUCCESS",
            RequestCode.UNREGISTER_BROKER: "SUCCESS",
            RequestCode.QUERY_DATA_VERSION: "SUCCESS",
            RequestCode.GET_BROKER_MEMBER_GROUP: "SUCCESS",
            RequestCode.BROKER_HEARTBEAT: "SUCCESS",
        },
        metrics=("namesrv_brokers",),
        hooks=("channel_closed",),
    ),
    "RoutePush": Row(
        requests={RequestCode.DELETE_EXPIRED_COMMITLOG: "SUCCESS", RequestCode.GET_PUSH_STATE: "SUCCESS"},
        timers=("notify",),
        metrics=(
            "namesrv_notice_interval_seconds",
            "namesrv_notices_pending_clients",
            "namesrv_notices_sent",
            "namesrv_readings_known",
            "namesrv_watched_topics",
            "namesrv_watches",
            "namesrv_watching_clients",
        ),
        hooks=("channel_closed",),
    ),
    "RouteRequests": Row(
        metrics=(
            "namesrv_mapping_refusals",
            "namesrv_route_misses",
            "namesrv_route_queries",
            "namesrv_routes_rendered",
            "namesrv_routes_withheld",
            "namesrv_static_contradictions",
            "namesrv_static_topics",
            "namesrv_static_withheld",
            "namesrv_topics",
        )
    ),
    "Scan": Row(timers=("scan",), hooks=("start",)),
    "Settings": Row(requests={RequestCode.UPDATE_NAMESRV_CONFIG: "SUCCESS", RequestCode.GET_NAMESRV_CONFIG: "SUCCESS"}),
    "StaticTopicStore": Row(files=("staticTopics.json",)),
    "TopicRequests": Row(
        requests={
            RequestCode.GET_BROKER_CLUSTER_INFO: "SUCCESS",
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: "SUCCESS",
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "SUCCESS",
            RequestCode.DELETE_TOPIC_IN_NAMESRV: "SUCCESS",
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: "SUCCESS",
            RequestCode.GET_TOPICS_BY_CLUSTER: "SUCCESS",
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: "SUCCESS",
            RequestCode.GET_UNIT_TOPIC_LIST: "SUCCESS",
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: "SUCCESS",
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: "SUCCESS",
            RequestCode.ADD_WRITE_PERM_OF_BROKER: "SUCCESS",
        }
    ),
    "UnitRequests": Row(
        requests={RequestCode.SET_DR_SWITCH: "nothing yet", RequestCode.GET_DR_SWITCH: "SUCCESS"}, hooks=("start",)
    ),
}


def alone_for(name: str, disk: SimDisk | None = None) -> Alone:
    """Return the collaborators of a component, in the role that has it."""
    role: Role = "namesrv" if COMPONENTS[name].__module__.startswith("holdfast.nameserver") else "broker"
    alone = Alone(role, disk)
    alone.disk.replace(ACL_FILE, b"accounts: []\n")
    return alone


def built_alone(name: str) -> tuple[Alone, Component]:
    alone = alone_for(name)
    return alone, alone.build(COMPONENTS[name])


def drop_procedures(alone: Alone) -> None:
    """End the procedures that were spawned: there is no scheduler."""
    for procedure in alone.turn.drain_procedures():
        procedure.close()


def test_every_component_has_a_row():
    """And every row has a component."""
    assert ROWS.keys() == COMPONENTS.keys()


def test_every_component_is_part_of_a_role():
    """A class that no role builds is dead code."""
    master = BrokerHarness().components._built
    replica = BrokerHarness(replica_of="broker-a", ha_master="10.0.0.9:10912").components._built
    server = NameServer(NameServerOptions(), random.Random(7))
    built = {type(component).__name__ for component in (*master, *replica, *server._components)}

    assert built == ROWS.keys() - {"AclFollower"}, "only a role with an ACL file follows it"


@pytest.mark.parametrize("name", ROWS)
def test_it_offers_what_its_row_states(name: str):
    """Timers, files and metrics are its interface to operators and to the role."""
    _, component = built_alone(name)
    row = ROWS[name]

    assert component.handlers().keys() == row.requests.keys()
    assert sorted(component.timers()) == list(row.timers)
    assert sorted(file.path for file in component.files()) == list(row.files)
    assert sorted({sample.name for sample in component.metrics()}) == list(row.metrics)
    own = [hook for hook in HOOKS if getattr(type(component), hook) is not getattr(Component, hook)]
    assert own == list(row.hooks)


@pytest.mark.parametrize(("name", "code"), [(name, code) for name, row in ROWS.items() for code in row.requests])
def test_it_answers_without_the_rest_of_its_role(name: str, code: RequestCode):
    """Even a request with nothing but its required fields."""
    alone, component = built_alone(name)
    spec = alone.table[code]

    assert outcome_of(component, a_minimal_request(spec)) == ROWS[name].requests[code]
    drop_procedures(alone)


@pytest.mark.parametrize("name", ROWS)
def test_it_starts_works_and_stops(name: str):
    """It sets only timers that it or a collaborator runs, fires only those of some component, and reports no error."""
    alone, component = built_alone(name)

    component.start()
    for run in component.timers().values():
        alone.turn.now_ms += 1_000
        run()
    component.on_synced(0)
    component.channel_closed(ChannelId(99))
    component.stop()
    drop_procedures(alone)

    built = alone.components()
    runnable = {timer for each in built for timer in each.timers()} | {
        file.retry_timer for each in built for file in each.files()
    }
    assert {effect.name for effect in alone.turn.effects if isinstance(effect, SetTimer)} <= runnable
    assert set(alone.turn.drain_fired()) <= {timer for row in ROWS.values() for timer in row.timers}
    assert [effect for effect in alone.turn.effects if isinstance(effect, Log) and effect.level == "error"] == []


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.files])
def test_its_files_are_found_by_the_next_process(name: str):
    """They are written to where they are read from, and are readable."""
    alone, component = built_alone(name)
    for file in component.files():
        file.mark_changed()
        file.save_now()
    written = {path: alone.disk.read_file(path) for path in ROWS[name].files}

    later = alone_for(name, alone.disk)
    later.build(COMPONENTS[name])

    assert None not in written.values()
    assert [effect for effect in later.turn.effects if isinstance(effect, Log)] == []
