"""A small file and the version before it."""

from __future__ import annotations

import pytest

from holdfast.model.errors import StoreError
from holdfast.store.base.file_versions import load_newest, versions_of
from holdfast.wire.frames import java_json

FILES = {"whole": b'{"a":1}', "damaged": b'{"a":', "empty": b"", "binary": b"\xff\xfe", "deep": b"[" * 100_000}


@pytest.mark.parametrize("state", ["damaged", "empty", "binary", "deep", "missing"])
def test_the_version_before_is_used_where_the_file_is_of_no_use(state: str):
    """Whatever happened to the file."""
    files = {"f.bak": FILES["whole"]} | ({"f": FILES[state]} if state in FILES else {})

    assert load_newest(files.get, versions_of("f"), lambda _, content: java_json.loads(content)) == ("f.bak", {"a": 1})
    assert load_newest(files.get, ("f",), lambda _, content: java_json.loads(content)) is None


def test_a_file_that_is_whole_is_preferred():
    """The backup is older."""
    files = {"f": b"2", "f.bak": b"1"}

    assert load_newest(files.get, versions_of("f"), lambda path, content: (path, int(content))) == ("f", ("f", 2))


def test_another_error_is_passed_on():
    """A decoder that refuses a whole file must not get an older one."""

    def refuse(path: str, content: bytes) -> None:
        raise StoreError(f"{path}: {len(content)}")

    with pytest.raises(StoreError, match="f: 1"):
        load_newest({"f": b"2", "f.bak": b"1"}.get, versions_of("f"), refuse)
