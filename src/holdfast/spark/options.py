"""The options of the source, validated before a query starts; and the option reader that the sink uses, too.

Options are named as in Spark's Kafka source if they have the same meaning, and are case-insensitive, as in Spark. The
error for an unknown name, a bad value or a contradiction names the option.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from holdfast.bulk.read_options import EARLIEST, LATEST, Bound, QueueOffsets, ReadOptions
from holdfast.client.access.credentials_options import (
    ENVIRONMENT_NAMES,
    AuthMode,
    CredentialsOptions,
    credentials_options,
    read_environment,
)
from holdfast.model.access.client_tls import ClientTls, Verification
from holdfast.model.errors import ConfigError

_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d|)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Option names of Kafka's source and sink and of RocketMQ's clients, and their names here.
_FOREIGN_NAMES: Final = {
    "kafka.bootstrap.servers": "namesrv",
    "bootstrap.servers": "namesrv",
    "namesrvaddr": "namesrv",
    "nameserver": "namesrv",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
    "kafkaconsumer.polltimeoutms": "brokerTimeout",
    "fetchoffset.numretries": "brokerTimeout",
    "fetchoffset.retryintervalms": "brokerTimeout",
    "kafka.compression.type": "compression",
}
_SOURCE_FOREIGN_NAMES: Final = {**_FOREIGN_NAMES, "topic": "subscribe", "topics": "subscribe"}
SINK_FOREIGN_NAMES: Final = {**_FOREIGN_NAMES, "subscribe": "topic"}
_CREDENTIALS_OPTIONS: Final = {
    "access_key": "accessKey",
    "secret_key": "secretKey",
    "secret_file": "secretFile",
    "security_token": "securityToken",
}
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadOptions):
    """The options of the source.

    Attributes:
        accepts_filters: Accept filter pushdown (a setting of Spark must enable it, too).
    """

    rows_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    rows_per_trigger_min: int | None = None
    trigger_delay_s: float = 900.0
    partitions_min: int | None = None
    partitions_max: int | None = None
    rows_per_partition_max: int | None = None
    has_properties: bool = True
    accepts_filters: bool = False


class OptionReader:
    """Reads options by name, and remembers the names it was asked for, to find unknown options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): text for name, text in options.items()}
        self._known: dict[str, str] = {"path": "path"}

    def text(self, name: str) -> str | None:
        """Return an option as text, stripped; None if it is missing or blank."""
        self._known[name.lower()] = name
        found = self._options.get(name.lower())
        return found.strip() or None if found is not None else None

    def integer(self, name: str, *, least: int = 1) -> int | None:
        """Return an option that is a whole number of at least *least*; None if it is missing."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise invalid_option(name, text, f"must be a whole number of at least {least}")
        return int(text)

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise invalid_option(name, text, "must be true or false")
        return text.lower() == "true"

    def duration_s(self, name: str, default_s: float) -> float:
        """Return an option that is a duration, such as `90`, `500ms` or `2m`, in seconds."""
        text = self.text(name)
        if text is None:
            return default_s
        match = _DURATION.fullmatch(text.lower())
        if match is None or int(match[1]) == 0:
            raise invalid_option(name, text, "must be a time such as 500ms, 90s, 2m or 1h")
        return int(match[1]) * _UNITS_MS[match[2]] / 1000

    def json(self, name: str) -> Any:
        """Return an option decoded from JSON; None if it is missing."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise invalid_option(name, text, f"is not valid JSON ({error})") from None

    def reject_foreign_names(self, foreign_names: Mapping[str, str]) -> None:
        """Reject the option names of other systems. Call this first, before a check reports the right name as missing.

        Raises:
            ConfigError: such an option is set.
        """
        for name in sorted(self._options):
            if name in foreign_names:
                raise ConfigError(f"holdfast has no option {name!r}: it is called {foreign_names[name]!r} here")
            if name.startswith("kafka."):
                raise ConfigError(f"option {name!r} is for Kafka's client, which is not used here: leave it out")

    def finish(self) -> None:
        """Reject unknown options: those that were never read.

        Raises:
            ConfigError: an option is unknown.
        """
        for name in sorted(self._options.keys() - self._known.keys()):
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean {self._known[near[0]]!r}?" if near else "known are " + ", ".join(self._names())
            raise ConfigError(f"holdfast has no option {name!r}: {hint}")

    def _names(self) -> Iterable[str]:
        return sorted(set(self._known.values()) - {"path"})


def invalid_option(name: str, text: str, reason: str) -> ConfigError:
    """Return the error for an option with a bad value."""
    return ConfigError(f"option {name!r} {reason}; it is {text!r}")


