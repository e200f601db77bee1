"""The PyPI client `rocketmq` 0.4.4, a C++ library, against a cluster: send, consume, also in order, retry, come back.

    python ledger_of_cpp_client.py NAMESRV PREFIX       (PYTHONPATH names the folder of the installed package)

ACCESS_USER and ACCESS_SECRET in the environment: it signs its requests.

Prints one JSON line per check and exits with 0 only when all passed. Bodies are text: the library ends them at a NUL.
"""

import json
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer

PATIENCE_S = 60.0
name_server, prefix = sys.argv[1:]


def guarded(client: Any) -> Any:
    """Let a client sign, if there are credentials."""
    if "ACCESS_USER" in os.environ:
        client.set_session_credentials(os.environ["ACCESS_USER"], os.environ["ACCESS_SECRET"], "")
    return client


class Ledger:
    """What was sent against what arrived."""

    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}
        self.received: list[dict[str, Any]] = []
        self._arrived = threading.Condition()

    def receive(self, message: Any) -> None:
        """Note an arrival, and wake whoever waits for it."""
        seen = {
            "key": message.keys.decode(),
            "body": message.body,
            "tags": message.tags.decode(),
            "number": message["число"],
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "times": message.reconsume_times,
        }
        with self._arrived:
            self.received.append(seen)
            self._arrived.notify_all()

    def wait(self, enough: Callable[[], bool]) -> None:
        """Return once *enough* has arrived."""
        with self._arrived:
            if not self._arrived.wait_for(enough, PATIENCE_S):
                keys = [seen["key"] for seen in self.received]
                raise AssertionError(f"sent {sorted(self.sent)}, received {keys}")

    def wait_for_all(self) -> None:
        """Return once everything sent has arrived at least once."""
        self.wait(lambda: self.sent.keys() <= {seen["key"] for seen in self.received})

    def require_each(self, times: int) -> None:
        """Fail unless everything sent, and nothing else, arrived unchanged and *times* times."""
        for seen in self.received:
            assert self.sent.get(seen["key"]) == seen["body"], f"unexpected or changed: {seen}"
            assert seen["number"].decode() == "№ " + seen["key"].rsplit("-")[-1], seen
        counts = Counter(seen["key"] for seen in self.received)
        assert counts == dict.fromkeys(self.sent, times), counts

    def require_order(self) -> None:
        """Fail unless the messages of each queue arrived by rising offset."""
        last: dict[int, int] = {}
        for seen in self.received:
            assert last.get(seen["queue"], -1) < seen["offset"], f"out of order in queue {seen['queue']}: {seen}"
            last[seen["queue"]] = seen["offset"]


def message(ledger: Ledger, topic: str, number: int, body: str | None = None) -> Message:
    made = Message(prefix + topic)
    text = f"body {number} é消🚀" if body is None else body
    made.set_keys(f"{topic}-{number}")
    made.set_tags("TagA")
    made.set_property("число", f"№ {number}")
    made.set_body(text)
    ledger.sent[f"{topic}-{number}"] = text.encode()
    return made


def consumer(group: str, topic: str, handler: Callable[[Any], None], *, orderly: bool = False) -> PushConsumer:
    made = guarded(PushConsumer(prefix + group, orderly=orderly))
    # A refused message is sent back once, and forgotten if that fails: as it does while another thread of the library
    # is still connecting to the same broker ("response is null" in its log). One thread waits for its own connection.
    made.set_thread_count(1)
    made.set_instance_name(f"{group}-{os.getpid()}")
    made.set_namesrv_addr(name_server)
    made.subscribe(prefix + topic, handler)
    made.start()
    return made


