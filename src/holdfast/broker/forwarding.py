"""Messages of the broker's own making for logical queues that another broker leads.

A delayed message that is due, or a half message that was committed, stays where it was taken until then. Its queue may
have moved meanwhile: then it is sent to whoever leads it now, as its producer would. A send without an answer is sent
again: at least once, as all consumption is.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.relaying import Relaying
from holdfast.broker.waits import Procedure
from holdfast.broker.writer import DELAY, Draft
from holdfast.machine.events import ChannelId
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import Command
from holdfast.wire.fields import to_fields
from holdfast.wire.host import format_host
from holdfast.wire.properties import format_properties
from holdfast.wire.record import TRANSACTION_MASK
from holdfast.wire.send import SendFields

_NOBODY: Final = ChannelId(0)
_GROUP: Final = "HOLDFAST_FORWARD"


class Forwards:
    """The way of our own messages to other leaders."""

    def __init__(self, relaying: Relaying) -> None:
        self._relaying = relaying

    def send(self, draft: Draft) -> Procedure[bool]:
        """Send *draft* to the leader of its queue; False when that cannot be reached, or does not take it."""
        properties = {name: value for name, value in draft.properties.items() if name != DELAY}
        fields = SendFields(
            producer_group=_GROUP,
            topic=draft.topic,
            queue_id=draft.queue_id,
            sys_flag=draft.sys_flag & ~TRANSACTION_MASK,
            born_timestamp=draft.born_ms,
            flag=draft.flag,
            properties=format_properties(properties),
            reconsume_times=draft.reconsume_times,
        )
        command = Command(code=RequestCode.SEND_MESSAGE_V2, opaque=1, fields=to_fields(fields), body=draft.body)
        place = (draft.topic, draft.queue_id)
        answer = yield from self._relaying.ask_leader(command, place, _NOBODY, format_host(draft.born_host))
        return answer is not None and answer.code == ResponseCode.SUCCESS
