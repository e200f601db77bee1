from collections.abc import Callable

from holdfast.machine.effects import (
    CloseChannel,
    Effect,
    Log,
    OpenChannel,
    ReadLog,
    SendBytes,
    SetTimer,
    SyncLog,
    WriteFile,
)
from holdfast.machine.events import (
    ChannelClosed,
    ChannelFailed,
    ChannelOpened,
    DiskFault,
    Event,
    FileWritten,
    FramesReceived,
    LogRead,
    LogSynced,
    Started,
    Stopping,
    TimerFired,
)
from holdfast.model.errors import DiskFailed
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.network import Network
from holdfast.sim.world.shell import DiskLatency, HostEnvironment, Shell
from holdfast.sim.world.world import EPOCH_MS, World
from holdfast.wire.frames.command import Command, encode_command

ADDRESS = "10.0.0.1:10911"
Answer = Callable[[Event], list[Effect]]


class Puppet:
    """A machine that remembers what it was told, and does what its test says."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.events: list[Event] = []
        self.bodies: list[bytes] = []
        self.kept: list[memoryview] = []
        self._answer = answer or (lambda _event: [])

    def handle(self, event: Event) -> list[Effect]:
        self.events.append(event)
        if isinstance(event, FramesReceived):
            self.bodies += [bytes(frame.body) for frame in event.frames]
            self.kept += [frame.body for frame in event.frames]
        return self._answer(event)

    def seen(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


class Stage:
    """A world with a network, and shells in it."""

    def __init__(self) -> None:
        self.world = World(3)
        self.network = Network(self.world)
        self.disk = SimDisk()

    def shell(self, name: str, host: str, machine: Puppet, *addresses: str, skew_ms: int = 0) -> Shell:
        around = HostEnvironment(
            name=name,
            host=host,
            rng=self.world.rng(name),
            disk=self.disk,
            disk_latency=DiskLatency(),
            skew_ms=skew_ms,
        )
        shell = Shell(self.world, self.network, around, machine)
        shell.start(*addresses)
        return shell

    def pass_ms(self, span_ms: int) -> None:
        self.world.run(until_ms=self.world.now_ms + span_ms)


def talkative(count: int) -> Answer:
    """Dial, and send some frames as soon as the connection is there."""

    def answer(event: Event) -> list[Effect]:
        if isinstance(event, Started):
            return [OpenChannel(ADDRESS)]
        if isinstance(event, ChannelOpened):
            frames = [encode_command(Command(code=10, body=b"%d" % number * 50)) for number in range(count)]
            return [SendBytes(event.channel, frames)]
        return []

    return answer


def test_frames_arrive_whole_and_in_order_however_the_reads_fall():
    """The reads are cut anywhere; the machine sees frames."""
    stage, server, client = Stage(), Puppet(), Puppet(talkative(40))
    stage.shell("server", "10.0.0.1", server, ADDRESS)
    stage.shell("client", "10.0.0.2", client)

    stage.pass_ms(5_000)

    assert server.bodies == [b"%d" % number * 50 for number in range(40)]
    assert len(server.seen(FramesReceived)) > 1
    (opened,) = client.seen(ChannelOpened)
    assert isinstance(opened, ChannelOpened)
    assert opened.dialed == ADDRESS


def test_every_event_is_a_turn():
    """Whoever looks at a machine again after each of its turns misses nothing that it was told."""
    stage, server, client = Stage(), Puppet(), Puppet(talkative(3))
    shells = [stage.shell("server", "10.0.0.1", server, ADDRESS), stage.shell("client", "10.0.0.2", client)]

    stage.pass_ms(5_000)

    assert server.seen(FramesReceived)
    assert [shell.turns for shell in shells] == [len(server.events), len(client.events)]


def test_views_of_a_read_are_dead_when_the_machine_returns():
    """A machine that keeps one sees rubbish, as it would in the real shell, only sooner."""
    stage, server = Stage(), Puppet()
    stage.shell("server", "10.0.0.1", server, ADDRESS)
    stage.shell("client", "10.0.0.2", Puppet(talkative(1)))

    stage.pass_ms(1_000)

    assert server.bodies == [b"0" * 50]
    assert bytes(server.kept[0]) == b"\xdd" * 50


def test_a_peer_that_cannot_be_understood_is_hung_up_on():
    """Its channel alone."""

    def rude(event: Event) -> list[Effect]:
        if isinstance(event, Started):
            return [OpenChannel(ADDRESS)]
        return [SendBytes(event.channel, [b"\xff" * 20])] if isinstance(event, ChannelOpened) else []

    stage, server, client = Stage(), Puppet(), Puppet(rude)
    stage.shell("server", "10.0.0.1", server, ADDRESS)
    stage.shell("client", "10.0.0.2", client)

    stage.pass_ms(2_000)

    assert server.bodies == []
    assert server.seen(ChannelClosed)
    assert client.seen(ChannelClosed)


def test_a_dial_that_fails_is_told():
    """With the address that was dialled."""
    stage, client = Stage(), Puppet(talkative(1))
    stage.shell("client", "10.0.0.2", client)

    stage.pass_ms(5_000)

    (failed,) = client.seen(ChannelFailed)
    assert isinstance(failed, ChannelFailed)
    assert failed.dialed == ADDRESS


def test_a_timer_fires_once_and_a_second_of_its_name_replaces_it():
    """At the time that was asked for, by the host's own clock."""

    def answer(event: Event) -> list[Effect]:
        if isinstance(event, Started):
            return [SetTimer("a", event.now_ms + 50), SetTimer("a", event.now_ms + 200), SetTimer("b", event.now_ms)]
        return []

    stage, machine = Stage(), Puppet(answer)
    stage.shell("one", "10.0.0.1", machine, skew_ms=5_000)

    stage.pass_ms(1_000)

    fired = [(event.name, event.now_ms) for event in machine.seen(TimerFired) if isinstance(event, TimerFired)]
    assert fired == [("b", EPOCH_MS + 5_000), ("a", EPOCH_MS + 5_200)]


