"""Whoever asks for something that breaks a rule is told which, and nobody's channel closes."""

import pytest

from holdfast.broker.flow.awaitables import Pause
from holdfast.broker.flow.refusals import refuse_on_error
from holdfast.broker.flow.request import Answer, Refusal, Request
from holdfast.machine.events import ChannelId
from holdfast.model.errors import DiskFailed, HoldfastError, MappingRefused, RecordRefused, RemoteProtocolError
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField

REQUEST = Request(command=Command(code=1), channel=ChannelId(1), peer="1.2.3.4:5")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MappingRefused("a rule", "not so"), ResponseCode.ILLEGAL_OPERATION),
        (RemoteProtocolError("not so"), ResponseCode.INVALID_PARAMETER),
        (BadField("not so"), ResponseCode.INVALID_PARAMETER),
        (DiskFailed("not so"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (RecordRefused("not so"), ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
def test_a_rule_broken_in_the_middle_becomes_an_answer(error: HoldfastError, code: int) -> None:
    """Also after the work had to wait."""

    async def work(_request: Request) -> Answer:
        await Pause(1)
        raise error

    steps = refuse_on_error(work)(REQUEST)
    assert steps.send(None) == Pause(1)
    with pytest.raises(StopIteration) as stop:
        steps.send(b"")

    assert isinstance(stop.value.value, Refusal)
    assert stop.value.value.code == code
    assert "not so" in stop.value.value.remark


def test_work_that_breaks_nothing_answers_for_itself() -> None:
    """Its answer is passed on."""
    answer = Command(code=0)

    async def work(_request: Request) -> Answer:
        await Pause(1)
        return answer

    steps = refuse_on_error(work)(REQUEST)
    steps.send(None)
    with pytest.raises(StopIteration) as stop:
        steps.send(b"")

    assert stop.value.value is answer
