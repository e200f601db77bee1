"""The tables of requests in `docs/protocol.md`: `python -m tests.support.protocol_page` writes them again."""

from pathlib import Path

from holdfast.wire.requests.table import REQUESTS, RequestSpec, Role

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
_START = "<!-- written by `python -m tests.support.protocol_page` -->\n"
_END = "<!-- end of what it writes -->\n"
_COLUMNS = {
    Role.BROKER: ("code", "name", "meaning", "relayed", "replica", "permissions"),
    Role.NAME_SERVER: ("code", "name", "meaning", "permissions"),
    Role.CLIENT: ("code", "name", "meaning"),
}


def update(text: str) -> str:
    """Return the page with the tables as they should be."""
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    assert after, "the page has lost the marks around its tables"
    tables = "\n".join(f"### Answered by a {role.value}\n\n{_table(role)}" for role in _COLUMNS)
    return f"{before}{_START}\n{tables}\n{_END}{after}"


def _table(role: Role) -> str:
    columns = _COLUMNS[role]
    rows = [columns, ("---",) * len(columns)]
    rows += [tuple(_cells(spec)[column] for column in columns) for spec in REQUESTS[role].values()]
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in rows)


def _cells(spec: RequestSpec) -> dict[str, str]:
    return {
        "code": str(int(spec.code)),
        "name": f"`{spec.code.name}`",
        "meaning": spec.meaning,
        "relayed": spec.relaying.value,
        "replica": "yes" if spec.on_replica else "no",
        "permissions": spec.rule.text,
    }


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
