"""A name server confirms a logical queue to one broker at a time, and forgets no promise."""

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server
from tests.support.static_reports import a_leader_report, a_report, a_segment, register_static

from holdfast.machine.effects import WriteFile
from holdfast.machine.events import ChannelId, DiskFault, FileWritten, TimerFired
from holdfast.nameserver.cluster.queue_leases import FILE, QUARANTINE_MS
from holdfast.nameserver.scan import TIMER as SCAN_TIMER
from holdfast.wire.cluster.leases import Claim, LeaseAnswer, LeaseRequest, QueueLease
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.requests.moves import decode_body, encode_body

LEASE_MS = 30_000
SCAN_MS = 5_000


class Asking:
    """A name server that knows brokers a and b, and what they ask it."""

    def __init__(self, content: bytes | None = b"{}") -> None:
        self.server = a_name_server(lease_content=content, data="somewhere")
        self.numbers = 0
        self.register("a")
        self.register("b")

    def register(self, broker: str) -> None:
        register_static(self.server, broker, a_leader_report(broker, *([0, 1] if broker == "a" else []), total=2))

    def ask(self, broker: str, claims: dict[int, Claim], *, number: int | None = None, boot: int = 1) -> LeaseAnswer:
        """Ask, let the disk do its work, and return the answer."""
        answer = self.ask_plainly(broker, claims, number=number, boot=boot)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return decode_body(answer.body, LeaseAnswer)

    def refused(self, broker: str, claims: dict[int, Claim], **how: int) -> list[int]:
        """Ask; return the queues that are not confirmed."""
        return sorted(self.ask(broker, claims, **how).refused.get("orders", {}))

    def ask_plainly(
        self,
        broker: str,
        claims: dict[int, Claim],
        *,
        number: int | None = None,
        boot: int = 1,
        lease_ms: int = LEASE_MS,
    ) -> Command:
        channel = self.begin(broker, claims, number=number, boot=boot, lease_ms=lease_ms)
        self.server.feed(FileWritten(FILE, self.server.now_ms))
        (answer,) = self.server.pop_answers(channel)
        return answer

    def begin(
        self,
        broker: str,
        claims: dict[int, Claim],
        *,
        number: int | None = None,
        boot: int = 1,
        lease_ms: int = LEASE_MS,
    ) -> ChannelId:
        self.numbers += 1
        request = LeaseRequest(
            broker=broker,
            boot=boot,
            number=self.numbers if number is None else number,
            lease_ms=lease_ms,
            topics={"orders": claims} if claims else {},
        )
        channel = self.server.connect()
        command = self.server.new_request(RequestCode.RENEW_LEASES, body=encode_body(request))
        self.server.receive(channel, encode_command(command))
        return channel

    def pass_time(self, span_ms: int) -> None:
        """Let the timer fire as often as it does in that time; the clock is not looked at."""
        for _ in range(span_ms // SCAN_MS):
            self.server.feed(TimerFired(SCAN_TIMER, self.server.now_ms))

    def restart(self) -> None:
        """Start again on what is on disk."""
        (*_, newest) = writes(self.server)
        self.__init__(newest)  # type: ignore[misc]


def writes(server: MachineHarness) -> list[bytes]:
    return [effect.data for effect in server.effects if isinstance(effect, WriteFile) and effect.path == FILE]


def test_what_is_confirmed_to_one_is_refused_to_another():
    """Whatever generation it claims."""
    asking = Asking()

    assert asking.refused("a", {0: Claim(0), 1: Claim(0)}) == []
    assert asking.refused("b", {0: Claim(7)}) == [0]
    assert asking.refused("a", {0: Claim(0), 1: Claim(0)}) == []


def test_who_was_handed_a_queue_by_its_holder_is_confirmed_at_once():
    """Its holder has stopped, or it could not have handed it over. Nobody else's word counts."""
    asking = Asking()
    asking.ask("a", {0: Claim(3), 1: Claim(3)})

    assert asking.refused("b", {0: Claim(4, "a"), 1: Claim(4, "c")}) == [1]
    assert asking.refused("a", {0: Claim(3), 1: Claim(3)}) == [0]


def test_an_old_generation_is_not_handed_over():
    """A word that was long on its way."""
    asking = Asking()
    asking.ask("a", {0: Claim(4)})

    assert asking.refused("b", {0: Claim(4, "a")}) == [0]


def test_a_newer_generation_that_was_claimed_and_not_opened_is_given_up():
    """Its holder was handed the queue in between. Had it told that it leads in that generation, it were confused."""
    asking = Asking()
    asking.ask("a", {0: Claim(4), 1: Claim(4)})
    opened = {0: [a_segment("a")], 1: [a_segment("b", end=3), a_segment("a", 1, generation=4, first=3)]}
    register_static(asking.server, "a", a_report("a", opened, total=2, epoch=2))

    assert asking.refused("a", {0: Claim(3), 1: Claim(3)}) == [1]
    assert asking.refused("b", {0: Claim(4, "a"), 1: Claim(4, "a")}) == [1]


def test_what_is_not_named_any_more_is_free():
    """A request names everything that its broker leads."""
    asking = Asking()
    asking.ask("a", {0: Claim(3), 1: Claim(3)})

    asking.ask("a", {1: Claim(3)})

    assert asking.refused("b", {0: Claim(3), 1: Claim(3)}) == [1]


def test_who_leads_nothing_any_more_holds_nothing():
    """Its requests name no topic at all."""
    asking = Asking()
    asking.ask("a", {0: Claim(3)})

    asking.ask("a", {})

    assert asking.refused("b", {0: Claim(3)}) == []


def test_after_two_leases_of_silence_a_queue_lapses_and_goes_to_whoever_claims_it():
    """It is told to those who ask; not a moment before."""
    asking = Asking()
    asking.ask("a", {0: Claim(3)})

    asking.pass_time(2 * LEASE_MS)  # It may have been heard of at the very end of the first interval.
    early = asking.ask("b", {0: Claim(4)})
    asking.pass_time(SCAN_MS)
    late = asking.ask("b", {})

    assert (early.refused, early.lapsed) == ({"orders": {0: QueueLease("a", 3)}}, {})
    assert late.lapsed == {"orders": {0: QueueLease("a", 3)}}
    assert asking.refused("b", {0: Claim(2)}) == [0], "older than what is known"
    assert asking.refused("b", {0: Claim(4)}) == []
    assert asking.refused("a", {0: Claim(3)}) == [0]


def test_a_clock_that_jumps_lets_nothing_lapse():
    """Time is counted, not read."""
    asking = Asking()
    asking.ask("a", {0: Claim(3)})

    asking.server.now_ms += 100 * LEASE_MS
    asking.pass_time(SCAN_MS)

    assert asking.refused("b", {0: Claim(4)}) == [0]


def test_a_broker_that_registers_is_not_silent():
    """It may have been started again without leases: then it takes sends without asking."""
    asking = Asking()
    asking.ask("a", {0: Claim(3)})

    for _ in range(6):
        asking.pass_time(LEASE_MS)
        asking.register("a")

    assert asking.refused("b", {0: Claim(4)}) == [0]


def test_a_request_that_was_overtaken_says_nothing():
    """Connections break, and what was on its way may come later than what was sent after it."""
    asking = Asking()
    asking.ask("a", {0: Claim(3)}, number=5)

    answer = asking.ask_plainly("a", {}, number=4)

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert asking.refused("b", {0: Claim(4)}) == [0]
    assert asking.refused("a", {0: Claim(3)}, number=1, boot=2) == [], "a new process counts from the start"


@pytest.mark.parametrize("lease_ms", [LEASE_MS, 2 * LEASE_MS])
def test_a_process_that_is_no_more_gives_nothing_up(lease_ms: int):
    """What it said last may come after what the next one claimed: that would be free for others."""
    asking = Asking()
    asking.ask_plainly("a", {}, number=7, boot=1, lease_ms=lease_ms)
    asking.ask("a", {0: Claim(3)}, number=1, boot=2)

    answer = asking.ask_plainly("a", {}, number=8, boot=1, lease_ms=lease_ms)

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert asking.refused("b", {0: Claim(4)}) == [0]


def test_a_promise_is_on_disk_before_it_is_made():
    """And one that changes nothing costs no write."""
    asking = Asking()

    channel = asking.begin("a", {0: Claim(3)})
    assert asking.server.pop_answers(channel) == []
    again = asking.begin("a", {0: Claim(3)})
    assert asking.server.pop_answers(again) == [], "what is not on disk is not promised to the next, either"
    asking.server.feed(FileWritten(FILE, asking.server.now_ms))
    assert len(asking.server.pop_answers(channel)) == 1
    asking.server.feed(FileWritten(FILE, asking.server.now_ms))
    assert len(asking.server.pop_answers(again)) == 1

    count = len(writes(asking.server))
    idle = asking.begin("a", {0: Claim(3)})
    assert len(asking.server.pop_answers(idle)) == 1
    assert len(writes(asking.server)) == count


def test_a_disk_that_fails_promises_nothing():
    """The next request tries again."""
    asking = Asking()
    channel = asking.begin("a", {0: Claim(3)})

    asking.server.feed(DiskFault("no space left", asking.server.now_ms, path=FILE))

    assert [answer.code for answer in asking.server.pop_answers(channel)] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert asking.refused("a", {0: Claim(3)}) == []
    assert len(writes(asking.server)) == 2


def test_who_asks_while_a_write_fails_is_answered_by_the_next_one():
    """It is begun at once: it may be the disk's first success."""
    asking = Asking()
    first, second = asking.begin("a", {0: Claim(3)}), asking.begin("a", {0: Claim(3)})

    asking.server.feed(DiskFault("no space left", asking.server.now_ms, path=FILE))

    assert [answer.code for answer in asking.server.pop_answers(first)] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert asking.server.pop_answers(second) == []
    asking.server.feed(FileWritten(FILE, asking.server.now_ms))
    assert [answer.code for answer in asking.server.pop_answers(second)] == [ResponseCode.SUCCESS]


def test_promises_outlive_the_name_server_and_count_from_its_start():
    """It may have renewed them the moment before it died."""
    asking = Asking()
    asking.ask("a", {0: Claim(3)})
    asking.pass_time(2 * LEASE_MS - SCAN_MS)

    asking.restart()
    asking.pass_time(2 * LEASE_MS)

    # Registering at the start counts as a word of it: two leases begin there.
    assert asking.refused("b", {0: Claim(4)}) == [0]
    asking.pass_time(SCAN_MS)
    assert asking.refused("b", {0: Claim(4)}) == []


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"held":{"orders":{"0":7}}}'])
def test_without_its_file_nothing_is_confirmed_for_a_while(content: bytes | None):
    """It may have promised anything to anybody."""
    asking = Asking(content)

    assert asking.refused("a", {0: Claim(3)}) == [0]
    asking.pass_time(QUARANTINE_MS)
    assert asking.refused("a", {0: Claim(3)}) == []
    is_told = "leases forgotten: their file cannot be read" in asking.server.logged()
    assert is_told == (content is not None)


