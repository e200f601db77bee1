"""Backs up the consumer offsets of logical queues on one other broker, in case their leader dies (7031).

    leader ── every second, one message with the changed queues ──> the next broker by name that answers
    forced move ── 7032: which backups of these queues do you have? ──> all brokers; the newest backup counts

A copy carries the generation in which its leader led: after a move, older copies are ignored. Copies are saved as often
as the broker's own offsets (`config/holdfastOffsetCopies.json`), because one power failure may stop both brokers, and
the leader may not come back. A replica of the leader is asked, too: offsets that groups committed
there while the leader was away are newer than any copy. When the backup broker changes or restarts, which its answers
show, it may lack the latest copies, so the leader sends all of them again. A forced move may find no copy: then groups
begin at the earliest readable message.

Without static topics nothing is sent or saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.flow.awaitables import PeerCall, Procedure, ask_all
from holdfast.broker.flow.request import Answer, Handlers, Request
from holdfast.broker.flow.turn import Errands
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.config_store import load_config, save_config, write_config
from holdfast.machine.effects import Effect, Log, SetTimer
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.model.mapping import LogicalQueue
from holdfast.model.scope import GLOBAL, covers
from holdfast.store.base.disk import Disk
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import CopiedOffsets, CopyAnswer, OffsetCopy, OffsetQuestion, decode_body, encode_body

NAME: Final = "holdfastOffsetCopies.json"
TIMER: Final = "offset copies"
ROUND_MS: Final = 1_000
QUEUES_MAX: Final = 1_024  # in one message; the rest follows a second later
KEPT_MAX: Final = 100_000
_CALL_MS: Final = 1_000
_SEARCH_MS: Final = 10_000  # Minimum pause between searches for a peer; maximum pause between messages to it.
_FIND_MS: Final = 500

Place = tuple[str, int]
"""Topic and logical queue."""


class OffsetCopies:
    """This broker's copies at a peer, and other brokers' copies here.

    Attributes:
        peer: The broker that keeps our copies; None if no broker does.
    """

    def __init__(
        self,
        options: BrokerOptions,
        disk: Disk,
        offsets: OffsetTable,
        mappings: Mappings,
        view: ClusterView,
        errands: Errands,
    ) -> None:
        self._name = options.name
        self._is_replica = options.is_replica
        self._disk = disk
        self._offsets = offsets
        self._mappings = mappings
        self._view = view
        self._errands = errands
        self._boot_ms = errands.now_ms
        self._number = 0
        self._is_sending = False
        self.peer: str | None = None
        self._peer_boot_ms = -1
        self._logged_peer: str | None = None
        self._sent_ms = 0
        self._search_ms = 0
        self._unfit: set[str] = set()  # brokers that do not support copies: Java ones
        # The state at the last comparison, and the places whose changes the peer has not received.
        self._seen: dict[tuple[str, str], dict[int, int]] = {}
        self._seen_resets: set[tuple[str, str, int]] = set()
        self._seen_version = -1
        self._generations: dict[Place, int] = {}
        self._unsent: dict[Place, None] = {}
        saved = load_config(disk, NAME, CopiedOffsets)
        self._kept = {} if saved is None else {(copy.topic, copy.queue): copy for copy in saved.copies}
        self._is_dirty = False

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.COPY_OFFSETS: self.take, RequestCode.FIND_OFFSETS: self.tell}

    # Copies of other brokers.

    def take(self, request: Request) -> Answer:
        """Answer 7031: keep copies of topics that are known here. The sender retries the others later."""
        received = decode_body(request.command.body, CopiedOffsets).copies
        for copy in received:
            place = (copy.topic, copy.queue)
            known = self._kept.get(place)
            if self._mappings.is_static(copy.topic) and (known is None or _rank(copy) >= _rank(known)):
                self._kept.pop(place, None)
                self._kept[place] = copy
                self._is_dirty = True
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        unknown = sorted({copy.topic for copy in received if not self._mappings.is_static(copy.topic)})
        return request.answer(body=encode_body(CopyAnswer(boot_ms=self._boot_ms, unknown=unknown)))

    def tell(self, request: Request) -> Answer:
        """Answer 7032: return the copies kept here. A replica adds the offsets of its master's queues."""
        question = decode_body(request.command.body, OffsetQuestion)
        copies = [copy for queue in question.queues if (copy := self.find(question.topic, queue)) is not None]
        if self._is_replica:
            copies += [copy for queue in question.queues for copy in self._copy_here(question.topic, queue)]
        return request.answer(body=encode_body(CopiedOffsets(copies=copies)))

    def _copy_here(self, topic: str, queue: int) -> list[OffsetCopy]:
        """Return a replica's offsets of a queue that its master leads: the master's, and those committed here since."""
        place = self._mappings.place(topic, queue)
        if not place.is_led:
            return []
        rows = {
            group: offsets[queue]
            for (name, group), offsets in self._offsets.rows()
            if name == topic and queue in offsets
        }
        since = {
            group: offsets[queue]
            for key, offsets in (self._offsets.own or {}).items()
            for name, _, group in (key.partition("@"),)
            if name == topic and queue in offsets
        }
        resets = sorted(self._offsets.resets_of(topic, [queue]))
        copy = OffsetCopy(
            topic=topic, queue=queue, generation=place.generation, boot_ms=-1, number=-1, offsets=rows, resets=resets
        )
        return [copy, msgspec.structs.replace(copy, offsets=since, resets=[], own=True)] if since else [copy]

    def find(self, topic: str, queue: int) -> OffsetCopy | None:
        """Return the copy kept here for a queue, or None."""
        return self._kept.get((topic, queue))

    def offer_save(self, effects: list[Effect]) -> None:
        """Save the copies of other brokers if they changed."""
        if self._is_dirty:
            self._is_dirty = False
            effects += write_config(self._disk, NAME, CopiedOffsets(copies=list(self._kept.values())))

    def drop_topic(self, topic: str) -> None:
        """Forget a deleted topic, at once on disk, too: a topic of that name may be created right away."""
        if any(name == topic for name, _ in self._kept):
            self._forget_topics({topic})
            save_config(self._disk, NAME, CopiedOffsets(copies=list(self._kept.values())))

    def collect(self, topic: str, queues: Iterable[int]) -> Procedure[dict[int, OffsetCopy]]:
        """Return the newest copies of these queues that any broker has; wait for answers only briefly."""
        numbers = sorted(queues)
        yield from self._view.refresh()
        mapping = self._mappings.find(topic)
        others = self._view.brokers(GLOBAL if mapping is None else mapping.scope)
        addresses = [address for name in others if (address := self._view.address(name)) is not None]
        addresses += self._view.replicas()
        body = encode_body(OffsetQuestion(topic=topic, queues=numbers))
        answers = yield from ask_all(
            PeerCall(address, Command(code=RequestCode.FIND_OFFSETS, body=body), _FIND_MS) for address in addresses
        )
        found = [copy for queue in numbers if (copy := self.find(topic, queue)) is not None]
        for answer in answers:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                with suppress(RemoteProtocolError):
                    found += decode_body(answer.body, CopiedOffsets).copies
        return _newest([copy for copy in found if copy.topic == topic])

    # Our copies.

    def start(self, now_ms: int, effects: list[Effect]) -> None:
        """Start the periodic backup."""
        effects.append(SetTimer(TIMER, now_ms + ROUND_MS))

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Forget copies of topics that are gone, and start the next backup round."""
        assert name == TIMER
        topics = self._mappings.topics()
        self._forget_topics({topic for topic, _ in self._kept if topic not in topics})
        if topics and not self._is_sending:
            self._errands.work.append(self._update_peer())
        effects.append(SetTimer(TIMER, now_ms + ROUND_MS))

    def _forget_topics(self, gone: set[str]) -> None:
        if gone:
            self._kept = {place: copy for place, copy in self._kept.items() if place[0] not in gone}
            self._is_dirty = True

    def _update_peer(self) -> Procedure[None]:
        """Send one message to the peer, if there is a peer and the message is due."""
        self._is_sending = True
        try:
            peer = yield from self._find_peer()
            self._note_changes()
            copies = [] if peer is None else self._take_unsent(peer)
            is_overdue = self._errands.now_ms >= self._sent_ms + _SEARCH_MS
            if peer is not None and (copies or is_overdue):
                yield from self._send(peer, copies)
        finally:
            self._is_sending = False

    def _send(self, peer: str, copies: list[OffsetCopy]) -> Procedure[None]:
        try:
            address = yield from self._view.find_address(peer)
            command = Command(code=RequestCode.COPY_OFFSETS, body=encode_body(CopiedOffsets(copies=copies)))
            answer = yield PeerCall(address, command, _CALL_MS)
            received = decode_body(answer.body, CopyAnswer) if answer.code == ResponseCode.SUCCESS else None
        except (PeerFailed, RemoteProtocolError):
            self._choose_peer(peer)
            return
        if received is None:
            self._unfit.add(peer)
            self._choose_peer(peer)
        else:
            self._note_received(received, copies)

    def _find_peer(self) -> Procedure[str | None]:
        """Return the broker that keeps our copies: the current one, or the next by name; None if we are alone."""
        if not self._view.brokers() and self._errands.now_ms >= self._search_ms:
            self._search_ms = self._errands.now_ms + _SEARCH_MS
            yield from self._view.refresh()
        if self.peer not in self._others():
            self._choose_peer(self._name)
        return self.peer

    def _others(self) -> list[str]:
        """Return the brokers that could keep our copies. Prefer our cluster: others may reuse the topic's name."""
        near = [name for name in self._view.brokers(self._mappings.cluster) if name not in self._unfit]
        return near or [name for name in self._view.brokers() if name not in self._unfit]

    def _choose_peer(self, before: str) -> None:
        """Choose the broker that follows *before* by name to keep our copies. It will receive all of them."""
        others = [name for name in self._others() if name != before]
        self.peer = next((name for name in others if name > before), others[0] if others else None)
        self._forget_sent()

    def _forget_sent(self) -> None:
        self._seen.clear()
        self._seen_resets.clear()
        self._generations.clear()
        self._seen_version = -1

    def _note_received(self, answer: CopyAnswer, copies: list[OffsetCopy]) -> None:
        self._sent_ms = self._errands.now_ms
        self._unsent |= {(copy.topic, copy.queue): None for copy in copies if copy.topic in answer.unknown}
        if self._logged_peer != self.peer:
            self._logged_peer = self.peer
            self._errands.effects.append(Log("info", "consumer offsets are copied", {"to": self.peer}))
        if self._peer_boot_ms != answer.boot_ms:
            # The peer restarted and may have lost copies, or this is its first answer.
            self._peer_boot_ms = answer.boot_ms
            sent = {(copy.topic, copy.queue) for copy in copies}
            self._unsent |= {place: None for place in self._generations if place not in sent}

    def _note_changes(self) -> None:
        """Find the queues that changed since the last comparison: offsets, resets, or the generation we lead in."""
        topics = self._mappings.topics()
        rows = {key: queues for key, queues in self._offsets.rows() if key[0] in topics}
        for key in sorted(rows.keys() | self._seen.keys()):
            queues, seen = rows.get(key, {}), self._seen.get(key, {})
            if queues != seen:
                self._unsent |= {(key[0], queue): None for queue, _ in sorted(queues.items() ^ seen.items())}
                self._seen[key] = dict(queues)
        resets = {reset for reset in self._offsets.resets() if reset[0] in topics}
        self._unsent |= {(topic, queue): None for topic, _, queue in sorted(resets ^ self._seen_resets)}
        self._seen_resets = resets
        if self._seen_version != self._mappings.version:
            self._seen_version = self._mappings.version
            led = [(topic, number) for topic in topics for number in self._mappings.led(topic)]
            generations = {place: self._mappings.place(*place).generation for place in led}
            self._unsent |= {place: None for place in led if generations[place] != self._generations.get(place)}
            self._generations = generations

    def _may_have(self, peer: str, topic: str) -> bool:
        mapping = self._mappings.find(topic)
        return mapping is not None and covers(mapping.scope, self._view.cluster_of(peer))

    def _take_unsent(self, peer: str) -> list[OffsetCopy]:
        """Remove and return one message's worth of unsent copies, of queues that are led here."""
        self._number += 1
        copies: list[OffsetCopy] = []
        while self._unsent and len(copies) < QUEUES_MAX:
            topic, queue = place = next(iter(self._unsent))
            del self._unsent[place]
            generation = self._generations.get(place)
            if generation is not None and self._may_have(peer, topic):
                offsets = {key[1]: seen[queue] for key, seen in self._seen.items() if key[0] == topic and queue in seen}
                copy = OffsetCopy(
                    topic=topic,
                    queue=queue,
                    generation=generation,
                    boot_ms=self._boot_ms,
                    number=self._number,
                    offsets=offsets,
                    resets=[group for group in sorted(offsets) if (topic, group, queue) in self._seen_resets],
                )
                copies.append(copy)
        return copies


def _newest(found: list[OffsetCopy]) -> dict[int, OffsetCopy]:
    """Return the newest copy of each queue, with the offsets that groups committed since at a replica of its leader."""
    newest = {copy.queue: copy for copy in sorted(found, key=_rank) if not copy.own}
    for copy in found:
        known = newest.get(copy.queue)
        if copy.own and known is not None and known.generation == copy.generation:
            resets = [group for group in known.resets if group not in copy.offsets]
            newest[copy.queue] = msgspec.structs.replace(known, offsets=known.offsets | copy.offsets, resets=resets)
    return newest


def _rank(copy: OffsetCopy) -> tuple[int, int, int]:
    """Return a sort key: the newest copy of a queue has the highest."""
    return copy.generation, copy.boot_ms, copy.number


def choose_copies(queues: Iterable[LogicalQueue], copies: Mapping[int, OffsetCopy]) -> list[OffsetCopy]:
    """Return the copies that are valid for queues about to be forced open: those from the queues' last leaders."""
    found = [(queue, copies[queue.queue]) for queue in queues if queue.queue in copies]
    return [copy for queue, copy in found if copy.generation == queue.leader.generation]
