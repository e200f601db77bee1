"""The OpenAPI 3.1 document of the API, made from the table of endpoints and the types of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from typing import Any, Final

import msgspec

from holdfast.console.endpoints import PREFIX, TABLE, Endpoint, document, document_fields
from holdfast.console.problems import ErrorAnswer

EVENTS_PATH: Final = f"{PREFIX}/events"
_TEMPLATE: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": "A parameter or the body is wrong.",
    "403": "The console or the cluster does not permit it.",
    "404": "There is no such thing.",
    "409": "The state of the cluster forbids it.",
    "default": "It failed; the body says why.",
}
_ABOUT: Final = (
    "Read a Holdfast cluster, and move its logical queues with a preview. Every answer that is not a success has the"
    " body `ErrorAnswer`. Times are milliseconds since 1970, UTC. Offsets count messages; ends are exclusive."
)
_EVENTS: Final = (
    "Each event has the newest value of one name: `connection`, `cluster`, `moves`, and `topic` for a watched topic (a"
    " map, as GET /topics/{topic}/map returns it, or an error). The first events are the current values. A comment line"
    " every 15 s keeps the connection open."
)


@cache
def build_document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = _types_of(TABLE)
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE, schema_hook=_describe_other)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    _add_texts(components, types)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in TABLE:
        operation = _operation(endpoint, schema_of)
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.method.lower()] = operation
    paths[EVENTS_PATH] = {"get": _events_operation()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast console", "version": metadata.version("holdfast"), "description": _ABOUT},
        "servers": [{"url": "/"}],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": components},
    }


def _describe_other(kind: type) -> dict[str, Any]:
    """Return the schema of a type that is no struct. Values of others, such as unknown fields, may be anything."""
    if kind is object:
        return {"description": "Any value."}
    raise NotImplementedError


def _types_of(table: Sequence[Endpoint]) -> list[Any]:
    kinds = [kind for row in table for kind in (row.result, row.body) if kind is not None]
    return list({id(kind): kind for kind in (*kinds, ErrorAnswer)}.values())


def _add_texts(components: dict[str, Any], types: Iterable[Any]) -> None:
    """Replace the docstrings of schemas by their texts, and give properties theirs."""
    for kind in _structs_within(types):
        schema = components.get(kind.__name__)
        if schema is None:
            continue
        schema["description"] = document(kind)
        for name, text in document_fields(kind).items():
            if name in schema.get("properties", {}):
                # Beside `$ref`, OpenAPI 3.1 permits a description.
                schema["properties"][name]["description"] = text


def _structs_within(types: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """Return all structs that *types* contain, at any depth."""
    found: dict[int, type[msgspec.Struct]] = {}
    pending: list[Any] = [msgspec.inspect.type_info(kind) for kind in types]
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if id(info.cls) in found:
                continue
            found[id(info.cls)] = info.cls
            pending += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.UnionType):
            pending += info.types
        elif isinstance(info, msgspec.inspect.DictType):
            pending += [info.key_type, info.value_type]
        elif isinstance(info, msgspec.inspect.TupleType):
            pending += info.item_types
        elif isinstance(info, msgspec.inspect.CollectionType):
            pending.append(info.item_type)
        elif isinstance(info, msgspec.inspect.Metadata):
            pending.append(info.type)
    return list(found.values())


def _operation(endpoint: Endpoint, schema_of: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": endpoint.description,
        "parameters": describe_parameters(endpoint),
        "responses": {"200": _json_answer("Done.", schema_of[id(endpoint.result)]), **_error_answers()},
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[id(endpoint.body)]}},
        }
    return operation


def describe_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the parameters of an endpoint as OpenAPI describes them."""
    texts = document_fields(endpoint.parameters)
    described = []
    for field in msgspec.structs.fields(endpoint.parameters):
        in_path = field.name in endpoint.path_names
        schema = msgspec.json.schema(field.type)
        if not field.required and field.default is not None:
            schema["default"] = field.default
        described.append(
            {
                "name": field.name,
                "in": "path" if in_path else "query",
                "required": in_path or field.required,
                "description": texts.get(field.name, ""),
                "schema": schema,
            }
        )
    return described


def _error_answers() -> dict[str, Any]:
    schema = {"$ref": _TEMPLATE.format(name=ErrorAnswer.__name__)}
    return {status: _json_answer(text, schema) for status, text in _ERRORS.items()}


def _json_answer(text: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _events_operation() -> dict[str, Any]:
    topic = {
        "name": "topic",
        "in": "query",
        "required": False,
        "description": "Also watch the map of this topic.",
        "schema": {"type": "string"},
    }
    stream = {"description": "A stream of events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {
        "operationId": "listen",
        "tags": ["events"],
        "summary": "Send what changes, as server-sent events.",
        "description": _EVENTS,
        "parameters": [topic],
        "responses": {"200": stream, **_error_answers()},
    }
