"""The broker's shell: opens the store, listens, and runs the broker until it is stopped.

Old clients send to the advertised port minus 2 (their "VIP channel"), so the broker serves both ports alike.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import msgspec

from holdfast.access.limits import LimitedRole
from holdfast.access.scrape_guard import ScrapeGuard
from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.metrics import broker_samples
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.options import BrokerOptions
from holdfast.broker.recovery_report import report_recovery
from holdfast.broker.replication.ha_master import PURPOSE as REPLICATION
from holdfast.machine.effects import Log
from holdfast.model.errors import ConfigError, PortTaken
from holdfast.runtime.access.acl_folder import open_acl_folder
from holdfast.runtime.access.audit_file import AuditFile
from holdfast.runtime.access.role_secrets_reader import read_metrics_token, read_role_secrets
from holdfast.runtime.address import check_listening, check_metrics_listening, split_address
from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import FrameLimits
from holdfast.runtime.descriptors import limit_unproven
from holdfast.runtime.logs import Emit
from holdfast.runtime.metrics import MetricsServer, Sample
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.runtime.server import MachineServer, now_ms
from holdfast.runtime.tls import RoleTls
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.host import pack_host

_VIP_PORT_OFFSET = 2
_LEAVE_DELAY_S = 0.5  # Time for clients to learn from their next answer that their queues have moved.
_REGISTRATION_POLL_S = 0.01
_REGISTRATION_POLLS = 50


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
        self._server: MachineServer | None = None
        self._metrics: MetricsServer | None = None
        self._store: MessageStore | None = None
        self._components: Components | None = None
        self._limited: LimitedRole | None = None
        self._audit: AuditFile | None = None
        self._is_ready = False
        self.address = options.listen

    async def start(self) -> None:
        """Open the store, listen on both ports, and register with the name servers.

        Raises:
            ConfigError: An address or a file cannot be used, or the network could reach an unprotected role.
            PortTaken: Another process listens on a port.
            StoreError: The store folder cannot be opened; the message says what to do.
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
            self._audit = AuditFile(options.audit_file, f"broker {options.name}", emit)
            emit = self._audit.emit
        self._disk.lock()
        store = MessageStore.open(self._disk, store_options(self._options), now_ms())
        for line in report_recovery(store.recovered, store.log.files.unused):
            self._emit(line)
        budget = MemoryBudget(self._options.memory_limit, self._emit)
        components = Components(
            self._options, store, self._disk, random.Random(), now_ms(), budget.pressure, secrets, acl_folder
        )
        broker = Broker(self._options, store, components)
        if LimitedRole.is_needed(options):
            self._limited = LimitedRole(broker, limit_unproven(options, self._emit), components.sessions)
        server = MachineServer(
            self._limited or broker,
            emit=emit,
            disk=self._disk,
            budget=budget,
            grace_period_s=_LEAVE_DELAY_S,
            tls=tls,
            frame_limits=FrameLimits(options.request_size_max, options.header_size_max),
        )
        self._store, self._components, self._server = store, components, server
        port = await server.listen(host, port)
        await self._listen_vip(server, host, port)
        await self._listen_replicas(server, host, port)
        self.address = f"{host}:{port}"
        if self._options.metrics_listen is not None:
            guard = ScrapeGuard(components.authority, components.door.audited, token, is_required=options.auth)
            self._metrics = MetricsServer(self._samples, self._find_fault, tls, guard, emit)
            self._metrics.start(*split_address(self._options.metrics_listen))
        if warning is not None:
            self._emit(Log("warning", warning, {"listen": self.address}))
        server.start()
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
        if self._metrics is not None:
            self._metrics.stop()
        if self._server is not None:
            await self._server.stop()
        if self._store is not None:
            self._store.close(now_ms())
        self._disk.unlock()
        if self._audit is not None:
            self._audit.close()
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

    def _samples(self) -> Iterator[Sample]:
        assert self._store is not None
        assert self._components is not None
        assert self._server is not None
        yield from broker_samples(self._options, self._store, self._components)
        yield from self._server.samples()
        if self._limited is not None:
            yield from self._limited.samples()

    def _find_fault(self) -> str | None:
        assert self._store is not None
        return None if self._store.is_writable else "the store refuses writes after a disk error; restart the broker"


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
