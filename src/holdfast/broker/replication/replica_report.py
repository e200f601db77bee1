"""Reports the state of replication: to operators (28), to Java's tools (907), and as metrics.

A master reports its replicas and how much each lacks. A replica reports whether it follows, and if not, what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ack_gate import ReplicaGate
from holdfast.broker.replication.ha_master import Shipping
from holdfast.broker.replication.ha_replica import Following
from holdfast.machine.sample import Sample
from holdfast.store.message_store import MessageStore

_SHOWN_MAX: Final = 5


class ReplicaReport:
    """Answers status requests and provides metrics."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        shipping: Shipping,
        gate: ReplicaGate,
        following: Following,
    ) -> None:
        self._options = options
        self._store = store
        self._shipping = shipping
        self._gate = gate
        self._following = following

    def behind(self) -> dict[str, int]:
        """Return how many bytes of the log each connected replica lacks."""
        confirmed = self._store.confirmed
        return {
            follower.peer: confirmed - follower.acked
            for follower in self._shipping.followers.values()
            if follower.sent >= 0
        }

    def figures(self) -> dict[str, str]:
        """Return the replication entries of 28; empty if there are no replicas and none are required."""
        if self._options.is_replica:
            following = self._following
            entries = {
                "replicaOf": self._options.name,
                "replicaState": following.state,
                "replicaMaster": following.master or "",
            }
            return entries | ({"replicaProblem": following.problem} if following.problem else {})
        behind = self.behind()
        if not behind and self._options.replication != "sync":
            return {}
        return {
            "replicas": str(len(behind)),
            "replicasInSync": str(self._shipping.in_sync),
            "replicasBehind": _worst(behind),
        }

    def ha_status(self) -> dict[str, object]:
        """Return the body of the answer to 907."""
        following = self._following
        return {
            "master": not self._options.is_replica,
            "masterCommitLogMaxOffset": int(self._store.written),
            "inSyncSlaveNums": self._shipping.in_sync,
            "haConnectionInfo": [
                {
                    "addr": follower.peer,
                    "slaveAckOffset": follower.acked,
                    "diff": self._store.confirmed - follower.acked,
                    "inSync": self._store.confirmed - follower.acked <= self._options.in_sync_limit,
                    "transferFromWhere": follower.sent,
                    "transferredByteInSecond": 0,
                }
                for follower in self._shipping.followers.values()
                if follower.sent >= 0
            ],
            "haClientRuntimeInfo": {
                "masterAddr": following.master or "",
                "lastReadTimestamp": following.heard_ms or 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "maxOffset": int(self._store.written),
                "transferredByteInSecond": 0,
            },
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the replication metrics of this broker."""
        if self._options.is_replica:
            state = self._following.state
            about = "1 while this replica copies its master's log; the label gives its state."
            yield Sample("broker_replica_following", "gauge", about, int(state == "following"), {"state": state})
            return
        behind = self.behind()
        yield Sample("broker_replicas", "gauge", "Connected replicas.", len(behind))
        yield Sample(
            "broker_replicas_in_sync", "gauge", "Replicas that lack at most in_sync_limit.", self._shipping.in_sync
        )
        for peer, size in behind.items():
            about = "Bytes of the log that a replica lacks, by replica."
            yield Sample("broker_replica_behind_bytes", "gauge", about, size, {"replica": peer})
        about = "Messages acknowledged without a replica having them, under synchronous replication."
        yield Sample("broker_unreplicated_sends", "counter", about, self._gate.unsafe)


def _worst(behind: dict[str, int]) -> str:
    """Return the replicas that lack the most, in one line. The list is capped: any client may connect to the port."""
    ranked = sorted(behind.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{peer} {size} bytes" for peer, size in ranked[:_SHOWN_MAX])
    return shown if len(ranked) <= _SHOWN_MAX else f"{shown} and {len(ranked) - _SHOWN_MAX} more"
