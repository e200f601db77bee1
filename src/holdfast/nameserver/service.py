"""Runs a name server: restores its files, listens, and drives the machine until it is stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from holdfast.machine.effects import Log
from holdfast.machine.readings import Readings
from holdfast.machine.sample import Sample
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE
from holdfast.nameserver.config.kv_config import FILE
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.metrics import name_server_samples
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.routes.static_topic_store import FILE as STATIC_FILE
from holdfast.runtime.address import is_loopback, split_address
from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.logs import Emit
from holdfast.runtime.metrics import MetricsServer
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.runtime.readings import INTERVAL_S, SystemReadings
from holdfast.runtime.server import MachineServer


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
        self._is_ready = False
        self.address = options.listen

    async def start(self) -> None:
        """Restore the files and listen.

        Raises:
            ConfigError: an address or the KV file cannot be used.
            PortTaken: another process listens on that port.
            StoreError: the data folder cannot be used, perhaps because another name server uses it.
        """
        host, port = split_address(self._options.listen)
        kv_content = static_content = lease_content = None
        if self._disk is not None:
            self._disk.lock()
            kv_content, static_content, lease_content = map(self._disk.read_file, (FILE, STATIC_FILE, LEASES_FILE))
        self._machine = NameServer(
            self._options,
            random.Random(),
            kv_content=kv_content,
            static_content=static_content,
            lease_content=lease_content,
            readings=self._readings,
        )
        budget = MemoryBudget(self._options.memory_limit, self._emit)
        self._server = MachineServer(self._machine, emit=self._emit, disk=self._disk, budget=budget)
        port = await self._server.listen(host, port)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._options.metrics_listen is not None:
            self._metrics = MetricsServer(self._samples, lambda: None)
            self._metrics.start(*split_address(self._options.metrics_listen))
        if not is_loopback(host):
            warning = "listening beyond loopback without access control: anyone who reaches this port can change routes"
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
        if self._is_ready:
            self._emit(Log("info", "name server stopped", {"listen": self.address}))

    def _update_readings(self) -> None:
        if self._system is not None:
            loop = asyncio.get_running_loop()
            self._system.update(loop.time())
            self._reading_timer = loop.call_later(INTERVAL_S, self._update_readings)

    def _samples(self) -> Iterator[Sample]:
        assert self._machine is not None
        return name_server_samples(self._machine)
