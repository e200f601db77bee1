"""Where a pull goes: to a replica beside the reader while it leads on, else to the master. The brokers are played."""

import pytest
from tests.support.static_topics import a_record, a_static_route

from holdfast.bulk import near_replicas
from holdfast.bulk.queue_pulls import PullRequest, QueuePuller
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.routes.route_table import RouteTable
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.queue import MessageQueue
from holdfast.model.route import BrokerData, Route
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.relay import LEADER_FIELD

MASTER, REPLICA = "master:1", "replica:1"
QUEUE = MessageQueue("t", "__syslo__east", 0)
FOUND, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
NO_MATCH, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


class PlayedClient:
    """Knows one broker of unit east and its replica."""

    def __init__(self) -> None:
        self.routes = RouteTable(unit=None)
        static = a_static_route(a_record("a", {0: 1}, total=1, scope="east"))
        data = BrokerData(cluster="east", broker_name="a", broker_addrs={0: MASTER, 2: REPLICA})
        self.routes.put("t", Route(**{**_fields(static), "broker_datas": [data]}), 0)


def _fields(route: Route) -> dict[str, object]:
    return {name: getattr(route, name) for name in route.__struct_fields__}


class PlayedLine:
    """Answers at each address what it was told, again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[Command, bytes] | HoldfastError] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.ahead: list[str] = []
        self.counts: list[int] = []

    def says(self, address: str, code: int, next_offset: int, *, low: int = 0, suggests: int = 0, leader: str = ""):
        fields = {"nextBeginOffset": next_offset, "minOffset": low, "maxOffset": 100, "suggestWhichBrokerId": suggests}
        told = {name: str(value) for name, value in fields.items()}
        if leader:
            told[LEADER_FIELD] = leader
        self.answers[address] = Command(code=code, fields=told), address.encode()

    def request(self, address: str, command: Command, timeout_s: float) -> tuple[Command, memoryview]:
        self.asked.append((address, command.fields.get(SCOPE_FIELD)))
        self.counts.append(int(command.fields["maxMsgNums"]))
        answer = self.answers[address]
        if isinstance(answer, HoldfastError):
            raise answer
        return answer[0], memoryview(answer[1])

    def request_ahead(self, address: str, command: Command, timeout_s: float) -> None:
        self.ahead.append(address)


@pytest.fixture
def line() -> PlayedLine:
    """A master that names its replica, and a replica that leads on."""
    made = PlayedLine()
    made.says(MASTER, FOUND, 20, suggests=2)
    made.says(REPLICA, FOUND, 20, suggests=2)
    return made


@pytest.fixture
def pulls() -> QueuePuller:
    client = PlayedClient()
    return QueuePuller(QueueRpc(client, "g"), lambda topic: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(near_replicas.time, "monotonic", lambda: now[0])
    return now


def pull(pulls: QueuePuller, line: PlayedLine, *, unit: str | None = "west") -> tuple[str, bool]:
    """Pull at offset 10; return whose rows came, and whether they count as a copy."""
    pulled = pulls.pull(line, PullRequest(QUEUE, 10, unit=unit))
    return bytes(pulled.block).decode(), pulled.is_from_replica


def test_the_master_is_asked_first_and_the_replica_that_it_names_from_then_on(pulls: QueuePuller, line: PlayedLine):
    """The next pull is asked ahead where it will be asked."""
    assert pull(pulls, line) == (MASTER, False)
    pulls.pull_ahead(line, PullRequest(QUEUE, 20, unit="west"))
    assert [pull(pulls, line) for _ in range(3)] == [(REPLICA, True)] * 3
    assert line.ahead == [REPLICA]
    assert line.asked == [(MASTER, "west"), *[(REPLICA, "west")] * 3]


def test_a_reader_without_a_unit_stays_at_the_master(pulls: QueuePuller, line: PlayedLine):
    """Whatever a master names. What it names for one unit holds for no other."""
    assert [pull(pulls, line, unit=None) for _ in range(3)] == [(MASTER, False)] * 3
    assert {unit for _, unit in line.asked} == {None}
    pull(pulls, line, unit="west")
    assert pull(pulls, line, unit="north") == (MASTER, False)


@pytest.mark.parametrize("error", [ConnectionLost("gone"), RequestTimeout("hangs")])
def test_a_replica_that_fails_is_left_at_once(
    pulls: QueuePuller, line: PlayedLine, clock: list[float], error: HoldfastError
):
    """The same pull is answered by the master. What that names does not count for a while."""
    pull(pulls, line)
    line.answers[REPLICA] = error
    assert pull(pulls, line) == (MASTER, False)
    clock[0] += near_replicas.FAILED_AVOID_S - 1
    pull(pulls, line)
    assert [address for address, _ in line.asked] == [MASTER, REPLICA, MASTER, MASTER]

    clock[0] += 2
    pull(pulls, line)
    line.says(REPLICA, FOUND, 20, suggests=2)
    assert pull(pulls, line) == (REPLICA, True)


@pytest.mark.parametrize(
    ("code", "next_offset", "low"),
    [
        (NOT_FOUND, 10, 0),  # its end is shorter
        (NO_MATCH, 10, 0),  # ask the master
        (MOVED, 50, 50),  # it begins later
        (FOUND, 60, 50),
        (MOVED, 5, 0),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, 10, 0),
    ],
)
def test_what_does_not_lead_on_is_for_the_master_to_say(
    pulls: QueuePuller, line: PlayedLine, clock: list[float], code: int, next_offset: int, low: int
):
    """A replica may begin later and end earlier. It is asked again soon."""
    pull(pulls, line)
    line.says(REPLICA, code, next_offset, low=low)
    assert pull(pulls, line) == (MASTER, False)

    clock[0] += near_replicas.LAGGING_AVOID_S + 1
    pull(pulls, line)
    line.says(REPLICA, FOUND, 20, suggests=2)
    assert pull(pulls, line) == (REPLICA, True)


def test_a_replica_may_send_its_readers_back(pulls: QueuePuller, line: PlayedLine):
    """With rows that still count."""
    pull(pulls, line)
    line.says(REPLICA, FOUND, 20, suggests=0)
    assert pull(pulls, line) == (REPLICA, True)
    assert pull(pulls, line) == (MASTER, False)


def test_what_a_replica_of_another_broker_than_was_asked_is_called_is_no_place(pulls: QueuePuller, line: PlayedLine):
    """A pull that was passed on is answered by the new leader, whose replicas are others."""
    line.says(MASTER, FOUND, 20, suggests=2, leader="b")
    assert [pull(pulls, line) for _ in range(2)] == [(MASTER, False)] * 2


def test_a_copy_that_cannot_be_read_is_pulled_from_the_master(pulls: QueuePuller, line: PlayedLine):
    """Until the replica had time to be mended."""
    pull(pulls, line)
    pulls.avoid_replica(PullRequest(QUEUE, 10, unit="west"))
    assert [pull(pulls, line) for _ in range(2)] == [(MASTER, False)] * 2


def test_a_refusal_of_the_master_is_the_callers(pulls: QueuePuller, line: PlayedLine):
    """Whether a replica was asked before or not."""
    line.says(MASTER, ResponseCode.NO_PERMISSION, 0)
    with pytest.raises(BrokerRefused):
        pull(pulls, line)


def test_the_first_pull_of_a_queue_of_another_unit_is_small(pulls: QueuePuller, line: PlayedLine):
    """Many tasks are one pull: the master would hand out all of it. Where no replica is near, the second is large."""
    foreign = PullRequest(QUEUE, 10, 500, unit="west", is_foreign=True)
    for _ in range(2):
        pulls.pull(line, foreign)
    line.says(MASTER, FOUND, 20, suggests=0)
    for _ in range(2):
        pulls.pull(line, PullRequest(QUEUE, 10, 500, unit="north", is_foreign=True))
    pulls.pull(line, PullRequest(QUEUE, 10, 500, unit="east"))

    assert line.counts == [1, 500, 1, 500, 500]
    assert [address for address, _ in line.asked] == [MASTER, REPLICA, MASTER, MASTER, MASTER]
