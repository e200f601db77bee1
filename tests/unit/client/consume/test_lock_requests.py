"""What an ordered consumer asks brokers about the locks of queues."""

import json

from tests.support.queue_calls import queue_calls

from holdfast.client.consume.lock_requests import LockOutcome, release_locks, request_locks
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

QUEUE = MessageQueue("t", "broker-a", 0)


async def test_locks_are_asked_for_together_and_granted_one_by_one():
    """In upstream's words."""
    async with queue_calls() as (server, calls):
        other = MessageQueue("t", "broker-a", 1)

        def grant_first(command: Command) -> Command:
            asked = json.loads(command.body)
            return response(command, body=json.dumps({"lockOKMQSet": asked["mqSet"][:1]}).encode())

        server.answers[RequestCode.LOCK_BATCH_MQ] = grant_first
        server.on(RequestCode.UNLOCK_BATCH_MQ)

        assert await request_locks(calls, [QUEUE, other]) == LockOutcome(frozenset({QUEUE}), frozenset({other}))
        await release_locks(calls, [QUEUE])

        (unlocked,) = server.requests_of(RequestCode.UNLOCK_BATCH_MQ)
        assert json.loads(unlocked.body)["mqSet"] == [{"topic": "t", "brokerName": "broker-a", "queueId": 0}]
        assert json.loads(unlocked.body)["consumerGroup"] == "g"


async def test_a_broker_that_does_not_answer_grants_nothing():
    """And takes nothing away; unlocking is a courtesy."""
    async with queue_calls() as (server, calls):
        server.refuse(RequestCode.LOCK_BATCH_MQ, 1)
        server.refuse(RequestCode.UNLOCK_BATCH_MQ, 1)
        unknown = MessageQueue("t", "broker-x", 0)

        assert await request_locks(calls, [QUEUE, unknown]) == LockOutcome()
        await release_locks(calls, [QUEUE, unknown])

        server.on(RequestCode.LOCK_BATCH_MQ, body=b'{"lockOKMQSet":[{"topic":"u","brokerName":"b","queueId":0}]}')
        assert await request_locks(calls, [QUEUE]) == LockOutcome(refused=frozenset({QUEUE}))
