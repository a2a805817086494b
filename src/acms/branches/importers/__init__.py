"""Conversations of other programs, as messages for a session.

`open_import` opens a file of any format and yields its conversations a piece at a time; `read_export` reads it as a
whole. `read_chat` reads a file that holds one conversation in the form of a provider. The format is recognised by the
content. Readers are pure: the same file gives the same messages with the same keys, so an import can be interrupted
and run again, and nothing is stored twice. A message without content (no text, no call, no result) is skipped.
"""

from acms.branches.importers.chat import read_chat, read_lines
from acms.branches.importers.conversation import Fork
from acms.branches.importers.exports import FORMATS, Conversation, Export, Import, open_import, read_export
from acms.log.provider_messages import Turn

__all__ = [
    "FORMATS",
    "Conversation",
    "Export",
    "Fork",
    "Import",
    "Turn",
    "open_import",
    "read_chat",
    "read_export",
    "read_lines",
]
