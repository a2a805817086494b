"""Calls to a model server: every failure is one typed error, nothing waits or grows without end, no key leaks."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from acms import ConfigurationError, ProviderError, RetryConfig
from acms.providers import Endpoint
from acms.providers.chat import Chat
from acms.providers.http import StatusError
from tests.providers.server import Behave, ModelServer
from tests.support.virtual_time import advance_loop_time

KEY = "sk-canary-7Q2xK9vLw3"
ONCE = RetryConfig(max_attempts=1)
AT_ONCE = RetryConfig(max_attempts=3, base_delay=0)
BODY = {"model": "m", "messages": [{"role": "user", "content": "canary text of a request"}]}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@contextlib.asynccontextmanager
async def open_endpoint(server: ModelServer, **given: Any) -> AsyncIterator[Endpoint]:
    given = {"api_key": KEY, "retry": ONCE, "provider": "test", **given}
    async with Endpoint(server.url, **given) as found:
        yield found
    await server.until(lambda server: server.connections == 0)


async def post_request(endpoint: Endpoint) -> Any:
    return await endpoint.post(
        "chat/completions", BODY, lambda answer: answer["choices"][0]["message"]["content"]
    )


async def error_of_answer(server: ModelServer, behave: Behave, **given: Any) -> ProviderError:
    server.script = [behave]
    async with open_endpoint(server, **given) as found:
        with pytest.raises(ProviderError) as raised:
            await post_request(found)
    assert raised.value.provider == "test"
    return raised.value


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_comes_back_over_one_connection(server: ModelServer) -> None:
    async with open_endpoint(server) as found:
        for _ in range(3):
            assert await post_request(found) == "An answer."
    assert (len(server.calls), server.connected) == (3, 1)
    call = server.calls[0]
    assert (call.path, call.key, call.body) == ("/v1/chat/completions", KEY, BODY)
    assert call.headers["content-type"] == "application/json"


async def test_any_text_can_be_sent(server: ModelServer) -> None:
    text = 'é 漢 👩‍👩‍👧 \x00 \u2028 "quoted" \\'
    async with open_endpoint(server) as found:
        await found.post("chat/completions", {"model": text}, dict)
        await found.post("chat/completions", {"model": "half \ud800 of a pair"}, dict)
    assert [call.body["model"] for call in server.calls] == [text, "half ? of a pair"]


async def test_headers_and_the_place_of_the_key_can_be_chosen(server: ModelServer) -> None:
    async with open_endpoint(
        server, key_header="x-api-key", headers={"anthropic-version": "2023-06-01"}
    ) as found:
        await found.post("messages", BODY, dict)
    headers = server.calls[0].headers
    assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in headers


async def test_no_more_calls_are_under_way_than_allowed(server: ModelServer) -> None:
    held = asyncio.Event()
    server.otherwise = Behave(until=held)
    async with open_endpoint(server, concurrency=3) as found:
        tasks = [asyncio.create_task(post_request(found)) for _ in range(10)]
        await server.until(lambda server: server.under_way == 3)
        held.set()
        assert await asyncio.gather(*tasks) == ["An answer."] * 10
    assert (server.most_at_once, len(server.calls)) == (3, 10)
    assert server.connected <= 3


async def test_after_closing_a_call_opens_the_connections_again(server: ModelServer) -> None:
    async with open_endpoint(server) as found:
        await post_request(found)
        await found.aclose()
        await found.aclose()
        await server.until(lambda server: server.connections == 0)
        await post_request(found)
    assert server.connected == 2


async def test_a_call_under_way_fails_when_the_connections_are_closed(server: ModelServer) -> None:
    server.otherwise = Behave(until=asyncio.Event())
    async with open_endpoint(server, concurrency=1, retry=AT_ONCE) as found:
        tasks = [asyncio.create_task(post_request(found)) for _ in range(2)]
        await server.until(lambda server: server.under_way == 1)
        await found.aclose()
        failed = await asyncio.gather(*tasks, return_exceptions=True)
    assert [(str(one), one.retryable) for one in failed if isinstance(one, ProviderError)] == [
        ("test: the connections were closed", False)
    ] * 2
    assert len(server.calls) == 1


def test_each_event_loop_has_connections_of_its_own() -> None:
    async def once(found: Endpoint) -> str:
        async with server, found:
            return await found.post("chat/completions", BODY, lambda answer: str(answer["object"]))

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = ModelServer(port=port)
    found = Endpoint(f"http://127.0.0.1:{port}/v1", retry=ONCE)
    assert [asyncio.run(once(found)) for _ in range(2)] == ["chat.completion"] * 2


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_passing_status_is_tried_again(server: ModelServer, status: int) -> None:
    server.script = [Behave(status=status)] * 2
    async with open_endpoint(server, retry=AT_ONCE) as found:
        assert await post_request(found) == "An answer."
    assert len(server.calls) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_another_status_is_not(server: ModelServer, status: int) -> None:
    server.otherwise = Behave(status=status)
    async with open_endpoint(server, retry=AT_ONCE) as found:
        with pytest.raises(StatusError, match=rf"test answered {status} \(test_error\)$") as raised:
            await post_request(found)
    assert (raised.value.retryable, raised.value.status, len(server.calls)) == (False, status, 1)


async def test_calls_are_bounded_when_the_server_stays_down(server: ModelServer) -> None:
    server.otherwise = Behave(status=503)
    async with open_endpoint(server, retry=AT_ONCE) as found:
        with pytest.raises(StatusError) as raised:
            await post_request(found)
    assert (raised.value.retryable, len(server.calls)) == (True, 3)


async def test_a_redirect_is_not_followed(server: ModelServer) -> None:
    error = await error_of_answer(
        server, Behave(status=302, headers={"location": f"{server.url}/embeddings"}), retry=AT_ONCE
    )
    assert (error.retryable, len(server.calls)) == (False, 1)
    assert str(error) == "test: answered 302 (test_error); redirects are not followed"


_GARBLED = [
    Behave(drop=True),
    Behave(cut=True),
    Behave(raw=b""),
    Behave(raw=b"<html>busy</html>"),
    Behave(raw=b"[1]"),
    Behave(raw=b'{"choices": []}'),
    Behave(raw=b'{"choices": [{"message": null}]}'),
    Behave(raw=b'{"choices": NaN}'),
    Behave(raw=b"\xff\xfe\x00"),
    Behave(raw=b"[" * 200_000),
    Behave(raw=b'{"a":' * 100_000),
    Behave(headers={"content-encoding": "gzip"}, raw=b"\x1f\x8b\x08\x00" + bytes(20)),
    Behave(headers={"transfer-encoding": "nonsense"}),
]


@pytest.mark.parametrize("behave", _GARBLED, ids=range(len(_GARBLED)))
async def test_a_garbled_answer_is_tried_again(server: ModelServer, behave: Behave) -> None:
    error = await error_of_answer(server, behave)
    assert error.retryable
    server.script = [behave]
    async with open_endpoint(server, retry=AT_ONCE) as found:
        assert await post_request(found) == "An answer."


async def test_a_long_answer_is_read_whole(server: ModelServer) -> None:
    server.say = lambda body: "long " * 200_000
    async with open_endpoint(server) as found:
        assert await post_request(found) == "long " * 200_000


@pytest.mark.parametrize("blanks", [0, 10**10], ids=["with its length", "without"])
async def test_t36_a_huge_answer_is_cut_off(server: ModelServer, blanks: int) -> None:
    huge = Behave(blanks=blanks) if blanks else Behave(raw=b" " * 300_000)
    error = await error_of_answer(server, huge, max_bytes=200_000, retry=AT_ONCE)
    assert str(error) == "test: answered with more than 200000 bytes"
    assert (error.retryable, len(server.calls)) == (False, 1)


async def test_a_huge_error_is_not_read_to_its_end(server: ModelServer) -> None:
    error = await error_of_answer(server, Behave(status=500, blanks=10**10))
    assert str(error) == "test answered 500"


async def test_a_server_that_is_down_is_a_passing_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with Endpoint(f"http://127.0.0.1:{port}/v1", api_key=KEY, retry=ONCE) as found:
        with pytest.raises(ProviderError, match=r"^127\.0\.0\.1: cannot be reached: ") as raised:
            await post_request(found)
    assert raised.value.retryable


async def test_a_server_that_is_silent_is_given_up(server: ModelServer) -> None:
    error = await error_of_answer(server, Behave(until=asyncio.Event()), timeout=0.2)
    assert (str(error), error.retryable) == ("test: no answer within 0.2 s", True)


@pytest.mark.parametrize("status", [200, 500])
async def test_t36_a_server_that_drips_is_given_up(server: ModelServer, status: int) -> None:
    error = await error_of_answer(server, Behave(status=status, drip=True), timeout=0.2)
    assert (str(error), error.retryable) == ("test: no answer within 0.2 s", True)


async def test_a_wait_for_a_turn_does_not_count_as_silence(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = [Behave(until=asyncio.Event())]
    async with open_endpoint(server, timeout=60, concurrency=1) as found:
        asking = asyncio.gather(post_request(found), post_request(found), return_exceptions=True)
        await server.until(lambda server: server.under_way == 1)
        advance_loop_time(monkeypatch, 61)
        done = await asking
    assert [str(one) for one in done] == ["test: no answer within 60 s", "An answer."]


async def test_a_cancelled_call_closes_its_connection(server: ModelServer) -> None:
    server.script = [Behave(until=asyncio.Event())]
    async with open_endpoint(server, concurrency=1, retry=AT_ONCE) as found:
        task = asyncio.create_task(post_request(found))
        await server.until(lambda server: server.under_way == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until(lambda server: server.connections == 0)
        assert await post_request(found) == "An answer."  # and its place is free again
    assert len(server.calls) == 2


async def test_a_call_that_is_cancelled_in_the_middle_of_the_answer_closes_its_connection(
    server: ModelServer,
) -> None:
    server.script = [Behave(drip=True)]
    async with open_endpoint(server, concurrency=1, retry=AT_ONCE) as found:
        task = asyncio.create_task(post_request(found))
        await server.until(lambda server: server.under_way == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until(lambda server: server.connections == 0)
        assert await post_request(found) == "An answer."


# ── the server's pace ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_server_says_when_to_come_back(server: ModelServer) -> None:
    error = await error_of_answer(server, Behave(status=429, headers={"retry-after": "7"}))
    assert (error.retry_after, str(error)) == (7, "test answered 429 (test_error), asks to wait 7 s")


async def test_the_server_says_it_with_a_date(server: ModelServer) -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    error = await error_of_answer(server, Behave(status=503, headers={"retry-after": when}), retry=AT_ONCE)
    assert error.retry_after is not None
    assert 3500 < error.retry_after <= 3600
    assert "not retried" in str(error)
    assert len(server.calls) == 1


# ── the key ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_LEAKS = [
    Behave(status=400, echo=True),
    Behave(status=500, echo=True),
    Behave(status=401, body={"error": KEY}),
    Behave(status=401, body={"error": {"type": f"bad_key_{KEY[:8]}"}}),
    Behave(status=401, body={"error": {"code": KEY.upper(), "param": KEY[3:12]}}),
    Behave(status=401, body={"type": KEY}),
    Behave(status=401, raw=KEY.encode()),
    Behave(status=302, headers={"location": f"http://127.0.0.1/{KEY}"}),
    Behave(raw=KEY.encode()),
    Behave(raw=b'{"choices": "%s"}' % KEY.encode()),
    Behave(headers={"transfer-encoding": KEY}),
    Behave(headers={f"bad header {KEY}": "x"}),
    Behave(echo=True, cut=True),
    Behave(drop=True),
    Behave(until=asyncio.Event()),
]


@pytest.mark.parametrize("behave", _LEAKS, ids=range(len(_LEAKS)))
async def test_t40_no_key_and_no_text_is_in_errors_logs_and_reprs(
    server: ModelServer, behave: Behave, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpcore2.http11", "httpcore2.connection"):  # these write what a server sends, when told to
        caplog.set_level(logging.INFO, name)
    server.script = [behave] * 2
    async with open_endpoint(server, timeout=0.2, retry=RetryConfig(max_attempts=2, base_delay=0)) as found:
        with pytest.raises(ProviderError) as raised:
            await post_request(found)
        shown = f"{found!r} {vars(found)!r} {raised.value!r} {vars(raised.value)!r} {raised.value.options}"
    shown += caplog.text + "".join(f"{vars(record)!r}" for record in caplog.records)
    text = io.StringIO()
    error: BaseException | None = raised.value
    traceback.print_exception(error, file=text)
    shown += text.getvalue()
    while error is not None:  # also what a traceback does not show
        shown += f"{error!r} {vars(error)!r}"
        error = error.__cause__ or error.__context__
    shown = shown.lower()
    assert "canary" not in shown
    assert KEY[3:12].lower() not in shown


async def test_a_key_in_an_answer_is_taken_out(server: ModelServer) -> None:
    server.script = [Behave(echo=True), Behave(body={"a": [{KEY: [KEY, 1, None, [1.5, 2.5]]}]})]
    server.script.append(Behave(raw=b'{"a": "%s"}' % KEY.replace("s", r"\u0073", 1).encode()))
    async with open_endpoint(server) as found:
        assert await post_request(found) == "An answer. [key]"
        assert await found.post("x", {}, dict) == {"a": [{"[key]": ["[key]", 1, None, [1.5, 2.5]]}]}
        assert await found.post("x", {}, dict) == {"a": "[key]"}


async def test_a_placeholder_for_a_key_spoils_no_answer(server: ModelServer) -> None:
    async with open_endpoint(server, api_key="An") as found:
        assert await post_request(found) == "An answer."


@pytest.mark.parametrize("key", ["", " sk", "sk\n", "sk\r\nx: y", "schlüssel", "sk\x00", 5])
def test_a_key_that_fits_no_header_is_refused_without_being_shown(key: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Endpoint("https://models.example.com", api_key=key)
    assert str(raised.value) == "api_key must be printable ASCII without spaces at its ends"
    assert raised.value.__context__ is None


@pytest.mark.parametrize(
    "address",
    [
        "", "models.example.com", "ftp://models.example.com", "file:///etc/passwd", "http://", "https:///v1",
        "https://user:hunter2@models.example.com", "https://models.example.com/?key=hunter2",
        "https://models.example.com/#hunter2", "https://[hunter2", "https://models.example.com:hunter2", None, 5,
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_is_refused_without_being_shown(address: Any) -> None:
    with pytest.raises(ConfigurationError, match="base_url must") as raised:
        Endpoint(address)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "given",
    [
        {"timeout": 0}, {"timeout": float("nan")}, {"timeout": "5"}, {"timeout": True}, {"connect_timeout": -1},
        {"concurrency": 0}, {"max_bytes": 0}, {"key_header": "a b"}, {"headers": {"a:b": "x"}},
        {"headers": {"a": "x\r\ny"}}, {"allow": ("10.0.0.0/8",)},
    ],
)  # fmt: skip
def test_what_an_endpoint_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Endpoint("https://models.example.com", **given)


# ── one answer of a chat model ──────────────────────────────────────────────────────────────────────────────────────

TEXT = {"type": "string", "maxLength": 9}
SCHEMA = {
    "type": "object",
    "properties": {"answer": TEXT},
    "required": ["answer"],
    "additionalProperties": False,
}


async def test_a_chat_is_asked_with_a_system_text_a_prompt_and_a_schema(server: ModelServer) -> None:
    async with open_endpoint(server) as found:
        chat = Chat(found, "m")
        assert await chat.complete("Be brief.", "Hello?", max_tokens=9) == "An answer."
        await chat.complete("Be brief.", "Hello?", max_tokens=9, schema=SCHEMA)
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    assert server.calls[0].body == {"model": "m", "messages": said, "max_tokens": 9, "temperature": 0}
    assert server.calls[1].body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
    }


@pytest.mark.parametrize("status", [400, 422])
async def test_a_schema_that_is_refused_is_not_sent_again(server: ModelServer, status: int) -> None:
    server.script = [Behave(status=status)] * 2
    async with open_endpoint(server, retry=AT_ONCE) as found:
        chat = Chat(found, "m")
        for _ in range(3):
            assert await chat.complete("s", "p", max_tokens=9, schema=SCHEMA) == "An answer."
    schemas = ["response_format" in call.body for call in server.calls]
    assert schemas == [True, True, False, False, False]


async def test_a_server_that_takes_no_bounds_keeps_the_rest_of_the_schema(server: ModelServer) -> None:
    server.script = [Behave(status=400)]
    async with open_endpoint(server) as found:
        chat = Chat(found, "m")
        for _ in range(2):
            await chat.complete("s", "p", max_tokens=9, schema=SCHEMA)
    texts = [
        call.body["response_format"]["json_schema"]["schema"]["properties"]["answer"] for call in server.calls
    ]
    assert texts == [TEXT, {"type": "string"}, {"type": "string"}]


@pytest.mark.parametrize(
    "complaint",
    [{"code": "unsupported_value", "param": "temperature"}, {"message": "`temperature` is not supported"}],
    ids=["field", "message"],
)
async def test_a_model_without_a_temperature_is_asked_without_one(
    server: ModelServer, complaint: dict[str, str]
) -> None:
    server.script = [Behave(status=400, body={"error": complaint})]
    async with open_endpoint(server) as found:
        chat = Chat(found, "m")
        for _ in range(2):
            await chat.complete("s", "p", max_tokens=9, schema=SCHEMA)
    assert [call.body.get("temperature") for call in server.calls] == [0, None, None]
    assert all("response_format" in call.body for call in server.calls)


async def test_a_question_that_is_refused_does_not_cost_the_schema(server: ModelServer) -> None:
    server.script = [Behave(status=400)] * 3
    async with open_endpoint(server) as found:
        chat = Chat(found, "m")
        with pytest.raises(StatusError):
            await chat.complete("s", "p", max_tokens=9, schema=SCHEMA)
        await chat.complete("s", "p", max_tokens=9, schema=SCHEMA)
    assert ["response_format" in call.body for call in server.calls] == [True, True, False, True]


async def test_a_server_may_want_another_name_for_the_limit(server: ModelServer) -> None:
    complaint = {"error": {"code": "unsupported_parameter", "param": "max_tokens"}}
    server.script = [Behave(status=400, body=complaint)]
    async with open_endpoint(server) as found:
        chat = Chat(found, "m")
        for _ in range(2):
            await chat.complete("s", "p", max_tokens=9, schema=SCHEMA)
    limits = [
        {name: value for name, value in call.body.items() if name.startswith("max_")} for call in server.calls
    ]
    assert limits == [{"max_tokens": 9}, {"max_completion_tokens": 9}, {"max_completion_tokens": 9}]
    assert all("response_format" in call.body for call in server.calls)


async def test_a_server_that_refuses_everything_is_asked_a_bounded_number_of_times(
    server: ModelServer,
) -> None:
    complaint = {"error": {"code": "unsupported_parameter", "param": "max_tokens"}}
    server.otherwise = Behave(status=400, body=complaint)
    async with open_endpoint(server) as found:
        with pytest.raises(StatusError, match=r"answered 400 \(unsupported_parameter max_tokens\)"):
            await Chat(found, "m").complete("s", "p", max_tokens=9, schema=SCHEMA)
    assert len(server.calls) == 4


def choice_answer(**message: Any) -> Behave:
    ending = message.pop("finish_reason", "stop")
    return Behave(body={"choices": [{"message": message, "finish_reason": ending}]})


@pytest.mark.parametrize(
    ("behave", "text"),
    [
        (choice_answer(content=" padded \n"), "padded"),
        (
            choice_answer(content=[{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]),
            "in parts",
        ),
        (choice_answer(content="<think>\nhm\n</think>\n\nthought"), "thought"),
        (choice_answer(content="about <think>tags</think>"), "about <think>tags</think>"),
        (choice_answer(content="cut in the mid", finish_reason="length"), "cut in the mid"),
    ],
)
async def test_the_text_of_an_answer(server: ModelServer, behave: Behave, text: str) -> None:
    server.script = [behave]
    async with open_endpoint(server) as found:
        assert await Chat(found, "m").complete("s", "p", max_tokens=9) == text


@pytest.mark.parametrize(
    ("behave", "retryable", "why"),
    [
        (choice_answer(content=""), True, "gave an empty answer"),
        (choice_answer(content=None), True, "gave an empty answer"),
        (choice_answer(content="<think>hm</think>"), True, "gave an empty answer"),
        (choice_answer(content=None, refusal="I will not say canary"), False, "refused"),
        (choice_answer(content="", finish_reason="content_filter"), False, "refused"),
    ],
)
async def test_an_answer_without_text_is_a_failure(
    server: ModelServer, behave: Behave, retryable: bool, why: str
) -> None:
    server.script = [behave]
    async with open_endpoint(server) as found:
        with pytest.raises(ProviderError) as raised:
            await Chat(found, "m").complete("s", "p", max_tokens=9)
    assert (str(raised.value), raised.value.retryable) == (f"test: the model {why}", retryable)
