"""The PyPI client `rocketmq` 0.4.4 (a C++ library) against a cluster: send, consume, in order too, retry, shut down, come back.

    python ledger_of_cpp_client.py NAMESRV PREFIX       (PYTHONPATH names the folder of the installed package)

Prints one JSON line per check and exits with 0 only when all passed. Its bodies are text: the library ends them at a NUL.
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


class Ledger:
    """What was sent against what arrived."""

    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}
        self.received: list[dict[str, Any]] = []
        self._arrived = threading.Condition()

    def receive(self, message: Any) -> None:
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
        with self._arrived:
            if not self._arrived.wait_for(enough, PATIENCE_S):
                keys = [seen["key"] for seen in self.received]
                raise AssertionError(f"sent {sorted(self.sent)}, received {keys}")

    def wait_for_all(self) -> None:
        self.wait(lambda: self.sent.keys() <= {seen["key"] for seen in self.received})

    def require_each(self, times: int) -> None:
        for seen in self.received:
            assert self.sent.get(seen["key"]) == seen["body"], f"unexpected or changed: {seen}"
            assert seen["number"].decode() == "№ " + seen["key"].rsplit("-")[-1], seen
        counts = Counter(seen["key"] for seen in self.received)
        assert counts == dict.fromkeys(self.sent, times), counts

    def require_order(self) -> None:
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
    made = PushConsumer(prefix + group, orderly=orderly)
    made.set_instance_name(f"{group}-{os.getpid()}")
    made.set_namesrv_addr(name_server)
    made.subscribe(prefix + topic, handler)
    made.start()
    return made


def concurrent(producer: Producer) -> None:
    """Sync, oneway and a body over 4 KiB (compressed), consumed concurrently."""
    ledger = Ledger()
    consuming = consumer("plain", "plain", ledger.receive)
    for number in range(10):
        producer.send_sync(message(ledger, "plain", number))
    for number in range(10, 15):
        producer.send_oneway(message(ledger, "plain", number))
    producer.send_sync(message(ledger, "plain", 15, "z" * 5000))
    ledger.wait_for_all()
    consuming.shutdown()
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


def retry(producer: Producer) -> None:
    """Refused once, everything comes once more."""
    ledger = Ledger()

    def refuse_once(received: Any) -> None:
        ledger.receive(received)
        if received.reconsume_times == 0:
            raise ValueError("not yet")

    consuming = consumer("retry", "retry", refuse_once)
    for number in range(3):
        producer.send_sync(message(ledger, "retry", number))
    ledger.wait(lambda: sum(seen["times"] == 1 for seen in ledger.received) >= 3)
    consuming.shutdown()
    ledger.require_each(2)


def pulled(producer: Producer) -> None:
    """A pull consumer reads all queues of a topic, without ever registering."""
    ledger = Ledger()
    for number in range(12):
        producer.send_sync(message(ledger, "pulled", number))
    puller = PullConsumer(prefix + "pulled")
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


def come_back(producer: Producer) -> None:
    """A group that was shut down goes on where it stopped."""
    ledger = Ledger()
    consuming = consumer("plain", "plain", ledger.receive)
    for number in range(100, 110):
        producer.send_sync(message(ledger, "plain", number))
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
    producer = Producer(prefix + "producer")
    producer.set_namesrv_addr(name_server)
    producer.start()
    results: list[bool] = []
    # The retry waits ten seconds for its second delivery: the others run meanwhile.
    waiting = threading.Thread(target=check, args=("retry", lambda: retry(producer), results))
    waiting.start()
    for run in (concurrent, ordered, pulled, made_by_sending, come_back):
        check(run.__name__, lambda run=run: run(producer), results)
    waiting.join()
    check("shut_down", producer.shutdown, results)
    os._exit(0 if all(results) else 1)  # the library's destructors shut down a second time, and crash


main()
