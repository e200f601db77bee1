"""Static topics as clients meet them: what brokers registered, routes made of it, and name servers that serve them."""

from collections.abc import Mapping

from tests.support.scripted_server import ScriptedServer

from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping
from holdfast.model.queue import MessageQueue
from holdfast.model.route import BrokerData, QueueData, Route
from holdfast.wire.cluster.route import encode_route
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

MOCK = "__syslo__global__"


def logical_queue(number: int, topic: str = "t") -> MessageQueue:
    """Return a logical queue as clients name it."""
    return MessageQueue(topic, MOCK, number)


def a_record(
    broker: str, leads: Mapping[int, int | None], *, epoch: int = 1, total: int = 4, scope: str = "__global__"
) -> TopicMapping:
    """Return what *broker* registered: which queues it leads, in which generation; None as Java brokers tell it."""
    return TopicMapping(
        topic="t",
        broker=broker,
        scope=scope,
        epoch=epoch,
        total=total,
        queues={number: LogicalQueue(number, (_segment(broker, number, told),)) for number, told in leads.items()},
    )


def _segment(broker: str, number: int, generation: int | None) -> Segment:
    return Segment(generation=generation, broker=broker, queue_id=number, first=None if generation is None else 0)


def prepare_again(queue: LogicalQueue, broker: str) -> LogicalQueue:
    """Return the queue with the oldest expired physical queue of *broker* prepared as its next segment."""
    queue_id = queue.reusable_queue_id(broker)
    assert queue_id is not None
    return queue.prepare(broker, queue_id)


def a_static_route(*records: TopicMapping, addresses: Mapping[str, str] | None = None) -> Route:
    """Return the route of a static topic. Brokers listen at their name and port 1, or where *addresses* say."""
    broker_addresses = {record.broker: f"{record.broker}:1" for record in records} if addresses is None else addresses
    return Route(
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})
            for name, address in broker_addresses.items()
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queues=4, write_queues=4, permission=6) for name in broker_addresses
        ],
        mappings={record.broker: record for record in records},
    )


def serve_static(name_server: ScriptedServer, *records: TopicMapping, addresses: Mapping[str, str]) -> None:
    """Let a name server serve the static topic `t`, and whatever it served before."""
    before = name_server.answers.get(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    body = encode_route(a_static_route(*records, addresses=addresses))

    def answer(command: Command) -> Command | None:
        if command.fields["topic"] == "t":
            return response(command, body=body)
        return response(command, 17, "no such topic") if before is None else before(command)

    name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = answer
