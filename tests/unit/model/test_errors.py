"""What failures say to the caller."""

import pytest

from holdfast.model import errors


def test_every_failure_on_purpose_is_one_family():
    """A caller can catch all of ours without catching anybody else's."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]

    assert len(kinds) > 10
    assert all(issubclass(kind, errors.HoldfastError) for kind in kinds)


@pytest.mark.parametrize(
    ("address", "remark", "text"),
    [
        ("h:1", "no such topic", "refused by h:1 with code 17: no such topic"),
        (None, "", "refused with code 17: no reason given"),
    ],
)
def test_a_refusal_says_who_and_why(address: str | None, remark: str, text: str):
    """And keeps code, words and address for programs."""
    error = errors.BrokerRefused(17, remark, address=address)

    assert str(error) == text
    assert (error.code, error.remark, error.address) == (17, remark, address)


def test_a_corrupt_record_says_where():
    """The position is what an operator needs to find it."""
    error = errors.CorruptRecord(4096, "magic is 0x0")

    assert str(error) == "record at position 4096 is corrupt: magic is 0x0"
    assert error.position == 4096