class Plain:
    """A group that consumes concurrently, and once more after it was shut down."""

    def __init__(self) -> None:
        self._first = Ledger()

    def concurrent(self, producer: Producer) -> None:
        """Sync, oneway and a body over 4 KiB (compressed), consumed concurrently."""
        ledger = self._first
        consuming = consumer("plain", "plain", ledger.receive)
        for number in range(10):
            producer.send_sync(message(ledger, "plain", number))
        for number in range(10, 15):
            producer.send_oneway(message(ledger, "plain", number))
        producer.send_sync(message(ledger, "plain", 15, "z" * 5000))
        ledger.wait_for_all()
        consuming.shutdown()
        ledger.require_each(1)

    def come_back(self, producer: Producer) -> None:
        """Go on where it stopped: only what it was handling while it was shut down may come again."""
        ledger = Ledger()
        consuming = consumer("plain", "plain", ledger.receive)
        for number in range(100, 110):
            producer.send_sync(message(ledger, "plain", number))
        ledger.wait_for_all()
        consuming.shutdown()
        handled_last = self._first.received[-1]["key"]
        ledger.received = [seen for seen in ledger.received if seen["key"] != handled_last]
        ledger.require_each(1)


def ordered(producer: Producer) -> None:
    """Sent by key, consumed in order: every queue's offsets rise."""
    ledger = Ledger()
    consuming = consumer("ordered", "ordered", ledger.receive, orderly=True)
    for number in range(24):
        producer.send_orderly(message(ledger, "ordered", number), number % 3)
    ledger.wait_for_all()
    consuming.shutdown()
    ledger.require_each(1)
    ledger.require_order()


class Retry:
    """Refused once, everything comes once more, ten seconds later: begun first, and finished last."""

    def __init__(self) -> None:
        self._ledger = Ledger()

    def begin(self, producer: Producer) -> None:
        """Send, and return when everything has been refused."""
        self._consuming = consumer("retry", "retry", self._refuse_once)
        for number in range(3):
            producer.send_sync(message(self._ledger, "retry", number))
        self._ledger.wait_for_all()

    def finish(self) -> None:
        """Wait for the second delivery of each."""
        self._ledger.wait(lambda: sum(seen["times"] == 1 for seen in self._ledger.received) >= 3)
        self._consuming.shutdown()
        self._ledger.require_each(2)

    def _refuse_once(self, received: Any) -> None:
        self._ledger.receive(received)
        if received.reconsume_times == 0:
            raise ValueError("not yet")


def pulled(producer: Producer) -> None:
    """A pull consumer reads all queues of a topic, without ever registering."""
    ledger = Ledger()
    for number in range(12):
        producer.send_sync(message(ledger, "pulled", number))
    puller = guarded(PullConsumer(prefix + "pulled"))
    puller.set_namesrv_addr(name_server)
    puller.start()
    for received in puller.pull(prefix + "pulled"):
        ledger.receive(received)
    puller.shutdown()
    ledger.require_each(1)


def made_by_sending(producer: Producer) -> None:
    """A topic that nobody made is made by the first message; a later consumer finds it."""
    ledger = Ledger()
    for number in range(4):
        producer.send_sync(message(ledger, "made", number))
    consuming = consumer("made", "made", ledger.receive)
    ledger.wait_for_all()
    consuming.shutdown()
    ledger.require_each(1)


def check(name: str, run: Callable[[], object], results: list[bool]) -> None:
    report: dict[str, Any] = {"check": name, "ok": True}
    try:
        run()
    except Exception:  # noqa: BLE001 - one check must not hide the others
        report = {"check": name, "ok": False, "error": traceback.format_exc()}
    results.append(report["ok"])
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main() -> None:
    sys.unraisablehook = lambda _: None  # refusing is raising here: a traceback for each would break our lines in two
    producer = guarded(Producer(prefix + "producer"))
    producer.set_namesrv_addr(name_server)
    producer.start()
    results: list[bool] = []
    plain, retry = Plain(), Retry()
    # One after the other: a sender gets no route while another thread of the library is asking for one.
    check("refuse", lambda: retry.begin(producer), results)
    for run in (plain.concurrent, ordered, pulled, made_by_sending, plain.come_back):
        check(run.__name__, lambda run=run: run(producer), results)
    check("retry", retry.finish, results)
    check("shut_down", producer.shutdown, results)
    os._exit(0 if all(results) else 1)  # the library's destructors shut down a second time, and crash


main()
