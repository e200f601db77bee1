"""The options of the sink and the columns of its input, validated before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError
from holdfast.spark.options import (
    SINK_FOREIGN_NAMES,
    OptionReader,
    invalid_option,
    read_credentials,
    read_namesrv,
    read_tls,
)
from holdfast.wire.records.compression import Codec

BODY_COLUMNS: Final = ("body", "value")
"""Names of the column that holds the message body; the second is the name in Kafka's sink."""
_CODECS: Final = {"none": None, **{codec.name.lower(): codec for codec in Codec}}
_COLUMN_TYPES: Final = {
    "body": {"binary", "string"},
    "value": {"binary", "string"},
    "key": {"binary", "string"},
    "tags": {"string"},
    "topic": {"string"},
    "properties": {"map<string,string>"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of the sink.

    Attributes:
        topic: The topic of rows that do not name one.
        is_exactly_once: Store every row exactly once, despite retries.
        is_ordered: A partition has the same row order whenever it is computed, so its rows need no sorting.
        accepts_unknown: Continue even if a dead broker's record of stored rows is lost.
        patience_s: How long a broker may be unavailable before the query fails.
        codec: Compresses batches that brokers store whole; None for no compression.
        unit: The unit (a cluster) to write to; None for all.
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves the identity of the writers; None for no access control.
        write_name: The name and number that make a batch write repeatable; None if a repetition writes again.
    """

    namesrv: str
    topic: str | None = None
    is_exactly_once: bool = False
    is_ordered: bool = False
    accepts_unknown: bool = False
    patience_s: float = 600.0
    codec: Codec | None = None
    unit: str | None = None
    tls: ClientTls | None = None
    credentials: CredentialsOptions | None = None
    write_name: tuple[str, int] | None = None


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Validate and return the options of the sink.

    Raises:
        ConfigError: an option is unknown, invalid, missing, or contradicts another.
    """
    reader = OptionReader(options)
    reader.reject_foreign_names(SINK_FOREIGN_NAMES)
    for name in ("checkpointLocation", "queryName"):  # options of Spark itself, which it passes on
        reader.text(name)
    parsed = SinkOptions(
        namesrv=read_namesrv(reader),
        unit=reader.text("unit"),
        tls=read_tls(reader),
        topic=reader.text("topic"),
        is_exactly_once=reader.boolean("exactlyOnce", default=False),
        is_ordered=reader.boolean("inputOrdered", default=False),
        accepts_unknown=reader.boolean("acceptUnknown", default=False),
        patience_s=reader.duration_s("brokerTimeout", 600.0),
        codec=_codec(reader),
        credentials=read_credentials(reader),
        write_name=_write_name(reader),
    )
    reader.finish()
    if parsed.write_name is not None and not parsed.is_exactly_once:
        raise ConfigError("the options 'txnAppId' and 'txnVersion' need exactlyOnce=true, which is not set")
    return parsed


def _codec(reader: OptionReader) -> Codec | None:
    name = reader.text("compression")
    if name is not None and name.lower() not in _CODECS:
        raise invalid_option("compression", name, f"must be one of {', '.join(_CODECS)}")
    return None if name is None else _CODECS[name.lower()]


def _write_name(reader: OptionReader) -> tuple[str, int] | None:
    """Return the name and version of a batch write; the options are named as in Delta's idempotent writes."""
    name, version = reader.text("txnAppId"), reader.integer("txnVersion", least=0)
    if (name is None) != (version is None):
        raise ConfigError("the options 'txnAppId' and 'txnVersion' go together: set both or none")
    if name is None or version is None:
        return None
    if not name.isprintable() or " " in name:
        raise invalid_option("txnAppId", name, "must contain no blanks or control characters")
    return name, version


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Validate the columns, given by name and type.

    Raises:
        ConfigError: a column is unknown, missing or of a wrong type.
    """
    for name, kind in columns.items():
        if name not in _COLUMN_TYPES:
            raise ConfigError(f"holdfast cannot write column {name!r}; it accepts {', '.join(_COLUMN_TYPES)}")
        if kind not in _COLUMN_TYPES[name]:
            raise ConfigError(f"column {name!r} is {kind}; it must be {' or '.join(sorted(_COLUMN_TYPES[name]))}")
    if sum(name in columns for name in BODY_COLUMNS) != 1:
        raise ConfigError("exactly one column must hold the message: 'body', or 'value' as in Kafka's sink")
    if options.topic is None and "topic" not in columns:
        raise ConfigError("there is no topic to write to: give the option 'topic', or a column 'topic'")
    if options.is_exactly_once and options.topic is None:
        raise ConfigError("exactlyOnce=true needs the option 'topic'; a column 'topic' is not enough")
