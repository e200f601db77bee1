import pytest

from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"verify": "some"}, "tls verify is 'some': it must be one of full, chain, none"),
        ({"cert": "cert.pem"}, "needs its key"),
        ({"key": "key.pem"}, "needs its key"),
        ({"ca": ""}, "tls ca is ''"),
        ({"ca": 7}, "tls ca is 7"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], text: str):
    with pytest.raises(ConfigError, match=text):
        ClientTls(**settings)  # type: ignore[arg-type]


def test_host_and_authority_are_verified_unless_it_says_otherwise():
    assert ClientTls().verify == "full"
