"""Injects faults into processes, hosts, links, connections, disks and clocks, at random moments.

Every fault ends after a while. `heal` ends all remaining faults when the storm is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from holdfast.model.errors import DiskFailed
from holdfast.sim.actors.forcer import Forcer
from holdfast.sim.cluster import Cluster
from holdfast.sim.world.network import Socket, Weather
from holdfast.sim.world.node import Node
from holdfast.sim.world.shell import DiskPace

_RESTART_MS: Final = (200, 12_000)
_SHORT_MS: Final = (500, 15_000)
_SOON_MS: Final = 50
_DETOUR_MS: Final = (4_000, 12_000)
_AMBUSH_MS: Final = (0, 80)
_GRANT_MS: Final = 3_000
_REPLACED_MS: Final = (5_500, 9_500)
"""How long a broker stays down so that its leases have just expired when it is back."""
_SPEAK_MS: Final = (700, 2_000)
_UNHEARD_MS: Final = 15_000
_SOON_RANGE_MS: Final = (20, 400)
_WATCH_MS: Final = 10
_LOST_MS: Final = (3_000, 25_000)
_CALLS_THAT_FAIL: Final = frozenset({"write", "sync", "create", "replace", "erase"})


class Nemesis:
    """Injects the faults of one run.

    Attributes:
        counts: By kind of fault, how often it occurred.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._world = cluster.world
        self._chance = cluster.world.chance("nemesis")
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
            "late word": self._late_word,
            "lost copy": self._lose_copy,
            "sever": self._sever,
            "lose unit": self._lose_unit,
        }
        self._ambushes = self._grants_to_lose = 0
        self._forced: list[Forcer] = []
        cluster.on_order = self._ordered

    def start(self) -> None:
        """Start injecting faults, if the plan has any."""
        if self._cluster.plan.faults:
            self._rest()

    def heal(self) -> None:
        """End all faults. Clocks keep the time they have."""
        self._is_over = True
        cluster = self._cluster
        cluster.network.weather = Weather()
        cluster.network.mend()
        for node in cluster.nodes:
            if node.disk is not None and node.disk.before is not None:
                node.disk.before = None
                node.kill()  # A store rejects writes after a disk failure, until it is restarted.
            node.around.pace = DiskPace()
            if not node.start():
                self._restart(node)

    @property
    def forced_count(self) -> int:
        """The number of queues that were moved by force."""
        return sum(forcer.count for forcer in self._forced)

    def _rest(self) -> None:
        pause_ms = self._chance.randrange(2 * self._cluster.plan.pause_ms)
        self._world.schedule(self._strike, delay_ms=pause_ms)

    def _strike(self) -> None:
        if self._is_over:
            return
        kind = self._chance.choice(self._cluster.plan.faults)
        what = self._faults[kind]()
        if what is not None:
            self.counts[kind] += 1
            self._world.trace.note("nemesis", kind, what)
        self._rest()

    def _later(self, span_ms: tuple[int, int], action: Callable[[], object]) -> None:
        """Run *action*, which ends a fault, after a random time, unless the storm is over by then."""

        def act() -> None:
            if not self._is_over:
                action()

        self._world.schedule(act, delay_ms=self._chance.randint(*span_ms))

    def _restart(self, node: Node) -> None:
        """Start a process after a random time, or at once after the storm. Retry until its disk permits it."""

        def start() -> None:
            if not node.start():
                self._restart(node)

        self._world.schedule(start, delay_ms=_SOON_MS if self._is_over else self._chance.randint(*_RESTART_MS))

    # Processes and hosts.

    def _kill(self) -> str | None:
        return self._end(self._chance.choice(self._cluster.brokers))

    def _name_server(self) -> str | None:
        return self._end(self._chance.choice(self._cluster.name_servers))

    def _client(self) -> str | None:
        return self._end(self._chance.choice(self._cluster.clients))

    def _end(self, node: Node) -> str | None:
        if not node.is_up:
            return None
        if node in self._cluster.brokers or self._chance.random() < 0.5:
            node.kill()
        else:
            node.power_off()
        self._restart(node)
        return node.name

    def _power(self) -> str | None:
        node = self._chance.choice(self._cluster.brokers)
        was_up = node.is_up
        node.power_off()
        if was_up:
            self._restart(node)
        return node.name

    def _stop(self) -> str | None:
        node = self._chance.choice(self._cluster.servers)
        if not node.is_up:
            return None
        node.stop(lambda: self._restart(node))
        return node.name

    def _relapse(self) -> str | None:
        """Slow a broker's disk and kill the broker, then cut its power soon after it is back."""
        node = self._chance.choice(self._cluster.brokers)
        if not node.is_up:
            return None
        node.around.pace = DiskPace((2_000, 6_000), (0, 100))

        def cut() -> None:
            node.power_off()
            self._restart(node)

        def restart() -> None:
            node.around.pace = DiskPace()
            if node.start():
                self._later((500, 4_000), cut)
            else:
                self._restart(node)

        def kill() -> None:
            node.kill()
            self._later((100, 1_500), restart)

        self._later((300, 2_000), kill)
        return node.name

    # Moves.

    def _ambush(self) -> str | None:
        """Prepare a fault for the next move."""
        self._ambushes += 1
        return "waits for the next move"

    def _ordered(self, source: str, target: str) -> None:
        """Inject a prepared fault into the source or target of a move, shortly after the move was ordered."""
        if self._grants_to_lose:
            self._grants_to_lose -= 1
            self._watch_grant(source, target, self._world.now_ms + _GRANT_MS)
        if not self._ambushes or self._is_over:
            return
        self._ambushes -= 1
        nodes = {node.name: node for node in self._cluster.brokers}
        node = nodes[self._chance.choice((source, target))]
        strike = self._chance.choice(("kill", "kill", "power", "stop", "cut", "break", "slow", "name server"))

        def act() -> None:
            self._world.trace.note("nemesis", "ambush", f"{strike} {node.name} in the move {source} to {target}")
            if strike in {"kill", "power"} and node.is_up:
                node.kill() if strike == "kill" else node.power_off()
                self._restart(node)
            elif strike == "stop" and node.is_up:
                node.stop(lambda: self._restart(node))
            elif strike == "cut":
                links = [(nodes[one].host, nodes[other].host) for one, other in ((source, target), (target, source))]
                self._cut(links)
            elif strike == "break":
                self._break_peers()
            elif strike == "slow":
                self._slow(node, 1_000)
            elif strike == "name server":
                self._name_server()

        self._later(_AMBUSH_MS, act)

    def _lose_grant(self) -> str | None:
        """Prepare to lose the next grant: its broker dies before any other broker learns of it, and is replaced."""
        self._grants_to_lose += 1
        return "waits for the next grant"

    def _watch_grant(self, source: str, target: str, until_ms: int) -> None:
        """Kill *source* once it has granted queues to *target*; restart it when another broker may lead them."""
        nodes = {node.name: node for node in self._cluster.brokers}
        if self._is_over or self._world.now_ms > until_ms or not nodes[source].is_up:
            return
        moves = [state.move for state in self._cluster.rooms[source].mappings.moves().values()]
        if not any(move.state == "granted" and move.target == target for move in moves):
            self._world.schedule(lambda: self._watch_grant(source, target, until_ms), delay_ms=1)
            return
        others = [node for node in nodes.values() if node.is_up and node.name not in {source, target}]
        if self._cluster.plan.leases:
            nodes[source].power_off()
            self._later(_REPLACED_MS, nodes[source].start)
        elif others and not any(node.is_held for node in nodes.values()):
            self._force_from(nodes[source], self._chance.choice(others))
        self._world.trace.note("nemesis", "lost grant", f"{source} has granted to {target}")

    def _force(self) -> str | None:
        """Kill a leader as if for good, and have its queues moved by force."""
        pair = self._choose_heir()
        if pair is None:
            return None
        self._force_from(*pair)
        return f"{pair[0].name} is dead, {pair[1].name} leads"

    def _lose_copy(self) -> str | None:
        """Kill a leader as if for good, and restart the new leader before it is ordered to take over by force."""
        pair = self._choose_heir()
        if pair is None:
            return None
        self._force_from(*pair)
        pair[1].kill()
        self._later(_SOON_RANGE_MS, pair[1].start)
        return f"{pair[0].name} is dead, {pair[1].name} leads when it is back"

    def _choose_heir(self) -> tuple[Node, Node] | None:
        """Return a broker to declare dead and the broker to replace it; None if one is already declared dead."""
        site = self._chance.choice(self._cluster.sites) if len(self._cluster.sites) > 1 else self._cluster.sites[0]
        up = [node for node in site.brokers if node.is_up]
        if len(up) < 2 or any(node.is_held for node in self._cluster.brokers):
            return None
        victim, target = self._chance.sample(up, 2)
        return victim, target

    def _force_from(self, victim: Node, target: Node) -> None:
        cluster = self._cluster
        victim.is_held = True
        victim.kill() if self._chance.random() < 0.5 else victim.power_off()

        def release() -> None:
            victim.is_held = False
            self._restart(victim)

        are_sound = not cluster.progress.tainted
        cluster.site_of(victim.name).give_up(victim.name, target.name, are_copies_sound=are_sound)
        forcer = cluster.make_forcer(len(self._forced), victim.name, target.name, release)
        self._forced.append(forcer)
        cluster.add_client(forcer)

    # The network.

    def _partition(self) -> str | None:
        """Cut a few hosts off from all others, in both directions or in one."""
        hosts = [node.host for node in self._cluster.nodes]
        island = self._chance.sample(hosts, self._chance.randint(1, max(1, len(hosts) // 2)))
        is_inward, is_outward = self._chance.choice(((True, True), (True, True), (True, False), (False, True)))
        links = []
        for inside in island:
            for outside in hosts:
                if outside in island:
                    continue
                links += [(outside, inside)] if is_inward else []
                links += [(inside, outside)] if is_outward else []
        self._cut(links)
        return f"{' '.join(sorted(island))} in={is_inward} out={is_outward}"

    def _sever(self) -> str | None:
        """Cut the links between units, all of them or one direction. The name servers stay reachable for all."""
        sites = self._cluster.sites
        pairs = [(one, other) for one in sites for other in sites if one is not other]
        chosen = pairs if self._chance.random() < 0.7 else [self._chance.choice(pairs)]
        hosts = {site.unit: self._cluster.hosts_of(site) for site in sites}
        self._cut([(here, there) for one, other in chosen for here in hosts[one.unit] for there in hosts[other.unit]])
        return ", ".join(f"{one.unit} from {other.unit}" for one, other in chosen)

    def _lose_unit(self) -> str | None:
        """End all processes of a unit. Later restart its brokers on their disks, and then its clients."""
        site = self._chance.choice(self._cluster.sites)
        hosts = set(self._cluster.hosts_of(site))
        nodes = [node for node in self._cluster.nodes if node.host in hosts]
        if any(node.is_held for node in self._cluster.nodes):
            return None
        is_power = self._chance.random() < 0.5
        for node in nodes:
            node.is_held = True
            node.power_off() if is_power else node.kill()

        def release(some: list[Node]) -> None:
            for node in some:
                node.is_held = False
                self._restart(node)

        brokers_ms, clients_ms = sorted(self._chance.randint(*_LOST_MS) for _ in range(2))
        brokers = [node for node in nodes if node in self._cluster.brokers]
        self._world.schedule(lambda: release(brokers), delay_ms=brokers_ms)
        clients = [node for node in nodes if node not in brokers]
        self._world.schedule(lambda: release(clients), delay_ms=clients_ms)
        return f"{site.unit}, for {brokers_ms} and {clients_ms} ms"

    def _cut(self, links: list[tuple[str, str]]) -> None:
        for source, target in links:
            self._cluster.network.cut(source, target)
        self._later(_SHORT_MS, lambda: self._cluster.network.mend(links))

    def _break(self) -> str | None:
        return self._break_some(self._cluster.network.connections())

    def _break_peers(self) -> str | None:
        """Break connections between brokers: a relayed request may or may not have arrived."""
        brokers = {node.host for node in self._cluster.brokers}
        sockets = self._cluster.network.connections()
        return self._break_some(
            [socket for socket in sockets if socket.owner.host in brokers and socket.peer.owner.host in brokers]
        )

    def _detour(self) -> str | None:
        """Delay a broker's registration, so that a later one may arrive first."""
        ways = self._ways({node.host for node in self._cluster.brokers})
        if not ways:
            return None
        chosen = self._chance.choice(ways)
        self._cluster.network.delay(chosen, self._chance.randint(*_DETOUR_MS))
        return f"{chosen.owner.host} to {chosen.peer.owner.host}"

    def _ways(self, hosts: set[str]) -> list[Socket]:
        """Return the connections of *hosts* to name servers."""
        servers = {node.host for node in self._cluster.name_servers}
        sockets = self._cluster.network.connections()
        return [socket for socket in sockets if socket.owner.host in hosts and socket.peer.owner.host in servers]

    def _late_word(self) -> str | None:
        """Silence one broker and restart another while the messages of that one's old process are delayed."""
        up = [node for node in self._cluster.brokers if node.is_up]
        if len(up) < 2 or not self._cluster.plan.leases:
            return None
        silent, heir = self._chance.sample(up, 2)
        silent.power_off()

        def delay() -> None:
            ways = self._ways({heir.host})
            for way in ways:
                self._cluster.network.delay(way, _UNHEARD_MS)
            self._later(_SPEAK_MS, lambda: end(ways))

        def end(ways: list[Socket]) -> None:
            heir.kill()
            self._later(_SOON_RANGE_MS, heir.start)
            self._watch_claim(silent, heir, ways, self._world.now_ms + _UNHEARD_MS)

        self._later(_SPEAK_MS, delay)
        return f"{silent.name} is silent, {heir.name} speaks twice"

    def _watch_claim(self, silent: Node, heir: Node, ways: list[Socket], until_ms: int) -> None:
        """End the delays once the heir has claimed a queue of the silent broker, and before it has opened it."""
        if not self._cluster.has_claimed(heir.name, silent.name) and self._world.now_ms < until_ms:
            self._later((_WATCH_MS, _WATCH_MS), lambda: self._watch_claim(silent, heir, ways, until_ms))
            return
        if not silent.start():
            self._restart(silent)
        for way in ways:
            self._cluster.network.delay(way, self._chance.randint(*_SOON_RANGE_MS))

    def _break_some(self, sockets: list[Socket]) -> str | None:
        if not sockets:
            return None
        chosen = self._chance.sample(sockets, self._chance.randint(1, min(4, len(sockets))))
        for socket in chosen:
            self._cluster.network.break_connection(socket, is_seen_by_both=self._chance.random() < 0.5)
        return f"{len(chosen)} connections"

    def _weather(self) -> str | None:
        slowest_ms = self._chance.choice((20, 200, 1000))
        self._cluster.network.weather = Weather(
            delay_ms=(0, slowest_ms), spike=self._chance.choice((0.0, 0.1)), spike_ms=5_000, cut=self._chance.random()
        )
        self._later(_SHORT_MS, lambda: setattr(self._cluster.network, "weather", Weather()))
        return f"up to {slowest_ms} ms"

    # Disks and clocks.

    def _slow_disk(self) -> str | None:
        node = self._chance.choice(self._cluster.brokers)
        slowest_ms = self._chance.choice((100, 1000, 5000))
        self._slow(node, slowest_ms)
        return f"{node.name} up to {slowest_ms} ms"

    def _slow(self, node: Node, slowest_ms: int) -> None:
        node.around.pace = DiskPace((slowest_ms // 2, slowest_ms), (0, slowest_ms))
        self._later(_SHORT_MS, lambda: setattr(node.around, "pace", DiskPace()))

    def _disk_error(self) -> str | None:
        """Let every write to a broker's disk fail from a random call on, until the broker is restarted."""
        node = self._chance.choice(self._cluster.brokers)
        disk = node.disk
        assert disk is not None
        if disk.before is not None:
            return None
        calls_left = self._chance.randrange(30)

        def fail(call: str, path: str) -> None:
            nonlocal calls_left
            if call in _CALLS_THAT_FAIL:
                calls_left -= 1
                if calls_left < 0:
                    raise DiskFailed(f"{call} of {path}: input/output error")

        def replace() -> None:
            disk.before = None
            node.kill()
            self._restart(node)

        disk.before = fail
        self._later(_SHORT_MS, replace)
        return f"{node.name} after {calls_left} calls"

    def _clock(self) -> str | None:
        node = self._chance.choice(self._cluster.servers)
        jump_ms = self._chance.randrange(-20_000, 20_000)
        node.around.skew_ms += jump_ms
        return f"{node.name} {jump_ms:+} ms"
