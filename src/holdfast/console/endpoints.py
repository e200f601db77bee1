"""The table of the API: a row for each endpoint, from which routing, checks and documentation are made.

    @get("/topics/{topic}/route", "topics")
    async def read_route(context: Context, query: TopicQuery) -> RouteView:
        \"\"\"Return the route of a topic.\"\"\"

A field of the second parameter is a part of the path if the path names it, otherwise a parameter of the query. A third
parameter is the body of the request. The docstring is the documentation.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from holdfast.console.problems import BadParameter
from holdfast.model.spelling_hint import hint_suffix

PREFIX: Final = "/api/v1"

Handler = Callable[..., Awaitable[object]]


class NoParameters(msgspec.Struct, frozen=True):
    """An endpoint without parameters."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        method: GET reads; POST changes, or plans a change.
        path: Below the prefix; names in braces are fields of `parameters`.
        tag: The chapter of the documentation.
        parameters: A struct with a field for each parameter.
        body: The type of the request's body; None if it has none.
        result: The type of the answer.
        handler: Makes the answer.
    """

    method: Literal["GET", "POST"]
    path: str
    tag: str
    parameters: type[msgspec.Struct]
    body: Any
    result: Any
    handler: Handler

    @property
    def name(self) -> str:
        """Its name, unique in the table."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        return document(self.handler).partition("\n")[0]

    @property
    def description(self) -> str:
        """The rest of its documentation."""
        return document(self.handler).partition("\n")[2].strip()

    @property
    def path_names(self) -> list[str]:
        """The parameters that are parts of the path."""
        return re.findall(r"\{(\w+)", self.path)


TABLE: Final[list[Endpoint]] = []


def get(path: str, tag: str) -> Callable[[Handler], Handler]:
    """Add a handler to the table that reads."""
    return lambda handler: _add("GET", path, tag, handler)


def post(path: str, tag: str) -> Callable[[Handler], Handler]:
    """Add a handler to the table that changes, or plans a change."""
    return lambda handler: _add("POST", path, tag, handler)


def _add(method: Literal["GET", "POST"], path: str, tag: str, handler: Handler) -> Handler:
    hints = typing.get_type_hints(handler, include_extras=True)
    result = hints.pop("return")
    kinds = list(hints.values())[1:]
    parameters = kinds[0] if kinds else NoParameters
    body = kinds[1] if len(kinds) > 1 else None
    TABLE.append(
        Endpoint(method=method, path=path, tag=tag, parameters=parameters, body=body, result=result, handler=handler)
    )
    return handler


def document(thing: object) -> str:
    """Return the docstring of a function or a class without its sections (`Raises:`, `Attributes:`)."""
    text = inspect.getdoc(thing) or ""
    return re.split(r"^(?:Args|Raises|Attributes):$", text, maxsplit=1, flags=re.MULTILINE)[0].strip()


def document_fields(kind: type) -> dict[str, str]:
    """Return the texts of the section `Attributes:` of a class, by field."""
    section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")[2]
    found = re.findall(r"^    (\w+): (.+(?:\n {6,}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def parse_parameters(endpoint: Endpoint, path: Mapping[str, str], query: list[tuple[str, str]]) -> msgspec.Struct:
    """Return the parameters of a request.

    Raises:
        BadParameter: one is unknown, missing, given twice or has the wrong form.
    """
    known = [field.name for field in msgspec.structs.fields(endpoint.parameters)]
    given: dict[str, str] = dict(path)
    for name, text in query:
        if name not in known or name in endpoint.path_names:
            raise BadParameter(f"{endpoint.path} has no parameter {name!r}{hint_suffix(name, known)}")
        if name in given:
            raise BadParameter(f"parameter {name!r} is given twice")
        given[name] = text
    try:
        return msgspec.convert(given, endpoint.parameters, strict=False)
    except msgspec.ValidationError as error:
        raise BadParameter(f"wrong parameter: {error}") from error


def parse_body(endpoint: Endpoint, body: bytes) -> object:
    """Return the body of a request.

    Raises:
        BadParameter: it is no JSON, or has the wrong form.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=endpoint.body)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadParameter(f"wrong body: {error}") from error
