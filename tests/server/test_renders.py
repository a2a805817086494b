"""The log of renders over HTTP: under the request's id, of its tenant alone, and gone when it is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from acms import ACMSConfig, RenderLogConfig, Verdict
from acms.client import Client
from acms.prompt import RenderBlock
from tests.server.document import checked_by_document
from tests.server.serving import Service, serving

ENGINE = ACMSConfig(renders=RenderLogConfig(enabled=True))


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('renders') / 'log.db'}", engine=ENGINE) as running:
        yield checked_by_document(running)


def _post_ok(service: Service, path: str, request: str, body: Any) -> None:
    reply = service.client.post(path, json=body, headers={"x-request-id": request})
    assert reply.status_code == 200, reply.text


def test_what_was_sent_is_listed_under_the_id_of_its_request(keeping: Service) -> None:
    context = keeping.talk(*[f"The kettle number {n} whistles." for n in range(60)])
    other = keeping.talk("Nothing to see.")
    ask = {"budget": 400, "recall": {"query": "which kettle?"}, "user": "Which kettle?"}
    _post_ok(keeping, f"/contexts/{context}/prompt", "req-1", ask)
    _post_ok(keeping, f"/contexts/{context}/chat", "req-2", {"query": "which kettle?", "budget": 300})
    _post_ok(
        keeping, f"/contexts/{context}/prompt", "req-3", {**ask, "atVersion": 50}
    )  # a look, not what was sent
    page = keeping.get(f"/contexts/{context}/renders", limit=1)
    assert [(one["requestId"], one["kind"]) for one in page["data"]] == [("req-2", "messages")]
    rest = keeping.get(f"/contexts/{context}/renders", cursor=page["nextCursor"])
    assert [(one["requestId"], one["kind"]) for one in rest["data"]] == [("req-1", "prompt")]
    details = keeping.get(f"/contexts/{context}/renders/{rest['data'][0]['id']}")["data"]
    assert any("whistles" in (one["text"] or "") for one in details["blocks"])
    assert keeping.client.get(f"/contexts/{other}/renders/{details['id']}").status_code == 404
    assert keeping.get(f"/contexts/{other}/renders")["data"] == []
    assert keeping.client.delete(f"/contexts/{context}/renders").status_code == 204
    assert keeping.get(f"/contexts/{context}/renders")["data"] == []


async def test_a_client_reads_it_as_the_nouns_it_is(keeping: Service) -> None:
    context = keeping.talk("The kettle whistles.", "The kettle is silent.")
    async with Client(keeping.url) as client:
        session = client.session(context)
        await session.messages("which kettle?", budget=300)
        (render,) = await session.renders()
        details = await session.sent(render.id)
    assert [type(one) for one in details.blocks] == [RenderBlock] * len(details.blocks)
    assert "whistles" in str(details.blocks[0].text)
    assert all(isinstance(one, Verdict) for one in details.verdicts)


def test_a_request_is_compared_with_any_other(keeping: Service) -> None:
    context = keeping.talk("The kettle whistles.")
    for number in range(3):
        body = {"budget": 600, "system": f"Rule {number // 2}.", "user": "Which kettle?"}
        _post_ok(keeping, f"/contexts/{context}/prompt", f"req-{number}", body)
    newest, middle, oldest = [one["id"] for one in keeping.get(f"/contexts/{context}/renders")["data"]]
    path = f"/contexts/{context}/renders"
    assert keeping.get(f"{path}/{newest}")["data"]["previous"] == middle
    alike = keeping.get(f"{path}/{middle}", against=oldest)["data"]
    assert {block["change"] for block in alike["blocks"]} == {"same"}
    changed = keeping.get(f"{path}/{newest}", against=oldest)["data"]
    assert changed["previous"] == oldest
    assert "prompt/system" in changed["cache"]["reason"]
    assert keeping.client.get(f"{path}/{newest}", params={"against": "none"}).status_code == 404
