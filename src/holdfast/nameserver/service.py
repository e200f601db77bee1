"""Runs a name server: restores its files, listens, and drives the machine until it is stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from holdfast.access.limits import LimitedRole
from holdfast.access.scrape_guard import ScrapeGuard
from holdfast.machine.effects import Log
from holdfast.machine.readings import Readings
from holdfast.machine.sample import Sample
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.runtime.access.acl_folder import open_acl_folder
from holdfast.runtime.access.audit_file import AuditFile
from holdfast.runtime.access.role_secrets_reader import read_metrics_token, read_role_secrets
from holdfast.runtime.address import check_listening, check_metrics_listening, split_address
from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import FrameLimits
from holdfast.runtime.descriptors import limit_unproven
from holdfast.runtime.logs import Emit
from holdfast.runtime.metrics import MetricsServer
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.runtime.readings import INTERVAL_S, SystemReadings
from holdfast.runtime.server import MachineServer
from holdfast.runtime.tls import RoleTls


class NameServerService:
    """One running name server.

    Args:
        options: Settings of the operator.
        emit: Writes one log line.
        readings: Load of the machine, kept up to date by the caller; None: read from the system once a second.

    Attributes:
        address: The address it listens on, once started.
    """

    def __init__(self, options: NameServerOptions, emit: Emit, readings: Readings | None = None) -> None:
        self._options = options
        self._system = SystemReadings(link_capacity_mbit=options.link_capacity_mbit) if readings is None else None
        self._readings = readings if self._system is None else self._system.readings
        self._reading_timer: asyncio.TimerHandle | None = None
        self._emit = emit
        self._disk = PosixDisk(options.data) if options.data is not None else None
        self._machine: NameServer | None = None
        self._server: MachineServer | None = None
        self._metrics: MetricsServer | None = None
        self._limited: LimitedRole | None = None
        self._audit: AuditFile | None = None
        self._is_ready = False
        self.address = options.listen

    async def start(self) -> None:
        """Restore the files and listen.

        Raises:
            ConfigError: an address, a secret or a file cannot be used, or the network could reach an unprotected role.
            PortTaken: another process listens on that port.
            StoreError: the data folder cannot be used, perhaps because another name server uses it.
        """
        host, port = split_address(self._options.listen)
        options = self._options
        warning = check_listening(
            host, has_auth=options.auth, has_tls=options.tls != "disabled", is_insecure=options.insecure
        )
        tls = RoleTls(self._options, self._emit)
        secrets, acl_folder = read_role_secrets(options), open_acl_folder(options.acl_file)
        token = read_metrics_token(options)
        if options.metrics_listen is not None:
            is_guarded = options.auth or token is not None
            check_metrics_listening(options.metrics_listen, is_guarded=is_guarded, is_insecure=options.insecure)
        emit = self._emit
        if options.audit_file is not None:
            self._audit = AuditFile(options.audit_file, "namesrv", emit)
            emit = self._audit.emit
        if self._disk is not None:
            self._disk.lock()
        self._machine = machine = NameServer(
            options,
            random.Random(),
            disk=self._disk,
            readings=self._readings,
            secrets=secrets,
            acl_folder=acl_folder,
        )
        budget = MemoryBudget(self._options.memory_limit, self._emit)
        if LimitedRole.is_needed(options):
            self._limited = LimitedRole(machine, limit_unproven(options, self._emit), machine.sessions)
        self._server = MachineServer(
            self._limited or machine,
            emit=emit,
            disk=self._disk,
            budget=budget,
            tls=tls,
            frame_limits=FrameLimits(options.request_size_max, options.header_size_max),
        )
        port = await self._server.listen(host, port)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._options.metrics_listen is not None:
            guard = ScrapeGuard(machine.authority, machine.door.audited, token, is_required=options.auth)
            self._metrics = MetricsServer(self._samples, lambda: None, tls, guard, emit)
            self._metrics.start(*split_address(self._options.metrics_listen))
        if warning is not None:
            self._emit(Log("warning", warning, {"listen": self.address}))
        self._update_readings()
        self._server.start()
        self._is_ready = True
        self._emit(Log("info", "name server ready", {"listen": self.address, "data": self._options.data}))

    async def stop(self) -> None:
        """Stop the servers and unlock the data folder."""
        if self._reading_timer is not None:
            self._reading_timer.cancel()
        if self._metrics is not None:
            self._metrics.stop()
        if self._server is not None:
            await self._server.stop()
        if self._disk is not None:
            self._disk.unlock()
        if self._audit is not None:
            self._audit.close()
        if self._is_ready:
            self._emit(Log("info", "name server stopped", {"listen": self.address}))

    def _update_readings(self) -> None:
        if self._system is not None:
            loop = asyncio.get_running_loop()
            self._system.update(loop.time())
            self._reading_timer = loop.call_later(INTERVAL_S, self._update_readings)

    def _samples(self) -> Iterator[Sample]:
        assert self._machine is not None
        assert self._server is not None
        yield from self._machine.metrics()
        yield from self._server.samples()
        if self._limited is not None:
            yield from self._limited.samples()
