"""The broker's shell: opens the store, listens, and runs the broker until it is stopped.

Old clients send to the advertised port minus 2 (their "VIP channel"), so the broker serves both ports alike.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.metrics import broker_samples
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.options import BrokerOptions
from holdfast.broker.recovery_report import report_recovery
from holdfast.broker.replication.ha_master import PURPOSE as REPLICATION
from holdfast.machine.effects import Log
from holdfast.model.errors import ConfigError, PortTaken
from holdfast.runtime.logs import Emit
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.runtime.role_server import RoleServer
from holdfast.runtime.server import MachineServer, now_ms
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.host import pack_host

_VIP_PORT_OFFSET = 2
_LEAVE_DELAY_S = 0.5  # Time for clients to learn from their next answer that their queues have moved.
_REGISTRATION_POLL_S = 0.01
_REGISTRATION_POLLS = 50
_UNWRITABLE = "the store refuses writes after a disk error; restart the broker"


class BrokerService:
    """One running broker.

    Attributes:
        address: The listening address, final once started.
    """

    def __init__(self, options: BrokerOptions, emit: Emit) -> None:
        if options.replica_of is not None:
            options = msgspec.structs.replace(options, name=options.replica_of)
        self._options = options
        self._emit = emit
        self._disk = PosixDisk(options.store)
        self._serving: RoleServer | None = None
        self._store: MessageStore | None = None
        self._is_ready = False
        self.address = options.listen

    async def start(self) -> None:
        """Open the store, listen on both ports, and register with the name servers.

        Raises:
            ConfigError: An address or a file cannot be used, or the network could reach an unprotected role.
            PortTaken: Another process listens on a port.
            StoreError: The store folder cannot be opened; the message says what to do.
        """
        options = self._options
        serving = self._serving = RoleServer(f"broker {options.name}", options, self._emit, self._disk)
        self._disk.lock()
        store = MessageStore.open(self._disk, store_options(options), now_ms())
        for line in report_recovery(store.recovered, store.log.files.unused):
            self._emit(line)
        components = Components(
            options,
            store,
            self._disk,
            random.Random(),
            now_ms(),
            serving.budget.pressure,
            serving.secrets,
            serving.acl_folder,
        )
        broker = Broker(options, store, components)
        server = serving.attach(broker, components.sessions, grace_period_s=_LEAVE_DELAY_S)
        self._store = store
        self.address, port = await serving.listen()
        await self._listen_vip(server, serving.host, port)
        await self._listen_replicas(server, serving.host, port)
        serving.begin(
            self.address,
            lambda: broker_samples(options, store, components),
            lambda: None if store.is_writable else _UNWRITABLE,
            components.authority,
            components.door,
        )
        await self._wait_until_registered(components.registration)
        self._is_ready = True
        self._emit(
            Log(
                "info",
                "broker ready",
                {
                    "name": self._options.name,
                    "cluster": self._options.cluster,
                    "listen": self.address,
                    "store": self._options.store,
                    "flush": self._options.flush,
                },
            )
        )

    async def stop(self) -> None:
        """Stop in order: unregister, send the replies that are due, and close the store cleanly."""
        if self._serving is not None:
            await self._serving.stop()
        if self._store is not None:
            self._store.close(now_ms())
        self._disk.unlock()
        if self._serving is not None:
            self._serving.close()
        if self._is_ready:
            self._emit(Log("info", "broker stopped", {"name": self._options.name}))

    async def _wait_until_registered(self, registration: Registrar) -> None:
        """Wait until a name server knows this broker: clients look it up as soon as it reports ready."""
        for _ in range(_REGISTRATION_POLLS if self._options.namesrv else 0):
            if registration.is_registered():
                return
            await asyncio.sleep(_REGISTRATION_POLL_S)

    async def _listen_vip(self, server: MachineServer, host: str, port: int) -> None:
        try:
            await server.listen(host, port - _VIP_PORT_OFFSET)
        except (ConfigError, PortTaken) as error:
            # Only clients before 4.5 need it: a warning is enough, the broker can start without it.
            self._emit(
                Log("warning", "old clients' port is taken", {"port": port - _VIP_PORT_OFFSET, "reason": str(error)})
            )

    async def _listen_replicas(self, server: MachineServer, host: str, port: int) -> None:
        """Listen for replicas, on a master only: a replica of a replica would receive nothing but the log."""
        if self._options.is_replica:
            return
        ha_port = self._options.ha_port or port + 1
        try:
            await server.listen(host, ha_port, stream_purpose=REPLICATION)
        except (ConfigError, PortTaken) as error:
            if self._options.ha_port is not None:
                raise PortTaken(
                    f"cannot listen on ha_port {ha_port} of {host}: stop the process that uses it, or set another"
                    f" ha_port; {port} and {port - _VIP_PORT_OFFSET} are used by this broker itself"
                ) from error
            self._emit(Log("warning", "replication port is taken", {"port": ha_port, "reason": str(error)}))


def store_options(options: BrokerOptions) -> StoreOptions:
    """Return the store's part of the broker options."""
    return StoreOptions(
        store_host=pack_host(options.address),
        log_file_size=options.log_file_size,
        queue_file_size=options.queue_file_entries * 20,
        batch_file_size=options.queue_file_entries * 46,
        index_slots=options.index_slots,
        index_items=options.index_entries,
        body_size_max=options.message_size_max,
        retention_ms=options.retention_hours * 3_600_000,
        clean_forced_percent=options.disk_force_percent,
        disk_full_percent=options.disk_full_percent,
        is_replica=options.is_replica,
    )
