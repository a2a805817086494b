"""Every request is answered, whatever it holds, and the server goes on: over stdin and over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from acms.mcp import mount_mcp
from tests.server.serving import serving

PARSE, INVALID, NO_METHOD, PARAMS = -32700, -32600, -32601, -32602
STORED, REFUSED, DONE = "stored", "refused", "done"
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


class Case(NamedTuple):
    """One message and how it is answered."""

    sent: bytes
    #: Of the answer.
    id: int | str | None
    #: The code of an error of the protocol, or what the result says.
    answer: int | str


def _remember_call(id: int, text: str, raw: bytes | None = None) -> bytes:
    """Return a call that remembers a text, or bytes in its place."""
    params = {"name": "remember", "arguments": {"text": text if raw is None else "RAW"}}
    message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    return json.dumps(message).encode().replace(b"RAW", raw or b"")


def _ping_request(id: str, **others: str) -> bytes:
    """Return a ping whose id and other members are JSON that was written already."""
    members = {"jsonrpc": '"2.0"', "id": id, "method": '"ping"', **others}
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


def _nested_ping(id: int, depth: int) -> bytes:
    return _ping_request(str(id), params='{"x":' + "[" * depth + "]" * depth + "}")


CASES = (
    Case(_remember_call(1, "half an emoji \ud83d"), 1, STORED),
    Case(_remember_call(2, "\udc00 the other half"), 2, STORED),
    Case(_remember_call(3, "", b"\xff\xfe\xc3("), 3, STORED),
    Case(_remember_call(4, "", b"\xed\xa0\xbd"), 4, STORED),
    Case(_remember_call(5, "a\x01\x1b\x7f\x85b"), 5, STORED),
    Case(_remember_call(6, "NUL \0"), 6, STORED),
    Case(_remember_call(7, "", b"a\x00b"), 7, PARSE),
    Case(_remember_call(8, "", b"a\x01b"), 8, PARSE),
    Case(_remember_call(9, "", b"a\rb"), 9, PARSE),
    Case(_remember_call(10, "x" * 200_000), 10, STORED),
    Case(b'{"jsonrpc":"2.0","id":11,"method":"no/such\\ud83d"}', 11, NO_METHOD),
    Case(_remember_call(12, "x").replace(b'"remember"', b'"no\\ud83dtool"'), 12, PARAMS),
    Case(_ping_request('"a"'), "a", DONE),
    Case(_ping_request('""'), "", DONE),
    Case(_ping_request("-3"), -3, DONE),
    Case(_ping_request("9" * 40), int("9" * 40), DONE),
    *(
        Case(_ping_request(id), None, INVALID)
        for id in ("null", "1.5", "true", "[1]", '{"a":1}', '"\\ud83d"')
    ),
    Case(b"[" + _ping_request("13") + b"]", 13, INVALID),
    Case(b"[]", None, INVALID),
    Case(b"5", None, INVALID),
    Case(b'"x"', None, INVALID),
    Case(b"hello \xff", None, PARSE),
    Case(_nested_ping(14, 300), 14, INVALID),
    Case(_nested_ping(15, 100_000), 15, PARSE),
    Case(_ping_request("16")[:-1], 16, PARSE),
    Case(b'{"params":{"id":99},"id":"s","x":"' + b'\\"' * 100_000, "s", PARSE),
    Case(_ping_request("17", jsonrpc='"1.0"'), 17, INVALID),
    Case(b'{"jsonrpc":"2.0","id":18}', 18, INVALID),
    Case(_ping_request("19", method="5"), 19, INVALID),
    Case(_ping_request("20", params="[1]"), 20, INVALID),
    Case(_ping_request("21", params='{"x":' + "1" * 5000 + "}"), 21, PARSE),
    Case(_ping_request("22", method='"tools/call"', params='{"name":5}'), 22, PARAMS),
)


def _outcome_of_answer(message: Any) -> int | str:
    """Return what an answer says."""
    if "error" in message:
        return int(message["error"]["code"])
    found = message["result"].get("structuredContent")
    return DONE if found is None else REFUSED if "error" in found else STORED


def _case_name(case: Case) -> str:
    return f"{case.sent[:120]!r}"


def test_every_line_is_answered_and_the_process_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "acms.cli", "mcp", "--db", f"sqlite:///{tmp_path / 'memory.db'}"]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(line: bytes) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    try:
        ask(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).encode())
        ask(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n\n \n' + _ping_request('"begun"'))
        for case in CASES:
            answer = ask(case.sent)
            assert (answer["id"], _outcome_of_answer(answer)) == (case.id, case.answer), _case_name(case)
        assert _outcome_of_answer(ask(_remember_call(29, "x" * 5_000_000))) == STORED
        several = (
            b"[" + _ping_request("30") + b',5,{"jsonrpc":"2.0","method":"x"},' + _ping_request("31") + b"]"
        )
        assert ask(several)["id"] == 30
        assert json.loads(process.stdout.readline())["id"] == 31
        history = _ping_request('"log"', method='"tools/call"', params='{"name":"history","arguments":{}}')
        entries = ask(history)["result"]["structuredContent"]["entries"]
        assert entries[0]["preview"] == "half an emoji \ufffd"
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_every_request_over_http_is_answered() -> None:
    with serving("memory://", around=mount_mcp, embedder=None) as service:

        def ask(body: bytes) -> tuple[int, Any]:
            reply = service.client.post(f"{service.url}/mcp/talk", content=body, headers=HEADERS)
            text = reply.text
            if reply.headers["content-type"].startswith("text/event-stream"):
                text = text.partition("data: ")[2].partition("\n")[0]
            assert reply.status_code != 500, (body[:120], text)
            return reply.status_code, json.loads(text)

        for case in CASES:
            status, answer = ask(case.sent)
            assert (answer["id"], _outcome_of_answer(answer)) == (case.id, case.answer), _case_name(case)
            assert status == (400 if case.answer in (PARSE, INVALID) else 200), _case_name(case)
        status, answer = ask(_remember_call(30, "x" * 2_000_000))
        assert (status, _outcome_of_answer(answer)) == (413, INVALID)
        status, answers = ask(b"[" + _ping_request("31") + b"," + _ping_request("32") + b"]")
        assert (status, [one["id"] for one in answers]) == (400, [31, 32])
        assert _outcome_of_answer(ask(b" ")[1]) == INVALID
        assert ask(_ping_request("33"))[1]["result"] == {}
