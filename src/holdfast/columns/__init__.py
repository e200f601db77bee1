"""Stored bytes as Arrow columns, without one object per message.

Shared by `holdfast.arrow`, the Spark source and the jobs. Pure: bytes in, arrays out. Needs pyarrow and numpy, but
neither Spark nor a cluster.

    checksums           Verify the checksums of many bodies of one size with one CRC call
    slices              Slices of one block of bytes as an Arrow column
    records             The fixed fields of all records of a pull answer, one numpy array per field
    inner_batches       Expand batches that were stored whole into one row per message
    property_columns    Parse the properties of many messages at once
    message_columns     Turn the bytes of a pull answer into an Arrow batch
"""
