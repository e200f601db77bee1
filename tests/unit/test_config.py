"""Settings from a file, from variables and from flags, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from holdfast.broker.options import BrokerOptions
from holdfast.config import (
    SECTIONS,
    SERVICE_LINK,
    LogOptions,
    Sources,
    UpOptions,
    _variables_of,
    load,
    variable_warnings,
)
from holdfast.model.errors import ConfigError
from holdfast.nameserver.options import NameServerOptions


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "holdfast.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_any_source_the_defaults_hold():
    """An empty world gives the options as their struct declares them."""
    assert load("broker", BrokerOptions, Sources()) == BrokerOptions()


def test_each_source_overrides_the_weaker_ones(tmp_path: Path):
    """File, plain variable, section variable, --set and flag win in this order, option by option."""
    file = write(
        tmp_path,
        '[broker]\nname = "file"\ncluster = "file"\nlisten = "file:1"\nstore = "file"\nretention_hours = 1\n',
    )
    environment = {
        "HOLDFAST_CLUSTER": "variable",
        "HOLDFAST_LISTEN": "variable:1",
        "HOLDFAST_BROKER_LISTEN": "section:1",
        "HOLDFAST_STORE": "variable",
        "HOLDFAST_RETENTION_HOURS": "2",
    }
    sources = Sources(
        file=file, environment=environment, pairs=["store=pair", "retention-hours=3"], flags={"name": None}
    )
    flagged = Sources(file=file, environment=environment, flags={"store": "flag"})

    options = load("broker", BrokerOptions, sources)

    assert (options.name, options.cluster, options.listen) == ("file", "variable", "section:1")
    assert (options.store, options.retention_hours) == ("pair", 3)
    assert load("broker", BrokerOptions, flagged).store == "flag"


def test_texts_become_the_types_of_their_options():
    """A variable is text: numbers, booleans, lists and choices are read out of it."""
    environment = {
        "HOLDFAST_AUTO_CREATE_TOPICS": "false",
        "HOLDFAST_RETENTION_HOURS": "48",
        "HOLDFAST_NAMESRV": "a:1;b:2, c:3",
        "HOLDFAST_FLUSH": "async",
    }

    options = load("broker", BrokerOptions, Sources(environment=environment))

    assert (options.auto_create_topics, options.retention_hours) == (False, 48)
    assert options.namesrv == ("a:1", "b:2", "c:3")
    assert options.flush == "async"


def test_a_list_may_be_a_list_or_a_text_in_the_file(tmp_path: Path):
    """Several name servers are written either way."""
    as_list = write(tmp_path, '[broker]\nnamesrv = ["a:1", "b:2"]\n')
    assert load("broker", BrokerOptions, Sources(file=as_list)).namesrv == ("a:1", "b:2")

    as_text = write(tmp_path, '[broker]\nnamesrv = "a:1;b:2"\n')
    assert load("broker", BrokerOptions, Sources(file=as_text)).namesrv == ("a:1", "b:2")


def test_an_unknown_option_in_the_file_is_refused_with_the_nearest(tmp_path: Path):
    """A misspelt option names its file, its section and what was probably meant."""
    file = write(tmp_path, '[broker]\nflsuh = "sync"\n')

    with pytest.raises(ConfigError, match=r"holdfast.toml: unknown option 'flsuh' in \[broker\]; did you mean 'flush'"):
        load("broker", BrokerOptions, Sources(file=file))


def test_an_unknown_section_is_refused_with_the_nearest(tmp_path: Path):
    """A misspelt section is not silently somebody else's."""
    with pytest.raises(ConfigError, match=r"unknown section \[brokr\]; did you mean 'broker'"):
        load("namesrv", NameServerOptions, Sources(file=write(tmp_path, "[brokr]\n")))


def test_an_option_outside_of_every_section_is_told_where_it_belongs(tmp_path: Path):
    """A name that looks like a section is none by that: `broker_events` is no broker."""
    with pytest.raises(ConfigError, match=r"broker_events is outside of every section; .* \[namesrv\]"):
        load("namesrv", NameServerOptions, Sources(file=write(tmp_path, 'broker_events = "off"\n')))


