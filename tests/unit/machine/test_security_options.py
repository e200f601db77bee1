import pytest

from holdfast.machine.security_options import SecurityOptions
from holdfast.model.access.client_tls import ClientTls


def test_nothing_is_dialled_with_tls_by_default():
    assert SecurityOptions().outgoing_tls is None
    assert SecurityOptions(tls="permissive").outgoing_tls is None


@pytest.mark.parametrize("options", [{"tls": "enforcing"}, {"tls_outgoing": True}])
def test_connections_that_a_role_opens_use_its_files(options: dict[str, object]):
    found = SecurityOptions(tls_ca="ca", tls_cert="cert", tls_key="key", tls_verify="chain", **options)  # type: ignore[arg-type]

    assert found.outgoing_tls == ClientTls(ca="ca", cert="cert", key="key", verify="chain")
