"""Jobs over HTTP where nothing works them off: how they wait, are given up and come back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from acms import open_storage
from acms.model import Append, ContextDraft, JobDraft, JobQuery
from acms.server import ServerConfig
from acms.server.tenants import SERVICE_NAMESPACE
from tests.server.document import checked_by_document
from tests.server.serving import Service, serving

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that others write to as well."""
    return f"sqlite:///{tmp_path_factory.mktemp('jobs') / 'log.db'}"


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Service]:
    """A service whose jobs wait for a worker elsewhere."""
    with serving(url, ServerConfig(auth="off", works=False)) as running:
        yield checked_by_document(running)


def test_a_job_that_waits_is_given_up_and_brought_back(service: Service) -> None:
    context = service.talk("a", "b")
    reply = service.client.post(f"/contexts/{context}/compact", headers={"Prefer": "wait=0"})
    assert reply.status_code == 202
    job = reply.json()["data"]["job"]
    assert job["state"] == "ready"
    path = f"/jobs/{job['id']}"
    assert service.client.post(f"{path}/cancel").json()["data"]["state"] == "cancelled"
    assert service.client.post(f"{path}/cancel").json()["data"]["state"] == "cancelled"
    assert service.client.post(f"{path}/retry").json()["data"]["state"] == "ready"
    assert service.get("/jobs", contextId=context, state="ready")["data"][0]["id"] == job["id"]
    again = service.client.post(f"/contexts/{context}/compact").json()["data"]["job"]
    assert again["id"] == job["id"], "while one is under way it is returned"


def test_waiting_for_what_was_given_up_says_so(service: Service) -> None:
    context = service.talk("a", "b")
    job = service.client.post(f"/contexts/{context}/reflect").json()["data"]
    assert job["kind"] == "reflect"
    service.client.post(f"/jobs/{job['id']}/cancel")
    assert service.get(f"/jobs/{job['id']}")["data"]["state"] == "cancelled"


async def test_jobs_of_the_service_itself_are_not_shown(service: Service, url: str) -> None:
    async with open_storage(url) as storage:
        own = await storage.create(ContextDraft(namespace=SERVICE_NAMESPACE, counter="none", created_at=NOW))
        draft = JobDraft(kind="collect", dedupe="own")
        await storage.append([Append(context=own.id, drafts=(), jobs=(draft,))])
        (job,) = (await storage.jobs(JobQuery(context=own.id))).items
    assert job.id not in [one["id"] for one in service.get("/jobs")["data"]]
    assert service.client.get(f"/jobs/{job.id}").status_code == 404
    assert service.client.post(f"/jobs/{job.id}/cancel").status_code == 404
    assert service.client.get("/jobs", params={"contextId": own.id}).status_code == 404