LINKS = {
    "HOLDFAST_PORT": "tcp://10.43.0.9:9876",
    "HOLDFAST_SERVICE_HOST": "10.43.0.9",
    "HOLDFAST_SERVICE_PORT": "9876",
    "HOLDFAST_SERVICE_PORT_TLS": "9876",
    "HOLDFAST_PORT_9876_TCP": "tcp://10.43.0.9:9876",
    "HOLDFAST_PORT_9876_TCP_ADDR": "10.43.0.9",
    "HOLDFAST_NAMESRV_SERVICE_HOST": "10.43.0.9",
    "HOLDFAST_NAMESRV_PORT_9876_TCP_PORT": "9876",
    "HOLDFAST_AUTH_SERVICE_HOST": "10.43.0.9",
    "HOLDFAST_HA_PORT": "tcp://10.43.0.9:10912",
}


def test_variables_of_kubernetes_services_are_ignored():
    """A service called holdfast, holdfast-namesrv or holdfast-ha configures nothing and stops nothing."""
    assert load("broker", BrokerOptions, Sources(environment=LINKS)) == BrokerOptions()
    assert variable_warnings(LINKS) == []


@pytest.mark.parametrize("section", list(SECTIONS))
def test_no_option_has_a_variable_that_kubernetes_may_define(section: str):
    """Or a service beside us would set it."""
    for field in msgspec.structs.fields(SECTIONS[section]):
        for variable in _variables_of(section, field.name):
            assert not SERVICE_LINK.fullmatch(variable), f"{section}.{field.name} is set by {variable}"


def test_a_port_has_a_variable_that_kubernetes_does_not_define():
    """The old name is not read any more, which is said where it cannot be a service's."""
    options = load("broker", BrokerOptions, Sources(environment={"HOLDFAST_HA_PORT_NUMBER": "10999"}))

    assert options.ha_port == 10_999
    assert variable_warnings({"HOLDFAST_UP_BASE_PORT": "20911"}) == [
        "HOLDFAST_UP_BASE_PORT has no effect: the variable of this option is HOLDFAST_UP_BASE_PORT_NUMBER"
    ]


def test_an_unknown_variable_is_a_warning_with_the_nearest():
    """Other software may define it; after a typing error the warning names the right one."""
    environment = {"HOLDFAST_FLUHS": "sync", "HOLDFAST_HOME": "/opt/holdfast", "PATH": "/bin"}

    assert load("broker", BrokerOptions, Sources(environment=environment)) == BrokerOptions()
    misspelt, foreign = variable_warnings(environment)
    assert misspelt == "unknown variable HOLDFAST_FLUHS has no effect; did you mean 'HOLDFAST_FLUSH'?"
    assert foreign.startswith("unknown variable HOLDFAST_HOME has no effect")


@pytest.mark.parametrize("kind", ["TLS_MODE", "BROKER_AUTHZ", "ACL", "SSL_KEY_FILE", "CLIENT_SECRET"])
def test_an_unknown_variable_that_should_protect_is_refused(kind: str):
    """Started without it, a role would be open while its operator believes it closed."""
    with pytest.raises(ConfigError, match=f"environment: unknown variable HOLDFAST_{kind}"):
        load("broker", BrokerOptions, Sources(environment={f"HOLDFAST_{kind}": "x"}))


def test_a_known_variable_with_a_bad_value_is_refused():
    """It is certainly meant for us."""
    with pytest.raises(ConfigError, match="HOLDFAST_FLUSH is 'maybe': expected 'sync' or 'async'"):
        load("broker", BrokerOptions, Sources(environment={"HOLDFAST_FLUSH": "maybe"}))


def test_variables_of_the_client_are_known_to_the_roles():
    """One environment serves both."""
    assert variable_warnings({"HOLDFAST_UNIT": "east", "HOLDFAST_PROFILE": "local", "HOLDFAST_TIMEOUT": "9"}) == []


def test_a_pair_and_a_flag_that_contradict_are_refused():
    """Neither wins silently; saying the same twice is no contradiction."""
    with pytest.raises(ConfigError, match="--set flush=async and --flush sync contradict each other"):
        load("broker", BrokerOptions, Sources(pairs=["flush=async"], flags={"flush": "sync"}))

    assert load("broker", BrokerOptions, Sources(pairs=["flush=sync"], flags={"flush": "sync"})).flush == "sync"


