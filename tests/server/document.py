"""Every answer of a service beside what its OpenAPI document says of it."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import jsonschema

from acms.contract import problem_details
from tests.server.serving import Service


def checked_by_document(service: Service) -> Service:
    """Return the service, whose client from now on refuses an answer that is not as the document says."""
    document = httpx2.get(f"{service.url}/openapi.json").json()
    paths = [
        (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), methods)
        for path, methods in document["paths"].items()
    ]

    def check(reply: httpx2.Response) -> None:
        reply.read()
        path = reply.request.url.path
        # Of two that match, the one with fewer parameters is meant.
        found = [methods for pattern, methods in paths if pattern.fullmatch(path)]
        said: Any = next(
            (one[reply.request.method.lower()] for one in found if reply.request.method.lower() in one), None
        )
        if said is None:
            return
        answers = said["responses"]
        answer = answers.get(str(reply.status_code), answers["default"])
        if "$ref" in answer:
            answer = document["components"]["responses"]["Problem"]
            assert not [one for one in reply.json()["options"] if problem_details.PROGRAM_TEXT.search(one)], (
                reply.text
            )
        if "content" not in answer:
            assert not reply.content
            return
        media = reply.headers.get("content-type", "").replace("event-stream; charset=utf-8", "event-stream")
        assert media in answer["content"], f"{reply.request.method} {path} answers {media}"
        if media.endswith("json") and "ndjson" not in media:
            schema = {**answer["content"][media]["schema"], "components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(reply.json())

    service.client.event_hooks = {"request": [], "response": [check]}
    return service
