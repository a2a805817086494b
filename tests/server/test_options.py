"""What can be done about an error is said in words of HTTP, whichever part of the engine raised it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import acms
from acms import ACMSError, ValidationError, errors
from acms.contract import problem_details
from tests.server.serving import Service

ROOT = Path(acms.__file__).parent
ELSEWHERE = {"cli", "client", "evaluation", "testing"}
"""Doors of their own, and what no service runs."""
STARTED = {"server/config.py", "server/keys.py", "server/app.py"}
"""What only the operator of a service gets to read."""
ARGUMENTS = {
    # Only a program can pass another object, or call verbs in another order.
    "pin(key, label=\"…\", priority=…)", "acms.kv.open_kv(url)", "open_kv(url)",
    "create_pin_registry(store, namespace=…)",
    "acms.kv.update_entry does so for you", "call cache_hint on the prompt that is rendered", "raise truncate_tokens",
    "pass history(session, …) a session of this process",
    "pass the session itself: ACMS(\"user_123\", \"sqlite:///memory.db\")", "user(text) adds a message of the user",
    "call cache_hint before recall", "build reusable parts with Prompt(), without a codec",
    "from acms.sync import Prompt",
    '{"truncate_tokens": 1200}',
    'ingest("user", "…")', "ingest_many(messages)", "sync(messages), which also recognises stored messages",
    "recall(…) first, and add the items as messages",
    'storage.settings(id, {"deleted": False}, rev=…) brings it back',
    # Who starts the service.
    "acms gateway --keys",
    "ask a service that writes: acms serve", "acms serve --name NAME",
    # A parameter of the query has the same name.
    "pass trust=true if you know who wrote this export",
    # Who has the file.
    "acms copy 7 TO copies all of its sessions into another store",
    # Who installs it.
    "pip install 'acms_engine-VERSION-py3-none-any.whl[7]', with a wheel",
}  # fmt: skip


def _texts_in_expression(node: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression; an inserted value is written as a word."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else "7" for one in node.values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts_in_expression(child)


def _advised_options() -> Iterator[tuple[str, type[ACMSError], str]]:
    """Yield (place, class, option) of everything the engine advises."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[0] in ELSEWHERE or name in STARTED:
            continue
        code = path.read_text("utf-8")
        if not any(word in code for word in ("options=", "def _options(", "def _twins(")):
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call):
                kind = getattr(errors, getattr(node.func, "id", ""), ACMSError)
                for given in node.keywords:
                    if given.arg == "options":
                        for text in _texts_in_expression(given.value):
                            yield f"{name}:{node.lineno}", kind, text
            elif isinstance(node, ast.FunctionDef) and node.name in ("_options", "_twins"):
                for found in ast.walk(node):
                    if isinstance(found, ast.Yield) and found.value is not None:
                        for text in _texts_in_expression(found.value):
                            yield f"{name}:{found.lineno}", ACMSError, text


def _make_error(kind: type[ACMSError], option: str) -> ACMSError:
    error = kind.__new__(kind)
    ACMSError.__init__(error, "it failed", options=[option])
    return error


def test_what_every_part_of_the_engine_advises_can_be_done_over_http() -> None:
    advised = list(_advised_options())
    assert len(advised) > 150
    for place, kind, option in advised:
        written = problem_details.translate_options(_make_error(kind, option))
        assert written or option in ARGUMENTS, f"{place}: nobody can do {option!r} over HTTP"
        assert not [one for one in written if problem_details.PROGRAM_TEXT.search(one)], place


@pytest.mark.parametrize(
    "kind",
    sorted({one for one in vars(errors).values() if isinstance(one, type)}, key=str),
    ids=lambda one: one.__name__,
)
def test_no_error_speaks_python(kind: type[ACMSError]) -> None:
    if not issubclass(kind, ACMSError):
        return
    for option in (
        "session.copy()",
        "acms fork --copy",
        "give tool_call_id",
        "open one handle per event loop",
    ):
        written = problem_details.translate_options(_make_error(kind, option))
        assert not [one for one in written if problem_details.PROGRAM_TEXT.search(one)]


def test_fields_and_verbs_have_their_names_on_the_wire() -> None:
    error = ValidationError(
        "needs one",
        field="tool_call_id",
        options=("give tool_call_id", "acms jobs cancel 7", 'retract("m_1") first', "undo(7) first"),
    )
    assert problem_details.translate_options(error) == [
        "give toolCallId",
        "POST /api/v1/jobs/7/cancel",
        "POST /api/v1/contexts/{contextId}/entries/m_1/retract first",
        "POST /api/v1/contexts/{contextId}/compactions/7/undo first, if v7 is a compaction",
    ]


def test_options_are_told_over_http(service: Service) -> None:
    context = service.talk("one", "two")
    client = service.client
    client.put(f"/contexts/{context}/tags/release", json={"atVersion": 1})
    moved = client.put(f"/contexts/{context}/tags/release", json={"atVersion": 2})
    assert moved.json()["options"] == ['send "move": true', "choose another name"]
    assert moved.json()["pythonOptions"] == ["tag it with move=True", "choose another name"]
    body = {"messages": [{"role": "user"}]}
    answer = client.post(f"/contexts/{context}/messages", json=body)
    assert answer.json()["options"] == ["give content, toolCalls, toolCallId or parts"]
    empty = client.post(f"/contexts/{service.create()}/prompt", json={"codec": "openai-chat", "budget": 100})
    assert "give system, developer or user" in empty.json()["options"], empty.text
    small = {"codec": "openai-chat", "budget": 20, "user": "word " * 50, "history": False}
    options = client.post(f"/contexts/{context}/prompt", json=small).json()["options"]
    assert [one.partition(" ")[0] for one in options] == ["raise", "shorten"]


@pytest.mark.parametrize("kind", [errors.StorageError, errors.ConfigurationError, ACMSError])
def test_what_only_who_runs_the_service_can_mend_is_told_in_no_words(kind: type[ACMSError]) -> None:
    written = problem_details.serialize_problem(
        _make_error(kind, "acms serve --db /srv/secret.db"), request_id="r"
    )
    assert "secret" not in str(written)
    assert problem_details.parse_problem(written).options == tuple(written["options"])


@pytest.mark.parametrize(
    "error",
    [
        errors.JobFailedError("job 7 is failed after 5 attempts: PROVIDER", job_id="7"),
        errors.TokenBudgetExceededError(budget=10, required=12),
        errors.FitError(budget=10, required=12, where="prompt/history", tried=("window of prompt/history",)),
        errors.ProviderError("openai: 503", provider="openai", retryable=True),
        errors.MissingExtraError("server", "uvicorn"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_error_comes_out_of_a_problem_with_all_that_it_carries(error: ACMSError) -> None:
    back = problem_details.parse_problem(problem_details.serialize_problem(error, request_id="r"))
    assert (type(back), str(back), back.retryable) == (type(error), str(error), error.retryable)
    told = {name: value for name, value in vars(error).items() if name not in ("options", "__notes__")}
    if "extra" in told:
        told["extra"] = ""  # what to install is not the caller's to know
    assert {name: getattr(back, name) for name in told} == told
