"""Reads the secrets of a role from the files that its options name."""

from __future__ import annotations

import secrets
from typing import Any, Final

import yaml

from holdfast.access.role_secrets import RoleSecrets
from holdfast.machine.security_options import SecurityOptions
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConfigError
from holdfast.runtime.access.private_file import read_private_file

SECRET_LENGTH_MIN: Final = 16
"""Of a cluster secret: it is never typed, and knowing it means owning the cluster."""
CLUSTER_SECRETS_MAX: Final = 2


def read_role_secrets(options: SecurityOptions) -> RoleSecrets:
    """Return the secrets of a role with *options*.

    Raises:
        ConfigError: an option is missing, or a file cannot be used; the text says what to do, and contains no secret.
    """
    if options.auth and options.cluster_secret is None:
        raise ConfigError(
            "access control (auth) needs a cluster secret, with which servers prove to each other who they are: write"
            " the same random text to a file on every server, `chmod 600` it, and name it with --cluster-secret FILE"
        )
    cluster = () if options.cluster_secret is None else _read_cluster_secrets(options.cluster_secret)
    inner = None if options.inner_credentials is None else _read_credentials(options.inner_credentials)
    if options.java_peers == "sign" and inner is None:
        raise ConfigError("java_peers is sign, but inner_credentials names no file with `accessKey:` and `secretKey:`")
    return RoleSecrets(secrets.token_bytes, cluster, inner)


def read_metrics_token(options: SecurityOptions) -> str | None:
    """Return the token with which scrapers prove that they may read `/metrics`; None if there is none.

    Raises:
        ConfigError: the file cannot be used.
    """
    path = options.metrics_token
    if path is None:
        return None
    token = read_private_file(path).text.strip()
    if len(token) < SECRET_LENGTH_MIN or not token.isascii() or len(token.split()) != 1:
        raise ConfigError(
            f"metrics_token: {path} needs one word of at least {SECRET_LENGTH_MIN} ASCII characters, and nothing else;"
            f" write one by `head -c 32 /dev/urandom | base64 > {path}`"
        )
    return token


def _read_cluster_secrets(path: str) -> tuple[str, ...]:
    """Return one secret, or two while it is replaced: one on each line, the newest first."""
    lines = tuple(line.strip() for line in read_private_file(path).text.splitlines() if line.strip())
    if not 1 <= len(lines) <= CLUSTER_SECRETS_MAX:
        raise ConfigError(
            f"the secret file {path} has {len(lines)} lines: write the cluster secret, and nothing else; while it is"
            " replaced, the old one on a second line"
        )
    if any(len(line) < SECRET_LENGTH_MIN for line in lines):
        raise ConfigError(
            f"the secret in {path} has less than {SECRET_LENGTH_MIN} characters: anybody could guess it. Write a random"
            f" one, as by `head -c 32 /dev/urandom | base64 > {path}`"
        )
    return lines


def _read_credentials(path: str) -> Credentials:
    try:
        # The safe loader. Its errors quote the file, so they are not passed on.
        document: Any = yaml.safe_load(read_private_file(path).text)
        return Credentials(str(document["accessKey"]), str(document["secretKey"]))
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"the file {path} needs two lines, `accessKey: NAME` and `secretKey: SECRET`") from None
