"""Every frame that Java components were seen to exchange: we read it as it was meant, and write it as it was."""

import json
from typing import Any

import pytest
from tests.support import recordings
from tests.support.recordings import RecordedFrame

from holdfast.wire.frames.command import BINARY, JSON, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames


def expected_fields(recorded: RecordedFrame) -> dict[str, str]:
    return recorded.line["header"].get("extFields") or {}


def json_header(frame: bytes) -> dict[str, Any]:
    (split,), _ = split_frames(memoryview(frame))
    header: dict[str, Any] = json.loads(bytes(split.header))
    if not header.get("extFields"):
        header.pop("extFields", None)  # Absent and empty mean the same, and Java itself writes both.
    return header


def test_the_recordings_are_there():
    """A test over no files would pass."""
    assert len(recordings.file_names()) == 80
    assert len(recordings.all_frames()) > 3500


@pytest.mark.parametrize("name", recordings.file_names())
def test_every_frame_decodes_to_what_its_line_says(name: str):
    """Code, flag, opaque, version, language, remark and fields, in both encodings."""
    for recorded in recordings.read(name):
        header = recorded.line["header"]

        command = recorded.command

        assert command.serializer == (JSON if recorded.line["serializer"] == "JSON" else BINARY), str(recorded)
        assert (command.code, command.flag, command.opaque, command.version, command.language) == (
            header["code"],
            header["flag"],
            header["opaque"],
            header["version"],
            header["language"],
        ), str(recorded)
        assert (command.remark or "") == (header.get("remark") or ""), str(recorded)
        assert command.fields == expected_fields(recorded), str(recorded)


@pytest.mark.parametrize("name", [name for name in recordings.file_names() if "binary" in name or "mixed" in name])
def test_a_binary_frame_is_written_as_java_wrote_it(name: str):
    """Byte for byte: decoded and encoded again."""
    binary = [recorded for recorded in recordings.read(name) if recorded.line["serializer"] == "ROCKETMQ"]
    assert binary

    for recorded in binary:
        assert encode_command(recorded.command) == recorded.data, str(recorded)


@pytest.mark.parametrize("name", recordings.file_names())
def test_a_json_frame_is_written_as_an_equal_object_and_body(name: str):
    """Same keys and values; only their order inside the fields is Java's hash order."""
    for recorded in recordings.read(name):
        if recorded.line["serializer"] != "JSON":
            continue

        written = encode_command(recorded.command)

        assert json_header(written) == json_header(recorded.data), str(recorded)
        (frame,), _ = split_frames(memoryview(written))
        assert bytes(frame.body) == bytes(recorded.frame.body), str(recorded)


@pytest.mark.parametrize("name", recordings.file_names())
def test_a_whole_recording_splits_into_its_frames(name: str):
    """As one stream, whatever the sizes of the reads are."""
    stream = b"".join(recorded.data for recorded in recordings.read(name))
    expected = [recorded.data for recorded in recordings.read(name)]

    for step in (1460, 65536, len(stream)):
        received, at, found = bytearray(), 0, []
        while at < len(stream):
            received += stream[at : at + step]
            at += step
            frames, taken = split_frames(memoryview(bytes(received)))
            found += [encode_prefix(frame) + bytes(frame.header) + bytes(frame.body) for frame in frames]
            del received[:taken]
        assert found == expected


def encode_prefix(frame: Any) -> bytes:
    return (4 + len(frame.header) + len(frame.body)).to_bytes(4, "big") + (
        frame.serializer << 24 | len(frame.header)
    ).to_bytes(4, "big")


@pytest.mark.parametrize("name", recordings.file_names("*-json-*"))
def test_a_command_survives_the_other_encoding(name: str):
    """What a JSON frame says can be said in binary, but for codes that do not fit 16 bits."""
    for recorded in recordings.read(name):
        command = recorded.command
        if command.code > 0x7FFF:
            continue
        command.serializer = BINARY
        (frame,), _ = split_frames(memoryview(encode_command(command)))

        again = decode_command(frame)

        again.remark = again.remark or command.remark  # An empty remark and none look alike in binary.
        assert again == command, str(recorded)
