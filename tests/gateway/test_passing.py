"""What must not change does not change: bodies, paths, headers and answers go on as they came."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms.gateway import GatewayConfig, create_gateway
from tests.gateway.serving import Running, running_gateway, serve_app

ODD_BODIES = [
    b'{"model":"m","messages":[{"role":"user","content":"a\\u00e9\\ud83d\\ude00"}],"temperature":1.0}',
    b'{ "model" : "m" ,\n "messages":[ {"content":"x","role":"user"} ], "top_p":0.10 }',
    b'{"model":"m","model":"m","messages":[{"role":"user","content":"dup"}]}',
    b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
    b'{"model":"m","seed":12345678901234567890123,"messages":[{"role":"user","content":"big"}]}',
    b'{"model":"m","messages":[{"role":"user","content":"\\u0000nul"}]}',
    b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"m","messages":[{"role":"user","content":""}]}',
    b'{"model":"m","messages":[]}',
    b"[]",
    b"not json",
    b"",
    b'{"model":"m"}',
    b'{"model":"m","messages":"x"}',
    b'{"model":"m","messages":[{"role":"user"}]}',
    b'{"model":"m","messages":[null,1]}',
    b'\xff\xfe{"model":1}',
    b'{"model":"m","messages":[' + b",".join([b'{"role":"user","content":"u"}'] * 3000) + b"]}",
]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_gateway() as made:
        yield made


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages?beta=true", "/v1/responses", "/v1/embeddings"]
)
def test_a_body_arrives_as_it_was_sent(running: Running, path: str, body: bytes) -> None:
    answer = running.client.post(path, content=body)
    direct = httpx2.post(running.upstream_url + path, content=body)
    through, straight = running.upstream.received[-2:]
    assert through.body == straight.body == body
    assert through.target == straight.target == path
    assert answer.status_code == direct.status_code
    if answer.status_code >= 300:
        assert answer.content == direct.content


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    extra=st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=4),
    indent=st.sampled_from([None, 1, 3]),
)
def test_any_json_arrives_as_it_was_sent(
    running: Running, extra: dict[str, object], indent: int | None
) -> None:
    message = {**extra, "role": "user", "content": "hello"}
    body = json.dumps({**extra, "messages": [message], "model": "gpt-5"}, indent=indent).encode()
    running.client.post("/v1/chat/completions", content=body)
    assert running.newest.body == body


def test_headers_go_on_but_for_those_of_the_connection(running: Running) -> None:
    sent = {"X-Custom": "Kept", "x-acms-project": "dropped", "anthropic-beta": "a,b", "Cookie": "c=1"}
    running.client.get("/v1/models?limit=1", headers=sent)
    headers = dict(running.newest.headers)
    assert headers["x-custom"] == "Kept"
    assert headers["anthropic-beta"] == "a,b"
    assert headers["authorization"] == "Bearer sk-test"
    assert "x-acms-project" not in headers
    assert running.newest.target == "/v1/models?limit=1"


def test_the_answer_comes_back_with_its_status_headers_and_bytes(running: Running) -> None:
    answer = running.client.request("PATCH", "/v1/a%2Fb/%41?x=%20+", content=b"odd")
    assert running.newest.target == "/v1/a%2Fb/%41?x=%20+"
    assert answer.status_code == 418
    assert answer.content == b'{"odd":  1.0}'
    assert answer.headers["x-odd"] == "Yes"
    assert "x-acms-memory" not in answer.headers


def test_the_answer_says_what_the_memory_and_the_upstream_took(running: Running) -> None:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}
    timing = running.client.post("/v1/chat/completions", json=body).headers["server-timing"]
    assert re.fullmatch(r"acms-memory;dur=\d+\.\d, acms-upstream;dur=\d+\.\d", timing)
    assert "server-timing" not in running.client.get("/v1/models").headers


def test_an_upstream_is_chosen_by_its_name_in_the_path(running: Running) -> None:
    running.client.get("/u/openai/v1/models")
    assert running.newest.target == "/v1/models"
    refused = running.client.get("/u/nobody/v1/models")
    assert refused.status_code == 403
    assert "anthropic, openai" in refused.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "THINK hello"}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "THINK hello"}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": "THINK hello"}]}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_relayed_byte_by_byte(
    running: Running, path: str, body: dict[str, object], stream: bool
) -> None:
    asked = {"model": "m", "stream": stream, **body}
    running.upstream.answers = 100
    through = running.client.post(path, json=asked)
    running.upstream.answers = 100
    direct = httpx2.post(running.upstream_url + path, json=asked)
    assert through.content == direct.content
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.headers["x-acms-memory"] == "untouched"
    assert through.headers["x-acms-session"]


def test_a_stream_is_relayed_while_it_goes_on(running: Running) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "SLOW SIZE=90"}]}
    running.upstream.pause = 0.05
    with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        chunks = list(answer.iter_raw())
    assert len(chunks) > 5


def test_an_upstream_that_is_not_there_is_an_error_in_the_form_of_the_providers() -> None:
    with running_gateway() as made:
        made.gateway.upstreams._urls["openai"] = httpx2.URL("http://127.0.0.1:1")
        answer = made.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}
        )
    assert answer.status_code == 502
    assert "does not answer" in answer.json()["error"]["message"]


class ImpatientUpstream(BaseHTTPRequestHandler):
    """Answers a request, and closes a connection that was idle for three seconds although a request arrives on it."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.answered_at = time.monotonic()

    def do_POST(self) -> None:
        if time.monotonic() - self.answered_at > 3.0:
            self.close_connection = True
            return
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.answered_at = time.monotonic()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_connection_that_its_server_may_be_closing_is_not_used_again() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), ImpatientUpstream) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        config = GatewayConfig(upstreams={"openai": f"http://127.0.0.1:{upstream.server_port}"})
        with serve_app(create_gateway("memory://", config, embedder=None)) as (url, _):
            statuses: list[int] = []
            for pause in (3.5, 0.0):
                answer = httpx2.post(f"{url}/v1/embeddings", json={"input": "x"}, timeout=60)
                statuses.append(answer.status_code)
                time.sleep(pause)
        upstream.shutdown()
    assert statuses == [200, 200]


def test_another_name_of_this_machine_is_refused(running: Running) -> None:
    answer = running.client.get("/v1/models", headers={"host": "evil.example.org"})
    assert answer.status_code == 403
