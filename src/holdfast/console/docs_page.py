"""The page of the API's documentation: plain HTML without scripts, made from the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from typing import Any

from holdfast.console.openapi import build_document


@cache
def build_docs_page() -> str:
    """Return the page."""
    document = build_document()
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    chapters = "".join(
        f'<section><h2 id="{escape(tag)}">{escape(tag)}</h2>{"".join(parts)}</section>'
        for tag, parts in sorted(by_tag.items())
    )
    links = " ".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in sorted(by_tag))
    schemas = "".join(_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Holdfast API</title>'
        '<link rel="icon" href="/static/icon.svg"><link rel="stylesheet" href="/static/console.css"></head>'
        f'<body class="docs"><main><h1>{escape(info["title"])}, API {escape(info["version"])}</h1>'
        f"<p>{_text(info['description'])}</p>"
        f'<p><a href="/">The console</a> · <a href="/api/openapi.json">openapi.json</a> · {links} '
        '· <a href="#schemas">values</a></p>'
        f'{chapters}<section><h2 id="schemas">values</h2>{schemas}</section></main></body></html>'
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [
        f'<article><h3><span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code></h3>',
        f"<p>{_text(operation['summary'])} {_text(operation['description'])}</p>",
    ]
    if operation["parameters"]:
        rows = (
            (
                f"<code>{escape(each['name'])}</code>",
                escape(each["in"]),
                _type(each["schema"]),
                "yes" if each["required"] else "",
                _text(each["description"]),
            )
            for each in operation["parameters"]
        )
        parts.append(_table(("parameter", "in", "type", "required", "meaning"), rows))
    if body := operation.get("requestBody"):
        parts.append(f"<p>Body: {_type(body['content']['application/json']['schema'])}</p>")
    for kind, content in operation["responses"]["200"]["content"].items():
        parts.append(f"<p>Answer: {_type(content['schema'])} <small>{escape(kind)}</small></p>")
    return "".join(parts) + "</article>"


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    rows = (
        (f"<code>{escape(field)}</code>", _type(each), _text(each.get("description", "")))
        for field, each in schema.get("properties", {}).items()
    )
    table = _table(("field", "type", "meaning"), rows) if schema.get("properties") else f"<p>{_type(schema)}</p>"
    text = _text(schema.get("description", ""))
    return f'<article><h3 id="schema-{escape(name)}"><code>{escape(name)}</code></h3><p>{text}</p>{table}</article>'


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; its cells are HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type in words, with links to other values."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(each))}</code>" for each in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {})}"
    if kind == "object" and "additionalProperties" in schema:
        extra = schema["additionalProperties"]
        return f"object of {_type(extra)}" if isinstance(extra, dict) else "object"
    limits = [f"{word} {schema[name]}" for name, word in (("minimum", "from"), ("maximum", "to")) if name in schema]
    default = [f"default {schema['default']}"] if "default" in schema else []
    return escape(", ".join([str(kind), *limits, *default]))


def _text(text: str) -> str:
    """Return plain text as HTML, with words in backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
