"""Turn the index of a topic from one kind into the other, in a folder that nobody serves. It may be stopped anywhere.

    planning    look at every queue, make the files of the new index, empty, in a folder aside
    building    piece by piece: convert, prove against the log, write, sync, read back, note as done
    switching   1 the new index goes to its place     2 the topic's attribute says so     3 the old index goes aside
    done        what is aside goes

Until step 1 the old index is served as ever, and whoever goes on finds out whether it has grown meanwhile: then that
conversion begins anew. From step 1 to step 3 there are two indexes, and neither ours nor a Java broker (5.x) serves a
folder like that: ours says what to run. After step 3 the new one is served. The same entries always become the same
bytes, so that a piece may be converted twice, also by two at a time.

Knows no clock and asks nobody whether a broker runs: whoever calls holds the folder's lock.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.errors import StoreError
from holdfast.model.topic import DEAD_LETTER_PREFIX, NOT_SENDABLE_TOPICS, RETRY_PREFIX, SYSTEM_PREFIX
from holdfast.store.base.config_files import config_path, load_config
from holdfast.store.base.disk import Disk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.conversion.conversion_survey import plan_pieces, survey
from holdfast.store.conversion.piece_conversion import PieceCraft, convert_pieces
from holdfast.store.conversion.record_headers import RecordHeads
from holdfast.store.log.commit_log import FOLDER as LOG_FOLDER
from holdfast.store.queues.batch_consume_queue import FOLDER as BATCH_FOLDER
from holdfast.store.queues.queue_files import FOLDER as QUEUE_FOLDER
from holdfast.store.recovery.conversion_plan import (
    FOLDER,
    PIECE_SIZE,
    IndexPlace,
    PiecePlan,
    Plan,
    Progress,
    Target,
    load_plan,
    load_progress,
    save_plan,
)
from holdfast.store.recovery.open_store import ABORT_PATH, find_queue_file_size
from holdfast.wire.frames import java_json

TOPICS = "topics.json"
ATTRIBUTE = "queue.type"
KINDS = {"batch": "BatchCQ", "simple": "SimpleCQ"}


class IndexConversion:
    """One conversion, begun or taken up again.

    Attributes:
        plan: What is to be done; None when the topic has the wanted kind of index already.
        is_resumed: Whether an earlier run had begun it.
    """

    def __init__(
        self, disk: Disk, topic: str, to: Target, *, options: StoreOptions, piece_size: int = PIECE_SIZE
    ) -> None:
        """Look at the folder, and plan what is not planned yet.

        Raises:
            StoreError: it cannot be done, or not now; the text says why.
        """
        self.plan: Plan | None = None
        self.is_resumed = False
        self._disk = disk
        self._options = options
        self._folder = f"{FOLDER}/{topic}"
        _require_rest(disk)
        self._heads = RecordHeads(LogFiles.load(disk, LOG_FOLDER, options.log_file_size))
        self._progress = load_progress(disk, topic) or Progress(topic=topic, to=to, state="done")
        kind = find_kind(disk, topic)
        if self._progress.state == "switching":
            self._take_up_switch(to)
        elif self._progress.state == "building" and self._progress.to == to:
            self._take_up(load_plan(disk, topic))
        if self.plan is None and kind != to:
            self.plan = self._make_plan(topic, to, piece_size)
        elif self.plan is None:
            disk.remove(self._folder)  # Of an earlier conversion, or of one that nobody wants any more.

    # --- what an earlier run left

    def _take_up_switch(self, to: Target) -> None:
        """Go on with a switch; take it back if somebody who did not know of it has worked with the old index."""
        progress = self._progress
        if progress.to != to:
            raise StoreError(
                f"the index of topic {progress.topic} is being switched to {progress.to}: finish that first, by "
                f"`holdfast index convert {progress.topic} --to {progress.to} --store DIR`"
            )
        plan = load_plan(self._disk, progress.topic)
        assert plan is not None
        if not self._disk.list(plan.source.folder):
            self.plan, self.is_resumed = plan, True
            return
        self._take_up(plan)
        if self.plan is None:
            if self._disk.list(plan.target.folder) and not self._disk.list(plan.built.folder):
                self._disk.rename(plan.target.folder, f"{self._folder}/stale")
            self._set_kind("simple" if to == "batch" else "batch", 0)

    def _take_up(self, plan: Plan | None) -> None:
        if plan is not None and survey(self._disk, plan.source, plan.to, self._heads) == plan.queues:
            self.plan, self.is_resumed = plan, True
            self._sync()  # What a killed run wrote and renamed is here, but nobody knows whether it is on disk.

    # --- planning

    def _make_plan(self, topic: str, to: Target, piece_size: int) -> Plan:
        disk, options = self._disk, self._options
        source = _place("simple" if to == "batch" else "batch", topic, disk, options)
        target = _place(to, topic, disk, options)
        if disk.list(target.folder):
            raise StoreError(f"{target.folder} is there already, though topic {topic} has the other kind: move it away")
        self._sync()  # That the broker ended in order is known for good: from now on it might not start to tell.
        self._note(Progress(topic=topic, to=to, state="planning"))
        for name in ("new", "old", "stale"):
            disk.remove(f"{self._folder}/{name}")
        queues = survey(disk, source, to, self._heads)
        plan = plan_pieces(disk, source, target, to, queues, piece_size)
        save_plan(disk, plan)
        for path in plan.built_paths():
            file = disk.create(path, plan.target_file_size)
            if not disk.can_sync:
                file.sync()
        self._sync()
        self._note(Progress(topic=topic, to=to, state="building"))
        return plan

    def _sync(self) -> None:
        if self._disk.can_sync:
            self._disk.sync()

    def _note(self, progress: Progress) -> None:
        progress.save(self._disk)
        self._progress = progress

    def give_up(self) -> None:
        """Leave nothing behind if nothing was done: neither by this run nor by one before it."""
        if not self.is_resumed and not self._progress.done:
            self._disk.remove(self._folder)

    # --- building

    def left(self, queue_id: int | None = None) -> list[PiecePlan]:
        """Return the pieces that are to be converted still, of all queues or of one."""
        if self.plan is None or self._progress.state == "switching":
            return []
        pieces = [self.plan.pieces[number] for number in self._progress.missing(len(self.plan.pieces))]
        return [piece for piece in pieces if queue_id in {None, piece.queue_id}]

    def convert(self, piece: PiecePlan) -> None:
        """Convert one piece.

        Raises:
            StoreError: it says what is not in the log; the text names it.
        """
        assert self.plan is not None
        convert_pieces(self._disk, self.plan, [piece], PieceCraft(self._heads))
        self.note_done([piece])

    def note_done(self, pieces: list[PiecePlan]) -> None:
        """Remember that *pieces* are on disk, and proven."""
        self._note(self._progress.with_done(piece.number for piece in pieces))

    # --- switching

    def switch(self, now_ms: int) -> None:
        """Let the new index take the place of the old one; every piece is done."""
        disk, plan = self._disk, self.plan
        assert plan is not None
        assert not self.left()
        if self._progress.state != "switching":
            _remove_strangers(disk, plan)
            self._note(msgspec.structs.replace(self._progress, state="switching"))
        if disk.list(plan.built.folder):
            disk.rename(plan.built.folder, plan.target.folder)
        self._set_kind(plan.to, now_ms)
        if disk.list(plan.source.folder):
            disk.rename(plan.source.folder, f"{self._folder}/old")
        self._note(msgspec.structs.replace(self._progress, state="done"))
        disk.remove(self._folder)

    def _set_kind(self, kind: Target, now_ms: int) -> None:
        """Let the topic's attribute say which kind of index it has, on disk."""
        config: Any = load_config(self._disk, TOPICS)
        topic = config["topicConfigTable"][self._progress.topic]
        attributes = {**(topic.get("attributes") or {})}
        if _kind_of(attributes) == kind:
            return
        attributes.pop(ATTRIBUTE, None)
        topic["attributes"] = attributes if kind == "simple" else {**attributes, ATTRIBUTE: KINDS[kind]}
        version = config.get("dataVersion")
        if isinstance(version, dict) and now_ms:
            # Name servers look at a broker's topics again only if their version has changed.
            config["dataVersion"] = {**version, "timestamp": now_ms, "counter": int(version.get("counter", 0)) + 1}
        # The spare copy first: were it left as it was, it would name the wrong kind if it were ever needed.
        for path in (config_path(TOPICS) + ".bak", config_path(TOPICS)):
            self._disk.replace(path, java_json.encode(config))


