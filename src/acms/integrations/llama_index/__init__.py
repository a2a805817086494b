"""LlamaIndex on ACMS logs: an agent's memory, a memory block, and a retriever.

    memory = ACMSMemory(session=session, budget=8_000)
    await FunctionAgent(llm=llm, tools=[…]).run("…", memory=memory)

`ACMSMemory` takes the place of LlamaIndex's `Memory`; `ACMSMemoryBlock` is one block of it, for what its queue lets go.
"""

from acms.integrations.llama_index.memory import ACMSMemory
from acms.integrations.llama_index.recall import ACMSMemoryBlock, ACMSRetriever

__all__ = ["ACMSMemory", "ACMSMemoryBlock", "ACMSRetriever"]
