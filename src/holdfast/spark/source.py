"""The data source class behind `format("holdfast")`.

It validates options and schema before a query starts. The user can give a schema to select columns: other columns are
neither decoded nor sent through Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from holdfast.columns.message_columns import TYPES
from holdfast.model.errors import ConfigError
from holdfast.spark.batch_reader import HoldfastBatchReader, HoldfastPushdownReader
from holdfast.spark.options import read_source_options
from holdfast.spark.sink_options import SinkOptions, check_columns, read_sink_options
from holdfast.spark.stream_reader import HoldfastStreamReader

if TYPE_CHECKING:
    from collections.abc import Mapping


class HoldfastSource(DataSource):
    """Spark's entry point to the source and the sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "holdfast"

    def schema(self) -> StructType:
        """Return all columns.

        Raises:
            ConfigError: Spark asks for a table of its catalog, which is not supported.
        """
        options: Mapping[str, Any] = self.options
        if "provider" in options:  # Set by CREATE TABLE. The table is then read without any of its options.
            raise ConfigError(
                "a topic cannot be a table of Spark's catalog, because Spark does not pass on the options of a table "
                "that is read: use CREATE TEMPORARY VIEW name USING holdfast OPTIONS (...)"
            )
        has_properties = str(options.get("includeHeaders", "true")).lower() != "false"
        names = [name for name in TYPES if has_properties or name != "properties"]
        return StructType([StructField(name, from_arrow_type(TYPES[name])) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = read_source_options(self.options, is_stream=False)
        kind = HoldfastPushdownReader if options.accepts_filters else HoldfastBatchReader
        return kind(options, read_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        return HoldfastStreamReader(read_source_options(self.options, is_stream=True), read_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of a batch write."""
        from holdfast.spark.writer import HoldfastBatchWriter  # noqa: PLC0415 - workers that read start without it

        return HoldfastBatchWriter(self._validate_sink(schema, is_overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return the writer of a streaming query."""
        from holdfast.spark.writer import HoldfastStreamWriter  # noqa: PLC0415 - as above

        return HoldfastStreamWriter(self._validate_sink(schema, is_overwrite=overwrite))

    def _validate_sink(self, schema: StructType, *, is_overwrite: bool) -> SinkOptions:
        if is_overwrite:
            raise ConfigError("messages cannot be overwritten: write with mode('append')")
        from holdfast.spark.sink_contact import require_contact  # noqa: PLC0415 - as above

        options = read_sink_options(self.options)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        require_contact(options)
        return options


def read_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of *schema*.

    Raises:
        ConfigError: a column does not exist, or has another type.
    """
    for field in schema.fields:
        if field.name not in TYPES:
            raise ConfigError(f"holdfast has no column {field.name!r}; it has {', '.join(TYPES)}")
        kind = from_arrow_type(TYPES[field.name])
        if field.dataType.simpleString() != kind.simpleString():
            text = f"column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}"
            raise ConfigError(text)
    return tuple(field.name for field in schema.fields)
