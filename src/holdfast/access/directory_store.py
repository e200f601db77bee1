"""The directory of a role: all users and rules, in memory and in one private file.

    an administrator's change ──┐                                      ┌─ saved, then answered
    a change at another server ─┴─> newer? ─> in effect ─> version ────┼─ sent to the other servers
    a followed ACL 1.0 file ─────────────────────────────────┘         └─ parked requests are checked again

Every server of a name-server domain keeps the same directory, brokers and name servers alike: each file survives the
loss of all others. It is `config/holdfastAccess.json`. A file that is damaged, or that others may read, stops the start
of the role: an empty directory would lock all users out, and an older one would let users in whose rights were revoked.

A followed ACL 1.0 file is used beside the directory, but is not a part of it: it is neither saved nor sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.request import Answer, Request, answer_later
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.access.acl_file import AclFile
from holdfast.model.access.directory import Directory, Record
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.user import User
from holdfast.store.base.config_files import config_path
from holdfast.store.base.disk import Disk
from holdfast.wire.access.records import decode_records, encode_records
from holdfast.wire.frames.codes import ResponseCode

PATH: Final = config_path("holdfastAccess.json")
ACCESS_TIMER: Final = "access-changed"
"""Fires at the end of every event in which users or rules changed."""
LEAD_MAX_MS: Final = 10 * 365 * 86_400_000
"""How far in the future the version of a record may be: servers whose clocks are wrong are still accepted."""
_SAVE_TIMER: Final = "access-save"


class AccessStore(Component):
    """The users and rules that this role knows.

    Args:
        turn: The turn of the role.
        disk: Where the file is; None: changes last until the process ends.

    Attributes:
        directory: All users and rules, except those of a followed ACL 1.0 file. Change it only through this class.
        acl: The content of the followed ACL 1.0 files; None if none are followed.
        version: Rises with every change of the two: a decision from another version must be made again.

    Raises:
        ExposedFile: others than the owner may read or write the file.
        UnreadableFile: the file is damaged.
    """

    def __init__(self, turn: Turn, disk: Disk | None) -> None:
        self._turn = turn
        self._file = _open_file(turn, disk, lambda: self.directory.records)
        self.directory = Directory(self._file.load() or ())
        self.acl: AclFile | None = None
        self.version = 1
        self._changed: dict[str, int] = {}  # By key, the version that changed the record; the last change is last.

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def metrics(self) -> Iterable[Sample]:
        """Yield the size of the directory."""
        records = self.directory.records
        users = sum(record.key.startswith("user/") and record.value is not None for record in records)
        yield Sample("access_users", "gauge", "Users of the directory.", users)
        yield Sample("access_records", "gauge", "Records of the directory, deleted ones included.", len(records))

    # Changes.

    def apply(self, request: Request, changed: list[Record]) -> Answer:
        """Put *changed*, which a method of the directory returned, into effect; answer *request* once it is saved.

        A request that changes nothing is answered once earlier changes are saved, too: it may repeat one of them.
        """
        self._record(changed)
        if not self._file.is_durable:
            return request.answer()
        self._file.save_soon(lambda failure: self._acknowledge(request, failure))
        return None

    def merge(self, records: Iterable[Record]) -> list[Record]:
        """Adopt the records of another server that are newer than ours; return these.

        A record from far in the future is refused. No change could ever get a higher version.
        """
        latest = self._turn.now_ms + LEAD_MAX_MS
        accepted = []
        for record in records:
            if record.version <= latest:
                accepted.append(record)
            else:
                self._turn.log("error", "record of users and rules refused", key=record.key, version=record.version)
        adopted = self.directory.merge(accepted)
        if adopted:
            self._record(adopted)
            self._file.save_soon()
        return adopted

    def follow(self, acl: AclFile | None) -> None:
        """Put another content of the followed ACL 1.0 files into effect."""
        self.acl = acl
        self._advance()

    def changed_since(self, version: int) -> list[Record]:
        """Return the records that changed after *version*, the last change last."""
        by_key = {record.key: record for record in self.directory.records}
        return [by_key[key] for key, changed in self._changed.items() if changed > version]

    def _record(self, changed: Iterable[Record]) -> None:
        keys = [record.key for record in changed]
        if not keys:
            return
        if not self._file.is_durable and not self._changed:
            hint = "start this name server with --data, or it learns them from a broker after each start"
            self._turn.log("warning", "users and rules are only in memory", hint=hint)
        self._advance()
        for key in keys:
            self._changed.pop(key, None)
            self._changed[key] = self.version

    def _advance(self) -> None:
        self.version += 1
        self._turn.fire(ACCESS_TIMER)

    def _acknowledge(self, request: Request, failure: str | None) -> None:
        if failure is None:
            answer = request.answer()
        else:
            remark = f"changed, but not saved yet, and lost if all servers stop before it is: {failure}"
            answer = request.answer(ResponseCode.SYSTEM_ERROR, remark)
        answer_later(self._turn, request, answer)


def add_first_user(disk: Disk, user: User, now_ms: int) -> None:
    """Add a Super user to the file of a role that does not run.

    A user that exists with the same content is no error.

    Raises:
        StoreError: the file cannot be used.
        DirectoryRefused: there is another Super user already, or the user cannot be created.
        DiskFailed: the file cannot be written.
    """
    file = _open_file(Turn(now_ms), disk, lambda: directory.records)
    directory = Directory(file.load() or ())
    others = [each.name for each in directory.users if each.is_super and each.name != user.name]
    if others:
        raise DirectoryRefused(
            f"there is an administrator already: {', '.join(others[:3])}. Start the role, and let an administrator"
            " create further users"
        )
    if directory.create_user(user, now_ms):
        file.save_now()


def _open_file(turn: Turn, disk: Disk | None, value: Callable[[], list[Record]]) -> KeptFile[list[Record]]:
    return KeptFile(
        turn,
        disk,
        PATH,
        value,
        encode=encode_records,
        decode=decode_records,
        retry_timer=_SAVE_TIMER,
        is_private=True,
    )
