"""Load the options of a role from a TOML file, `HOLDFAST_*` variables and flags.

    defaults  <  [section] of the file  <  HOLDFAST_OPTION  <  HOLDFAST_SECTION_OPTION  <  --set option=value  <  --flag

    [namesrv]                           [broker]                      [log]             [up]
    listen = "127.0.0.1:9876"           flush = "async"               level = "info"    brokers = 3

An unknown option is refused with a hint at the closest known one, and a value of the wrong type with its option and
source. Unknown `HOLDFAST_*` variables only cause a warning (`variable_warnings`), because other software defines some,
too; those of Kubernetes services are ignored. Does not interpret the options.
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.broker.options import BrokerOptions
from holdfast.machine.security_options import TlsMode
from holdfast.model.errors import ConfigError
from holdfast.model.spelling_hint import hint_suffix
from holdfast.nameserver.options import NameServerOptions

PREFIX: Final = "HOLDFAST_"

_Options = TypeVar("_Options", bound=msgspec.Struct)


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a role logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    json: bool = False


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster that `holdfast up` starts.

    Attributes:
        brokers: The number of brokers; None means as many as the data folder has, two if it is new.
        namesrv: The address on which the name server listens; None means 127.0.0.1:9876.
        base_port: The first broker's port; the others follow in steps of ten. 0 means any free ports.
        flush: None keeps the broker's own setting.
        metrics_port: The port of the name server's `/metrics`; those of the brokers follow. None means no metrics.
        tls: None keeps the setting of each role, as for the other options of security.
        auth: Access control, with an administrator and a cluster secret in the data folder.
        console: Where the console listens, or `off`; None means 127.0.0.1:9880, if that is possible.
    """

    brokers: int | None = None
    data: str = "holdfast-data"
    namesrv: str | None = None
    base_port: int = 10911
    flush: Literal["sync", "async"] | None = None
    metrics_port: int | None = None
    tls: TlsMode | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    auth: bool | None = None
    insecure: bool | None = None
    console: str | None = None

    @property
    def security_flags(self) -> dict[str, str | bool | None]:
        """The options of security, by their names in every role; None keeps the role's setting."""
        names = ("tls", "tls_cert", "tls_key", "tls_ca", "auth", "insecure")
        return {name: getattr(self, name) for name in names}


SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "namesrv": NameServerOptions,
    "broker": BrokerOptions,
    "log": LogOptions,
    "up": UpOptions,
}
# Variables that are not options of a section: the command line reads them; `native.py` reads HOLDFAST_NATIVE.
CLIENT_VARIABLES: Final = frozenset(
    {
        *("HOLDFAST_NAMESRV", "HOLDFAST_PROFILE", "HOLDFAST_CONFIG", "HOLDFAST_TIMEOUT", "HOLDFAST_UNIT"),
        "HOLDFAST_NATIVE",
        *("HOLDFAST_ACCESS_KEY", "HOLDFAST_SECRET_KEY", "HOLDFAST_SECRET_FILE", "HOLDFAST_AUTH_MODE"),
    }
)
# Kubernetes gives every container the addresses of neighbouring services, in variables that begin with their names.
SERVICE_LINK: Final = re.compile(rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)")
# Misspelling a variable of these kinds would leave a cluster open that its operator believes to be protected.
_SECURITY_WORDS: Final = re.compile("TLS|AUTH|ACL|KEY|SECRET")
_PORT_SUFFIX: Final = "_NUMBER"


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of options, weakest first.

    Attributes:
        file: A TOML file, or None.
        environment: Usually `os.environ`.
        pairs: `option=value` texts of `--set`.
        flags: Flags by option name; None means not given.
    """

    file: Path | None = None
    environment: Mapping[str, str] = {}
    pairs: Sequence[str] = ()
    flags: Mapping[str, object] = {}


class _Setting(NamedTuple):
    """A value and a description of its source."""

    value: object
    origin: str
    is_text: bool


def load(section: str, kind: type[_Options], sources: Sources) -> _Options:
    """Return the options of *section*; for each option the strongest source wins.

    Raises:
        ConfigError: an option is unknown or a value is invalid; the text says which, where, and what would be valid.
    """
    hints = get_type_hints(kind, include_extras=True)
    settings: dict[str, _Setting] = {}
    settings |= _from_file(section, hints, sources.file)
    settings |= _from_environment(section, hints, sources.environment)
    pairs = _from_pairs(section, hints, sources.pairs)
    flags = _from_flags(section, hints, sources.flags)
    for name in pairs.keys() & flags.keys():
        _require_same(hints[name], pairs[name], flags[name])
    settings |= pairs | flags
    return kind(**{name: _convert(hints[name], setting) for name, setting in settings.items()})


def variable_warnings(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for every variable that looks like ours but has no effect."""
    known = _variables()
    warnings = []
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in known:
            continue
        if not SERVICE_LINK.fullmatch(variable):
            warnings.append(f"unknown variable {variable} has no effect{hint_suffix(variable, known)}")
        elif variable + _PORT_SUFFIX in known and environment[variable].isdecimal():  # Kubernetes writes URLs there
            warnings.append(f"{variable} has no effect: the variable of this option is {variable}{_PORT_SUFFIX}")
    return warnings


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of *file*.

    Raises:
        ConfigError: it is unreadable or not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _from_file(section: str, hints: Mapping[str, Any], file: Path | None) -> dict[str, _Setting]:
    if file is None:
        return {}
    content = read_toml(file)
    for name, value in content.items():
        if name not in SECTIONS and not isinstance(value, dict):
            raise ConfigError(f"{file}: {name} is outside of every section; write it below a line [{section}]")
        if name not in SECTIONS:
            raise ConfigError(f"{file}: unknown section [{name}]{hint_suffix(name, SECTIONS)}")
    table = content.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {section} must be a section, [{section}]")
    for name in table:
        if name not in hints:
            raise ConfigError(f"{file}: unknown option {name!r} in [{section}]{hint_suffix(name, hints)}")
    return {name: _Setting(value, f"{file}: {section}.{name}", is_text=False) for name, value in table.items()}


