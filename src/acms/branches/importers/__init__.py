"""Conversations from elsewhere, as messages for a session.

`read_chat` reads a file that holds one conversation: messages in the form of a provider.
`read_export` reads what another product gives out, where each conversation becomes a session: exports of ChatGPT,
Claude and mem0, checkpoints of LangGraph. Readers are pure: the same file gives the same messages with the same keys,
so an import can be interrupted and run again, and nothing is stored twice. A message that says nothing (no text, no
call, no result) is passed over.
"""

from acms.branches.importers.chat import LineReader, read_chat, read_lines
from acms.branches.importers.exports import FORMATS, Conversation, Export, read_export
from acms.log.foreign import Turn

__all__ = [
    "FORMATS",
    "Conversation",
    "Export",
    "LineReader",
    "Turn",
    "read_chat",
    "read_export",
    "read_lines",
]
