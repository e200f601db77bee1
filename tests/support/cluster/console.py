"""A console in front of a cluster of processes, and the requests of a program that uses its API.

with ConsoleProcess(cluster.namesrv) as console:
    console.get("topics/orders/map")                   -> the JSON of a success
    console.attempt("POST", "/api/v1/moves/plan", ...) -> status, headers and body of any answer
    with console.events("orders") as events: events.wait("topic", lambda value: ...)
"""

import contextlib
import http.client
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST

READY_TIMEOUT_S = 90.0
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class HttpAnswer:
    """What the console answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """What went wrong."""
        return self.value["error"]


class Events:
    """The server-sent events of one listener. Those of another name than the awaited one are kept for later."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self._kept: dict[str, deque[Any]] = defaultdict(deque)

    def wait(self, name: str, accepts: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the first value with this name that *accepts* selects."""
        while True:
            while not self._kept[name]:
                event, value = self._read()
                self._kept[event].append(value)
            value = self._kept[name].popleft()
            if accepts(value):
                return value

    def _read(self) -> tuple[str, Any]:
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode().rstrip("\n"):
            key, _, text = line.partition(": ")
            fields[key] = text
        return fields.get("event", ""), json.loads(fields["data"]) if "data" in fields else None


class ConsoleProcess:
    """One running `holdfast serve console` on a free port."""

    def __init__(self, namesrv: str, *options: str) -> None:
        command = [HOLDFAST, "serve", "console", "--namesrv", namesrv, "--listen", "127.0.0.1:0", "--json"]
        self.child = Child([*command, "--with-parent", *options], name="console")
        try:
            ready = json.loads(self.child.wait_for_line('"role":"console"', timeout_s=READY_TIMEOUT_S))
        except BaseException:
            self.child.kill()
            raise
        self.address: str = ready["address"]

    def attempt(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send one request and return its answer, whatever its status."""
        connection = http.client.HTTPConnection(self.address, timeout=ANSWER_TIMEOUT_S)
        with contextlib.closing(connection):
            content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            kind = {} if content is None and method == "GET" else {"Content-Type": "application/json"}
            connection.request(method, path, content, {**kind, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): text for name, text in answer.getheaders()}
            return HttpAnswer(answer.status, found, answer.read())

    def get(self, path: str, **query: object) -> Any:
        """Return the value at a path of the API."""
        answer = self.attempt("GET", f"/api/v1/{path}{'?' + urlencode(query) if query else ''}")
        assert answer.status == 200, answer.body
        return answer.value

    def refused(self, path: str, **query: object) -> tuple[int, Any]:
        """Return the status and the error of a request that fails."""
        answer = self.attempt("GET", f"/api/v1/{path}{'?' + urlencode(query) if query else ''}")
        assert answer.status != 200, answer.body
        return answer.status, answer.error

    def post(self, path: str, body: object) -> HttpAnswer:
        """Send a change, or a plan of one."""
        return self.attempt("POST", f"/api/v1/{path}", body)

    @contextlib.contextmanager
    def events(self, *topics: str) -> Iterator[Events]:
        """Listen while the block runs."""
        connection = http.client.HTTPConnection(self.address, timeout=ANSWER_TIMEOUT_S)
        query = urlencode([("topic", topic) for topic in topics])
        with contextlib.closing(connection):
            connection.request("GET", f"/api/v1/events{'?' + query if query else ''}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            with contextlib.closing(answer):
                yield Events(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.child.is_running:
            self.child.stop()
