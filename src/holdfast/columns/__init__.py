"""Stored bytes as Arrow columns, without an object per message: what `holdfast.arrow`, Spark's source and jobs share.

Pure: bytes in, arrays out. Needs pyarrow and numpy, but neither Spark nor a cluster.
"""
