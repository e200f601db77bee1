"""Of which topics the name server in use was asked to tell us."""

from holdfast.client.routes.route_watch import RouteWatch


def a_watch(*topics: str, pushes: bool = True) -> RouteWatch:
    """Return what is known after name server `a` answered for *topics*."""
    watch = RouteWatch()
    for topic in topics:
        watch.record_request("a:1", topic)
        watch.record_answer("a:1", pushes=pushes)
    return watch


def test_leaving_names_everything_that_was_asked_for():
    """Also what was not answered: the question may have arrived."""
    watch = a_watch("t", "u")
    watch.record_request("a:1", "late")

    assert watch.record_switch() == ["t", "u", "late"]
    assert watch.record_switch() == []
    assert (watch.address, watch.pushes, len(watch)) == (None, False, 0)


def test_one_that_has_not_answered_may_push():
    """So it is told, too."""
    watch = RouteWatch()
    watch.record_request("a:1", "t")

    assert watch.record_switch() == ["t"]


def test_one_that_does_not_push_is_told_nothing():
    """It would not understand."""
    assert a_watch("t", pushes=False).record_switch() == []
    assert a_watch("t", pushes=False).drop(["t"]) == []


def test_the_first_answer_on_a_connection_tells():
    """The next one tells nothing new, until the connection is another one."""
    watch = RouteWatch()
    watch.record_request("a:1", "t")

    assert [watch.record_answer("a:1", pushes=False), watch.record_answer("a:1", pushes=False)] == [True, False]
    watch.record_loss("a:1")
    assert watch.record_answer("a:1", pushes=True)
    assert not watch.record_answer("b:1", pushes=False)
    assert watch.pushes


def test_one_that_refuses_a_topic_too_many_pushes_the_others():
    """On another connection it has to say so again."""
    watch = a_watch("t")
    watch.record_request("a:1", "too many")
    watch.record_answer("a:1", pushes=False)
    assert watch.pushes

    watch.record_loss("a:1")
    watch.record_answer("a:1", pushes=False)
    assert not watch.pushes


def test_what_nobody_wants_is_named_once():
    """Only if it was watched."""
    watch = a_watch("t", "u")

    assert watch.drop(["t", "never"]) == ["t"]
    assert watch.drop(["t"]) == []
    assert watch.record_switch() == ["u"]


def test_with_the_connection_every_watch_is_gone():
    """It matters if the name server told of changes; another one's connection does not."""
    watch = a_watch("t")

    assert not watch.record_loss("b:1")
    assert watch.record_loss("a:1")
    assert (len(watch), watch.pushes, watch.address) == (0, True, "a:1")
    assert not a_watch("t", pushes=False).record_loss("a:1")


def test_asking_another_one_begins_anew():
    """What the one before it said does not count."""
    watch = a_watch("t")
    watch.record_request("b:1", "u")

    assert (watch.address, watch.pushes) == ("b:1", False)
    assert watch.record_switch() == ["u"]
