"""Arguments and options that commands of several nouns share, with their completion."""

from __future__ import annotations

from typing import Annotated, Final, Literal

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
AccessKeyOption = Annotated[
    str | None,
    typer.Option(
        envvar="HOLDFAST_ACCESS_KEY",
        metavar="USER",
        help="The user to act as, where the cluster has access control. The secret comes from --secret-file, or from "
        "the variable HOLDFAST_SECRET_KEY; there is no option for it, because everybody could see it in `ps`.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
SecretFileOption = Annotated[
    str | None,
    typer.Option(
        envvar="HOLDFAST_SECRET_FILE",
        metavar="FILE",
        help="A file with the secret of the user and nothing else, which only its owner can read.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
AuthModeOption = Annotated[
    str | None,
    typer.Option(
        envvar="HOLDFAST_AUTH_MODE",
        metavar="auto|login|sign",
        help="Log in, sign every request as for Java servers, or log in where the server can.",
        show_default="auto",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TlsCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        envvar="HOLDFAST_TLS_CA",
        metavar="FILE",
        help="Use TLS, and trust the authorities in this PEM file.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TlsVerifyOption = Annotated[
    Literal["full", "chain", "none"] | None,
    typer.Option(
        "--tls-verify",
        envvar="HOLDFAST_TLS_VERIFY",
        help="Use TLS, and verify the certificate and its host, only the certificate, or nothing.",
        show_default="full",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TlsCertOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        envvar="HOLDFAST_TLS_CERT",
        metavar="FILE",
        help="Use TLS, and present this certificate.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option(
        "--tls-key",
        envvar="HOLDFAST_TLS_KEY",
        metavar="FILE",
        help="The private key of --tls-cert.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)]
BrokersOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="On these brokers only.", show_default="all", autocompletion=complete_broker),
]
