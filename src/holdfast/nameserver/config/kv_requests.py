"""Request handlers of the KV store: 100, 101, 102, 219. A change is answered once it is durable (see `kv_config`)."""

from __future__ import annotations

from typing import Final

from holdfast.machine.effects import Effect, SendBytes, SetTimer, WriteFile
from holdfast.nameserver.config.kv_config import DELETIONS, ORDER_TOPICS, UNITS, KvStore, Waiter
from holdfast.nameserver.request import Answer, Handlers, Refusal, Request
from holdfast.wire.cluster.route import KvFields, NamespaceFields, Table
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import encode_command, response
from holdfast.wire.frames.fields import BadField, from_fields

TIMER: Final = "kv"
_RETRY_MS: Final = 5_000

_RESERVED: Final = {
    UNITS: f"{UNITS} holds which units are open to others: use `holdfast dr open` and `holdfast dr close` to change it",
    DELETIONS: f"{DELETIONS} holds the deletion markers: use `holdfast topic delete` and `topic create` to change them",
}


class KvRequests:
    """Answers queries and changes of the KV store."""

    def __init__(self, kv: KvStore) -> None:
        self._kv = kv
        self._changed: set[str] = set()

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.GET_KV_CONFIG: self._get,
            RequestCode.DELETE_KV_CONFIG: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list,
        }

    def pop_changes(self) -> set[str]:
        """Return the topics whose queue counts for ordered use changed since the last call, and reset the set."""
        changed, self._changed = self._changed, set()
        return changed

    def _put(self, request: Request) -> Answer:
        fields = from_fields(KvFields, request.command.fields)
        if fields.value is None:
            raise BadField("field 'value' is missing")
        if fields.namespace in _RESERVED:
            return Refusal(ResponseCode.ILLEGAL_OPERATION, _RESERVED[fields.namespace])
        self._kv.put(fields.namespace, fields.key, fields.value)
        return self._save(request, fields, "setting changed")

    def _delete(self, request: Request) -> Answer:
        fields = from_fields(KvFields, request.command.fields)
        if fields.namespace in _RESERVED:
            return Refusal(ResponseCode.ILLEGAL_OPERATION, _RESERVED[fields.namespace])
        self._kv.delete(fields.namespace, fields.key)
        return self._save(request, fields, "setting deleted")

    def _save(self, request: Request, fields: KvFields, event: str) -> Answer:
        if fields.namespace == ORDER_TOPICS:
            self._changed.add(fields.key)
        request.log("info", event, namespace=fields.namespace, key=fields.key, value=fields.value)
        ready, writes = self._kv.save(Waiter(request.channel, request.command))
        request.effects.extend(writes)
        return request.answer() if ready else None

    def _get(self, request: Request) -> Answer:
        fields = from_fields(KvFields, request.command.fields)
        value = self._kv.find(fields.namespace, fields.key)
        if value is None:
            remark = f"No config item, Namespace: {fields.namespace} Key: {fields.key}"
            return Refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.answer(fields={"value": value})

    def _list(self, request: Request) -> Answer:
        namespace = from_fields(NamespaceFields, request.command.fields).namespace
        table = self._kv.find_namespace(namespace)
        if table is None:
            return Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return request.answer(body=java_json.encode(Table(table)))

    # Results of writes.

    def written(self) -> list[Effect]:
        """Acknowledge the changes that are on disk, and write those that came meanwhile."""
        return self._finish(*self._kv.written(), ResponseCode.SUCCESS, None)

    def failed(self, reason: str, now_ms: int) -> list[Effect]:
        """Answer the waiting requests with the failure, and schedule a retry."""
        remark = f"changed, but not saved yet, and lost if this name server restarts before it is: {reason}"
        effects = self._finish(*self._kv.failed(), ResponseCode.SYSTEM_ERROR, remark)
        return [*effects, SetTimer(TIMER, now_ms + _RETRY_MS)]

    def retry(self) -> list[Effect]:
        """Repeat the failed write."""
        return [*self._kv.retry()]

    def _finish(
        self, done: list[Waiter], writes: list[WriteFile], code: ResponseCode, remark: str | None
    ) -> list[Effect]:
        return [
            *(
                SendBytes(waiter.channel, [encode_command(response(waiter.request, code, remark))])
                for waiter in done
                if not waiter.request.is_one_way
            ),
            *writes,
        ]