def test_nothing_is_kept_for_strangers():
    """There is no end to what anybody may claim."""
    asking = Asking()

    assert asking.refused("stranger", {0: Claim(3)}) == [0]
    assert asking.refused("a", {99: Claim(3)}) == [99]
    assert asking.ask_plainly("a", {}, lease_ms=0).code == ResponseCode.INVALID_PARAMETER
    assert asking.ask_plainly("a", {}, lease_ms=1 << 60).code == ResponseCode.INVALID_PARAMETER
    assert asking.server.request(RequestCode.RENEW_LEASES, body=b"[").code != ResponseCode.SUCCESS


def test_leases_of_a_deleted_topic_are_forgotten():
    """When they have lapsed."""
    asking = Asking()
    asking.ask("a", {0: Claim(3)})
    asking.server.send_one_way(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})

    asking.pass_time(2 * LEASE_MS + SCAN_MS)

    assert asking.server.machine.queue_leases.leases == {}


def test_queues_of_two_topics_of_one_name_are_held_apart():
    """Each is fixed in its cluster. Whoever is away there is nothing to the other."""
    asking = Asking()
    for broker, cluster in (("x", "east"), ("y", "west"), ("z", "west")):
        report = a_leader_report(broker, *([] if broker == "z" else [0]), total=1, scope=cluster) | {"topic": "bills"}
        register_static(asking.server, broker, report, cluster=cluster)

    def ask(broker: str) -> LeaseAnswer:
        asking.numbers += 1
        claims = {} if broker == "z" else {"bills": {0: Claim(0)}}
        request = LeaseRequest(broker=broker, boot=1, number=asking.numbers, lease_ms=LEASE_MS, topics=claims)
        channel = asking.server.connect()
        command = asking.server.new_request(RequestCode.RENEW_LEASES, body=encode_body(request))
        asking.server.receive(channel, encode_command(command))
        asking.server.feed(FileWritten(FILE, asking.server.now_ms))
        (answer,) = asking.server.pop_answers(channel)
        return decode_body(answer.body, LeaseAnswer)

    assert ask("x").refused == ask("y").refused == {}
    for _ in range(2 * LEASE_MS // SCAN_MS + 1):
        register_static(asking.server, "x", cluster="east")
        asking.server.feed(TimerFired(SCAN_TIMER, asking.server.now_ms))

    assert ask("z").lapsed == {"bills": {0: QueueLease("y", 0)}}
    assert ask("x").lapsed == {}
