"""Settings that tools read and change while the name server runs."""

import json

import pytest
from tests.support.cluster.name_server_machine import a_name_server, register, request_route

from holdfast.wire.frames.codes import RequestCode, ResponseCode


def test_settings_read_as_properties():
    """Upstream's keys, sorted, booleans in small letters."""
    server = a_name_server(listen="127.0.0.1:19876", data="somewhere", order_message_enable=True)

    assert server.request(RequestCode.GET_NAMESRV_CONFIG).body == (
        b"bindAddress=127.0.0.1\nbrokerEvents=spread\nbrokerTimeoutMillis=120000\nkvConfigPath=somewhere/kvConfig.json\n"
        b"listenPort=19876\norderMessageEnable=true\nreturnOrderTopicConfigToBroker=true\n"
        b"scanNotActiveBrokerInterval=5000\n"
    )


def test_a_change_takes_effect_at_once():
    """Routes that were rendered before show it too."""
    server = a_name_server()
    register(server)
    server.request(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"})
    assert b"orderTopicConf" not in request_route(server, "orders").body

    text = b"# by the operator\r\n\r\norderMessageEnable = true\r\nbrokerTimeoutMillis=60000"
    answer = server.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=text)

    assert answer.code == 0
    assert json.loads(request_route(server, "orders").body)["orderTopicConf"] == "a:4"
    assert b"brokerTimeoutMillis=60000\n" in server.request(RequestCode.GET_NAMESRV_CONFIG).body
    assert "settings changed" in server.logged()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"orderMessageEnable=true\nlistenPort=1", "listenPort"),
        (b"orderMessageEnable=true\nnonsense", "nonsense"),
        (b"orderMessageEnable=maybe", "true or false"),
        (b"brokerTimeoutMillis=soon", "a number"),
        (b"brokerTimeoutMillis=0", "from 1"),
        (b"brokerTimeoutMillis=99999999999", "2147483647"),
        (b"\xff=1", "use one of"),
    ],
)
def test_a_wrong_change_is_refused_as_a_whole(text: bytes, words: str):
    """The answer says what is wrong, and nothing of it has happened."""
    server = a_name_server()
    before = server.request(RequestCode.GET_NAMESRV_CONFIG).body

    answer = server.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=text)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert words in answer.remark
    assert server.request(RequestCode.GET_NAMESRV_CONFIG).body == before
