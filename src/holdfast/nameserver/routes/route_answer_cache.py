"""Route answers, rendered once: what makes ninety thousand queries a second possible on one core.

An answer is kept until the route of its topic changes. Of a normal topic there are two at most: standard JSON, and the
bare integer keys that clients before 4.9.4 want. Of a static topic there is one for clients that read mappings, one for
brokers, and for the others two for each broker that stands in for the mock one. So it is for clients that name no unit;
for the others every form is kept apart, by what they see. Only routes that exist are kept, so
that asking for nonsense takes no memory, and when all answers together grow beyond the limit the oldest go.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from holdfast.wire.cluster.route import RouteAnswer, bare_keys, render_answer

Proxies = tuple[tuple[str, ...], ...]
"""Of each static topic of a name, the brokers that can stand in for its mock one."""


class RouteAnswers:
    """Answers by topic, in all forms. The hot loop reads the dictionaries of normal topics directly."""

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
        """Return the answer about a normal *topic*, if it was rendered before."""
        return (self.bare if is_bare else self.standard).get(topic)

    def find_special(self, topic: str, form: Hashable, *, is_bare: bool = False) -> RouteAnswer | None:
        """Return the answer about *topic* in a form that only some get, if it was rendered before.

        Of a static topic one is known by the brokers that stand in for the mock ones.
        """
        return self._special.get(topic, {}).get((form, is_bare))

    def find_proxies(self, topic: str, vision: Hashable) -> Proxies | None:
        """Return who stands in for the mock brokers of *topic*, if it was looked for before."""
        return self._proxies.get(topic, {}).get(vision)

    def keep_proxies(self, topic: str, vision: Hashable, proxies: Proxies) -> None:
        """Remember who stands in for the mock brokers of *topic*, for those who see it so."""
        self._proxies.setdefault(topic, {})[vision] = proxies

    def keep(self, topic: str, body: bytes, *, is_bare: bool) -> RouteAnswer:
        """Render the answer about a normal topic that carries *body* and keep it."""
        answers = self.bare if is_bare else self.standard
        return self._keep(answers, topic, bare_keys(body) if is_bare else body)

    def keep_aware(self, topic: str, body: bytes) -> RouteAnswer:
        """Render the answer about a static topic for clients that read mappings, and keep it."""
        return self._keep(self.aware, topic, body)

    def keep_reports(self, topic: str, body: bytes) -> RouteAnswer:
        """Render the answer about a static topic for brokers, and keep it."""
        return self._keep(self.reports, topic, body)

    def keep_special(
        self, topic: str, form: Hashable, body: bytes, *, is_bare: bool = False, is_kept: bool = True
    ) -> RouteAnswer:
        """Render the answer about *topic* in a form that only some get, and keep it if it shall be kept."""
        answer = render_answer(bare_keys(body) if is_bare else body)
        if not is_kept:
            return answer
        self._special.setdefault(topic, {})[form, is_bare] = answer
        self._size += _size(answer)
        while self._size > self._size_max and len(self._special) > 1:
            self._forget_special(next(iter(self._special)))
        return answer

    def drop(self, topics: Iterable[str]) -> None:
        """Forget the answers of topics whose routes changed."""
        for topic in topics:
            self._forget(self.standard, topic)
            self._forget(self.bare, topic)
            self._forget(self.aware, topic)
            self._forget(self.reports, topic)
            self._forget_special(topic)
            self._proxies.pop(topic, None)

    def drop_all(self) -> None:
        """Forget every answer."""
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
