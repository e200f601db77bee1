"""Tag expressions of subscriptions.

    *            everything
    a || b       messages tagged a or b

An index entry holds only the hash of a message's tag, so a broker filters by hash and the client compares the text
again. SQL expressions are not evaluated here.
"""

from __future__ import annotations

from holdfast.model.group import Subscription
from holdfast.model.java_hash import java_hash

EVERYTHING = "*"
TAG = "TAG"


def parse_tags(topic: str, expression: str | None, *, version: int = 0) -> Subscription:
    """Return the subscription for a tag expression; an empty expression means everything."""
    text = (expression or "").strip() or EVERYTHING
    tags = frozenset() if text == EVERYTHING else frozenset(tag.strip() for tag in text.split("||") if tag.strip())
    return Subscription(
        topic=topic,
        sub_string=text,
        tags_set=tags,
        code_set=frozenset(map(java_hash, tags)),
        sub_version=version,
    )


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression of this type is a list of tags; no type means tags, as upstream has it."""
    return not expression_type or expression_type == TAG


def accepted_tag_codes(subscription: Subscription) -> frozenset[int] | None:
    """Return the tag hashes that *subscription* accepts, or None if it accepts everything."""
    if subscription.class_filter_mode or subscription.sub_string == EVERYTHING:
        return None
    if subscription.code_set:
        return subscription.code_set
    # Some clients send only the text.
    return parse_tags(subscription.topic, subscription.sub_string).code_set or None
