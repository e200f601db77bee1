"""The error of a refused change of users and rules. Its text and code are those of RocketMQ where it has one."""

from __future__ import annotations

from typing import Final

from holdfast.model.errors import HoldfastError

REFUSED: Final = 16
"""The response code of most refused changes: RocketMQ's NO_PERMISSION."""
INVALID: Final = 29
"""The response code of a change whose user name is missing: RocketMQ's INVALID_PARAMETER."""
SUPER_NEEDED: Final = 1
"""The response code of a change that only a Super user may make: RocketMQ's SYSTEM_ERROR."""


class DirectoryRefused(HoldfastError):
    """Users and rules cannot be changed like this; the text says why. Nothing was changed.

    Attributes:
        code: The response code, see `holdfast.wire.frames.codes.ResponseCode`.
    """

    def __init__(self, text: str, code: int = REFUSED) -> None:
        super().__init__(text)
        self.code = code
