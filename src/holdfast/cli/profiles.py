"""Saved clusters in `~/.config/holdfast/config.toml`, and the choice of the name server.

    default = "local"

    [profiles.local]
    namesrv = "127.0.0.1:9876"

    [profiles.staging]
    namesrv = "10.0.0.4:9876;10.0.0.5:9876"

A command uses the name server from the first of these sources that is given:

    1. --namesrv, --profile        both only if they name the same cluster
    2. HOLDFAST_NAMESRV
    3. HOLDFAST_PROFILE
    4. the default profile
    5. 127.0.0.1:9876
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.client.routes.name_server_choice import is_url
from holdfast.config import read_toml
from holdfast.model.errors import ConfigError
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
    """Return the path of the profiles file, which may not exist."""
    config_home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(config_home) / "holdfast" / "config.toml"


def load_profiles(environment: Mapping[str, str]) -> Profiles:
    """Return the saved profiles; none when there is no file.

    Raises:
        ConfigError: the file exists but is not valid.
    """
    file = profiles_file(environment)
    if not file.is_file():
        return Profiles()
    try:
        return msgspec.convert(read_toml(file), Profiles)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {error}; a profile is [profiles.NAME] with namesrv = 'HOST:PORT'") from error


def find_namesrv(flag: str | None, profile: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name servers to use, separated by `;`, and the name of the source that gave them.

    Args:
        flag: The value of `--namesrv`, only if the command line gives it: this function reads the environment itself.
        profile: The value of `--profile`, under the same condition.
        environment: Usually `os.environ`.

    Raises:
        ConfigError: the flags contradict each other, there is no such profile, or an address is not HOST:PORT.
    """
    if flag is not None and profile is not None:
        return _require_same(_parse(flag), _of_profile(profile, environment, "--profile"), profile), "--namesrv"
    if flag is not None:
        return _parse(flag), "--namesrv"
    if profile is not None:
        return _of_profile(profile, environment, "--profile"), f"profile {profile}"
    if variable := environment.get("HOLDFAST_NAMESRV"):
        return _parse(variable), "HOLDFAST_NAMESRV"
    if variable := environment.get("HOLDFAST_PROFILE"):
        return _of_profile(variable, environment, "HOLDFAST_PROFILE"), f"profile {variable}"
    default = load_profiles(environment).default
    if default is not None:
        return _of_profile(default, environment, "default"), f"profile {default}"
    return DEFAULT_NAMESRV, "the default"


def _require_same(namesrv: str, of_profile: str, profile: str) -> str:
    if namesrv != of_profile:
        raise ConfigError(
            f"--namesrv {namesrv} and --profile {profile} ({of_profile}) name different clusters: give only one of them"
        )
    return namesrv


def _of_profile(name: str, environment: Mapping[str, str], origin: str) -> str:
    """Return the name servers of profile *name*; *origin* says in an error where the name came from."""
    saved = load_profiles(environment).profiles
    if name in saved:
        return _parse(saved[name].namesrv)
    file = profiles_file(environment)
    known = f"known are {', '.join(sorted(saved))}" if saved else f"there are none in {file}"
    raise ConfigError(f"no profile {name!r} ({origin}); {known}")


def _parse(namesrv: str) -> str:
    """Return addresses in a uniform spelling; the URL of an address server stays unchanged."""
    if is_url(namesrv):
        return namesrv.strip()
    addresses = [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()]
    for address in addresses:
        split_address(address)
    if not addresses:
        raise ConfigError("the name server is empty; give --namesrv HOST:PORT")
    return ";".join(addresses)
