"""Secrets stay where they belong: no error, log or metric quotes a request (T40); no request changes who is called
with it (T36)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx2
import pytest

from acms.observability import JSONFormatter
from acms.server.operation import BASE
from acms.server.routes.table import OPERATIONS
from tests.server.guarded import Guarded, guarded_service

CANARY = "sk-canary0123456789abcdefghijklmnop"


class Broken:
    """A model whose client quotes its request, and its own key, in its errors."""

    dimension = 8
    model = "broken"
    window = 10_000

    async def embed(self, texts: list[str]) -> Sequence[Sequence[float]]:
        raise RuntimeError(f"401 for key {CANARY}: {texts}")

    async def summarize(self, request: Any) -> str:
        raise RuntimeError(f"401 for key {CANARY}: {request.text()}")

    async def reflect(self, request: Any) -> Any:
        raise RuntimeError(f"401 for key {CANARY}: {request.text()}")

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        raise RuntimeError(f"401 for key {CANARY}: {query}")


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    url = f"sqlite:///{tmp_path_factory.mktemp('secrets') / 'log.db'}"
    model = Broken()
    async with guarded_service(
        url, embedder=model, summarizer=model, reflector=model, reranker=model
    ) as running:
        yield running


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Everything that anything logs, with tracebacks, as text."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.partition(".")[0] in (
                "acms",
                "asyncio",
                "uvicorn",
            ):  # not what the test's client logs
                lines.append(self.format(record))

    handler = Kept(logging.DEBUG)
    handler.setFormatter(JSONFormatter())
    names = ("", "acms", "uvicorn", "uvicorn.error", "uvicorn.asgi", "asyncio")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    yield lines
    logging.getLogger().removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


async def _ask_everything(
    service: Guarded, client: httpx2.AsyncClient, context: str, entry: str
) -> list[str]:
    """Ask for everything, rightly and wrongly, with the canary wherever something can be said; return error bodies."""
    found: list[str] = []
    headers = {
        "Idempotency-Key": CANARY, "If-Match": f'"{CANARY}"', "Prefer": CANARY, "X-Api-Key": CANARY, "Cookie": CANARY,
    }  # fmt: skip
    for one in OPERATIONS:
        base = service.url + ("" if one.rooted else BASE)
        real = {"context_id": context, "entry_id": entry, "namespace": "n"}
        fields = re.findall(r"{(\w+)[^}]*}", one.path)
        path = re.sub(r"{(\w+)[^}]*}", lambda at, real=real: real.get(at[1], "1"), one.path)
        media = one.streams[0] if one.streams else "application/json"
        bodies: list[bytes] = [b""]
        if one.body is not None or one.streams:
            example = one.example if isinstance(one.example, dict) else {}
            bodies = [
                json.dumps(example).encode(),
                json.dumps({**example, CANARY: CANARY}).encode(),
                *[json.dumps({**example, name: CANARY}).encode() for name in example],
                b'{"' + CANARY.encode(),
                CANARY.encode() + b"\xff",
            ]
        for body in bodies:
            reply = await client.request(
                one.method, base + path, content=body or None, headers={**headers, "Content-Type": media}
            )
            if reply.status_code >= 500:
                found.append(reply.text)
        odd = [await client.request(one.method, f"{base}{path}?{CANARY}={CANARY}")]
        if one.query is not None:
            for name in one.query.model_fields:
                odd.append(await client.request(one.method, base + path, params={name: CANARY}))
        if fields:
            wrong = re.sub(r"{(\w+)[^}]*}", CANARY, one.path)
            odd.append(await client.request(one.method, base + wrong))
        found += [reply.text for reply in odd if reply.status_code >= 500]
    return found


async def test_the_canary_is_in_no_log_and_no_metric(service: Guarded, logged: list[str]) -> None:
    _, secret = await service.app.keys.create("acme", scopes=["context:read", "admin:config"])
    client, strangers = await service.key("acme"), await service.client(CANARY)
    context = (await client.post("/contexts", json={"key": CANARY, "name": CANARY})).json()["data"]["id"]
    said = [
        {"role": "user", "content": f"DECISION: the key is {CANARY} {n}. " + "word " * 80} for n in range(30)
    ]
    sent = await client.post(f"/contexts/{context}/messages", json={"messages": said})
    assert sent.status_code == 201, sent.text
    entry = sent.json()["data"][0]["id"]
    await client.post(
        f"/contexts/{context}/compact", json={"preserveRecentCount": 5}, headers={"Prefer": "wait=1"}
    )
    inside = await _ask_everything(service, client, context, entry)
    assert not [text for text in inside if CANARY in text], "what fails inside is not told"
    limited = await service.client(secret)
    for each in (strangers, limited):
        for one in OPERATIONS:
            path = service.url + ("" if one.rooted else BASE) + re.sub(r"{\w+[^}]*}", CANARY, one.path)
            reply = await each.request(one.method, path)
            if reply.status_code in (401, 403):
                assert CANARY not in reply.text
    operator = await service.key("operator")
    metrics = (await operator.get(f"{service.url}/metrics")).text
    assert len(logged) > 50
    told = "\n".join(logged)
    for text in (told, metrics):
        assert CANARY not in text, next(line for line in text.splitlines() if CANARY in line)[:2000]
        assert secret not in text
        assert secret.rpartition("_")[2] not in text


async def test_no_answer_repeats_a_key(service: Guarded) -> None:
    _, secret = await service.app.keys.create("acme")
    client = await service.client(secret)
    hidden = secret.rpartition("_")[2]
    for one in OPERATIONS:
        path = service.url + ("" if one.rooted else BASE) + re.sub(r"{\w+[^}]*}", "1", one.path)
        assert hidden not in (await client.request(one.method, path)).text
        wrong = await client.request(one.method, path, headers={"Authorization": f"Bearer {secret}x"})
        assert hidden not in wrong.text


# ── who is called (T36) ─────────────────────────────────────────────────────────────────────────────────────────────


def test_no_request_can_name_an_address_or_a_key_of_a_provider() -> None:
    """Who is called is the operator's choice; what an address may be is tested with the providers."""
    named = re.compile(
        r"url|uri|endpoint|host|api_?key|secret|token$|provider|proxy|webhook|callback", re.IGNORECASE
    )
    for one in OPERATIONS:
        fields: list[str] = []
        for model in (one.body, one.query):
            if model is not None and hasattr(model, "model_json_schema"):
                schema = model.model_json_schema()
                shapes = [schema, *schema.get("$defs", {}).values()]
                fields += [name for shape in shapes for name in shape.get("properties", {})]
        if one.name != "addWebhook":  # https and public, at each delivery: test_webhooks
            assert not [name for name in fields if named.search(name)], one.name


async def test_a_request_that_names_one_is_refused(service: Guarded) -> None:
    client = await service.key("acme")
    for name in ("baseUrl", "base_url", "apiKey", "embedder", "summarizer", "reflector", "provider"):
        for method, path in (("POST", "/contexts"), ("PUT", "/pins/n")):
            body = {name: "http://169.254.169.254/latest", "key": "k"}
            reply = await client.request(method, path, json=body)
            assert (reply.status_code, reply.json()["code"]) == (400, "VALIDATION")
