import msgspec
import pytest

from router.dialects import DIALECTS
from router.errors import ClientFault, EngineBusy, EngineStatus
from router.turn.engine_reply import fault_of, fault_of_event

CHAT = DIALECTS["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}', "too long"),
        (b'{"error":{"message":"too long","type":"x","code":"c","param":"p"}}', "too long"),
        (b'{"detail":"no such thing"}', "no such thing"),
        (b'{"detail":[{"loc":["body"]}]}', '[{"loc":["body"]}]'),
        (b"plain text", "plain text"),
        (b"", "the engine answered 400"),
    ],
)
def test_the_message_is_found_in_every_shape(body, message):
    error = fault_of(400, [], body, "p0")
    assert isinstance(error, ClientFault)
    assert error.message == message
    assert error.status == 400
    assert msgspec.json.decode(CHAT.error_body(error))["error"]["message"] == message


def test_back_pressure_is_no_fault_and_keeps_the_engines_word_on_when_to_return():
    error = fault_of(503, [(b"retry-after", b"7")], b"{}", "p0")
    assert isinstance(error, EngineBusy)
    assert error.retry_after_s == 7
    assert isinstance(fault_of(429, [], b"{}", "p0"), EngineBusy)


def test_server_errors_keep_their_status():
    error = fault_of(500, [], b'{"message":"boom"}', "d0")
    assert isinstance(error, EngineStatus)
    assert error.engine_status == 500
    assert "d0: boom" in error.message


def test_an_error_event_is_read_like_a_reply():
    event = b'data: {"error": {"object":"error","message":"Lost connection with prefill","type":"x","code":500}}'
    assert isinstance(fault_of_event(event, "d0", CHAT), EngineStatus)
    event = b'data: {"error": {"message":"bad","type":"x","code":400}}'
    assert isinstance(fault_of_event(event, "d0", CHAT), ClientFault)
