"""Saved clusters in `~/.config/holdfast/config.toml`, and the choice of the name server.

    default = "local"

    [profiles.local]
    namesrv = "127.0.0.1:9876"

    [profiles.staging]
    namesrv = "10.0.0.4:9876;10.0.0.5:9876"
    tls_ca = "/etc/holdfast/ca.pem"
    access_key = "operator"
    secret_file = "/etc/holdfast/staging.secret"
    auth = "login"

A command uses the name server from the first of these sources that is given:

    1. --namesrv, --profile        both only if they name the same cluster
    2. HOLDFAST_NAMESRV
    3. HOLDFAST_PROFILE
    4. the default profile
    5. 127.0.0.1:9876

Connections use TLS if the options of the command line, the variables HOLDFAST_TLS_* or the profile in use say how. An
option of the command line comes first, then the profile of --profile, the variables, and any other profile.
`credentials` chooses the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, get_args

import msgspec

from holdfast.client.access.credentials_options import AuthMode
from holdfast.client.routes.name_server_choice import is_url
from holdfast.config import read_toml
from holdfast.model.access.client_tls import ClientTls, Verification
from holdfast.model.errors import ConfigError
from holdfast.runtime.address import split_address

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
_TLS_SETTINGS: Final = ("ca", "cert", "key", "verify")
_PROFILE_SOURCE: Final = "profile "


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One saved cluster, and the user to act as there. The secret itself is never saved here."""

    namesrv: str
    access_key: str | None = None
    secret_file: str | None = None
    auth: AuthMode | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: Verification | None = None


class ChosenCluster(NamedTuple):
    """The cluster that a command addresses: its name servers, the source that named them, and how to use TLS."""

    namesrv: str
    source: str
    tls: ClientTls | None


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
        raise ConfigError(
            f"{file}: {error}; a profile is [profiles.NAME] with namesrv = 'HOST:PORT', and with access_key, "
            "secret_file and auth if the cluster has access control"
        ) from error


def save_profile(environment: Mapping[str, str], name: str, profile: Profile, written_by: str) -> bool:
    """Write a profile into the configuration file. It becomes the default if there is none.

    A section that the user wrote is never changed, nor is anything else in the file.

    Args:
        environment: Usually `os.environ`.
        name: The name of the profile.
        profile: Its content.
        written_by: The command that writes it, for the comment by which it finds its section again.

    Returns:
        Whether the profile is the default.

    Raises:
        ConfigError: the user has a profile of this name, or the file cannot be read or written.
    """
    file = profiles_file(environment)
    saved = load_profiles(environment)
    comment = f"# Written by `{written_by}`, which replaces this section."
    fields = {field: value for field, value in msgspec.structs.asdict(profile).items() if value is not None}
    lines = [f"{field} = {msgspec.json.encode(value).decode()}" for field, value in fields.items()]
    section = "\n".join([comment, f"[profiles.{name}]", *lines]) + "\n"
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        own = re.compile(rf"{re.escape(comment)}\n\[profiles\.{re.escape(name)}\]\n(?:\w+ = .*\n)*")
        if name in saved.profiles and not own.search(text):
            raise ConfigError(f"{file} has a profile {name} that you wrote: rename it")
        if own.search(text):
            text = own.sub(lambda _: section, text)
        else:
            text = f"{text.rstrip()}\n\n{section}" if text.strip() else section
        if saved.default is None:  # Before the first section: there it is no part of one.
            text = f'default = "{name}"\n\n{text}'
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from None
    return saved.default in {None, name}


def find_cluster(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> ChosenCluster:
    """Return the cluster to use.

    Args:
        flags: `namesrv`, `profile` and `tls_*` of the command line; None if not given.
        environment: Usually `os.environ`.

    Raises:
        ConfigError: as `find_namesrv`, or the settings of TLS are not valid.
    """
    profile = flags.get("profile")
    namesrv, source = find_namesrv(flags.get("namesrv"), profile, environment)
    of_flags = {name: flags.get(f"tls_{name}") for name in _TLS_SETTINGS}
    of_variables = {name: environment.get(f"HOLDFAST_TLS_{name.upper()}") or None for name in _TLS_SETTINGS}
    of_profile: dict[str, str | None] = {}
    if source.startswith(_PROFILE_SOURCE) or profile is not None:
        saved = load_profiles(environment).profiles[profile or source.removeprefix(_PROFILE_SOURCE)]
        of_profile = {name: getattr(saved, f"tls_{name}") for name in _TLS_SETTINGS}
    is_of_profile = profile is not None or not any(of_variables.values())
    settings = (of_profile if is_of_profile else of_variables) | {
        name: text for name, text in of_flags.items() if text is not None
    }
    return ChosenCluster(namesrv, source, _to_tls(settings))


def _to_tls(settings: Mapping[str, str | None]) -> ClientTls | None:
    given = {name: text for name, text in settings.items() if text is not None}
    if not given:
        return None
    if given.get("verify", "full") not in get_args(Verification):
        raise ConfigError(f"HOLDFAST_TLS_VERIFY is {given['verify']!r}: expected {' or '.join(get_args(Verification))}")
    return msgspec.convert(given, ClientTls)


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