def test_a_clock_that_jumps_does_not_move_a_timer():
    """The time to wait was measured when it was set."""
    machine = Puppet(lambda event: [SetTimer("a", event.now_ms + 100)] if isinstance(event, Started) else [])
    stage = Stage()
    shell = stage.shell("one", "10.0.0.1", machine)
    stage.pass_ms(50)

    shell._environment.skew_ms -= 1_000_000
    stage.pass_ms(60)

    (fired,) = machine.seen(TimerFired)
    assert fired.now_ms == EPOCH_MS + 100 - 1_000_000


def writer(stage: Stage, positions: tuple[int, ...]) -> Answer:
    """Write and ask for a sync at every position, all at once."""

    def answer(event: Event) -> list[Effect]:
        if not isinstance(event, Started):
            return []
        file = stage.disk.create("commitlog/0", 4096)
        file.write(0, [b"record"])
        return [SyncLog((file,) if not number else (), position) for number, position in enumerate(positions)]

    return answer


def test_syncs_that_are_asked_for_meanwhile_become_one():
    """Group commit: the first alone, then everything that came while it was under way."""
    stage = Stage()
    machine = Puppet(writer(stage, (10, 20, 30)))
    shell = stage.shell("one", "10.0.0.1", machine)

    stage.pass_ms(100)

    synced = [event.position for event in machine.seen(LogSynced) if isinstance(event, LogSynced)]
    assert synced in ([10, 30], [10])
    assert shell.synced == synced[-1]


def test_a_sync_that_fails_is_a_disk_fault_and_never_tried_again():
    """The page cache may have dropped what it could not write."""

    def fail(call: str, path: str) -> None:
        if call == "sync":
            raise DiskFailed(f"{path} is gone")

    stage = Stage()
    machine = Puppet(writer(stage, (10,)))
    stage.disk.before = fail
    stage.shell("one", "10.0.0.1", machine)

    stage.pass_ms(100)

    assert len(machine.seen(DiskFault)) == 1
    assert machine.seen(LogSynced) == []


def test_reads_and_writes_of_files_end_later():
    """With what they brought."""

    def answer(event: Event) -> list[Effect]:
        if not isinstance(event, Started):
            return []
        file = stage.disk.create("commitlog/0", 4096)
        file.write(0, [b"record"])
        return [ReadLog(file, 0, 6, 7), WriteFile("config/a.json", b"{}"), Log("info", "hello", {"a": 1})]

    stage, machine = Stage(), Puppet()
    machine._answer = answer
    stage.shell("one", "10.0.0.1", machine)

    stage.pass_ms(100)

    assert [event.data for event in machine.seen(LogRead) if isinstance(event, LogRead)] == [b"record"]
    assert len(machine.seen(FileWritten)) == 1
    assert stage.disk.read_file("config/a.json") == b"{}"
    assert any("hello a=1" in line for line in stage.world.trace.tail)


def test_a_killed_process_hears_and_does_nothing_more():
    """Its timers, its disk work and its channels end with it."""
    stage, machine = Stage(), Puppet()
    machine._answer = lambda event: [SetTimer("a", event.now_ms + 10), WriteFile("f", b"x")]
    shell = stage.shell("one", "10.0.0.1", machine, ADDRESS)

    shell.kill()
    stage.pass_ms(1_000)

    assert [type(event) for event in machine.events] == [Started]


def test_an_orderly_end_waits_for_the_disk_work_that_was_asked_for():
    """Then everything closes."""
    ended: list[int] = []
    stage, machine = Stage(), Puppet()
    machine._answer = lambda event: [WriteFile("last", b"words")] if isinstance(event, Stopping) else []
    shell = stage.shell("one", "10.0.0.1", machine, ADDRESS)

    shell.stop(lambda: ended.append(stage.world.elapsed_ms))
    stage.pass_ms(1_000)

    assert stage.disk.read_file("last") == b"words"
    assert len(ended) == 1


def test_closing_a_channel_is_told_to_both_ends():
    """After what was sent has left."""

    def answer(event: Event) -> list[Effect]:
        if isinstance(event, FramesReceived):
            return [
                SendBytes(event.channel, [encode_command(Command(code=0, body=b"bye"))]),
                CloseChannel(event.channel),
            ]
        return []

    stage, server, client = Stage(), Puppet(answer), Puppet(talkative(1))
    stage.shell("server", "10.0.0.1", server, ADDRESS)
    stage.shell("client", "10.0.0.2", client)

    stage.pass_ms(2_000)

    assert client.bodies[:1] == [b"bye"]
    assert client.seen(ChannelClosed)
    assert server.seen(ChannelClosed)
