import pytest

from holdfast.model.filter import accepted_tag_codes, is_tag_type, parse_tags
from holdfast.model.group import Subscription
from holdfast.model.java_hash import java_hash


@pytest.mark.parametrize("text", ["*", "", "  ", None])
def test_no_expression_lets_everything_through(text: str | None) -> None:
    """A star and nothing at all mean the same."""
    subscription = parse_tags("T", text)

    assert subscription.sub_string == "*"
    assert accepted_tag_codes(subscription) is None


def test_tags_are_told_apart_by_two_bars() -> None:
    """Blanks around tags, and empty tags, do not count; the hash is Java's."""
    subscription = parse_tags("T", " TagA || TagB|| ", version=7)

    assert subscription.tags_set == {"TagA", "TagB"}
    assert accepted_tag_codes(subscription) == {2598919, 2598920}
    assert subscription.sub_version == 7


def test_a_subscription_with_text_alone_is_understood() -> None:
    """Some clients send no hashes: the text says the same."""
    subscription = Subscription(topic="T", sub_string="TagA || TagB")

    assert accepted_tag_codes(subscription) == {java_hash("TagA"), java_hash("TagB")}


def test_hashes_of_the_client_count_before_the_text() -> None:
    """The client that sent them filters by them."""
    assert accepted_tag_codes(Subscription(topic="T", sub_string="TagA", code_set=frozenset({5}))) == {5}


def test_a_class_filter_lets_everything_through() -> None:
    """The class runs elsewhere: the broker must not take away what it might want."""
    assert accepted_tag_codes(Subscription(topic="T", sub_string="x.y.Filter", class_filter_mode=True)) is None


def test_no_expression_type_means_tags() -> None:
    """Old clients send none; SQL is another language."""
    assert is_tag_type(None)
    assert is_tag_type("")
    assert is_tag_type("TAG")
    assert not is_tag_type("SQL92")
