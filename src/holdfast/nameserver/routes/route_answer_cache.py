"""Caches rendered route answers: this makes ninety thousand queries a second possible on one core.

An answer is kept until the route of its topic changes. A normal topic has at most two: standard JSON, and the bare
integer keys that clients before 4.9.4 expect. A static topic has one for clients that read mappings, one for brokers,
and two for each broker that stands in for a mock broker. These are for clients that name no unit; for others each form
is kept per `Visibility`. Only existing routes are kept, so that queries for unknown topics use no memory. When all
answers together exceed the limit, the oldest are evicted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from holdfast.wire.cluster.route import RouteAnswer, bare_keys, render_answer

Proxies = tuple[tuple[str, ...], ...]
"""For each static topic of a name: the brokers that can stand in for its mock broker."""


class RouteAnswerCache:
    """Rendered answers by topic and form. The hot loop reads the dictionaries of normal topics directly."""

    def __init__(self, size_max: int) -> None:
        self.standard: dict[str, RouteAnswer] = {}
        self.bare: dict[str, RouteAnswer] = {}
        self.aware: dict[str, RouteAnswer] = {}
        self.reports: dict[str, RouteAnswer] = {}
        self._proxies: dict[str, dict[Hashable, Proxies]] = {}
        self._special: dict[str, dict[Hashable, RouteAnswer]] = {}
        self._size = 0
        self._size_max = size_max

    def find(self, topic: str, *, is_bare: bool) -> RouteAnswer | None:
        """Return the rendered answer of a normal *topic*; None if there is none."""
        return (self.bare if is_bare else self.standard).get(topic)

    def find_special(self, topic: str, form: Hashable, *, is_bare: bool = False) -> RouteAnswer | None:
        """Return the rendered answer of *topic* in a special form; None if there is none.

        The form of a static topic with mock brokers includes the brokers that stand in for them.
        """
        return self._special.get(topic, {}).get((form, is_bare))

    def find_proxies(self, topic: str, visibility: Hashable) -> Proxies | None:
        """Return the brokers that can stand in for the mock brokers of *topic*; None if not known yet."""
        return self._proxies.get(topic, {}).get(visibility)

    def keep_proxies(self, topic: str, visibility: Hashable, proxies: Proxies) -> None:
        """Remember the brokers that can stand in for the mock brokers of *topic*, for this visibility."""
        self._proxies.setdefault(topic, {})[visibility] = proxies

    def keep(self, topic: str, body: bytes, *, is_bare: bool) -> RouteAnswer:
        """Render and keep the answer of a normal topic."""
        answers = self.bare if is_bare else self.standard
        return self._keep(answers, topic, bare_keys(body) if is_bare else body)

    def keep_aware(self, topic: str, body: bytes) -> RouteAnswer:
        """Render and keep the answer of a static topic for clients that read mappings."""
        return self._keep(self.aware, topic, body)

    def keep_reports(self, topic: str, body: bytes) -> RouteAnswer:
        """Render and keep the answer of a static topic for brokers."""
        return self._keep(self.reports, topic, body)

    def keep_special(
        self, topic: str, form: Hashable, body: bytes, *, is_bare: bool = False, is_cacheable: bool = True
    ) -> RouteAnswer:
        """Render the answer of *topic* in a special form, and keep it if *is_cacheable*."""
        answer = render_answer(bare_keys(body) if is_bare else body)
        if not is_cacheable:
            return answer
        self._special.setdefault(topic, {})[form, is_bare] = answer
        self._size += _size(answer)
        while self._size > self._size_max and len(self._special) > 1:
            self._forget_special(next(iter(self._special)))
        return answer

    def drop(self, topics: Iterable[str]) -> None:
        """Drop the answers of topics whose routes changed."""
        for topic in topics:
            self._forget(self.standard, topic)
            self._forget(self.bare, topic)
            self._forget(self.aware, topic)
            self._forget(self.reports, topic)
            self._forget_special(topic)
            self._proxies.pop(topic, None)

    def drop_all(self) -> None:
        """Drop all answers."""
        for answers in (self.standard, self.bare, self.aware, self.reports, self._proxies, self._special):
            answers.clear()
        self._size = 0

    def _keep(self, answers: dict[str, RouteAnswer], topic: str, body: bytes) -> RouteAnswer:
        assert topic not in answers, "an answer is dropped before it is rendered anew"
        answer = render_answer(body)
        self._size += _size(answer)
        answers[topic] = answer
        while self._size > self._size_max and len(answers) > 1:
            self._forget(answers, next(iter(answers)))
        return answer

    def _forget(self, answers: dict[str, RouteAnswer], topic: str) -> None:
        answer = answers.pop(topic, None)
        if answer is not None:
            self._size -= _size(answer)

    def _forget_special(self, topic: str) -> None:
        self._size -= sum(map(_size, self._special.pop(topic, {}).values()))


def _size(answer: RouteAnswer) -> int:
    return sum(map(len, answer.heads)) + len(answer.tail)
