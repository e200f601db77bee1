"""Runs a name server: restores its files, listens, and drives the machine until it is stopped."""

from __future__ import annotations

import asyncio
import random

from holdfast.machine.effects import Log
from holdfast.machine.readings import Readings
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.runtime.logs import Emit
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.runtime.process.readings import INTERVAL_S, SystemReadings
from holdfast.runtime.role_server import RoleServer


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
        self._serving: RoleServer | None = None
        self._is_ready = False
        self.address = options.listen

    async def start(self) -> None:
        """Restore the files and listen.

        Raises:
            ConfigError: an address, a secret or a file cannot be used, or the network could reach an unprotected role.
            PortTaken: another process listens on that port.
            StoreError: the data folder cannot be used, perhaps because another name server uses it.
        """
        options = self._options
        serving = self._serving = RoleServer("namesrv", options, self._emit, self._disk)
        if self._disk is not None:
            self._disk.lock()
        machine = NameServer(
            options,
            random.Random(),
            disk=self._disk,
            readings=self._readings,
            secrets=serving.secrets,
            acl_folder=serving.acl_folder,
        )
        serving.attach(machine, machine.sessions)
        self.address, _ = await serving.listen()
        self._update_readings()
        serving.begin(self.address, machine.metrics, lambda: None, machine.authority, machine.door)
        self._is_ready = True
        self._emit(Log("info", "name server ready", {"listen": self.address, "data": options.data}))

    async def stop(self) -> None:
        """Stop the servers and unlock the data folder."""
        if self._reading_timer is not None:
            self._reading_timer.cancel()
        if self._serving is not None:
            await self._serving.stop()
        if self._disk is not None:
            self._disk.unlock()
        if self._serving is not None:
            self._serving.close()
        if self._is_ready:
            self._emit(Log("info", "name server stopped", {"listen": self.address}))

    def _update_readings(self) -> None:
        if self._system is not None:
            loop = asyncio.get_running_loop()
            self._system.update(loop.time())
            self._reading_timer = loop.call_later(INTERVAL_S, self._update_readings)
