"""Java clients with -Dtls.enable=true at our servers, with access control; the servers may accept plain ones, too."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.client_matrix import Run, finish, start_matrix
from tests.support.certificates import Certificates
from tests.support.child import Child
from tests.support.cluster.up import Up
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

CHECKS = ("sync", "batch", "vip_channel", "ordered", "long_poll", "plain_pull")
USE_TLS = ["-Dtls.enable=true"]


@dataclass(frozen=True, slots=True)
class Encrypted:
    """A running cluster that uses TLS, and how its administrator signs."""

    mode: str
    name_server: str
    certificates: Certificates
    signing: list[str]

    @property
    def verifying(self) -> list[str]:
        """The options by which a Java client trusts only our authority. By default it trusts everybody."""
        trust = [f"-Dtls.client.trustCertPath={self.certificates.ca}", "-Dtls.test.mode.enable=false"]
        return [*USE_TLS, "-Dtls.client.authServer=true", *trust]


@pytest.fixture(scope="module", params=[pytest.param("enforcing"), pytest.param("permissive", marks=pytest.mark.slow)])
def encrypted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("encrypted")
    certificates = Certificates(folder / "certificates")
    files = ["--tls-cert", certificates.cert, "--tls-key", certificates.key, "--tls-ca", certificates.ca]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CONFIG_HOME", str(folder / "config"))  # `up` writes a profile
        with Up(folder / "data", "--brokers", "1", "--auth", "--tls", request.param, *files) as cluster:
            access = cluster.announced["auth"]
            secret = Path(access["secret_file"]).read_text().strip()
            yield Encrypted(
                request.param, cluster.namesrv, certificates, [f"-Daccess.user={access['access_key']}:{secret}"]
            )


@pytest.fixture(scope="module")
def runs(
    encrypted: Encrypted, peer_4: JavaPeer, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """Both versions, side by side: 4.9.7 trusts everybody, 5.5.0 our authority."""
    programs = {
        peer.version: start_matrix(
            peer,
            encrypted.name_server,
            f"T{peer.version.replace('.', '')}-",
            tmp_path_factory.mktemp("client"),
            checks=CHECKS,
            options=[*options, *encrypted.signing],
        )
        for peer, options in ((peer_4, USE_TLS), (peer_5, encrypted.verifying))
    }
    return {version: finish(program) for version, program in programs.items()}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_java_client_works_over_tls(runs: dict[str, Run], version: str, check: str) -> None:
    """The check ran and passed, on encrypted connections to the name server and both ports of the broker."""
    runs[version].check_passed(check)


def send_result(peer: JavaPeer, encrypted: Encrypted, home: Path, options: list[str]) -> str:
    """Let a client send without a user; return what it says of it."""
    child: Child = peer.start_program("Guarded", [encrypted.name_server], home=home, options=options)
    with child:
        child.write_line("nobody\tsend\tAny")
        return child.wait_for_line('^{"actor"', timeout_s=60)


@pytest.mark.slow
def test_a_client_that_trusts_another_authority_does_not_connect(
    encrypted: Encrypted, peer_5: JavaPeer, tmp_path: Path
) -> None:
    """Its own refusal: the server never hears of the request."""
    stranger = Encrypted("", "", Certificates(tmp_path / "strange"), []).verifying

    said = send_result(peer_5, encrypted, tmp_path / "home", stranger)

    assert "RemotingConnectException" in said or "RemotingSendRequestException" in said, said


@pytest.mark.slow
def test_a_plain_client_is_served_only_by_permissive_servers(
    encrypted: Encrypted, peer_5: JavaPeer, tmp_path: Path
) -> None:
    """A permissive server answers it: that it needs a user."""
    said = send_result(peer_5, encrypted, tmp_path, [])

    is_answered = encrypted.mode == "permissive"
    assert ("No route info of this topic" in said) is is_answered, said
