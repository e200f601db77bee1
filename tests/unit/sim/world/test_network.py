import pytest

from holdfast.sim.world.network import CONNECT_TIMEOUT_MS, Network, NetworkConditions, Socket
from holdfast.sim.world.world import EPOCH_MS, World

ADDRESS = "10.0.0.1:10911"


class Party:
    """Somebody with sockets, who remembers everything."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.sockets: list[Socket] = []
        self.data = b""
        self.reads = 0
        self.closed_because: list[str] = []
        self.refused_because: list[str] = []

    def accepted(self, socket: Socket) -> None:
        self.sockets.append(socket)

    def connected(self, socket: Socket, dialed: str, purpose: str) -> None:
        assert dialed == ADDRESS
        self.sockets.append(socket)

    def refused(self, dialed: str, reason: str, purpose: str) -> None:
        self.refused_because.append(reason)

    def received(self, socket: Socket, data: bytes) -> None:
        self.data += data
        self.reads += 1

    def closed(self, socket: Socket, reason: str) -> None:
        self.closed_because.append(reason)


class Pair:
    """A client and a server that are connected."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.network.conditions = NetworkConditions(spike_probability=0.0)
        self.client, self.server = Party("10.0.0.2"), Party("10.0.0.1")
        self.network.listen(ADDRESS, self.server)
        self.network.connect(self.client, ADDRESS)
        self.pass_ms(50)
        assert self.client.sockets
        assert self.server.sockets

    def pass_ms(self, span_ms: int) -> None:
        self.world.run(until_ms=self.world.now_ms + span_ms)

    def say(self, data: bytes) -> None:
        self.network.send(self.client.sockets[0], data)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_order_cut_anywhere(seed: int):
    """None is lost, doubled or moved, however the reads fall."""
    pair = Pair(seed)
    data = bytes(range(256)) * 4

    for at in range(0, len(data), 64):
        pair.say(data[at : at + 64])
    pair.pass_ms(2_000)

    assert pair.server.data == data
    assert pair.server.reads != len(data) // 64


def test_a_close_comes_behind_the_last_byte():
    """And is told to both."""
    pair = Pair()

    pair.say(b"good-bye")
    pair.network.close(pair.client.sockets[0])
    pair.pass_ms(500)

    assert pair.server.data == b"good-bye"
    assert pair.server.closed_because == ["closed by the other end"]
    assert pair.client.closed_because == ["closed here"]


def test_nobody_listening_is_refused_at_once_and_a_dark_host_only_in_time():
    """As real hosts do."""
    pair = Pair()
    other = Party("10.0.0.3")

    pair.network.connect(other, "10.0.0.1:1")
    pair.pass_ms(50)
    assert other.refused_because == ["connection refused"]

    pair.network.power_off(pair.server)
    pair.network.connect(other, ADDRESS)
    pair.pass_ms(CONNECT_TIMEOUT_MS - 100)
    assert len(other.refused_because) == 1
    pair.pass_ms(200)
    assert other.refused_because[1:] == ["no answer in time"]


def test_a_killed_process_is_noticed_by_the_other_end():
    """Its kernel closes what it had open."""
    pair = Pair()

    pair.network.kill(pair.server)
    pair.pass_ms(50)

    assert pair.client.closed_because == ["closed by the other end"]
    assert pair.server.closed_because == [], "the dead are told nothing"


def test_a_lost_host_is_not_noticed_until_it_is_back_and_spoken_to():
    """A half-open connection looks like any other."""
    pair = Pair()

    pair.network.power_off(pair.server)
    pair.pass_ms(5_000)
    pair.say(b"anybody?")
    pair.pass_ms(2_000)
    assert pair.client.closed_because == []

    pair.network.power_on(pair.server.host)
    pair.pass_ms(500)
    assert pair.client.closed_because == ["connection reset"]


def test_bytes_wait_while_a_link_is_cut():
    """And arrive when it is mended in time."""
    pair = Pair()
    pair.network.cut_link(pair.client.host, pair.server.host)

    pair.say(b"patience")
    pair.pass_ms(3_000)
    assert pair.server.data == b""

    pair.network.mend()
    pair.pass_ms(500)
    assert pair.server.data == b"patience"
    assert pair.client.closed_because == []


def test_a_sender_gives_up_on_a_link_that_stays_cut_and_the_other_end_never_hears_of_it():
    """Both ends have their own truth."""
    pair = Pair()
    pair.network.cut_link(pair.client.host, pair.server.host)

    pair.say(b"hello?")
    pair.pass_ms(70_000)

    assert pair.client.closed_because == ["timed out"]
    assert pair.server.closed_because == []


@pytest.mark.parametrize("is_seen_by_both", [True, False])
def test_a_broken_connection_is_seen_by_one_end_or_by_both(*, is_seen_by_both: bool):
    """The one that does not see it learns it when it sends."""
    pair = Pair()

    pair.network.break_connection(pair.server.sockets[0], is_seen_by_both=is_seen_by_both)
    pair.pass_ms(100)
    assert pair.server.closed_because == ["connection reset"]
    assert pair.client.closed_because == (["connection reset"] if is_seen_by_both else [])

    pair.say(b"still there?")
    pair.pass_ms(100)
    assert pair.client.closed_because == ["connection reset"]


def test_a_connection_that_breaks_while_it_is_made_is_refused():
    """Whoever dials is told one thing or the other, always."""
    world = World(1)
    network = Network(world)
    network.conditions = NetworkConditions(delay_ms=(10, 10), spike_probability=0.0)
    client, server = Party("10.0.0.2"), Party("10.0.0.1")
    network.listen(ADDRESS, server)
    network.connect(client, ADDRESS)
    world.run(until_ms=EPOCH_MS + 15)

    network.break_connection(server.sockets[0].peer, is_seen_by_both=True)
    world.run(until_ms=EPOCH_MS + 100)

    assert client.sockets == []
    assert client.refused_because == ["connection reset"]


def test_what_goes_a_long_way_arrives_after_what_was_sent_later_on_another_connection():
    """Also when its sender has closed it meanwhile."""
    pair = Pair()
    first = pair.client.sockets[0]
    pair.network.delay(first, 1_000)
    pair.network.send(first, b"old")
    pair.network.close(first)

    pair.network.connect(pair.client, ADDRESS)
    pair.pass_ms(50)
    pair.network.send(pair.client.sockets[1], b"new")
    pair.pass_ms(50)
    assert pair.server.data == b"new"

    pair.pass_ms(1_000)
    assert pair.server.data == b"newold"
    assert pair.server.closed_because == ["closed by the other end"]
