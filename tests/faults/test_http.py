"""The service as processes: killed and stopped under load, and several of them on one store.

pytest -m faults tests/faults/test_http.py      the long run: 50 kills
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ._service import Crowd, acms, contexts, messages, service


def killing(path: Path, kills: int) -> None:
    """Kill a service under load again and again; what it acknowledged is there, and everything once."""
    db, rng = f"sqlite:///{path}", random.Random(kills)
    with service(db) as one:
        crowd = Crowd(one, contexts(one, 6))
        for _ in range(kills):
            crowd.wait(rng.randrange(20, 120))
            crowd.pause()
            one.kill()
            one.start()
            crowd.resume()
        crowd.wait(20)
        crowd.end()
        with one.client() as client:
            for context, told in crowd.ledger.items():
                assert [(said["content"], said["id"]) for said in messages(client, context)] == told
        assert one.stop() == 0
    assert acms("verify", "--db", db)
    print(
        f"{kills} kills, {crowd.acknowledged} messages acknowledged: each is there once; "
        f"{crowd.unknown} sendings got no answer, {crowd.repeated} of these had been stored"
    )
    assert crowd.unknown >= kills, "nobody was waiting when it was killed"


def test_what_a_killed_service_acknowledged_is_there_and_what_is_sent_again_is_there_once(
    tmp_path: Path,
) -> None:
    killing(tmp_path / "log.db", 2)


@pytest.mark.faults
def test_fifty_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    killing(tmp_path / "log.db", 50)


def test_a_service_told_to_stop_under_load_answers_all_that_it_does(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'log.db'}"
    with service(db) as one:
        crowd = Crowd(one, contexts(one, 8), again=False)
        crowd.wait(50)
        with one.client() as client:
            for context in crowd.ledger:
                reply = client.post(f"/contexts/{context}/compact", json={"preserveRecentCount": 2})
                assert reply.status_code == 202
        assert one.stop() == 0
        crowd.end()
    # Nothing was done without an answer: what the clients know is all there is.
    with service(db, "--no-work") as one, one.client() as client:
        for context, told in crowd.ledger.items():
            listed = client.get(f"/contexts/{context}/messages", params={"limit": 1000}).json()["data"]
            assert [(said["content"], said["id"]) for said in listed] == told
        assert client.get("/jobs", params={"state": "running"}).json()["data"] == []
        assert one.stop() == 0