def _from_environment(section: str, hints: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, _Setting]:
    known = _variables()
    for variable in environment:
        is_unknown = variable.startswith(PREFIX) and variable not in known and not SERVICE_LINK.fullmatch(variable)
        if is_unknown and _SECURITY_WORDS.search(variable):
            raise ConfigError(f"environment: unknown variable {variable}{hint_suffix(variable, known)}")
    settings = {}
    for name in hints:
        for variable in _variables_of(section, name):
            if variable in environment:
                settings[name] = _Setting(environment[variable], variable, is_text=True)
                break
    return settings


def _variables_of(section: str, option: str) -> tuple[str, ...]:
    """Return the variables that set an option, the strongest first."""
    if option.endswith("_port"):  # Kubernetes may define variables that end in _PORT.
        option += _PORT_SUFFIX
    exact = f"{PREFIX}{section}_{option}".upper()
    # A role's options need no section: a process has one role, and options of both roles are meant for both.
    return (exact, f"{PREFIX}{option}".upper()) if section in {"namesrv", "broker"} else (exact,)


def _variables() -> frozenset[str]:
    """Return every variable that has an effect."""
    return CLIENT_VARIABLES.union(
        *(
            _variables_of(section, field.name)
            for section, kind in SECTIONS.items()
            for field in msgspec.structs.fields(kind)
        )
    )


def _from_pairs(section: str, hints: Mapping[str, Any], pairs: Sequence[str]) -> dict[str, _Setting]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ConfigError(f"--set {pair!r} is not OPTION=VALUE")
        if name not in hints:
            raise ConfigError(f"--set: unknown {section} option {name!r}{hint_suffix(name, hints)}")
        settings[name] = _Setting(value.strip(), f"--set {name}", is_text=True)
    return settings


def _from_flags(section: str, hints: Mapping[str, Any], flags: Mapping[str, object]) -> dict[str, _Setting]:
    settings = {}
    for name, value in flags.items():
        assert name in hints, f"flag {name} is no option of {section}"
        if value is not None:
            settings[name] = _Setting(value, f"--{name.replace('_', '-')}", is_text=isinstance(value, str))
    return settings


def _require_same(hint: Any, pair: _Setting, flag: _Setting) -> None:
    """Refuse a `--set` and a flag with different values for the same option."""
    if _convert(hint, pair) != _convert(hint, flag):
        raise ConfigError(f"{pair.origin}={pair.value} and {flag.origin} {flag.value} contradict each other: give one")


def _convert(hint: Any, setting: _Setting) -> object:
    """Return the value in the option's type. Text is converted; a TOML value must have the right type."""
    value = setting.value
    if isinstance(value, str) and _is_list(hint):
        value = [part.strip() for part in value.replace(",", ";").split(";") if part.strip()]
    try:
        return msgspec.convert(value, hint, strict=not setting.is_text)
    except msgspec.ValidationError:
        raise ConfigError(f"{setting.origin} is {setting.value!r}: expected {_describe(hint)}") from None


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in {tuple, list}


def _describe(hint: Any) -> str:
    """Return a description of the values that *hint* allows."""
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in {Union, types.UnionType}:
        return " or ".join(_describe(part) for part in get_args(hint) if part is not type(None))
    if _is_list(hint):
        return "a list of texts"
    if get_origin(hint) is Annotated:
        kind, limits = get_args(hint)
        if limits.description is not None:
            return str(limits.description)
        return f"{_describe(kind)}, {limits.ge} {'or more' if limits.le is None else f'to {limits.le}'}"
    return {int: "a whole number", str: "a text", bool: "true or false", float: "a number"}.get(hint, str(hint))
