"""Codes and versions that peers act on."""

from holdfast.wire.frames.codes import LANGUAGE_NAMES, OUR_LANGUAGE, VERSION, RequestCode, ResponseCode


def test_codes_are_numbers_on_the_wire():
    """An enum member is found by the number that a frame carries."""
    assert RequestCode(105) is RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert {103: "x"}[RequestCode.REGISTER_BROKER] == "x"
    assert ResponseCode(17) is ResponseCode.TOPIC_NOT_EXIST


def test_our_version_is_one_that_peers_trust():
    """From 401 on a peer is given standard JSON; beyond 479 lies what we do not claim to know."""
    assert 401 <= VERSION <= 479


def test_our_language_has_a_number():
    """4.x builds know the first eight."""
    assert LANGUAGE_NAMES.index(OUR_LANGUAGE) == 3
