"""The web application: pages, API, its documentation and events, behind the gate."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.console import move_changes, read_cluster, read_groups, read_messages, read_topics
from holdfast.console.context import Context
from holdfast.console.docs_page import build_docs_page
from holdfast.console.endpoints import PREFIX, TABLE, Endpoint, parse_body, parse_parameters
from holdfast.console.events import stream_events
from holdfast.console.gate import Gate
from holdfast.console.openapi import EVENTS_PATH, build_document
from holdfast.console.problems import BadParameter, ErrorAnswer, NoSuchPath, ReadOnlyConsole, to_problem
from holdfast.console.static_files import serve_file
from holdfast.machine.effects import Log
from holdfast.model.errors import HoldfastError

REQUESTS_MAX: Final = 16
"""How many requests are answered at the same time; others wait, so that a script cannot flood the brokers."""
BODY_MAX: Final = 1 << 16

# The modules whose import fills the table.
CHAPTERS: Final = (read_cluster, read_topics, read_groups, read_messages, move_changes)

Answer = Callable[[Request], Awaitable[Response]]


def build_app(context: Context) -> ASGIApp:
    """Return the application of one console."""
    assert all(chapter.__name__ in {row.handler.__module__ for row in TABLE} for chapter in CHAPTERS)
    limit = asyncio.Semaphore(REQUESTS_MAX)

    async def show_page(request: Request) -> Response:
        return serve_file("index.html", request)

    async def show_file(request: Request) -> Response:
        return serve_file(request.path_params["name"], request)

    async def show_docs(_: Request) -> Response:
        return Response(build_docs_page(), media_type="text/html")

    async def show_document(_: Request) -> Response:
        return _json(build_document())

    async def show_events(request: Request) -> Response:
        return stream_events(context, request)

    async def on_error(_: Request, error: Exception) -> Response:
        return _refuse(error)

    app = Starlette(
        routes=[
            Route("/", show_page),
            Route("/static/{name}", show_file),
            Route("/api/docs", show_docs),
            Route("/api/openapi.json", show_document),
            Route(EVENTS_PATH, show_events),
            *(
                Route(PREFIX + endpoint.path, _to_answer(endpoint, context, limit), methods=[endpoint.method])
                for endpoint in TABLE
            ),
        ],
        exception_handlers={HoldfastError: on_error, HTTPException: on_error, Exception: on_error},
    )
    return Gate(app, _refuse)


def _to_answer(endpoint: Endpoint, context: Context, limit: asyncio.Semaphore) -> Answer:
    async def answer(request: Request) -> Response:
        if endpoint.method == "POST" and context.is_read_only:
            raise ReadOnlyConsole("this console was started with --read-only: it changes nothing")
        parameters = parse_parameters(endpoint, request.path_params, request.query_params.multi_items())
        arguments: list[object] = [parameters]
        if endpoint.body is not None:
            arguments.append(parse_body(endpoint, await _read_body(request)))
        async with limit:
            try:
                return _json(await endpoint.handler(context, *arguments))
            except HoldfastError:
                raise
            except Exception as error:  # noqa: BLE001 - one request fails, with its traceback in the log
                lines = "".join(traceback.format_exception(error))
                context.emit(Log("error", "a request failed", {"path": endpoint.path, "exception": lines}))
                return _refuse(error)

    return answer


async def _read_body(request: Request) -> bytes:
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX:
                raise BadParameter(f"the body is larger than {BODY_MAX} bytes")
    except ClientDisconnect as error:
        raise BadParameter("the body ended too early") from error
    return body


def _json(value: object, status: int = 200) -> Response:
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    return Response(msgspec.json.encode(value), status, headers)


def _refuse(error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status = error.status_code
        missing = NoSuchPath("there is nothing at this path" if status == 404 else f"{error.detail} at this path")
        return _json(ErrorAnswer(to_problem(missing)[1]), status)
    status, problem = to_problem(error)
    return _json(ErrorAnswer(problem), status)
