"""An ADK agent that forgets nothing, within 1,000 tokens a request. No key, no network: the model is a class here."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

from acms import open_storage
from acms.integrations.google_adk import ACMSPlugin, ACMSSessionService
from acms.kv import open_kv


class Model(BaseLlm):
    """Stand in for a model: say whether the code was in what it was shown."""

    async def generate_content_async(self, llm_request, stream=False):
        shown = "\n".join(part.text or "" for content in llm_request.contents for part in content.parts)
        text = "It is 4711." if "is 4711" in shown else f"Noted ({len(llm_request.contents)} contents)."
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


async def main() -> None:
    async with open_storage("memory://") as storage, open_kv("memory://") as kv:
        sessions = ACMSSessionService(storage, kv)
        agent = LlmAgent(name="helper", model=Model(model="none"))
        app = App(name="shop", root_agent=agent, plugins=[ACMSPlugin(sessions, budget=1_000)])
        runner = Runner(app=app, session_service=sessions, auto_create_session=True)

        async def ask(text: str) -> str:
            message = types.Content(role="user", parts=[types.Part(text=text)])
            async for event in runner.run_async(user_id="ana", session_id="chat", new_message=message):
                answer = event.content.parts[0].text
            return answer

        await ask("The code of the vault is 4711.")
        for number in range(60):
            await ask(f"Please note that invoice {number} over {number * 3} euros was paid today, thank you.")
        answer = await ask("What is the code of the vault?")
        kept = await sessions.get_session(app_name="shop", user_id="ana", session_id="chat")
        print(f"{len(kept.events)} messages kept; {answer}")
        await sessions.aclose()


asyncio.run(main())
