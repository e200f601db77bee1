"""Settings from a file, from variables and from flags, and what is refused."""

from pathlib import Path

import pytest

from holdfast.broker.options import BrokerOptions
from holdfast.config import LogOptions, Sources, UpOptions, load
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
    flagged = Sources(file=file, environment=environment, pairs=["store=pair"], flags={"store": "flag"})

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
    with pytest.raises(ConfigError, match=r"broker_events stands outside of every section; .* \[namesrv\]"):
        load("namesrv", NameServerOptions, Sources(file=write(tmp_path, 'broker_events = "off"\n')))


def test_an_unknown_variable_is_refused_with_the_nearest():
    """A variable with our prefix means something or is a mistake."""
    with pytest.raises(ConfigError, match="unknown variable HOLDFAST_FLUHS; did you mean 'HOLDFAST_FLUSH'"):
        load("broker", BrokerOptions, Sources(environment={"HOLDFAST_FLUHS": "sync"}))


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
    with pytest.raises(ConfigError, match="unknown variable HOLDFAST_LEVEL"):
        load("log", LogOptions, Sources(environment={"HOLDFAST_LEVEL": "error"}))
