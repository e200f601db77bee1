"""The properties of many messages, split at once."""

import pyarrow as pa

from holdfast.columns.property_columns import split_properties


def test_a_property_without_a_name_is_left_out():
    """Also if all the rest is regular."""
    found = split_properties(pa.array([b"KEYS\x01a\x02\x01b\x02", b"TAGS\x01c\x02"], pa.binary()))

    assert found.to_map().to_pylist() == [[("KEYS", "a")], [("TAGS", "c")]]
