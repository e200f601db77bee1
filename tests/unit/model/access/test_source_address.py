"""Which addresses a pattern matches, in the notations of ACL 2.0 and ACL 1.0."""

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.source_address import NO_ADDRESS, TEXT_MAX, parse_source, parse_white_address


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("10.0.0.7", ["10.0.0.7", "::ffff:10.0.0.7"], ["10.0.0.8", "::10.0.0.7", "", "x", "10.0.0.7:80"]),
        ("10.0.0.0/8", ["10.0.0.0", "10.255.255.255"], ["9.255.255.255", "11.0.0.0"]),
        ("10.1.2.3/8", ["10.9.9.9"], ["11.0.0.0"]),
        ("0.0.0.0/0", ["1.2.3.4"], ["2001:db8::1"]),
        ("2001:db8::/32", ["2001:db8::1", "2001:DB8:ffff::"], ["2001:db9::", "10.0.0.1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2"]),
        ("::ffff:10.0.0.0/104", ["10.0.0.1"], ["11.0.0.1"]),
        (" 10.0.0.7 ", ["10.0.0.7"], ["10.0.0.8"]),
    ],
)
def test_a_source_is_an_address_or_a_block(text: str, matching: list[str], others: list[str]):
    """Of either version of IP."""
    pattern = parse_source(text)

    assert [ip for ip in [*matching, *others] if pattern.matches(ip)] == matching
    assert str(pattern) == text.strip()


@pytest.mark.parametrize(
    "text",
    ["192.168.*.*", "*", "10.0.0.0/33", "10.0.0", "a.b.c.d", "10.0.0.1,10.0.0.2", "1" * (TEXT_MAX + 1), "1" * 40],
)
def test_a_source_has_no_wildcards(text: str):
    """As in RocketMQ, whose text is the beginning."""
    with pytest.raises(DirectoryRefused, match=r"The source ip is invalid\. '.*' is neither an IP address nor"):
        parse_source(text)


def test_a_blank_source_is_refused():
    """It would look like a rule for every address."""
    with pytest.raises(DirectoryRefused, match="The source ip is empty"):
        parse_source(" ")


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("*", ["1.2.3.4", "::1"], []),
        ("*.*.*.*", ["1.2.3.4", "::1"], ["client"]),
        ("*:*:*:*:*:*:*:*", ["1.2.3.4", "::1"], []),
        ("1.2.3.4", ["1.2.3.4"], ["1.2.3.5"]),
        ("1.2.3.{4,5, 7}", ["1.2.3.4", "1.2.3.5", "1.2.3.7"], ["1.2.3.6"]),
        ("1.1.1.1, 2.2.2.2", ["1.1.1.1", "2.2.2.2"], ["1.1.1.2"]),
        ("192.168.0.*", ["192.168.0.0", "192.168.0.255"], ["192.168.1.0", "192.167.255.255"]),
        ("192.168.1-10.*", ["192.168.1.0", "192.168.10.255"], ["192.168.0.255", "192.168.11.0"]),
        ("192.*.*.*", ["192.0.0.0", "192.255.255.255"], ["191.1.1.1"]),
        ("192.168.*", ["192.168.255.255"], ["192.169.0.0"]),
        ("10.0.0.20-30", ["10.0.0.20", "10.0.0.30"], ["10.0.0.19", "10.0.0.31"]),
        ("2001:db8::{1,a}", ["2001:db8::1", "2001:db8::A"], ["2001:db8::2"]),
        ("1:2:3:4:5:6:1-200:*", ["1:2:3:4:5:6:1:0", "1:2:3:4:5:6:200:ffff"], ["1:2:3:4:5:6:201:0", "1:2:3:4:5:6::"]),
        ("2001:db8::5:*", ["2001:db8::5:ffff"], ["2001:db8::6:0", "2001:db8:1::5:0"]),
        ("2001:db8:*", ["2001:db8::", "2001:db8:ffff::"], ["2001:db9::"]),
    ],
)
def test_a_white_address_has_wildcards_ranges_and_lists(text: str, matching: list[str], others: list[str]):
    """The patterns of the documentation of ACL 1.0."""
    pattern = parse_white_address(text)

    assert [ip for ip in [*matching, *others] if pattern.matches(ip)] == matching


@pytest.mark.parametrize("text", ["", "  "])
def test_a_blank_white_address_matches_no_address(text: str):
    """The default of an account."""
    assert parse_white_address(text) == NO_ADDRESS
    assert not NO_ADDRESS.matches("127.0.0.1")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.4.*",
            "*.2.3.4",
            "1.*.3.4",
            "1.2.1-10.5",
            "1.2.10-1.*",
            "1.2.3.256",
            "1.2.3.0-256",
        ),
        *("1.2.3.{}", "{1.2.3.4}", "1.2.3.{4,x}", "1.2.{3,4}.5", "1.2.3.4,", ",", "1.2.3.4,x", "1.2.3.-", "1.2.3.5-"),
        *("1::2::*", "1:2:3:4:5:6:7:8:*", "::*", "g:*", "10.0.0.0/8", "1.2.3.٣", "x", "1" * (TEXT_MAX + 1)),
    ],
)
def test_another_text_is_no_white_address(text: str):
    """Also `1.2.1-10.5`, for which RocketMQ ignores the 5 and admits more than the text says."""
    with pytest.raises(DirectoryRefused, match="white address"):
        parse_white_address(text)


@given(st.text("0123456789abcf.:*-{}, /", max_size=40))
def test_no_text_breaks_the_parsers(text: str):
    """They refuse, or they return ranges in the address space."""
    for parse in (parse_source, parse_white_address):
        try:
            pattern = parse(text)
        except DirectoryRefused:
            continue
        assert all(0 <= low <= high < 1 << (32 if version == 4 else 128) for version, low, high in pattern.ranges)


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 255))
def test_a_range_matches_the_addresses_between_its_ends(address: int, one: int, other: int):
    """Compared with the definition, octet by octet."""
    low, high = sorted((one, other))
    octets = IPv4Address(address).packed

    pattern = parse_white_address(f"{octets[0]}.{low}-{high}.*")

    assert pattern.matches(str(IPv4Address(address))) == (low <= octets[1] <= high)
