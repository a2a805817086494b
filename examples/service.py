"""A chat service: one store for the process, one session for each user, a model behind `answer`.

    pip install '.[server]'
    python examples/service.py [URL]
    curl -s localhost:8080/chat/ana --json '{"text": "I am allergic to nuts."}'
    curl -s localhost:8080/chat/ana --json '{"text": "What am I allergic to?"}'

Several processes may serve the same store: a SQLite file on one machine, PostgreSQL on several. To reach memory from
another language instead, run `acms serve`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from acms import ACMS, Prompt, open_storage
from acms.codecs import OpenAIChat

BUDGET = 2000


async def answer(payload: dict[str, Any]) -> str:
    """Call your model here: `(await client.chat.completions.create(model=…, **payload)).choices[0].message.content`."""
    return f"I was shown {len(payload['messages'])} messages."


async def chat(request: Request) -> JSONResponse:
    text = (await request.json())["text"]
    async with ACMS(request.path_params["user"], request.app.state.storage) as session:
        prompt = Prompt(OpenAIChat("gpt-5")).system("You are a helpful assistant.").history(session)
        rendered = await prompt.recall(session, text).user(text).render(budget=BUDGET)
        reply = await answer(dict(rendered.payload))
        await session.ingest_many(
            [{"role": "user", "content": text}, {"role": "assistant", "content": reply}]
        )
    return JSONResponse({"reply": reply, "tokens": rendered.tokens.upper_bound})


def create_app(url: str) -> Starlette:
    @asynccontextmanager
    async def opened(app: Starlette) -> AsyncIterator[None]:
        async with open_storage(url) as app.state.storage:
            yield

    return Starlette(routes=[Route("/chat/{user}", chat, methods=["POST"])], lifespan=opened)


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///chat.db"), port=8080)
