"""Users and decisions from the directory and a followed ACL 1.0 file together."""

from __future__ import annotations

from typing import Protocol

from holdfast.model.access.acl_file import AclFile
from holdfast.model.access.decision import Decision, decide
from holdfast.model.access.directory import Directory
from holdfast.model.access.resource import Permission
from holdfast.model.access.user import User


class Records(Protocol):
    """The users and rules of a role.

    Attributes:
        directory: Those that all servers have.
        acl: Those of the followed ACL 1.0 file; None if none is followed.
        version: Another number after every change of the two.
    """

    directory: Directory
    acl: AclFile | None
    version: int


class Authority:
    """Answers who a user is, and what it may do.

    Args:
        records: The users and rules of this role.
        cluster: The name of the cluster of this server; empty for a name server, which serves several.
    """

    def __init__(self, records: Records, cluster: str) -> None:
        self._records = records
        self._cluster = cluster
        self._acl: AclFile | None = None
        self._acl_directory = Directory()

    @property
    def version(self) -> int:
        """Another number after every change: whatever was answered before may be different now."""
        return self._records.version

    @property
    def has_administrator(self) -> bool:
        """Whether there is a Super user who is not in a followed file."""
        return any(user.is_super for user in self._records.directory.users)

    def find_user(self, name: str) -> User | None:
        """Return the user with this name, or None if there is none."""
        return self._directory_of(name).find_user(name)

    def decide(self, user: str, permission: Permission, ip: str) -> Decision:
        """Return whether *user*, who proved its identity, has *permission* from the address *ip*."""
        return decide(self._directory_of(user), user, permission, ip, self._cluster)

    def allows_everything(self, ip: str) -> bool:
        """Return whether the followed file allows every request from *ip*, even without a user."""
        acl = self._records.acl
        return acl is not None and acl.allows_everything(ip)

    def needs_no_signature(self, user: str, ip: str) -> bool:
        """Return whether the followed file accepts requests in the name of a user from *ip* without a signature."""
        acl = self._records.acl
        if acl is None or self._records.directory.find_user(user) is not None:
            return False
        return acl.needs_no_signature(user, ip)

    def _directory_of(self, user: str) -> Directory:
        """Return where a user is defined: a user of the directory hides the account of the same name in the file."""
        records = self._records
        if records.acl is None or records.directory.find_user(user) is not None:
            return records.directory
        if records.acl is not self._acl:
            self._acl, self._acl_directory = records.acl, records.acl.to_directory()
        return self._acl_directory
