"""A broker by script with one topic and one consumer group: enough for a consumer to live on.

Knows offsets, locks and members; serves messages 0 to *end* of each queue; keeps what was given back.
"""

import json
from typing import Any

from tests.support.scripted_server import ScriptedServer

from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.records.record import StoredRecord, encode_record


class ScriptedGroup:
    """What the broker knows of the topic `t` and the group `g`."""

    def __init__(self, server: ScriptedServer, *, queues: int = 1, end: int = 0) -> None:
        self.end = dict.fromkeys(range(queues), end)
        self.committed: dict[int, int] = {}
        self.sent_back: list[tuple[int, int]] = []
        self.locked: set[int] = set()
        self.other_members: list[str] = []
        self.is_lock_granted = True
        self._members: set[str] = set()
        server.serve_topic("t", queues=queues)
        server.answers |= {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }
        server.on(RequestCode.GET_MIN_OFFSET, offset="0")
        server.answers[RequestCode.GET_MAX_OFFSET] = lambda command: response(
            command, fields={"offset": str(self.end[int(command.fields["queueId"])])}
        )

    def restart(self, committed: dict[int, int]) -> None:
        """Forget what a broker forgets in a crash: members, locks, and the commits of its last seconds."""
        self.committed = dict(committed)
        self.locked.clear()
        self._members.clear()

    def _heartbeat(self, command: Command) -> Command:
        self._members.add(json.loads(command.body)["clientID"])
        return response(command)

    def _list(self, command: Command) -> Command:
        return response(command, body=json.dumps({"consumerIdList": [*self._members, *self.other_members]}).encode())

    def _query(self, command: Command) -> Command:
        offset = self.committed.get(int(command.fields["queueId"]))
        return response(command, 22) if offset is None else response(command, fields={"offset": str(offset)})

    def _update(self, command: Command) -> Command:
        self.committed[int(command.fields["queueId"])] = int(command.fields["commitOffset"])
        return response(command)

    def _pull(self, command: Command) -> Command | None:
        queue_id, offset = int(command.fields["queueId"]), int(command.fields["queueOffset"])
        end = self.end[queue_id]
        if offset >= end:
            return None  # parked for ever
        last = min(end, offset + int(command.fields["maxMsgNums"]))
        body = b"".join(encode_record(_record(queue_id, at)) for at in range(offset, last))
        fields = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(end), "nextBeginOffset": str(last)}
        return response(command, fields=fields, body=body)

    def _send_back(self, command: Command) -> Command:
        self.sent_back.append((int(command.fields["offset"]), int(command.fields["delayLevel"])))
        return response(command)

    def _lock(self, command: Command) -> Command:
        requested: list[dict[str, Any]] = json.loads(command.body)["mqSet"] if self.is_lock_granted else []
        self.locked |= {queue["queueId"] for queue in requested}
        return response(command, body=json.dumps({"lockOKMQSet": requested}).encode())

    def _unlock(self, command: Command) -> Command:
        self.locked -= {queue["queueId"] for queue in json.loads(command.body)["mqSet"]}
        return response(command)


def _record(queue_id: int, offset: int) -> StoredRecord:
    body = b"%d/%d" % (queue_id, offset)
    return StoredRecord(
        0, offset, "t", queue_id, offset, 0, 0, 1, bytes(8), 2, bytes(8), 0, 0, 0, body, b"UNIQ_KEY\x01%b\x02" % body
    )
