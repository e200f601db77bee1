"""What users say to the sink, judged before anything is written: its options, and the columns of what is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.model.errors import ConfigError
from holdfast.spark.options import SINK_HABITS, OptionReader, read_namesrv, refuse
from holdfast.wire.records.compression import Codec

BODIES: Final = ("body", "value")
"""Names of the column that is the message; the second is what Kafka's sink calls it."""
_CODECS: Final = {"none": None, **{codec.name.lower(): codec for codec in Codec}}
_KINDS: Final = {
    "body": {"binary", "string"},
    "value": {"binary", "string"},
    "key": {"binary", "string"},
    "tags": {"string"},
    "topic": {"string"},
    "properties": {"map<string,string>"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the sink is told.

    Attributes:
        topic: Where rows go that name no topic themselves.
        is_exact: Every row is stored once, whatever is retried.
        is_ordered: The rows of a partition come in the same order whenever it is computed: they need no sorting.
        accepts_unknown: Go on where a dead broker took its knowledge with it.
        patience_s: How long a broker may be away before the query fails.
        codec: How batches are compressed that brokers keep whole; None for not at all.
        unit: The unit, a cluster, that is written to; None for all.
        write_name: The name under which a batch write can be repeated, and its number; None to write it anew.
    """

    namesrv: str
    topic: str | None = None
    is_exact: bool = False
    is_ordered: bool = False
    accepts_unknown: bool = False
    patience_s: float = 600.0
    codec: Codec | None = None
    unit: str | None = None
    write_name: tuple[str, int] | None = None


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return what the sink is told.

    Raises:
        ConfigError: an option is unknown, bad or missing.
    """
    reader = OptionReader(options)
    reader.refuse_habits(SINK_HABITS)
    reader.text("checkpointLocation")  # Spark's own, which it passes on
    read = SinkOptions(
        namesrv=read_namesrv(reader),
        unit=reader.text("unit"),
        topic=reader.text("topic"),
        is_exact=reader.boolean("exactlyOnce", default=False),
        is_ordered=reader.boolean("inputOrdered", default=False),
        accepts_unknown=reader.boolean("acceptUnknown", default=False),
        patience_s=reader.duration_s("brokerTimeout", 600.0),
        codec=_codec(reader),
        write_name=_write_name(reader),
    )
    reader.finish()
    if read.write_name is not None and not read.is_exact:
        raise ConfigError("the options 'txnAppId' and 'txnVersion' name a write with exactlyOnce=true; it is not said")
    return read


def _codec(reader: OptionReader) -> Codec | None:
    name = reader.text("compression")
    if name is not None and name.lower() not in _CODECS:
        raise refuse("compression", name, f"must be one of {', '.join(_CODECS)}")
    return None if name is None else _CODECS[name.lower()]


def _write_name(reader: OptionReader) -> tuple[str, int] | None:
    """Return what names a batch write, in the words of Delta's idempotent writes."""
    name, version = reader.text("txnAppId"), reader.integer("txnVersion", least=0)
    if (name is None) != (version is None):
        raise ConfigError("the options 'txnAppId' and 'txnVersion' go together")
    if name is None or version is None:
        return None
    if not name.isprintable() or " " in name:
        raise refuse("txnAppId", name, "must have no blanks")
    return name, version


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Judge the columns, given by name and type.

    Raises:
        ConfigError: one is unknown, missing or of a wrong type.
    """
    for name, kind in columns.items():
        if name not in _KINDS:
            raise ConfigError(f"holdfast does not know what to write of column {name!r}; it takes {', '.join(_KINDS)}")
        if kind not in _KINDS[name]:
            raise ConfigError(f"column {name!r} is {kind}; it must be {' or '.join(sorted(_KINDS[name]))}")
    if sum(name in columns for name in BODIES) != 1:
        raise ConfigError("exactly one column is the message: 'body', or 'value' as in Kafka's sink")
    if options.topic is None and "topic" not in columns:
        raise ConfigError("it is not said where to write: give the option 'topic', or a column 'topic'")
    if options.is_exact and options.topic is None:
        raise ConfigError("with exactlyOnce=true the option 'topic' says where to write, not a column")