def test_variables_of_the_other_role_are_left_alone():
    """One environment may configure a whole cluster: each role takes what is its own."""
    environment = {"HOLDFAST_SCAN_INTERVAL_MS": "7", "HOLDFAST_FLUSH": "async", "PATH": "/bin"}

    assert load("namesrv", NameServerOptions, Sources(environment=environment)).scan_interval_ms == 7
    assert load("broker", BrokerOptions, Sources(environment=environment)).flush == "async"


def test_an_unknown_pair_is_refused_with_the_nearest():
    """--set knows exactly the options of the role."""
    with pytest.raises(ConfigError, match="unknown broker option 'retention_hour'; did you mean 'retention_hours'"):
        load("broker", BrokerOptions, Sources(pairs=["retention_hour=1"]))


def test_a_pair_without_equals_is_refused():
    """--set wants OPTION=VALUE."""
    with pytest.raises(ConfigError, match="is not OPTION=VALUE"):
        load("broker", BrokerOptions, Sources(pairs=["flush"]))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[broker]\nretention_hours = "many"\n', "broker.retention_hours is 'many': expected a whole number"),
        ("[broker]\nretention_hours = 0\n", "broker.retention_hours is 0: expected a whole number, 1 or more"),
        ("[broker]\ndisk_full_percent = 101\n", "is 101: expected a whole number, 1 to 100"),
        ("[broker]\nname = 3\n", "broker.name is 3: expected a text"),
        ("[broker]\nauto_create_topics = 1\n", "broker.auto_create_topics is 1: expected true or false"),
        ('[broker]\nflush = "maybe"\n', "broker.flush is 'maybe': expected 'sync' or 'async'"),
        ("[broker]\nnamesrv = 9876\n", "broker.namesrv is 9876: expected a list of texts"),
        ("broker = 3\n", "broker must be a section"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(tmp_path: Path, text: str, complaint: str):
    """The complaint names the option, the value and what would be right."""
    with pytest.raises(ConfigError) as refused:
        load("broker", BrokerOptions, Sources(file=write(tmp_path, text)))

    assert complaint in str(refused.value)


def test_the_capacity_of_the_link_is_a_positive_number():
    """From the environment, as from everywhere; unless it is stated, none is."""
    stated = Sources(environment={"HOLDFAST_NAMESRV_LINK_CAPACITY_MBIT": "2500"})
    wrong = Sources(environment={"HOLDFAST_NAMESRV_LINK_CAPACITY_MBIT": "0"})

    assert load("namesrv", NameServerOptions, stated).link_capacity_mbit == 2500
    assert load("namesrv", NameServerOptions, Sources()).link_capacity_mbit is None
    with pytest.raises(ConfigError, match=r"LINK_CAPACITY_MBIT.*: expected a whole number, 1 or more"):
        load("namesrv", NameServerOptions, wrong)


def test_a_file_that_is_no_toml_or_not_there_is_refused(tmp_path: Path):
    """Neither is taken for an empty file."""
    with pytest.raises(ConfigError, match="is not TOML"):
        load("broker", BrokerOptions, Sources(file=write(tmp_path, "[broker\n")))
    with pytest.raises(ConfigError, match="cannot read"):
        load("broker", BrokerOptions, Sources(file=tmp_path / "missing.toml"))


def test_sections_that_are_no_role_have_only_their_own_variables():
    """`HOLDFAST_LEVEL` would be too short a name: the section belongs to it."""
    assert load("log", LogOptions, Sources(environment={"HOLDFAST_LOG_LEVEL": "error"})).level == "error"
    assert load("up", UpOptions, Sources(environment={"HOLDFAST_UP_BROKERS": "3"})).brokers == 3
    assert load("log", LogOptions, Sources(environment={"HOLDFAST_LEVEL": "error"})) == LogOptions()


def test_the_variables_of_a_user_are_those_of_commands():
    """They are no options of roles, and no mistakes: a shell that has them starts servers, too."""
    names = ("HOLDFAST_ACCESS_KEY", "HOLDFAST_SECRET_KEY", "HOLDFAST_SECRET_FILE", "HOLDFAST_AUTH_MODE")
    variables = dict.fromkeys(names, "x")

    assert variable_warnings(variables) == []
    for section, kind in SECTIONS.items():
        assert load(section, kind, Sources(environment=variables)) == kind()


def test_the_switch_of_the_extension_is_a_known_variable():
    """No command warns of it."""
    assert variable_warnings({"HOLDFAST_NATIVE": "0"}) == []
