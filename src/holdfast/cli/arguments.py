"""Arguments and options that commands of several nouns share, with their completion."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from holdfast.cli.completion import complete_broker, complete_topic

CLUSTER_PANEL: Final = "Cluster"

NamesrvOption = Annotated[
    str | None,
    typer.Option(
        envvar="HOLDFAST_NAMESRV",
        metavar="HOST:PORT",
        help="Name servers, separated by ';'.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        envvar="HOLDFAST_PROFILE", metavar="NAME", help="Use this saved profile.", rich_help_panel=CLUSTER_PANEL
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)]
BrokersOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="On these brokers only.", show_default="all", autocompletion=complete_broker),
]
