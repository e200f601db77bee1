"""Reports the state of replication: to operators (28), to Java's tools (907), and as metrics.

A master reports its replicas and how much each lacks. A replica reports whether it follows, and if not, what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.broker.flow.reply_gate import ReplyGate
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import HaMaster
from holdfast.broker.replication.ha_replica import HaReplica
from holdfast.machine.component import Component
from holdfast.machine.sample import Sample
from holdfast.store.message_store import MessageStore

_SHOWN_MAX: Final = 5


class ReplicaReport(Component):
    """Answers status requests and provides metrics."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        ha_master: HaMaster,
        gate: ReplyGate,
        ha_replica: HaReplica,
    ) -> None:
        self._options = options
        self.store = store
        self._ha_master = ha_master
        self._gate = gate
        self._ha_replica = ha_replica

    def find_lags(self) -> dict[str, int]:
        """Return how many bytes of the log each connected replica lacks."""
        confirmed = self.store.confirmed
        return {
            replica.peer: confirmed - replica.acked
            for replica in self._ha_master.replicas.values()
            if replica.has_begun
        }

    def figures(self) -> dict[str, str]:
        """Return the replication entries of 28; empty if there are no replicas and none are required."""
        if self._options.is_replica:
            ha_replica = self._ha_replica
            entries = {
                "replicaOf": self._options.name,
                "replicaState": ha_replica.state,
                "replicaMaster": ha_replica.master or "",
            }
            return entries | ({"replicaProblem": ha_replica.problem} if ha_replica.problem else {})
        lags = self.find_lags()
        if not lags and self._options.replication != "sync":
            return {}
        return {
            "replicas": str(len(lags)),
            "replicasInSync": str(self._ha_master.in_sync_count),
            "replicasBehind": _format_worst(lags),
        }

    def ha_status(self) -> dict[str, object]:
        """Return the body of the answer to 907."""
        ha_replica = self._ha_replica
        return {
            "master": not self._options.is_replica,
            "masterCommitLogMaxOffset": int(self.store.written),
            "inSyncSlaveNums": self._ha_master.in_sync_count,
            "haConnectionInfo": [
                {
                    "addr": replica.peer,
                    "slaveAckOffset": replica.acked,
                    "diff": self.store.confirmed - replica.acked,
                    "inSync": self.store.confirmed - replica.acked <= self._options.in_sync_limit,
                    "transferFromWhere": replica.sent,
                    "transferredByteInSecond": 0,
                }
                for replica in self._ha_master.replicas.values()
                if replica.has_begun
            ],
            "haClientRuntimeInfo": {
                "masterAddr": ha_replica.master or "",
                "lastReadTimestamp": ha_replica.received_ms or 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "maxOffset": int(self.store.written),
                "transferredByteInSecond": 0,
            },
        }

    def metrics(self) -> Iterator[Sample]:
        """Yield the replication metrics of this broker."""
        if self._options.is_replica:
            state = self._ha_replica.state
            help_text = "1 while this replica copies its master's log; the label gives its state."
            yield Sample("broker_replica_following", "gauge", help_text, int(state == "following"), {"state": state})
            return
        lags = self.find_lags()
        yield Sample("broker_replicas", "gauge", "Connected replicas.", len(lags))
        yield Sample(
            "broker_replicas_in_sync",
            "gauge",
            "Replicas that lack at most in_sync_limit.",
            self._ha_master.in_sync_count,
        )
        for peer, size in lags.items():
            help_text = "Bytes of the log that a replica lacks, by replica."
            yield Sample("broker_replica_behind_bytes", "gauge", help_text, size, {"replica": peer})
        help_text = "Messages acknowledged without a replica having them, under synchronous replication."
        yield Sample("broker_unreplicated_sends", "counter", help_text, self._gate.unreplicated_count)


def _format_worst(lags: dict[str, int]) -> str:
    """Return the replicas that lack the most, in one line. The list is capped: any client may connect to the port."""
    ranked = sorted(lags.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{peer} {size} bytes" for peer, size in ranked[:_SHOWN_MAX])
    return shown if len(ranked) <= _SHOWN_MAX else f"{shown} and {len(ranked) - _SHOWN_MAX} more"
