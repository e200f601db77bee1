"""Convert the index of a topic from one kind to the other, in a folder that no broker serves. May be interrupted.

    planning    survey every queue, create empty files for the new index in a separate folder
    building    piece by piece: convert, verify against the log, write, sync, read back, note as done
    switching   1 the new index moves to its place     2 the topic's attribute names it     3 the old index moves away
    done        the old index is removed

Before step 1 the old index is served as before. A resumed run detects whether it has grown meanwhile: then the
conversion starts over. From step 1 to step 3 there are two indexes, and neither our broker nor a Java broker (5.x)
serves such a folder: ours says what to run. After step 3 the new one is served. The same entries always become the same
bytes, so that a piece may be converted twice, even by two runs at a time.

This module has no clock and does not check whether a broker runs: the caller holds the folder's lock.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.errors import StoreError
from holdfast.model.topic import DEAD_LETTER_PREFIX, NOT_SENDABLE_TOPICS, QUEUE_TYPE, RETRY_PREFIX, SYSTEM_PREFIX
from holdfast.store.base.config_files import config_path, load_config
from holdfast.store.base.disk import Disk
from holdfast.store.base.file_versions import versions_of
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.conversion.conversion_survey import plan_pieces, survey
from holdfast.store.conversion.piece_conversion import PythonConverter, convert_pieces
from holdfast.store.conversion.record_headers import RecordHeaders
from holdfast.store.log.commit_log import FOLDER as LOG_FOLDER
from holdfast.store.queues.index_kinds import DEFAULT_KIND, IndexKind, find_kind
from holdfast.store.recovery.conversion_plan import (
    FOLDER,
    PIECE_SIZE,
    ConversionPlan,
    ConversionProgress,
    ConvertedKind,
    IndexLayout,
    PiecePlan,
    index_kind,
    kind_before,
    load_plan,
    load_progress,
    save_plan,
)
from holdfast.store.recovery.open_store import ABORT_PATH, find_queue_file_size
from holdfast.wire.frames import java_json

TOPICS = "topics.json"


class IndexConversion:
    """One conversion, new or resumed.

    Attributes:
        plan: The plan; None if the topic already has the wanted kind of index.
        is_resumed: Whether an earlier run started it.
    """

    def __init__(
        self, disk: Disk, topic: str, to: ConvertedKind, *, options: StoreOptions, piece_size: int = PIECE_SIZE
    ) -> None:
        """Survey the folder, and create the plan if there is none.

        Raises:
            StoreError: it cannot be done, or not now; the text says why.
        """
        self.plan: ConversionPlan | None = None
        self.is_resumed = False
        self._disk = disk
        self._options = options
        self._folder = f"{FOLDER}/{topic}"
        _require_clean_shutdown(disk)
        self._headers = RecordHeaders(LogFiles.load(disk, LOG_FOLDER, options.log_file_size))
        self._progress = load_progress(disk, topic) or ConversionProgress(topic=topic, to=to, state="done")
        kind = find_configured_kind(disk, topic)
        if self._progress.state == "switching":
            self._resume_switch(to)
        elif self._progress.state == "building" and self._progress.to == to:
            self._resume(load_plan(disk, topic))
        if self.plan is None and kind is not index_kind(to):
            self.plan = self._make_plan(topic, to, piece_size)
        elif self.plan is None:
            disk.remove(self._folder)  # From an earlier conversion, or from one that is no longer wanted.

    # --- resuming an earlier run

    def _resume_switch(self, to: ConvertedKind) -> None:
        """Resume a switch; revert it if a broker that did not know of it has changed the old index."""
        progress = self._progress
        if progress.to != to:
            raise StoreError(
                f"the index of topic {progress.topic} is being switched to {progress.to}: finish that first with "
                f"`holdfast index convert {progress.topic} --to {progress.to} --store DIR`"
            )
        plan = load_plan(self._disk, progress.topic)
        assert plan is not None
        if not self._disk.list(plan.source.folder):
            self.plan, self.is_resumed = plan, True
            return
        self._resume(plan)
        if self.plan is None:
            if self._disk.list(plan.target.folder) and not self._disk.list(plan.built.folder):
                self._disk.rename(plan.target.folder, f"{self._folder}/stale")
            self._set_kind(kind_before(to), 0)

    def _resume(self, plan: ConversionPlan | None) -> None:
        if plan is not None and survey(self._disk, plan.source, plan.to, self._headers) == plan.queues:
            self.plan, self.is_resumed = plan, True
            self._sync()  # It is unknown whether the writes and renames of a killed run are on disk.

    # --- planning

    def _make_plan(self, topic: str, to: ConvertedKind, piece_size: int) -> ConversionPlan:
        disk, options = self._disk, self._options
        source = _find_layout(kind_before(to), topic, disk, options)
        target = _find_layout(index_kind(to), topic, disk, options)
        if disk.list(target.folder):
            raise StoreError(f"{target.folder} exists already, although topic {topic} has the other kind: move it away")
        self._sync()  # Make the clean shutdown durable: later, a broker may refuse to start, so it could not recover.
        self._save_progress(ConversionProgress(topic=topic, to=to, state="planning"))
        for name in ("new", "old", "stale"):
            disk.remove(f"{self._folder}/{name}")
        queues = survey(disk, source, to, self._headers)
        plan = plan_pieces(disk, source, target, to, queues, piece_size)
        save_plan(disk, plan)
        for path in plan.built_paths():
            file = disk.create(path, plan.target_file_size)
            if not disk.can_sync:
                file.sync()
        self._sync()
        self._save_progress(ConversionProgress(topic=topic, to=to, state="building"))
        return plan

    def _sync(self) -> None:
        if self._disk.can_sync:
            self._disk.sync()

    def _save_progress(self, progress: ConversionProgress) -> None:
        progress.save(self._disk)
        self._progress = progress

    def remove_if_unstarted(self) -> None:
        """Remove the conversion's folder if no piece was done, neither by this run nor by an earlier one."""
        if not self.is_resumed and not self._progress.done:
            self._disk.remove(self._folder)

    # --- building

    def remaining_pieces(self, queue_id: int | None = None) -> list[PiecePlan]:
        """Return the pieces that remain to be converted, of all queues or of one."""
        if self.plan is None or self._progress.state == "switching":
            return []
        pieces = [self.plan.pieces[number] for number in self._progress.missing(len(self.plan.pieces))]
        return [piece for piece in pieces if queue_id in {None, piece.queue_id}]

    def convert(self, piece: PiecePlan) -> None:
        """Convert one piece.

        Raises:
            StoreError: an entry does not match the log; the text names it.
        """
        assert self.plan is not None
        convert_pieces(self._disk, self.plan, [piece], PythonConverter(self._headers))
        self.note_done([piece])

    def note_done(self, pieces: list[PiecePlan]) -> None:
        """Persist that *pieces* are on disk and verified."""
        self._save_progress(self._progress.with_done(piece.number for piece in pieces))

    # --- switching

    def switch(self, now_ms: int) -> None:
        """Replace the old index by the new one; every piece must be done."""
        disk, plan = self._disk, self.plan
        assert plan is not None
        assert not self.remaining_pieces()
        if self._progress.state != "switching":
            _remove_leftovers(disk, plan)
            self._save_progress(msgspec.structs.replace(self._progress, state="switching"))
        if disk.list(plan.built.folder):
            disk.rename(plan.built.folder, plan.target.folder)
        self._set_kind(index_kind(plan.to), now_ms)
        if disk.list(plan.source.folder):
            disk.rename(plan.source.folder, f"{self._folder}/old")
        self._save_progress(msgspec.structs.replace(self._progress, state="done"))
        disk.remove(self._folder)

    def _set_kind(self, kind: IndexKind, now_ms: int) -> None:
        """Set the kind of index in the topic's attributes, durably."""
        config: Any = load_config(self._disk.read_file, TOPICS)
        topic = config["topicConfigTable"][self._progress.topic]
        attributes = {**(topic.get("attributes") or {})}
        if find_kind(attributes.get(QUEUE_TYPE)) is kind:
            return
        attributes.pop(QUEUE_TYPE, None)
        topic["attributes"] = attributes if kind is DEFAULT_KIND else {**attributes, QUEUE_TYPE: kind.queue_type}
        version = config.get("dataVersion")
        if isinstance(version, dict) and now_ms:
            # Name servers compare a broker's topics again only if their version has changed.
            config["dataVersion"] = {**version, "timestamp": now_ms, "counter": int(version.get("counter", 0)) + 1}
        # Write the backup first: left unchanged, it would name the wrong kind if it were ever needed.
        for path in reversed(versions_of(config_path(TOPICS))):
            self._disk.replace(path, java_json.encode(config))


