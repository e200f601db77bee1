"""One application with a producer and a member of an ordered group, at the command of its standard input: ours.

    python our_member.py NAMESRV TOPIC GROUP NAME [UNIT]

The commands and lines are those of java/Member.java.
"""

import json
import sys
from typing import Any

from holdfast import HoldfastError, Message, ReceivedMessage
from holdfast.blocking import Producer, PushConsumer

name_server, topic, group, name = sys.argv[1:5]
unit = sys.argv[5] if len(sys.argv) > 5 else None


def tell(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def receive(message: ReceivedMessage) -> None:
    tell(got=[message.queue.queue_id, message.offset, message.body.decode()])


def send(producer: Producer, number: int) -> None:
    try:
        result = producer.send(Message(topic, f"{name} {number}".encode()))
    except HoldfastError as error:
        tell(failed=str(error))
    else:
        tell(sent=[result.queue.queue_id, result.offset, number])


def main() -> None:
    consumer = PushConsumer(name_server, group, listener=receive, ordered=True, start="earliest", unit=unit)
    consumer.subscribe(topic)
    number = 0
    with consumer, Producer(name_server, f"{name}-producer", unit=unit) as producer:
        tell(ready=True)
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            for _ in range(int(line.split()[1])):
                send(producer, number)
                number += 1
    tell(bye=True)


main()
