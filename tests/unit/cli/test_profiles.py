"""Where the name server is looked for."""

from pathlib import Path

import pytest

from holdfast.cli.profiles import ChosenCluster, find_cluster, find_namesrv, load_profiles
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError

TEXT = """
default = "local"
[profiles.local]
namesrv = "127.0.0.1:9876"
[profiles.staging]
namesrv = "10.0.0.4:9876;10.0.0.5:9876"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home with two profiles."""
    file = tmp_path / "holdfast" / "config.toml"
    file.parent.mkdir()
    file.write_text(TEXT, encoding="utf-8")
    return {"XDG_CONFIG_HOME": str(tmp_path)}


EVERYWHERE = {"HOLDFAST_NAMESRV": "v:1", "HOLDFAST_PROFILE": "local"}


def test_a_flag_beats_every_variable(environment: dict[str, str]):
    """The command line is the strongest source, whichever of its two flags is used."""
    assert find_namesrv("h:1", None, environment | EVERYWHERE) == ("h:1", "--namesrv")
    assert find_namesrv(None, "staging", environment | EVERYWHERE) == ("10.0.0.4:9876;10.0.0.5:9876", "profile staging")


def test_the_address_in_the_environment_beats_the_profile_there(environment: dict[str, str]):
    """An address is more definite than a name; the profile is not even looked up."""
    variables = {"HOLDFAST_NAMESRV": "v:1", "HOLDFAST_PROFILE": "gone"}

    assert find_namesrv(None, None, environment | variables) == ("v:1", "HOLDFAST_NAMESRV")


def test_a_profile_in_the_environment_beats_the_default_one(environment: dict[str, str]):
    """The file is the weakest source."""
    assert find_namesrv(None, None, environment | {"HOLDFAST_PROFILE": "staging"})[1] == "profile staging"


def test_empty_variables_are_no_variables(environment: dict[str, str]):
    """`HOLDFAST_NAMESRV= holdfast ...` is how a shell removes one for a single command."""
    variables = {"HOLDFAST_NAMESRV": "", "HOLDFAST_PROFILE": ""}

    assert find_namesrv(None, None, environment | variables) == ("127.0.0.1:9876", "profile local")


def test_flags_that_name_different_clusters_are_refused(environment: dict[str, str]):
    """Neither of them wins silently."""
    with pytest.raises(ConfigError, match=r"--namesrv h:1 and --profile staging .* different clusters: give only one"):
        find_namesrv("h:1", "staging", environment)
    with pytest.raises(ConfigError, match="no profile 'gone'"):
        find_namesrv("h:1", "gone", environment)

    assert find_namesrv("127.0.0.1:9876", "local", environment) == ("127.0.0.1:9876", "--namesrv")


def test_a_profile_is_used_by_name_and_the_default_without(environment: dict[str, str]):
    """`default` names the profile that holds when nothing is said."""
    assert find_namesrv(None, "staging", environment) == ("10.0.0.4:9876;10.0.0.5:9876", "profile staging")
    assert find_namesrv(None, None, environment) == ("127.0.0.1:9876", "profile local")


def test_without_a_file_the_local_cluster_is_meant(tmp_path: Path):
    """A newcomer needs no configuration."""
    assert find_namesrv(None, None, {"HOME": str(tmp_path)}) == ("127.0.0.1:9876", "the default")


@pytest.mark.parametrize("name", ["stagng", ""])
def test_an_unknown_profile_is_refused_with_those_that_exist(environment: dict[str, str], name: str):
    """A misspelt profile does not fall back to another cluster, whatever else names one."""
    with pytest.raises(ConfigError, match=rf"no profile '{name}' \(--profile\); known are local, staging"):
        find_namesrv(None, name, environment | EVERYWHERE)
    if name:
        with pytest.raises(ConfigError, match=rf"no profile '{name}' \(HOLDFAST_PROFILE\); known are local, staging"):
            find_namesrv(None, None, environment | {"HOLDFAST_PROFILE": name})


def test_commas_and_blanks_between_name_servers_are_accepted():
    """Both separators are in use elsewhere."""
    assert find_namesrv(" a:1, b:2 ;", None, {})[0] == "a:1;b:2"


def test_an_address_server_may_tell_the_name_servers():
    """It is named by its URL, as it is."""
    assert find_namesrv(" http://shop:8080/a;b ", None, {})[0] == "http://shop:8080/a;b"


@pytest.mark.parametrize("text", ["127.0.0.1", "host:port", "", ":9876"])
def test_what_is_no_address_is_refused(text: str):
    """Before anybody is dialled."""
    with pytest.raises(ConfigError):
        find_namesrv(text, None, {})


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path):
    """A misspelt key would otherwise be an empty profile."""
    file = tmp_path / "holdfast" / "config.toml"
    file.parent.mkdir()
    file.write_text('[profiles.local]\nnameserver = "a:1"\n', encoding="utf-8")

    with pytest.raises(ConfigError, match="a profile is"):
        load_profiles({"XDG_CONFIG_HOME": str(tmp_path)})


SECURED = """
[profiles.secured]
namesrv = "10.0.0.4:9876"
tls_ca = "profile-ca.pem"
tls_verify = "chain"
"""


@pytest.fixture
def secured(environment: dict[str, str]) -> dict[str, str]:
    """A home with a profile that uses TLS, too."""
    file = Path(environment["XDG_CONFIG_HOME"]) / "holdfast" / "config.toml"
    file.write_text(TEXT + SECURED, encoding="utf-8")
    return environment


def test_connections_are_plain_unless_something_says_how_to_use_tls(secured: dict[str, str]):
    assert find_cluster({}, secured) == ChosenCluster("127.0.0.1:9876", "profile local", None)
    assert find_cluster({"profile": "staging"}, secured).tls is None


def test_a_profile_says_how_to_use_tls(secured: dict[str, str]):
    """The one of the command line is not changed by variables, as its address is not."""
    of_profile = ClientTls(ca="profile-ca.pem", verify="chain")

    assert find_cluster({"profile": "secured"}, secured | {"HOLDFAST_TLS_CA": "v.pem"}).tls == of_profile
    assert find_cluster({}, secured | {"HOLDFAST_PROFILE": "secured"}).tls == of_profile
    assert find_cluster({"profile": "staging"}, secured | {"HOLDFAST_TLS_CA": "v.pem"}).tls is None
    assert find_cluster({}, secured | {"HOLDFAST_PROFILE": "secured", "HOLDFAST_TLS_CA": "v.pem"}).tls == ClientTls(
        ca="v.pem"
    )


def test_a_flag_is_added_to_what_the_others_say(secured: dict[str, str]):
    flags = {"namesrv": "h:1", "tls_verify": "none"}

    assert find_cluster(flags, secured).tls == ClientTls(verify="none")
    assert find_cluster(flags, secured | {"HOLDFAST_TLS_CA": "v.pem"}).tls == ClientTls(ca="v.pem", verify="none")
    assert find_cluster({"profile": "secured", "tls_ca": "f.pem"}, secured).tls == ClientTls(ca="f.pem", verify="chain")


def test_a_variable_that_cannot_work_is_refused(secured: dict[str, str]):
    with pytest.raises(ConfigError, match="HOLDFAST_TLS_VERIFY is 'some'"):
        find_cluster({}, secured | {"HOLDFAST_TLS_VERIFY": "some"})
    with pytest.raises(ConfigError, match="needs its key"):
        find_cluster({"tls_cert": "cert.pem"}, secured)
