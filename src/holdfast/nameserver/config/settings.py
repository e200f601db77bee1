"""Settings that can change at run time (318), and all settings as properties text (319).

The keys are upstream's where upstream has the setting, so that its tools find them. A change lasts until the process
ends: it does not change the options on disk.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.machine.component import Component
from holdfast.machine.request import Answer, Handlers, Refusal, Request
from holdfast.machine.turn import Turn
from holdfast.nameserver.config.kv_config import FILE
from holdfast.nameserver.notices import BrokerEvents
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.wire.cluster.push_state import PUSH_KEY
from holdfast.wire.frames.codes import RequestCode, ResponseCode

_CHANGEABLE: Final[dict[str, str]] = {
    "brokerTimeoutMillis": "broker_timeout_ms",
    "scanNotActiveBrokerInterval": "scan_interval_ms",
    "orderMessageEnable": "order_message_enable",
    "returnOrderTopicConfigToBroker": "return_order_topic_config",
}


class Settings(Component):
    """The settings in effect."""

    def __init__(self, turn: Turn, options: NameServerOptions, changes: RouteChanges) -> None:
        self._turn = turn
        self._options = options
        self._changes = changes

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.GET_NAMESRV_CONFIG: self._get, RequestCode.UPDATE_NAMESRV_CONFIG: self._update}

    @property
    def broker_timeout_ms(self) -> int:
        """How long a broker may be silent, unless it announced a timeout."""
        return self._options.broker_timeout_ms

    @property
    def scan_interval_ms(self) -> int:
        """How often to check for silent brokers."""
        return self._options.scan_interval_ms

    @property
    def order_message_enable(self) -> bool:
        """Whether routes carry the queue counts of ordered topics."""
        return self._options.order_message_enable

    @property
    def return_order_topic_config(self) -> bool:
        """Whether the answer to a registration carries the queue counts of ordered topics."""
        return self._options.return_order_topic_config

    @property
    def broker_events(self) -> BrokerEvents:
        """Whether clients are notified when brokers come and leave."""
        return self._options.broker_events

    # Requests.

    def _get(self, request: Request) -> Answer:
        return request.answer(body=self._text())

    def _update(self, request: Request) -> Answer:
        fault = self._change(request.command.body)
        if fault is not None:
            return Refusal(ResponseCode.SYSTEM_ERROR, fault)
        self._changes.add_all()  # Whether routes carry the queue counts of ordered topics may have changed.
        text = request.command.body.decode(errors="replace")
        self._turn.log("warning", "settings changed", text=text, peer=request.peer)
        return request.answer()

    def _text(self) -> bytes:
        """Return all settings as properties text, sorted."""
        host, _, port = self._options.listen.rpartition(":")
        values: dict[str, object] = {key: getattr(self._options, name) for key, name in _CHANGEABLE.items()}
        values |= {"bindAddress": host, "listenPort": port, PUSH_KEY: self._options.broker_events}
        if self._options.data is not None:
            values["kvConfigPath"] = f"{self._options.data}/{FILE}"
        return "".join(f"{key}={_text(values[key])}\n" for key in sorted(values)).encode()

    def _change(self, text: bytes) -> str | None:
        """Apply settings given as properties text. If one is invalid, apply none of them and return the fault."""
        changes: dict[str, object] = {}
        for line in text.decode(errors="replace").splitlines():
            key, equals, value = (part.strip() for part in line.partition("="))
            if not key or key.startswith("#"):
                continue
            if not equals or key not in _CHANGEABLE:
                return f"setting {key!r} cannot be changed at run time; use one of {', '.join(sorted(_CHANGEABLE))}"
            name = _CHANGEABLE[key]
            kind = type(getattr(self._options, name))
            try:
                changes[name] = msgspec.convert(value, kind, strict=False)
            except msgspec.ValidationError:
                return f"{key} cannot be {value[:80]!r}: use {'true or false' if kind is bool else 'a number'}"
            if kind is int and not 0 < int(value) < 2**31:
                return f"{key} cannot be {value}: use a number from 1 to 2147483647"
        self._options = msgspec.structs.replace(self._options, **changes)
        return None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
