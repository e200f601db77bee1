"""Credentials never show their secret."""

from holdfast.model.access.credentials import Credentials


def test_no_text_form_shows_the_secret():
    """Errors and logs may contain credentials; the secret must not appear there."""
    credentials = Credentials("alice", "open-sesame", "token-1")

    for text in (repr(credentials), str(credentials), f"{credentials}", f"{[credentials]}"):
        assert "alice" in text
        assert "open-sesame" not in text
        assert "token-1" not in text
