"""Injects faults into processes, hosts, links, connections, disks and clocks, at random moments.

Every fault ends after a while. `heal` ends all remaining faults when the storm is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from holdfast.model.errors import DiskFailed
from holdfast.sim.actors.forcer import ForcedMover
from holdfast.sim.cluster import SimCluster
from holdfast.sim.world.network import NetworkConditions, Socket
from holdfast.sim.world.node import Node
from holdfast.sim.world.shell import DiskLatency

_RESTART_MS: Final = (200, 12_000)
_SHORT_MS: Final = (500, 15_000)
_SOON_MS: Final = 50
_DETOUR_MS: Final = (4_000, 12_000)
_AMBUSH_MS: Final = (0, 80)
_GRANT_MS: Final = 3_000
_REPLACED_MS: Final = (5_500, 9_500)
"""How long a broker stays down so that its leases have just expired when it is back."""
_REGISTER_MS: Final = (700, 2_000)
_STALE_DELAY_MS: Final = 15_000
_SOON_RANGE_MS: Final = (20, 400)
_WATCH_MS: Final = 10
_LOST_MS: Final = (3_000, 25_000)
_FAILING_CALLS: Final = frozenset({"write", "sync", "create", "replace", "erase"})


class Nemesis:
    """Injects the faults of one run.

    Attributes:
        counts: By kind of fault, how often it occurred.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.world.rng("nemesis")
        self._is_over = False
        self._faults: dict[str, Callable[[], str | None]] = {
            "kill": self._kill,
            "power": self._power,
            "stop": self._stop,
            "relapse": self._relapse,
            "partition": self._partition,
            "break": self._break,
            "weather": self._weather,
            "slow disk": self._slow_disk,
            "disk error": self._disk_error,
            "clock": self._clock,
            "name server": self._name_server,
            "client": self._client,
            "ambush": self._ambush,
            "break peers": self._break_peers,
            "force": self._force,
            "detour": self._detour,
            "lost grant": self._lose_grant,
            "late word": self._delay_stale_messages,
            "lost copy": self._lose_backup,
            "sever": self._sever,
            "lose unit": self._lose_unit,
        }
        self._ambush_count = self._grants_to_lose = 0
        self._forced_movers: list[ForcedMover] = []
        cluster.on_move_ordered = self._on_move_ordered

    def start(self) -> None:
        """Start injecting faults, if the plan has any."""
        if self._cluster.plan.faults:
            self._schedule_next()

    def heal(self) -> None:
        """End all faults. Clocks keep the time they have."""
        self._is_over = True
        cluster = self._cluster
        cluster.network.conditions = NetworkConditions()
        cluster.network.mend()
        for node in cluster.nodes:
            if node.disk is not None and node.disk.before is not None:
                node.disk.before = None
                node.kill()  # A store rejects writes after a disk failure, until it is restarted.
            node.environment.disk_latency = DiskLatency()
            if not node.start():
                self._restart(node)

    @property
    def forced_count(self) -> int:
        """The number of queues that were moved by force."""
        return sum(mover.opened_count for mover in self._forced_movers)

    def _schedule_next(self) -> None:
        pause_ms = self._rng.randrange(2 * self._cluster.plan.fault_pause_ms)
        self._world.schedule(self._inject, delay_ms=pause_ms)

    def _inject(self) -> None:
        if self._is_over:
            return
        kind = self._rng.choice(self._cluster.plan.faults)
        description = self._faults[kind]()
        if description is not None:
            self.counts[kind] += 1
            self._world.trace.note("nemesis", kind, description)
        self._schedule_next()

    def _schedule(self, span_ms: tuple[int, int], action: Callable[[], object]) -> None:
        """Run *action*, which ends a fault, after a random time, unless the storm is over by then."""

        def act() -> None:
            if not self._is_over:
                action()

        self._world.schedule(act, delay_ms=self._rng.randint(*span_ms))

    def _restart(self, node: Node) -> None:
        """Start a process after a random time, or at once after the storm. Retry until its disk permits it."""

        def start() -> None:
            if not node.start():
                self._restart(node)

        self._world.schedule(start, delay_ms=_SOON_MS if self._is_over else self._rng.randint(*_RESTART_MS))

    # Processes and hosts.

    def _kill(self) -> str | None:
        return self._end_process(self._rng.choice(self._cluster.brokers))

    def _name_server(self) -> str | None:
        return self._end_process(self._rng.choice(self._cluster.name_servers))

    def _client(self) -> str | None:
        return self._end_process(self._rng.choice(self._cluster.clients))

    def _end_process(self, node: Node) -> str | None:
        if not node.is_up:
            return None
        if node in self._cluster.brokers or self._rng.random() < 0.5:
            node.kill()
        else:
            node.power_off()
        self._restart(node)
        return node.name

    def _power(self) -> str | None:
        node = self._rng.choice(self._cluster.brokers)
        was_up = node.is_up
        node.power_off()
        if was_up:
            self._restart(node)
        return node.name

    def _stop(self) -> str | None:
        node = self._rng.choice(self._cluster.servers)
        if not node.is_up:
            return None
        node.stop(lambda: self._restart(node))
        return node.name

    def _relapse(self) -> str | None:
        """Slow a broker's disk and kill the broker, then cut its power soon after it is back."""
        node = self._rng.choice(self._cluster.brokers)
        if not node.is_up:
            return None
        node.environment.disk_latency = DiskLatency((2_000, 6_000), (0, 100))

        def cut_power() -> None:
            node.power_off()
            self._restart(node)

        def restart() -> None:
            node.environment.disk_latency = DiskLatency()
            if node.start():
                self._schedule((500, 4_000), cut_power)
            else:
                self._restart(node)

        def kill() -> None:
            node.kill()
            self._schedule((100, 1_500), restart)

        self._schedule((300, 2_000), kill)
        return node.name

    # Moves.

    def _ambush(self) -> str | None:
        """Prepare a fault for the next move."""
        self._ambush_count += 1
        return "waits for the next move"

    def _on_move_ordered(self, source: str, target: str) -> None:
        """Inject a prepared fault into the source or target of a move, shortly after the move was ordered."""
        if self._grants_to_lose:
            self._grants_to_lose -= 1
            self._watch_grant(source, target, self._world.now_ms + _GRANT_MS)
        if not self._ambush_count or self._is_over:
            return
        self._ambush_count -= 1
        nodes = {node.name: node for node in self._cluster.brokers}
        node = nodes[self._rng.choice((source, target))]
        fault = self._rng.choice(("kill", "kill", "power", "stop", "cut", "break", "slow", "name server"))

        def act() -> None:
            self._world.trace.note("nemesis", "ambush", f"{fault} {node.name} in the move {source} to {target}")
            if fault in {"kill", "power"} and node.is_up:
                node.kill() if fault == "kill" else node.power_off()
                self._restart(node)
            elif fault == "stop" and node.is_up:
                node.stop(lambda: self._restart(node))
            elif fault == "cut":
                links = [(nodes[one].host, nodes[other].host) for one, other in ((source, target), (target, source))]
                self._cut_links(links)
            elif fault == "break":
                self._break_peers()
            elif fault == "slow":
                self._slow(node, 1_000)
            elif fault == "name server":
                self._name_server()

        self._schedule(_AMBUSH_MS, act)

    def _lose_grant(self) -> str | None:
        """Prepare to lose the next grant: its broker dies before any other broker learns of it, and is replaced."""
        self._grants_to_lose += 1
        return "waits for the next grant"

    def _watch_grant(self, source: str, target: str, until_ms: int) -> None:
        """Kill *source* once it has granted queues to *target*; restart it when another broker may lead them."""
        nodes = {node.name: node for node in self._cluster.brokers}
        if self._is_over or self._world.now_ms > until_ms or not nodes[source].is_up:
            return
        moves = [state.move for state in self._cluster.components[source].mappings.moves().values()]
        if not any(move.state == "granted" and move.target == target for move in moves):
            self._world.schedule(lambda: self._watch_grant(source, target, until_ms), delay_ms=1)
            return
        candidates = [node for node in nodes.values() if node.is_up and node.name not in {source, target}]
        if self._cluster.plan.leases_enabled:
            nodes[source].power_off()
            self._schedule(_REPLACED_MS, nodes[source].start)
        elif candidates and not any(node.is_start_blocked for node in nodes.values()):
            self._force_moves(nodes[source], self._rng.choice(candidates))
        self._world.trace.note("nemesis", "lost grant", f"{source} has granted to {target}")

    def _force(self) -> str | None:
        """Kill a leader as if for good, and have its queues moved by force."""
        pair = self._choose_forced_pair()
        if pair is None:
            return None
        self._force_moves(*pair)
        return f"{pair[0].name} is dead, {pair[1].name} leads"

    def _lose_backup(self) -> str | None:
        """Kill a leader as if for good, and restart the new leader before it is ordered to take over by force."""
        pair = self._choose_forced_pair()
        if pair is None:
            return None
        self._force_moves(*pair)
        pair[1].kill()
        self._schedule(_SOON_RANGE_MS, pair[1].start)
        return f"{pair[0].name} is dead, {pair[1].name} leads when it is back"

    def _choose_forced_pair(self) -> tuple[Node, Node] | None:
        """Return a broker to declare dead and the broker to replace it; None if one is already declared dead."""
        site = self._rng.choice(self._cluster.sites) if len(self._cluster.sites) > 1 else self._cluster.sites[0]
        up = [node for node in site.brokers if node.is_up]
        if len(up) < 2 or any(node.is_start_blocked for node in self._cluster.brokers):
            return None
        victim, target = self._rng.sample(up, 2)
        return victim, target

    def _force_moves(self, victim: Node, target: Node) -> None:
        cluster = self._cluster
        victim.is_start_blocked = True
        victim.kill() if self._rng.random() < 0.5 else victim.power_off()

        def release() -> None:
            victim.is_start_blocked = False
            self._restart(victim)

        are_valid = not cluster.progress_checker.tainted
        cluster.site_of(victim.name).declare_dead(victim.name, target.name, are_backups_valid=are_valid)
        mover = cluster.make_forced_mover(len(self._forced_movers), victim.name, target.name, release)
        self._forced_movers.append(mover)
        cluster.add_client(mover)

    # The network.

    def _partition(self) -> str | None:
        """Cut a few hosts off from all others, in both directions or in one."""
        hosts = [node.host for node in self._cluster.nodes]
        island = self._rng.sample(hosts, self._rng.randint(1, max(1, len(hosts) // 2)))
        is_inward, is_outward = self._rng.choice(((True, True), (True, True), (True, False), (False, True)))
        links = []
        for inside in island:
            for outside in hosts:
                if outside in island:
                    continue
                links += [(outside, inside)] if is_inward else []
                links += [(inside, outside)] if is_outward else []
        self._cut_links(links)
        return f"{' '.join(sorted(island))} in={is_inward} out={is_outward}"

    def _sever(self) -> str | None:
        """Cut the links between units, all of them or one direction. The name servers stay reachable for all."""
        sites = self._cluster.sites
        pairs = [(one, other) for one in sites for other in sites if one is not other]
        chosen = pairs if self._rng.random() < 0.7 else [self._rng.choice(pairs)]
        hosts = {site.unit: self._cluster.hosts_of(site) for site in sites}
        self._cut_links(
            [(here, there) for one, other in chosen for here in hosts[one.unit] for there in hosts[other.unit]]
        )
        return ", ".join(f"{one.unit} from {other.unit}" for one, other in chosen)

    def _lose_unit(self) -> str | None:
        """End all processes of a unit. Later restart its brokers on their disks, and then its clients."""
        site = self._rng.choice(self._cluster.sites)
        hosts = set(self._cluster.hosts_of(site))
        nodes = [node for node in self._cluster.nodes if node.host in hosts]
        if any(node.is_start_blocked for node in self._cluster.nodes):
            return None
        is_power = self._rng.random() < 0.5
        for node in nodes:
            node.is_start_blocked = True
            node.power_off() if is_power else node.kill()

        def release(group: list[Node]) -> None:
            for node in group:
                node.is_start_blocked = False
                self._restart(node)

        brokers_ms, clients_ms = sorted(self._rng.randint(*_LOST_MS) for _ in range(2))
        brokers = [node for node in nodes if node in self._cluster.brokers]
        self._world.schedule(lambda: release(brokers), delay_ms=brokers_ms)
        clients = [node for node in nodes if node not in brokers]
        self._world.schedule(lambda: release(clients), delay_ms=clients_ms)
        return f"{site.unit}, for {brokers_ms} and {clients_ms} ms"

    def _cut_links(self, links: list[tuple[str, str]]) -> None:
        for source, target in links:
            self._cluster.network.cut_link(source, target)
        self._schedule(_SHORT_MS, lambda: self._cluster.network.mend(links))

    def _break(self) -> str | None:
        return self._break_random(self._cluster.network.connections())

    def _break_peers(self) -> str | None:
        """Break connections between brokers: a relayed request may or may not have arrived."""
        brokers = {node.host for node in self._cluster.brokers}
        sockets = self._cluster.network.connections()
        return self._break_random(
            [socket for socket in sockets if socket.owner.host in brokers and socket.peer.owner.host in brokers]
        )

    def _detour(self) -> str | None:
        """Delay a broker's registration, so that a later one may arrive first."""
        connections = self._name_server_connections({node.host for node in self._cluster.brokers})
        if not connections:
            return None
        chosen = self._rng.choice(connections)
        self._cluster.network.delay(chosen, self._rng.randint(*_DETOUR_MS))
        return f"{chosen.owner.host} to {chosen.peer.owner.host}"

    def _name_server_connections(self, hosts: set[str]) -> list[Socket]:
        """Return the connections of *hosts* to name servers."""
        servers = {node.host for node in self._cluster.name_servers}
        sockets = self._cluster.network.connections()
        return [socket for socket in sockets if socket.owner.host in hosts and socket.peer.owner.host in servers]

    def _delay_stale_messages(self) -> str | None:
        """Silence one broker and restart another while the messages of that one's old process are delayed."""
        up = [node for node in self._cluster.brokers if node.is_up]
        if len(up) < 2 or not self._cluster.plan.leases_enabled:
            return None
        silent, successor = self._rng.sample(up, 2)
        silent.power_off()

        def delay() -> None:
            connections = self._name_server_connections({successor.host})
            for connection in connections:
                self._cluster.network.delay(connection, _STALE_DELAY_MS)
            self._schedule(_REGISTER_MS, lambda: end(connections))

        def end(connections: list[Socket]) -> None:
            successor.kill()
            self._schedule(_SOON_RANGE_MS, successor.start)
            self._watch_claim(silent, successor, connections, self._world.now_ms + _STALE_DELAY_MS)

        self._schedule(_REGISTER_MS, delay)
        return f"{silent.name} is silent, {successor.name} speaks twice"

    def _watch_claim(self, silent: Node, successor: Node, connections: list[Socket], until_ms: int) -> None:
        """End the delays once *successor* has claimed a queue of *silent*, and before it has opened it."""
        if not self._cluster.has_claimed(successor.name, silent.name) and self._world.now_ms < until_ms:
            self._schedule((_WATCH_MS, _WATCH_MS), lambda: self._watch_claim(silent, successor, connections, until_ms))
            return
        if not silent.start():
            self._restart(silent)
        for connection in connections:
            self._cluster.network.delay(connection, self._rng.randint(*_SOON_RANGE_MS))

    def _break_random(self, sockets: list[Socket]) -> str | None:
        if not sockets:
            return None
        chosen = self._rng.sample(sockets, self._rng.randint(1, min(4, len(sockets))))
        for socket in chosen:
            self._cluster.network.break_connection(socket, is_seen_by_both=self._rng.random() < 0.5)
        return f"{len(chosen)} connections"

    def _weather(self) -> str | None:
        slowest_ms = self._rng.choice((20, 200, 1000))
        self._cluster.network.conditions = NetworkConditions(
            delay_ms=(0, slowest_ms),
            spike_probability=self._rng.choice((0.0, 0.1)),
            spike_ms=5_000,
            partial_read=self._rng.random(),
        )
        self._schedule(_SHORT_MS, lambda: setattr(self._cluster.network, "conditions", NetworkConditions()))
        return f"up to {slowest_ms} ms"

    # Disks and clocks.

    def _slow_disk(self) -> str | None:
        node = self._rng.choice(self._cluster.brokers)
        slowest_ms = self._rng.choice((100, 1000, 5000))
        self._slow(node, slowest_ms)
        return f"{node.name} up to {slowest_ms} ms"

    def _slow(self, node: Node, slowest_ms: int) -> None:
        node.environment.disk_latency = DiskLatency((slowest_ms // 2, slowest_ms), (0, slowest_ms))
        self._schedule(_SHORT_MS, lambda: setattr(node.environment, "disk_latency", DiskLatency()))

    def _disk_error(self) -> str | None:
        """Let every write to a broker's disk fail from a random call on, until the broker is restarted."""
        node = self._rng.choice(self._cluster.brokers)
        disk = node.disk
        assert disk is not None
        if disk.before is not None:
            return None
        calls_remaining = self._rng.randrange(30)

        def fail(call: str, path: str) -> None:
            nonlocal calls_remaining
            if call in _FAILING_CALLS:
                calls_remaining -= 1
                if calls_remaining < 0:
                    raise DiskFailed(f"{call} of {path}: input/output error")

        def recover() -> None:
            disk.before = None
            node.kill()
            self._restart(node)

        disk.before = fail
        self._schedule(_SHORT_MS, recover)
        return f"{node.name} after {calls_remaining} calls"

    def _clock(self) -> str | None:
        node = self._rng.choice(self._cluster.servers)
        jump_ms = self._rng.randrange(-20_000, 20_000)
        node.environment.skew_ms += jump_ms
        return f"{node.name} {jump_ms:+} ms"
