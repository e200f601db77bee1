"""Arguments and options that commands of several nouns take, with their completion."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.completion import complete_broker, complete_topic

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)]
BrokersOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="On these brokers only.", show_default="all", autocompletion=complete_broker),
]
