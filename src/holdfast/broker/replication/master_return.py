"""Fetches from replicas the offsets that groups committed while this master was away, before it registers.

    started ─┬─ never had a replica ───────────────────────────────────────────────────────────────> registers
             └─ had one ─> asks name servers for its replicas (106) ─> asks these for offsets (7034) ─> registers

If it registered first, a group could return before its offsets arrive, and would consume messages again. A replica that
does not answer within a second is not waited for: it reports its offsets when it follows again (`table_sync.py`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.flow.awaitables import PeerCall, call_all
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import HaMaster
from holdfast.broker.replication.table_sync import ReplicaCommits
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.model.route import MASTER_ID
from holdfast.wire.cluster.route import ClusterInfo
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

FETCH_TIMEOUT_MS: Final = 1_000


class MasterReturn(Component):
    """Delays the registration of a returning master until its replicas were asked."""

    def __init__(
        self,
        options: BrokerOptions,
        ha_master: HaMaster,
        topics: TopicTable,
        offsets: OffsetTable,
        registration: Registrar,
        turn: Turn,
    ) -> None:
        self._options = options
        self._ha_master = ha_master
        self._topics = topics
        self._offsets = offsets
        self._registration = registration
        self._turn = turn

    def start(self) -> None:
        """Register at once, or after replicas were asked."""
        had_replicas = not self._options.is_replica and self._ha_master.had_replica
        if had_replicas and self._options.namesrv:
            self._turn.spawn(self._fetch_then_register())
        else:
            self._registration.begin()

    async def _fetch_then_register(self) -> None:
        try:
            addresses = await self._find_replicas()
            command = Command(code=RequestCode.GET_REPLICA_COMMITS)
            answers = await call_all(PeerCall(address, command, FETCH_TIMEOUT_MS) for address in addresses)
            count = sum(map(self._apply_commits, answers))
            if count:
                self._turn.log("info", "offsets adopted from replicas", queues=count)
        finally:
            self._registration.begin()

    async def _find_replicas(self) -> list[str]:
        command = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        answers = await call_all(PeerCall(server, command, FETCH_TIMEOUT_MS) for server in self._options.namesrv)
        found: set[str] = set()
        for answer in answers:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                with suppress(RemoteProtocolError):
                    table = java_json.decode(answer.body, ClusterInfo).broker_addr_table
                    if self._options.name in table:
                        addresses = table[self._options.name].broker_addrs
                        found |= {address for number, address in addresses.items() if number != MASTER_ID}
        return sorted(found)

    def _apply_commits(self, answer: Command | PeerFailed) -> int:
        """Commit the offsets of a replica that are newer than those here; return the number of queues changed."""
        if isinstance(answer, PeerFailed) or answer.code != ResponseCode.SUCCESS:
            return 0
        count = 0
        with suppress(RemoteProtocolError):
            for key, queues in java_json.decode(answer.body, ReplicaCommits).offset_table.items():
                topic, _, group = key.partition("@")
                if self._topics.find(topic) is None:
                    continue  # It was deleted while the replica was away.
                for queue_id, offset in queues.items():
                    known = self._offsets.find(group, topic, queue_id)
                    if known is None or offset > known:
                        count += self._offsets.commit(group, topic, queue_id, offset)
        return count
