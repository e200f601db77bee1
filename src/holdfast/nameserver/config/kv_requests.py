"""Request handlers of the KV store: 100, 101, 102, 219. A change is answered once it is durable (see `kv_config`)."""

from __future__ import annotations

from typing import Final

from holdfast.machine.component import Component
from holdfast.machine.request import Answer, Handlers, Refusal, Request
from holdfast.machine.turn import Turn
from holdfast.nameserver.config.kv_config import DELETIONS, ORDER_TOPICS, UNITS, KvStore
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.wire.cluster.route import KvFields, NamespaceFields, Table
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.fields import BadField

_RESERVED: Final = {
    UNITS: f"{UNITS} holds which units are open to others: use `holdfast dr open` and `holdfast dr close` to change it",
    DELETIONS: f"{DELETIONS} holds the deletion markers: use `holdfast topic delete` and `topic create` to change them",
}


class KvRequests(Component):
    """Answers queries and changes of the KV store."""

    def __init__(self, turn: Turn, kv: KvStore, changes: RouteChanges) -> None:
        self._turn = turn
        self._kv = kv
        self._changes = changes

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.GET_KV_CONFIG: self._get,
            RequestCode.DELETE_KV_CONFIG: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list,
        }

    def _put(self, request: Request) -> Answer:
        fields = request.header_as(KvFields)
        if fields.value is None:
            raise BadField("field 'value' is missing")
        if fields.namespace in _RESERVED:
            return Refusal(ResponseCode.ILLEGAL_OPERATION, _RESERVED[fields.namespace])
        self._kv.put(fields.namespace, fields.key, fields.value)
        return self._save(request, fields, "setting changed")

    def _delete(self, request: Request) -> Answer:
        fields = request.header_as(KvFields)
        if fields.namespace in _RESERVED:
            return Refusal(ResponseCode.ILLEGAL_OPERATION, _RESERVED[fields.namespace])
        self._kv.delete(fields.namespace, fields.key)
        return self._save(request, fields, "setting deleted")

    def _save(self, request: Request, fields: KvFields, event: str) -> Answer:
        if fields.namespace == ORDER_TOPICS:
            self._changes.add([fields.key])  # Routes carry the queue counts of ordered topics.
        self._turn.log("info", event, namespace=fields.namespace, key=fields.key, value=fields.value, peer=request.peer)
        return self._kv.save(request)

    def _get(self, request: Request) -> Answer:
        fields = request.header_as(KvFields)
        value = self._kv.find(fields.namespace, fields.key)
        if value is None:
            remark = f"No config item, Namespace: {fields.namespace} Key: {fields.key}"
            return Refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.answer(fields={"value": value})

    def _list(self, request: Request) -> Answer:
        namespace = request.header_as(NamespaceFields).namespace
        table = self._kv.find_namespace(namespace)
        if table is None:
            return Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return request.answer(body=java_json.encode(Table(table)))