def find_kind(disk: Disk, topic: str) -> Target:
    """Return which kind of index *topic* has, by its configuration.

    Raises:
        StoreError: there is no such topic, or it is one whose index is never converted.
    """
    config = load_config(disk, TOPICS)
    table = config.get("topicConfigTable") if isinstance(config, dict) else None
    found = table.get(topic) if isinstance(table, dict) else None
    if not isinstance(found, dict):
        raise StoreError(f"config/{TOPICS} of this folder knows no topic {topic}")
    if topic in NOT_SENDABLE_TOPICS or topic.startswith((SYSTEM_PREFIX, RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        raise StoreError(f"topic {topic} is the broker's own, and keeps its index by message")
    return _kind_of(found.get("attributes"))


def _kind_of(attributes: Any) -> Target:
    return "batch" if isinstance(attributes, dict) and attributes.get(ATTRIBUTE) == KINDS["batch"] else "simple"


def _require_rest(disk: Disk) -> None:
    """Require that whoever had the folder last ended in order: only then is the index all there."""
    if not disk.list(LOG_FOLDER):
        raise StoreError(f"this is no folder of a broker: it has no {LOG_FOLDER}")
    if disk.find_size(ABORT_PATH) is not None:
        raise StoreError(
            "the broker of this folder was not stopped in order, or the folder is a copy of one that was in use: start "
            "a broker on it, stop that one, and convert then"
        )


def _place(kind: Target, topic: str, disk: Disk, options: StoreOptions) -> IndexPlace:
    parent, size = (
        (BATCH_FOLDER, options.batch_file_size) if kind == "batch" else (QUEUE_FOLDER, options.queue_file_size)
    )
    return IndexPlace.of(kind, topic, find_queue_file_size(disk, parent) or size)


def _remove_strangers(disk: Disk, plan: Plan) -> None:
    """Remove what an earlier plan left where the new index is, and a power cut brought back."""
    planned, folder = set(plan.built_paths()), plan.built.folder
    for queue in disk.list(folder):
        for name in disk.list(f"{folder}/{queue.removesuffix('/')}"):
            path = f"{folder}/{queue.removesuffix('/')}/{name}"
            if path not in planned:
                disk.remove(path)
