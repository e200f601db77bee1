"""Stored bytes as Arrow columns, without an object per message: what `holdfast.arrow`, Spark's source and jobs share.

Pure: bytes in, arrays out. Needs pyarrow and numpy, but neither Spark nor a cluster.

    checksums         The checksums of many bodies of one size, by one sum
    inner_batches     The messages of batches that were kept whole, as rows beside those of single records
    message_columns   From the bytes of a pull answer to an Arrow batch
    property_columns  The properties of many messages at once
    records           The records of a pull answer as columns of numbers
    slices            Many pieces of one block of bytes as an Arrow column, without an object per piece
"""
