"""The server of a role with everything that does not depend on the role: access, limits, metrics and the audit file.

serving = RoleServer("namesrv", options, emit, disk)      checks the options and reads the secrets
server = serving.attach(role, sessions)                   the role behind its limits
await serving.listen()                                    the port of the role; a service may open more on `server`
serving.begin(...)                                        the metrics port; then the role gets its first event
await serving.stop()
serving.close()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from holdfast.access.authority import Authority
from holdfast.access.door import Door
from holdfast.access.limits import LimitedRole
from holdfast.access.scrape_guard import ScrapeGuard
from holdfast.access.sessions import Sessions
from holdfast.machine.effects import Log
from holdfast.machine.machine import Machine
from holdfast.machine.role_options import RoleOptions
from holdfast.machine.sample import Sample
from holdfast.runtime.access.acl_folder import open_acl_folder
from holdfast.runtime.access.audit_file import AuditFile
from holdfast.runtime.access.role_secrets_reader import read_metrics_token, read_role_secrets
from holdfast.runtime.address import check_listening, check_metrics_listening, join_address, split_address
from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import FrameLimits
from holdfast.runtime.logs import Emit
from holdfast.runtime.metrics import MetricsServer
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.runtime.process.descriptors import limit_unproven
from holdfast.runtime.server import MachineServer
from holdfast.runtime.tls import RoleTls


class RoleServer:
    """The parts of a running role that all roles have. Made on the event loop.

    Args:
        title: The name of the role in audit lines.
        options: Settings of the operator.
        emit: Writes one log line.
        disk: The folder of the role; None if it keeps everything in memory.

    Attributes:
        host: The host that it listens on.
        secrets: The secrets that it shares with other servers.
        acl_folder: Where the ACL 1.0 files are that it follows; None: it follows none.
        budget: The memory that its connections may hold.

    Raises:
        ConfigError: an address, a secret or a file cannot be used, or the network could reach an unprotected role.
    """

    def __init__(self, title: str, options: RoleOptions, emit: Emit, disk: PosixDisk | None) -> None:
        self.host, self._port = split_address(options.listen)
        self._warning = check_listening(
            self.host, has_auth=options.auth, has_tls=options.tls != "disabled", is_insecure=options.insecure
        )
        self._tls = RoleTls(options, emit)
        self.secrets, self.acl_folder = read_role_secrets(options), open_acl_folder(options.acl_file)
        self._token = read_metrics_token(options)
        if options.metrics_listen is not None:
            is_guarded = options.auth or self._token is not None
            check_metrics_listening(options.metrics_listen, is_guarded=is_guarded, is_insecure=options.insecure)
        self.budget = MemoryBudget(options.memory_limit, emit)
        self._options = options
        self._emit = emit
        self._disk = disk
        self._server: MachineServer | None = None
        self._limited: LimitedRole | None = None
        self._metrics: MetricsServer | None = None
        self._samples_of_role: Callable[[], Iterable[Sample]] = tuple
        self._audit = None if options.audit_file is None else AuditFile(options.audit_file, title, emit)
        self._emit_audited = emit if self._audit is None else self._audit.emit

    def attach(self, role: Machine, sessions: Sessions, *, grace_period_s: float = 0) -> MachineServer:
        """Return the server that runs *role*, with the limits for its clients. It does not listen yet."""
        options = self._options
        if LimitedRole.is_needed(options):
            self._limited = LimitedRole(role, limit_unproven(options, self._emit), sessions)
        self._server = MachineServer(
            self._limited or role,
            emit=self._emit_audited,
            disk=self._disk,
            budget=self.budget,
            grace_period_s=grace_period_s,
            tls=self._tls,
            frame_limits=FrameLimits(options.request_size_max, options.header_size_max),
        )
        return self._server

    async def listen(self) -> tuple[str, int]:
        """Listen on the port of the role; return the address and the port.

        Raises:
            ConfigError: the address cannot be used.
            PortTaken: another process listens there.
        """
        port = await self._attached.listen(self.host, self._port)
        return join_address(self.host, port), port

    def begin(
        self,
        address: str,
        samples: Callable[[], Iterable[Sample]],
        find_fault: Callable[[], str | None],
        authority: Authority,
        door: Door,
    ) -> None:
        """Serve metrics and health if the operator wants them, and start the role, which listens on *address*."""
        self._samples_of_role = samples
        if self._options.metrics_listen is not None:
            guard = ScrapeGuard(authority, door.audited, self._token, is_required=self._options.auth)
            self._metrics = MetricsServer(self.samples, find_fault, self._tls, guard, self._emit_audited)
            self._metrics.start(*split_address(self._options.metrics_listen))
        if self._warning is not None:
            self._emit(Log("warning", self._warning, {"listen": address}))
        self._attached.start()

    async def stop(self) -> None:
        """Stop in order: no more metrics, then the last event of the role and the answers that are due."""
        if self._metrics is not None:
            self._metrics.stop()
        if self._server is not None:
            await self._server.stop()

    def close(self) -> None:
        """Close the audit file: nothing is emitted any more that belongs there."""
        if self._audit is not None:
            self._audit.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the role, of its server and of its limits."""
        yield from self._samples_of_role()
        yield from self._attached.samples()
        if self._limited is not None:
            yield from self._limited.samples()

    @property
    def _attached(self) -> MachineServer:
        assert self._server is not None, "a role is attached before it listens"
        return self._server
