"""`holdfast cluster`: describe."""

from __future__ import annotations

import typer

from holdfast.admin.tables import Facts
from holdfast.cli.broker import status_table
from holdfast.cli.session import Session, cluster_command

app = typer.Typer(no_args_is_help=True, help="Look at the whole cluster.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="cluster")


@app.callback()
def _nouns() -> None:
    """Keep `describe` a verb of its own while it is the only one."""


@cluster_command(app, "describe")
def describe(session: Session) -> None:
    """Show name servers, clusters, brokers and what they do together.

    Example: holdfast cluster describe
    """
    found = session.ask(lambda admin: admin.cluster.describe())
    facts: list[tuple[str, str | int | float | None]] = [
        ("name servers", ", ".join(found.name_servers)),
        *((f"cluster {name}", ", ".join(brokers)) for name, brokers in found.clusters.items()),
        ("topics", found.topics),
        ("puts per second", found.puts_per_second),
        ("gets per second", found.gets_per_second),
    ]
    session.show(found, Facts(facts), status_table(found.brokers))
