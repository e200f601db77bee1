"""Lists connected clients, and passes requests on to them (203, 204, 223, 307, 309, 328, 400)."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.access.door import Door
from holdfast.broker.flow.awaitables import call_all
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.messages.record_lookup import FindQueue, read_named_bytes
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.clients import Client, ClientTable
from holdfast.machine.component import Component
from holdfast.model.access.resource import Action
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.inner_batch import is_inner_batch
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.record import decode_record
from holdfast.wire.requests.admin import (
    ClientRequestFields,
    Connection,
    ConsumerConnections,
    ConsumerStatus,
    ConsumerStatusFields,
    ProducerConnections,
    ProducerGroupFields,
    ProducerRow,
    ProducerTable,
    decode_status,
)
from holdfast.wire.requests.heartbeat import ConsumerGroupFields
from holdfast.wire.requests.permissions import for_topic

_RUNNING_INFO_VERSION: Final = 62  # 3.1.8: older clients do not support the request


class ClientAdmin(Component):
    """Handles client requests of tools."""

    def __init__(self, options: BrokerOptions, clients: ClientTable, door: Door, find_queue: FindQueue) -> None:
        self._find_queue = find_queue
        self._options = options
        self._door = door
        self._clients = clients

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.list_consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.list_producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.list_all_producers,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.get_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.get_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.QUERY_ASSIGNMENT: self.query_assignment,
        }

    def list_consumers(self, request: Request) -> Answer:
        """Answer 203: list the members and subscriptions of a consumer group."""
        group = request.header_as(ConsumerGroupFields).consumer_group
        membership = self._clients.find_membership(group)
        if membership is None:
            return Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        body = ConsumerConnections(
            connection_set=[_connection(client) for client in membership.members.values()],
            subscription_table=membership.subscriptions,
            consume_type=membership.consume_type,
            message_model=membership.message_model,
            consume_from_where=membership.consume_from_where,
        )
        return request.answer(body=java_json.encode(body))

    def list_producers(self, request: Request) -> Answer:
        """Answer 204: list the producers of a group."""
        group = request.header_as(ProducerGroupFields).producer_group
        clients = self._clients.producers(group)
        if not clients:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        body = ProducerConnections(connection_set=[_connection(client) for client in clients])
        return request.answer(body=java_json.encode(body))

    def list_all_producers(self, request: Request) -> Answer:
        """Answer 328: list the producers of all groups."""
        table = {
            group: [_producer_row(client) for client in clients.values()]
            for group, clients in self._clients.producer_groups().items()
        }
        return request.answer(body=java_json.encode(ProducerTable(table)))

    def query_assignment(self, request: Request) -> Answer:
        """Answer 400: refuse to assign queues. The consumer then assigns them itself."""
        return Refusal(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.command.code} not supported: consumers assign queues themselves",
        )

    # Requests passed on to clients.

    async def get_status(self, request: Request) -> Answer:
        """Answer 223: ask one member, or all, for its offset in each queue (221)."""
        fields = request.header_as(ConsumerStatusFields)
        membership = self._clients.find_membership(fields.group)
        members = [] if membership is None else list(membership.members.values())
        if fields.client_addr:
            members = [client for client in members if client.client_id == fields.client_addr]
        if not members:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{fields.group}]")
        request_fields = to_fields(ConsumerStatusFields(topic=fields.topic, group=fields.group))
        answers = await call_all(
            client.call(Command(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields=request_fields))
            for client in members
        )
        table: dict[str, msgspec.Raw] = {}
        for client, answer in zip(members, answers, strict=True):
            if isinstance(answer, PeerFailed) or answer.code != ResponseCode.SUCCESS:
                continue
            try:
                table[client.client_id] = decode_status(answer.body)
            except RemoteProtocolError as error:
                return Refusal(ResponseCode.SYSTEM_ERROR, f"{client.client_id} sent an invalid status: {error}")
        return request.answer(body=java_json.encode(ConsumerStatus(consumer_table=table)))

    async def get_running_info(self, request: Request) -> Answer:
        """Answer 307: return the running info of a client."""
        fields = request.header_as(ClientRequestFields)
        client = self._find_member(fields)
        if isinstance(client, Refusal):
            return client
        return await self._call_client(request, client, Command(code=request.command.code, fields=to_fields(fields)))

    async def consume_directly(self, request: Request) -> Answer:
        """Answer 309: let a client consume a stored message immediately."""
        fields = request.header_as(ClientRequestFields)
        client = self._find_member(fields)
        if isinstance(client, Refusal):
            return client
        record = b""
        if fields.msg_id:
            record = await read_named_bytes(parse_message_id(fields.msg_id).position, self._find_queue)
            if not record:
                return Refusal(ResponseCode.SYSTEM_ERROR, f"no message has the id {fields.msg_id}")
            found = decode_record(record, check_body=False)
            needed = for_topic(found.topic, frozenset({Action.SUB}))
            if refusal := self._door.find_refusal(request.identity, (needed,), request.command.code):
                return refusal
            if is_inner_batch(found.sys_flag):
                return Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"{fields.msg_id} is the id of a batch, which does not say which of its messages is meant",
                )
        request_fields = msgspec.structs.replace(
            fields, broker_name=self._options.name, topic_sys_flag=0, group_sys_flag=0
        )
        return await self._call_client(
            request, client, Command(code=request.command.code, fields=to_fields(request_fields), body=record)
        )

    def _find_member(self, fields: ClientRequestFields) -> Client | Refusal:
        membership = self._clients.find_membership(fields.consumer_group)
        client = membership.find_client(fields.client_id or "") if membership is not None else None
        if client is None:
            remark = f"The Consumer <{fields.consumer_group}> <{fields.client_id}> not online"
            return Refusal(ResponseCode.SYSTEM_ERROR, remark)
        if client.version < _RUNNING_INFO_VERSION:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{fields.client_id}> is of version {client.version}, too old for this request",
            )
        return client

    async def _call_client(self, request: Request, client: Client, command: Command) -> Answer:
        """Send *command* to *client* and return its answer unchanged."""
        try:
            answer = await client.call(command)
        except PeerFailed:
            return Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{client.client_id}> did not answer in time")
        return request.answer(answer.code, answer.remark, fields=answer.fields, body=answer.body)


def _connection(client: Client) -> Connection:
    return Connection(
        client_id=client.client_id, client_addr=client.peer, language=client.language, version=client.version
    )


def _producer_row(client: Client) -> ProducerRow:
    return ProducerRow(
        clientId=client.client_id,
        remoteIP=f"/{client.peer}",
        language=client.language,
        version=client.version,
        lastUpdateTimestamp=client.seen_ms,
    )
