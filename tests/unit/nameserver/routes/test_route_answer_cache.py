"""Rendered answers are kept, dropped and bounded."""

from holdfast.nameserver.routes.route_answer_cache import RouteAnswerCache

BODY = b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"}}]}'


def test_both_styles_of_an_answer_are_kept_apart():
    """One has quoted integer keys, the other bare ones."""
    answers = RouteAnswerCache(1_000_000)

    standard = answers.keep("orders", BODY, is_bare=False)
    bare = answers.keep("orders", BODY, is_bare=True)

    assert answers.find("orders", is_bare=False) is standard
    assert answers.find("orders", is_bare=True) is bare
    assert standard.body == BODY
    assert bare.body == BODY.replace(b'"0"', b"0")


def test_a_dropped_topic_is_rendered_anew():
    """In both styles, and no other topic."""
    answers = RouteAnswerCache(1_000_000)
    for topic in ("orders", "bills"):
        answers.keep(topic, BODY, is_bare=False)
        answers.keep(topic, BODY, is_bare=True)

    answers.drop(["orders", "unknown"])

    assert answers.find("orders", is_bare=False) is None
    assert answers.find("orders", is_bare=True) is None
    assert answers.find("bills", is_bare=False) is not None
    assert answers.find("bills", is_bare=True) is not None


def test_above_the_limit_the_oldest_go_and_the_newest_stays():
    """However many topics are asked for, memory is bounded."""
    answers = RouteAnswerCache(20_000)

    for number in range(1000):
        answers.keep(f"topic-{number}", BODY, is_bare=False)

    assert 2 <= len(answers.standard) < 50
    assert answers.find("topic-999", is_bare=False) is not None
    assert answers.find("topic-0", is_bare=False) is None


def test_an_answer_larger_than_the_limit_is_kept_alone():
    """It would have to be rendered every time otherwise."""
    answers = RouteAnswerCache(10)

    answers.keep("orders", BODY, is_bare=False)

    assert answers.find("orders", is_bare=False) is not None


def test_dropping_gives_the_room_back():
    """What was dropped does not count any more."""
    answers = RouteAnswerCache(20_000)

    for _ in range(1000):
        answers.keep("orders", BODY, is_bare=False)
        answers.drop(["orders"])
    answers.keep("orders", BODY, is_bare=False)
    answers.keep("bills", BODY, is_bare=False)

    assert len(answers.standard) == 2
    answers.drop_all()
    assert answers.standard == {}


def test_forms_of_a_static_topic_are_kept_apart_and_dropped_together():
    """One for clients that read mappings, one for each stand-in and style for the others."""
    answers = RouteAnswerCache(1_000_000)
    aware = answers.keep_aware("orders", BODY)
    kept = {
        (proxy, is_bare): answers.keep_special("orders", proxy, BODY, is_bare=is_bare)
        for proxy in ("a", "b")
        for is_bare in (True, False)
    }
    answers.keep_proxies("orders", "west", (("a", "b"),))

    assert answers.aware["orders"] is aware
    assert answers.find_proxies("orders", "west") == (("a", "b"),)
    assert answers.find_proxies("orders", "east") is None
    for (proxy, is_bare), answer in kept.items():
        assert answers.find_special("orders", proxy, is_bare=is_bare) is answer
    assert kept["a", True].body != kept["a", False].body

    answers.drop(["orders"])

    assert not answers.aware
    assert answers.find_proxies("orders", "west") is None
    assert answers.find_special("orders", "a", is_bare=True) is None


def test_answers_about_static_topics_are_bounded_too():
    """The oldest go, the newest stays, and dropping them all leaves room for as many again."""
    answers = RouteAnswerCache(20_000)

    for _ in range(2):
        for number in range(1000):
            answers.keep_aware(f"topic-{number}", BODY)
            answers.keep_special(f"topic-{number}", "a", BODY, is_bare=False)
        assert answers.find_special("topic-999", "a", is_bare=False) is not None
        assert answers.find_special("topic-0", "a", is_bare=False) is None
        assert len(answers.aware) < 100
        answers.drop(f"topic-{number}" for number in range(1000))

    answers.keep("orders", BODY, is_bare=False)
    answers.keep("bills", BODY, is_bare=False)
    assert answers.find("orders", is_bare=False) is not None
