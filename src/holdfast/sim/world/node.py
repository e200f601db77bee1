"""A host whose process can be killed, stopped, and restarted on the data that its disk kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from holdfast.machine.machine import Machine
from holdfast.model.errors import DiskFailed
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.network import Network
from holdfast.sim.world.shell import HostEnvironment, Shell
from holdfast.sim.world.world import World


class BuiltMachine(msgspec.Struct, frozen=True):
    """A machine that is ready to run.

    Attributes:
        close: Called with the time after an orderly stop.
        synced: The position up to which its log is on disk.
    """

    machine: Machine
    close: Callable[[int], None] | None = None
    synced: int = 0


MachineFactory = Callable[[HostEnvironment, int], BuiltMachine]
"""Makes a machine from the data on a host, at a time of the host's clock."""


class Node:
    """One host and its process.

    Attributes:
        shell: The process; None while it does not run.
        disk: None for a role that stores nothing.
        synced: The last known position up to which its log was on disk.
        on_power_lost: Called before the disk loses unsynced writes.
        on_ended: Called when the process has ended, with the time of its orderly stop, at which it saved its state;
            None after a kill or power loss.
        is_start_blocked: Whether starting it is forbidden.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        environment: HostEnvironment,
        build_machine: MachineFactory,
        *,
        addresses: tuple[str, ...] = (),
        streams: Mapping[str, str] | None = None,
    ) -> None:
        self.environment = environment
        self.disk = environment.disk if isinstance(environment.disk, SimDisk) else None
        self.shell: Shell | None = None
        self.on_power_lost: Callable[[Node], None] | None = None
        self.on_ended: Callable[[Node, int | None], None] | None = None
        self.is_start_blocked = False
        self.start_count = 0
        self._world = world
        self._network = network
        self._build_machine = build_machine
        self._addresses = addresses
        self._streams = streams
        self._synced = 0
        self._is_powered_off = False

    @property
    def name(self) -> str:
        """Its name in the trace."""
        return self.environment.name

    @property
    def host(self) -> str:
        """Its address in the network."""
        return self.environment.host

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.shell is not None

    @property
    def synced(self) -> int:
        """The last known position up to which its log was on disk."""
        return max(self._synced, self.shell.synced if self.shell is not None else 0)

    def start(self) -> bool:
        """Start the process unless it runs; return whether it runs now. A disk failure makes the start fail."""
        if self.shell is not None:
            return True
        if self.is_start_blocked:
            return False
        if self._is_powered_off:
            self._is_powered_off = False
            self._network.power_on(self.host)
        now_ms = self._world.now_ms + self.environment.skew_ms
        if self.disk is not None:
            self.disk.now_ms = now_ms
        try:
            built = self._build_machine(self.environment, now_ms)
        except DiskFailed as error:
            self._world.trace.note(self.name, "start failed", str(error))
            return False
        self._world.trace.note(self.name, "started")
        self.start_count += 1
        self._close = built.close
        self._synced = max(self._synced, built.synced)
        self.shell = Shell(self._world, self._network, self.environment, built.machine)
        self.shell.start(*self._addresses, streams=self._streams)
        return True

    def kill(self) -> None:
        """End the process at once; its host and the page cache survive."""
        shell = self._detach_shell()
        if shell is not None:
            self._world.trace.note(self.name, "killed")
            shell.kill()
            if self.on_ended is not None:
                self.on_ended(self, None)

    def power_off(self) -> None:
        """Cut the power of the host, whether the process runs or not."""
        if self._is_powered_off:
            return
        self._world.trace.note(self.name, "power lost", f"synced to {self.synced}")
        self._is_powered_off = True
        if self.on_power_lost is not None:
            self.on_power_lost(self)
        shell = self._detach_shell()
        if shell is not None:
            shell.power_off()
            if self.on_ended is not None:
                self.on_ended(self, None)
        if self.disk is not None:
            self.disk.crash(self.environment.rng)

    def stop(self, then: Callable[[], None]) -> None:
        """Stop the process in order, then call *then*."""
        shell = self.shell
        if shell is None:
            then()
            return

        stopped_ms = self._world.now_ms

        def ended() -> None:
            if self.shell is shell:
                if self._close is not None:
                    self._close_store()
                self._detach_shell()
                self._world.trace.note(self.name, "stopped")
                if self.on_ended is not None:
                    self.on_ended(self, stopped_ms)
                then()

        self._world.trace.note(self.name, "stopping")
        shell.stop(ended)

    def _close_store(self) -> None:
        assert self._close is not None
        try:
            self._close(self._world.now_ms + self.environment.skew_ms)
        except DiskFailed as error:
            self._world.trace.note(self.name, "close failed", str(error))

    def _detach_shell(self) -> Shell | None:
        shell, self.shell = self.shell, None
        if shell is not None:
            self._synced = max(self._synced, shell.synced)
        return shell
