"""An application that sends and consumes in order, at the command of its standard input: PyPI `rocketmq`.

    python member.py NAMESRV TOPIC GROUP NAME       (PYTHONPATH names the folder of the installed package)

ACCESS_USER and ACCESS_SECRET in the environment: it signs its requests.

The commands and lines are those of java/Member.java. The library asks for routes every thirty seconds.
"""

import json
import os
import sys
import threading
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer

name_server, topic, group, name = sys.argv[1:]
one_line_at_a_time = threading.Lock()


def tell(**line: Any) -> None:
    with one_line_at_a_time:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def send(producer: Producer, number: int) -> None:
    message = Message(topic)
    message.set_body(f"{name} {number}")
    try:
        result = producer.send_orderly(message, number)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        tell(failed=str(error))
    else:
        tell(sent=[None, result.offset, number])


def guarded(client: Any) -> Any:
    """Let a client sign, if there are credentials."""
    if "ACCESS_USER" in os.environ:
        client.set_session_credentials(os.environ["ACCESS_USER"], os.environ["ACCESS_SECRET"], "")
    return client


def main() -> None:
    consumer = guarded(PushConsumer(group, orderly=True))
    consumer.set_instance_name(name)
    consumer.set_namesrv_addr(name_server)
    consumer.subscribe(topic, lambda got: tell(got=[got.queue_id, got.queue_offset, got.body.decode()]))
    consumer.start()
    producer = guarded(Producer(f"{name}-producer"))
    producer.set_namesrv_addr(name_server)
    producer.start()
    tell(ready=True)
    number = 0
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        for _ in range(int(line.split()[1])):
            send(producer, number)
            number += 1
    producer.shutdown()
    consumer.shutdown()
    tell(bye=True)
    os._exit(0)  # the library's destructors shut down a second time, and crash


main()
