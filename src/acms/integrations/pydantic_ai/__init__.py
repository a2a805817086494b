"""Pydantic AI on ACMS logs: the input of the model, and a store of conversations.

    agent = Agent("openai:gpt-5", capabilities=[ACMSHistory(session, budget=8_000)])
    await agent.run("…")  # without message_history: the log has it

`ACMSHistory` hands each model request the log within a token budget; the history of the run stays as it is.
`ACMSConversationStore` is a `ConversationStore` whose conversations are sessions.
"""

from acms.integrations.pydantic_ai.history import ACMSHistory
from acms.integrations.pydantic_ai.store import ACMSConversationStore

__all__ = ["ACMSConversationStore", "ACMSHistory"]
