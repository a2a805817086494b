"""Messages over HTTP: append, list, and what is refused."""

from __future__ import annotations

from tests.http.serving import Service


def test_what_is_appended_comes_back(service: Service) -> None:
    context = service.talk("a", "b")
    assert [one["content"] for one in service.get(f"/contexts/{context}/messages")["data"]] == ["a", "b"]