def find_configured_kind(disk: Disk, topic: str) -> IndexKind:
    """Return the kind of index that the configuration of *topic* names.

    Raises:
        StoreError: there is no such topic, or it is one whose index is never converted.
    """
    config = load_config(disk.read_file, TOPICS)
    table = config.get("topicConfigTable") if isinstance(config, dict) else None
    found = table.get(topic) if isinstance(table, dict) else None
    if not isinstance(found, dict):
        raise StoreError(f"config/{TOPICS} of this folder has no topic {topic}")
    if topic in NOT_SENDABLE_TOPICS or topic.startswith((SYSTEM_PREFIX, RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        raise StoreError(f"topic {topic} is the broker's own: its index by message is never converted")
    attributes = found.get("attributes")
    return find_kind(attributes.get(QUEUE_TYPE)) if isinstance(attributes, dict) else DEFAULT_KIND


def _require_clean_shutdown(disk: Disk) -> None:
    """Require that the last broker on the folder shut down cleanly: only then is the index complete."""
    if not disk.list(LOG_FOLDER):
        raise StoreError(f"this is not the folder of a broker: it has no {LOG_FOLDER}")
    if disk.find_size(ABORT_PATH) is not None:
        raise StoreError(
            "the broker of this folder was not stopped cleanly, or the folder is a copy of one that was in use: start "
            "a broker on it, stop it, and convert then"
        )


def _find_layout(kind: IndexKind, topic: str, disk: Disk, options: StoreOptions) -> IndexLayout:
    return IndexLayout.of(kind, topic, find_queue_file_size(disk, kind) or kind.choose_file_size(options))


def _remove_leftovers(disk: Disk, plan: ConversionPlan) -> None:
    """Remove files that an earlier plan left in the folder of the new index, and that a power cut brought back."""
    planned, folder = set(plan.built_paths()), plan.built.folder
    for queue in disk.list(folder):
        for name in disk.list(f"{folder}/{queue.removesuffix('/')}"):
            path = f"{folder}/{queue.removesuffix('/')}/{name}"
            if path not in planned:
                disk.remove(path)
