"""Saved clusters: `~/.config/holdfast/config.toml`.

    default = "local"

    [profiles.local]
    namesrv = "127.0.0.1:9876"

    [profiles.staging]
    namesrv = "10.0.0.4:9876;10.0.0.5:9876"

The name server is looked for in this order: `--namesrv` or `HOLDFAST_NAMESRV`, `--profile` or `HOLDFAST_PROFILE`, the
default profile, 127.0.0.1:9876.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.client.name_servers import is_url
from holdfast.config import read_toml
from holdfast.model.errors import ConfigError
from holdfast.model.nearest import nearest
from holdfast.runtime.address import split_address

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One saved cluster."""

    namesrv: str


class Profiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    default: str | None = None
    profiles: dict[str, Profile] = {}


def profiles_file(environment: Mapping[str, str]) -> Path:
    """Return where the file is, or would be."""
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(home) / "holdfast" / "config.toml"


def load_profiles(environment: Mapping[str, str]) -> Profiles:
    """Return the saved profiles; none when there is no file.

    Raises:
        ConfigError: the file is there but cannot be used.
    """
    file = profiles_file(environment)
    if not file.is_file():
        return Profiles()
    try:
        return msgspec.convert(read_toml(file), Profiles)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {error}; a profile is [profiles.NAME] with namesrv = 'HOST:PORT'") from error


def find_namesrv(flag: str | None, profile: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name servers to ask, `;` between them, and the words for how we came to them.

    Raises:
        ConfigError: there is no such profile, or an address is not HOST:PORT. An address server stands as it is.
    """
    namesrv, origin = _choose(flag, profile, environment)
    if is_url(namesrv):
        return namesrv.strip(), origin
    addresses = [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()]
    for address in addresses:
        split_address(address)
    if not addresses:
        raise ConfigError("the name server is empty; say --namesrv HOST:PORT")
    return ";".join(addresses), origin


def _choose(flag: str | None, profile: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    if flag is not None:
        return flag, "HOLDFAST_NAMESRV" if environment.get("HOLDFAST_NAMESRV") == flag else "--namesrv"
    saved = load_profiles(environment)
    name = profile or saved.default
    if name is None:
        return DEFAULT_NAMESRV, "the default"
    if name not in saved.profiles:
        file = profiles_file(environment)
        hint = nearest(name, saved.profiles) if saved.profiles else f"; there is none in {file}"
        raise ConfigError(f"no profile {name!r}{hint}")
    return saved.profiles[name].namesrv, f"profile {name}"
