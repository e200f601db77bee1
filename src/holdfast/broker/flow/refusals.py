"""Turns exceptions raised inside a handler's procedure into error responses."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Answer, Refusal, Request
from holdfast.model.errors import DiskFailed, MappingRefused, RecordRefused, RemoteProtocolError
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.fields import BadField

ProcedureHandler = Callable[[Request], Procedure[Answer]]


def refuse_on_error(handler: ProcedureHandler) -> ProcedureHandler:
    """Wrap *handler* so that a rule violation, a bad request or a disk failure becomes a `Refusal` with its reason."""

    async def handle(request: Request) -> Answer:
        try:
            return await handler(request)
        except MappingRefused as error:
            return Refusal(ResponseCode.ILLEGAL_OPERATION, str(error))
        except (RemoteProtocolError, BadField) as error:
            return Refusal(ResponseCode.INVALID_PARAMETER, str(error))
        except (DiskFailed, RecordRefused) as error:
            return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))

    return handle
