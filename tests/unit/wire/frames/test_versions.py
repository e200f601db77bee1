"""Versions as people read them."""

import pytest

from holdfast.broker.admin.broker_admin import VERSION_NAME
from holdfast.wire.frames.codes import VERSION
from holdfast.wire.frames.versions import version_name, version_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (121, "before 4.0.0 (121)"),
        (213, "4.0.0"),
        (232, "4.1.0-SNAPSHOT"),
        (277, "4.3.2"),
        (355, "4.7.1"),
        (407, "4.9.7"),
        (409, "4.9.8"),
        (412, "5.0.0-SNAPSHOT"),
        (413, "5.0.0"),
        (441, "5.1.4"),
        (479, "5.3.3"),
        (513, "5.5.0"),
        (612, "after 5.9.9"),
        (-1, "before 4.0.0 (-1)"),
    ],
)
def test_a_number_is_read_as_its_version(number: int, text: str):
    """By its place in upstream's list."""
    assert version_text(number) == text


def test_a_name_is_read_as_its_version():
    """Of brokers of any age; a text of another kind is left unchanged."""
    assert version_name("V4_9_7") == "4.9.7"
    assert version_name("V3_0_0_BETA1") == "3.0.0-BETA1"
    assert version_name("HIGHER_VERSION") == "HIGHER_VERSION"
    assert version_name(None) is None


def test_our_number_and_our_name_are_one_version():
    """A broker reports both."""
    assert version_text(VERSION) == version_name(VERSION_NAME)