def read_source_options(options: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Validate and return the options of the source.

    Raises:
        ConfigError: an option is unknown, invalid, missing, or contradicts another.
    """
    reader = OptionReader(options)
    reader.reject_foreign_names(_SOURCE_FOREIGN_NAMES)
    parsed = SourceOptions(
        namesrv=read_namesrv(reader),
        unit=reader.text("unit"),
        tls=read_tls(reader),
        **_topic_selection(reader),
        start=_bound(reader, "starting", "latest" if is_stream else "earliest"),
        end=_bound(reader, "ending", "latest"),
        is_strict_time=_is_strict_time(reader),
        rows_per_trigger_max=reader.integer("maxOffsetsPerTrigger"),
        bytes_per_trigger_max=reader.integer("maxBytesPerTrigger"),
        rows_per_trigger_min=reader.integer("minOffsetsPerTrigger"),
        trigger_delay_s=reader.duration_s("maxTriggerDelay", 900.0),
        partitions_min=reader.integer("minPartitions"),
        partitions_max=reader.integer("maxPartitions"),
        rows_per_partition_max=reader.integer("maxRecordsPerPartition"),
        fails_on_data_loss=reader.boolean("failOnDataLoss", default=True),
        has_properties=reader.boolean("includeHeaders", default=True),
        tags=reader.text("tags") or "*",
        group=reader.text("groupId"),
        patience_s=reader.duration_s("brokerTimeout", 600.0),
        credentials=read_credentials(reader),
        accepts_filters=reader.boolean("pushdown", default=False),
    )
    reader.finish()
    for name in _BATCH_ONLY if is_stream else _STREAM_ONLY:
        if reader.text(name) is not None:
            raise ConfigError(
                f"option {name!r} is for {'batch queries' if is_stream else 'streams'} only; leave it out"
            )
    if parsed.end.kind == "earliest":
        raise ConfigError("option 'endingOffsets' cannot be 'earliest': nothing would be read")
    return parsed


def read_namesrv(reader: OptionReader) -> str:
    """Return the name servers from the option or, if it is missing, from the environment."""
    found = reader.text("namesrv") or os.environ.get("HOLDFAST_NAMESRV")
    if not found:
        raise ConfigError(
            "option 'namesrv' is missing: set it to the name servers, as host:port;host:port. (Spark does not pass on "
            "the options of a table that is read: for SQL, make a temporary view.)"
        )
    return found


def read_credentials(reader: OptionReader) -> CredentialsOptions | None:
    """Return the user of the query, from the options or else from the environment; None if neither names one.

    The environment is the driver's, and tasks receive the values. Only a secret file is read where a task runs.

    Raises:
        ConfigError: an option is missing, or contradicts another. The text repeats no secret.
    """
    texts = {name: reader.text(option) for name, option in _CREDENTIALS_OPTIONS.items()}
    mode = reader.text("auth") or "auto"
    names = ("option 'accessKey'", "option 'secretKey'", "option 'secretFile'")
    if texts["access_key"] is None and texts["secret_key"] is None and texts["secret_file"] is None:
        texts |= read_environment(os.environ)
        names = ENVIRONMENT_NAMES
    return credentials_options(**texts, auth=cast("AuthMode", mode), names=names)


def read_tls(reader: OptionReader) -> ClientTls | None:
    """Return how to use TLS; None unless an option or the environment names an authority, or what to verify."""
    ca = reader.text("tls.ca") or os.environ.get("HOLDFAST_TLS_CA") or None
    cert, key, verify = reader.text("tls.cert"), reader.text("tls.key"), reader.text("tls.verify")
    if (ca, cert, key, verify) == (None, None, None, None):
        return None
    if verify not in {None, *get_args(Verification)}:
        raise invalid_option("tls.verify", str(verify), f"must be one of {', '.join(get_args(Verification))}")
    return ClientTls(ca=ca, cert=cert, key=key, verify=cast("Verification", verify or "full"))


def _topic_selection(reader: OptionReader) -> dict[str, Any]:
    """Return the topics to read, given by exactly one of three options."""
    topics, pattern = reader.text("subscribe"), reader.text("subscribePattern")
    assigned = reader.json("assign")
    chosen = [option for option in (topics, pattern, assigned) if option is not None]
    if len(chosen) != 1:
        raise ConfigError(
            "exactly one of the options 'subscribe', 'subscribePattern' and 'assign' must be set; "
            f"{len(chosen)} of them are"
        )
    if topics is not None:
        names = tuple(name.strip() for name in topics.split(",") if name.strip())
        if not names:
            raise invalid_option("subscribe", topics, "names no topic")
        return {"topics": names}
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise invalid_option("subscribePattern", pattern, f"is not a valid regular expression ({error})") from None
        return {"pattern": pattern}
    is_valid = isinstance(assigned, dict) and all(isinstance(queues, list) and queues for queues in assigned.values())
    if not is_valid or not assigned:
        raise invalid_option("assign", json.dumps(assigned), 'must be such as {"orders":[0,1]}')
    return {"assigned": {topic: tuple(str(queue) for queue in queues) for topic, queues in assigned.items()}}


def _bound(reader: OptionReader, prefix: str, default: Literal["earliest", "latest"]) -> Bound:
    """Return where reading begins or ends. As in Kafka, one time overrides times per queue, and these offsets."""
    time_ms = reader.integer(f"{prefix}Timestamp", least=0)
    times = _queue_offsets(reader, f"{prefix}OffsetsByTimestamp", least=0)
    name = f"{prefix}Offsets"
    text = reader.text(name)
    ends: dict[str, Callable[[], Bound]] = {"earliest": lambda: Bound("earliest"), "latest": lambda: Bound("latest")}
    by_offset = ends[text.lower()]() if text is not None and text.lower() in ends else None
    if by_offset is None:
        offsets = _queue_offsets(reader, name, least=EARLIEST if prefix == "starting" else LATEST)
        by_offset = Bound(default) if offsets is None else Bound("offsets", offsets)
    if time_ms is not None:
        return Bound("time", time_ms=time_ms)
    return by_offset if times is None else Bound("times", times)


def _queue_offsets(reader: OptionReader, name: str, *, least: int) -> QueueOffsets | None:
    found = reader.json(name)
    if found is None:
        return None
    is_valid = isinstance(found, dict) and all(
        isinstance(queues, dict) and all(type(value) is int and value >= least for value in queues.values())
        for queues in found.values()
    )
    if not is_valid:
        raise invalid_option(name, json.dumps(found), 'must be such as {"orders":{"0":17,"1":42}}')
    return {topic: dict(queues) for topic, queues in found.items()}


def _is_strict_time(reader: OptionReader) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    text = reader.text(name) or "error"
    if text.lower() not in {"error", "latest"}:
        raise invalid_option(name, text, "must be error or latest")
    return text.lower() == "error"
