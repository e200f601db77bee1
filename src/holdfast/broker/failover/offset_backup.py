"""Backs up the consumer offsets of logical queues on one other broker, in case their leader dies (7031).

    leader ── every second, one message with the changed queues ──> the next broker by name that answers
    forced move ── 7032: which backups of these queues do you have? ──> all brokers; the newest backup counts

A backup carries the generation in which its leader led: after a move, older backups are ignored. Backups are saved as
often as the broker's own offsets (`config/holdfastOffsetCopies.json`), because one power failure may stop both brokers,
and the leader may not come back. A replica of the leader is asked, too: offsets that groups committed there while the
leader was away are newer than any backup. When the backup broker changes or restarts, which its answers show, it may
lack the latest backups, so the leader sends all of them again. A forced move may find no backup: then groups begin at
the earliest readable message.

Without static topics nothing is sent or saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable, QueueOffsets
from holdfast.broker.flow.awaitables import PeerCall, call_all
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Answer, Handlers, Request, Timers
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.config_file import config_file
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.model.mapping import LogicalQueue
from holdfast.model.queue import LogicalQueueId
from holdfast.model.scope import GLOBAL, covers
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.mapping import from_number, to_number
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import (
    NEVER_SENT,
    OffsetBackupAnswer,
    OffsetBackupList,
    OffsetBackupQuery,
    QueueOffsetBackup,
    decode_body,
    encode_body,
)

NAME: Final = "holdfastOffsetCopies.json"
TIMER: Final = "offset backups"
ROUND_MS: Final = 1_000
QUEUES_MAX: Final = 1_024  # in one message; the rest follows a second later
STORED_MAX: Final = 100_000
_CALL_MS: Final = 1_000
_SEARCH_MS: Final = 10_000  # Minimum pause between searches for a peer; maximum pause between messages to it.
_FIND_TIMEOUT_MS: Final = 500


class OffsetBackup(MasterComponent):
    """This broker's backups at a peer, and other brokers' backups here.

    Attributes:
        peer: The broker that keeps our backups; None if no broker does.
    """

    def __init__(
        self,
        options: BrokerOptions,
        disk: Disk,
        offsets: OffsetTable,
        mappings: Mappings,
        view: ClusterView,
        turn: Turn,
    ) -> None:
        self._name = options.name
        self._is_replica = options.is_replica
        self._offsets = offsets
        self._mappings = mappings
        self._view = view
        self._turn = turn
        self._started_ms = turn.now_ms
        self._number = 0
        self._is_sending = False
        self.peer: str | None = None
        self._peer_started_ms: int | None = None
        self._logged_peer: str | None = None
        self._sent_ms = 0
        self._search_ms = 0
        self._unsupported_peers: set[str] = set()  # brokers that do not support backups: Java ones
        # The state at the last comparison, and the queues whose changes the peer has not received.
        self._last_offsets: dict[tuple[str, str], QueueOffsets] = {}
        self._last_resets: set[tuple[str, str, LogicalQueueId]] = set()
        self._last_version: int | None = None
        self._generations: dict[tuple[str, LogicalQueueId], int | None] = {}
        self._unsent: dict[tuple[str, LogicalQueueId], None] = {}
        self._file = config_file(turn, disk, NAME, OffsetBackupList, self._to_saved)
        saved = self._file.load()
        self._stored = {} if saved is None else {(backup.topic, backup.queue): backup for backup in saved.backups}

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.BACKUP_OFFSETS: self.store_backups, RequestCode.GET_OFFSET_BACKUPS: self.get_backups}

    # Backups of other brokers.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def store_backups(self, request: Request) -> Answer:
        """Answer 7031: keep backups of topics that are known here. The sender retries the others later."""
        received = decode_body(request.command.body, OffsetBackupList).backups
        for backup in received:
            queue_key = (backup.topic, backup.queue)
            known = self._stored.get(queue_key)
            if self._mappings.is_static(backup.topic) and (known is None or _rank(backup) >= _rank(known)):
                self._stored.pop(queue_key, None)
                self._stored[queue_key] = backup
                self._file.mark_changed()
        while len(self._stored) > STORED_MAX:
            del self._stored[next(iter(self._stored))]
        unknown = sorted({backup.topic for backup in received if not self._mappings.is_static(backup.topic)})
        return request.answer(body=encode_body(OffsetBackupAnswer(boot_ms=self._started_ms, unknown=unknown)))

    def get_backups(self, request: Request) -> Answer:
        """Answer 7032: return the backups kept here. A replica adds the offsets of its master's queues."""
        query = decode_body(request.command.body, OffsetBackupQuery)
        backups = [backup for queue in query.queues if (backup := self.find(query.topic, queue)) is not None]
        if self._is_replica:
            backups += [backup for queue in query.queues for backup in self._find_replica_backups(query.topic, queue)]
        return request.answer(body=encode_body(OffsetBackupList(backups=backups)))

    def _find_replica_backups(self, topic: str, queue: LogicalQueueId) -> list[QueueOffsetBackup]:
        """Return a replica's offsets of a queue that its master leads: the master's, and those committed here since."""
        placement = self._mappings.placement(topic, queue)
        if not placement.is_led:
            return []
        rows = {
            group: offsets[queue]
            for (name, group), offsets in self._offsets.rows()
            if name == topic and queue in offsets
        }
        committed = {
            group: offsets[queue]
            for key, offsets in (self._offsets.unsent_commits or {}).items()
            for name, _, group in (key.partition("@"),)
            if name == topic and queue in offsets
        }
        resets = sorted(self._offsets.resets_of(topic, [queue]))
        backup = QueueOffsetBackup(
            topic=topic,
            queue=queue,
            generation=to_number(placement.generation),
            boot_ms=NEVER_SENT,
            number=NEVER_SENT,
            offsets=rows,
            resets=resets,
        )
        return (
            [backup, msgspec.structs.replace(backup, offsets=committed, resets=[], own=True)] if committed else [backup]
        )

    def find(self, topic: str, queue: LogicalQueueId) -> QueueOffsetBackup | None:
        """Return the backup kept here for a queue, or None."""
        return self._stored.get((topic, queue))

    def _to_saved(self) -> OffsetBackupList:
        return OffsetBackupList(backups=list(self._stored.values()))

    def drop_topic(self, topic: str) -> None:
        """Forget a deleted topic, at once on disk, too: a topic of that name may be created right away."""
        if any(name == topic for name, _ in self._stored):
            self._forget_topics({topic})
            self._file.save_now()

    async def collect(self, topic: str, queues: Iterable[LogicalQueueId]) -> dict[LogicalQueueId, QueueOffsetBackup]:
        """Return the newest backups of these queues that any broker has; wait for answers only briefly."""
        numbers = sorted(map(LogicalQueueId, queues))
        await self._view.refresh()
        mapping = self._mappings.find(topic)
        brokers = self._view.brokers(GLOBAL if mapping is None else mapping.scope)
        addresses = [address for name in brokers if (address := self._view.address(name)) is not None]
        addresses += self._view.replicas()
        body = encode_body(OffsetBackupQuery(topic=topic, queues=numbers))
        answers = await call_all(
            PeerCall(address, Command(code=RequestCode.GET_OFFSET_BACKUPS, body=body), _FIND_TIMEOUT_MS)
            for address in addresses
        )
        found = [backup for queue in numbers if (backup := self.find(topic, queue)) is not None]
        for answer in answers:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                with suppress(RemoteProtocolError):
                    found += decode_body(answer.body, OffsetBackupList).backups
        return _newest([backup for backup in found if backup.topic == topic])

    # Our backups.

    def start(self) -> None:
        """Start the periodic backup."""
        self._turn.set_timer(TIMER, self._turn.now_ms + ROUND_MS)

    def on_timer(self) -> None:
        """Forget backups of topics that are gone, and start the next backup round."""
        topics = self._mappings.topics()
        self._forget_topics({topic for topic, _ in self._stored if topic not in topics})
        if topics and not self._is_sending:
            self._turn.spawn(self._update_peer())
        self._turn.set_timer(TIMER, self._turn.now_ms + ROUND_MS)

    def _forget_topics(self, topics: set[str]) -> None:
        if topics:
            self._stored = {
                queue_key: backup for queue_key, backup in self._stored.items() if queue_key[0] not in topics
            }
            self._file.mark_changed()

    async def _update_peer(self) -> None:
        """Send one message to the peer, if there is a peer and the message is due."""
        self._is_sending = True
        try:
            peer = await self._find_peer()
            self._collect_changes()
            backups = [] if peer is None else self._pop_unsent(peer)
            is_overdue = self._turn.now_ms >= self._sent_ms + _SEARCH_MS
            if peer is not None and (backups or is_overdue):
                await self._send(peer, backups)
        finally:
            self._is_sending = False

    async def _send(self, peer: str, backups: list[QueueOffsetBackup]) -> None:
        try:
            address = await self._view.find_address(peer)
            command = Command(code=RequestCode.BACKUP_OFFSETS, body=encode_body(OffsetBackupList(backups=backups)))
            answer = await PeerCall(address, command, _CALL_MS)
            received = decode_body(answer.body, OffsetBackupAnswer) if answer.code == ResponseCode.SUCCESS else None
        except (PeerFailed, RemoteProtocolError):
            self._choose_peer(peer)
            return
        if received is None:
            self._unsupported_peers.add(peer)
            self._choose_peer(peer)
        else:
            self._handle_answer(received, backups)

    async def _find_peer(self) -> str | None:
        """Return the broker that keeps our backups: the current one, or the next by name; None if we are alone."""
        if not self._view.brokers() and self._turn.now_ms >= self._search_ms:
            self._search_ms = self._turn.now_ms + _SEARCH_MS
            await self._view.refresh()
        if self.peer not in self._find_candidates():
            self._choose_peer(self._name)
        return self.peer

    def _find_candidates(self) -> list[str]:
        """Return the brokers that could keep our backups. Prefer our cluster: others may reuse the topic's name."""
        same_cluster = [
            name for name in self._view.brokers(self._mappings.cluster) if name not in self._unsupported_peers
        ]
        return same_cluster or [name for name in self._view.brokers() if name not in self._unsupported_peers]

    def _choose_peer(self, previous: str) -> None:
        """Choose the broker that follows *previous* by name to keep our backups. It will receive all of them."""
        candidates = [name for name in self._find_candidates() if name != previous]
        self.peer = next((name for name in candidates if name > previous), candidates[0] if candidates else None)
        self._forget_state()

    def _forget_state(self) -> None:
        self._last_offsets.clear()
        self._last_resets.clear()
        self._generations.clear()
        self._last_version = None

    def _handle_answer(self, answer: OffsetBackupAnswer, backups: list[QueueOffsetBackup]) -> None:
        self._sent_ms = self._turn.now_ms
        self._unsent |= {(backup.topic, backup.queue): None for backup in backups if backup.topic in answer.unknown}
        if self._logged_peer != self.peer:
            self._logged_peer = self.peer
            self._turn.log("info", "consumer offsets are copied", to=self.peer)
        if self._peer_started_ms != answer.boot_ms:
            # The peer restarted and may have lost backups, or this is its first answer.
            self._peer_started_ms = answer.boot_ms
            sent = {(backup.topic, backup.queue) for backup in backups}
            self._unsent |= {queue_key: None for queue_key in self._generations if queue_key not in sent}

    def _collect_changes(self) -> None:
        """Find the queues that changed since the last comparison: offsets, resets, or the generation we lead in."""
        topics = self._mappings.topics()
        rows = {key: queues for key, queues in self._offsets.rows() if key[0] in topics}
        for key in sorted(rows.keys() | self._last_offsets.keys()):
            queues, last = rows.get(key, {}), self._last_offsets.get(key, {})
            if queues != last:
                self._unsent |= {(key[0], queue): None for queue, _ in sorted(queues.items() ^ last.items())}
                self._last_offsets[key] = dict(queues)
        resets = {reset for reset in self._offsets.resets() if reset[0] in topics}
        self._unsent |= {(topic, queue): None for topic, _, queue in sorted(resets ^ self._last_resets)}
        self._last_resets = resets
        if self._last_version != self._mappings.version:
            self._last_version = self._mappings.version
            led = [(topic, number) for topic in topics for number in self._mappings.led_queues(topic)]
            generations = {queue_key: self._mappings.placement(*queue_key).generation for queue_key in led}
            self._unsent |= {
                queue_key: None for queue_key in led if generations[queue_key] != self._generations.get(queue_key)
            }
            self._generations = generations

    def _is_in_scope(self, peer: str, topic: str) -> bool:
        mapping = self._mappings.find(topic)
        return mapping is not None and covers(mapping.scope, self._view.cluster_of(peer))

    def _pop_unsent(self, peer: str) -> list[QueueOffsetBackup]:
        """Remove and return one message's worth of unsent backups, of queues that are led here."""
        self._number += 1
        backups: list[QueueOffsetBackup] = []
        while self._unsent and len(backups) < QUEUES_MAX:
            topic, queue = queue_key = next(iter(self._unsent))
            del self._unsent[queue_key]
            if queue_key in self._generations and self._is_in_scope(peer, topic):
                offsets = {
                    key[1]: last[queue] for key, last in self._last_offsets.items() if key[0] == topic and queue in last
                }
                backup = QueueOffsetBackup(
                    topic=topic,
                    queue=queue,
                    generation=to_number(self._generations[queue_key]),
                    boot_ms=self._started_ms,
                    number=self._number,
                    offsets=offsets,
                    resets=[group for group in sorted(offsets) if (topic, group, queue) in self._last_resets],
                )
                backups.append(backup)
        return backups


def _newest(found: list[QueueOffsetBackup]) -> dict[LogicalQueueId, QueueOffsetBackup]:
    """Return the newest backup of each queue, with later commits of groups at a replica of its leader."""
    newest = {backup.queue: backup for backup in sorted(found, key=_rank) if not backup.own}
    for backup in found:
        known = newest.get(backup.queue)
        if backup.own and known is not None and known.generation == backup.generation:
            resets = [group for group in known.resets if group not in backup.offsets]
            newest[backup.queue] = msgspec.structs.replace(known, offsets=known.offsets | backup.offsets, resets=resets)
    return newest


def _rank(backup: QueueOffsetBackup) -> tuple[int, int, int]:
    """Return a sort key: the newest backup of a queue has the highest."""
    return backup.generation, backup.boot_ms, backup.number


def choose_backups(
    queues: Iterable[LogicalQueue], backups: Mapping[LogicalQueueId, QueueOffsetBackup]
) -> list[QueueOffsetBackup]:
    """Return the backups that are valid for queues about to be forced open: those from the queues' last leaders."""
    found = [(queue, backups[queue.queue]) for queue in queues if queue.queue in backups]
    return [backup for queue, backup in found if from_number(backup.generation) == queue.generation]
