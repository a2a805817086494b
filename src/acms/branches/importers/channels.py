"""Channels of people: exports of Slack and Discord. Bots speak as the assistant, all others as users by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    as_mapping_list,
    find_value,
    has_content,
    make_media,
    make_turn,
    record_at,
    records_at,
)
from acms.branches.importers.shapes import any_of, has_value, is_list, is_text
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn
from acms.model import Json, Part

SLACK = ((any_of("type", "message"), is_text("ts"), has_value("text")),)
DISCORD = (
    (
        is_list("messages"),
        has_value("channel"),
        has_value("messages.0.author"),
        has_value("messages.0.timestamp"),
    ),
    (has_value("ID"), is_text("Timestamp"), is_text("Contents")),
)
_MENTION = re.compile(r"<@(\w+)(?:\|[^>]*)?>")
_ANNOUNCEMENTS = (
    "channel_join",
    "channel_leave",
    "channel_topic",
    "channel_purpose",
    "channel_name",
    "channel_archive",
)
_SPOKEN = ("Default", "Reply", "ThreadStarterMessage", "ChatInputCommand", "ContextMenuCommand")


# ── Slack ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_slack(source: Source) -> Iterator[Conversation]:
    """Read one day of a channel; the folder of the file is the channel, `users.json` next to it has the names."""
    channel = source.path.parent.name or source.stem
    names: dict[str, str] = {}
    for user in as_mapping_list(source.users()):
        name = user.get("real_name") or find_value(user, "profile.real_name") or user.get("name")
        names[str(user.get("id"))] = str(name or user.get("id"))
    for message in source.records():
        if message.get("subtype") in _ANNOUNCEMENTS:
            source.skip("announcements of the channel")
            continue
        turn = _translate_slack(message, names)
        if has_content(turn):
            yield Conversation(id=channel, messages=[turn])


def _translate_slack(message: Record, names: Mapping[str, str]) -> Turn:
    """Translate a message of a channel; mentions of user ids become names, and bots are assistants."""

    def expand_mention(mention: re.Match[str]) -> str:
        return f"@{names.get(mention[1], mention[1])}"

    text = _MENTION.sub(expand_mention, str(message.get("text") or ""))
    parts: list[Part] = []
    for file in records_at(message, "files"):
        reference = file.get("url_private") or file.get("name") or file.get("id")
        parts.append(make_media(file.get("mimetype"), reference))
    role = "user"
    if message.get("bot_id") or message.get("subtype") == "bot_message":
        role = "assistant"
    timestamp = str(message.get("ts"))
    details: dict[str, Json] = {}
    if message.get("thread_ts") != timestamp:
        details["thread"] = message.get("thread_ts")
    actor = _name_of_speaker(message, names)
    return make_turn(
        role, text, key=timestamp, created_at=float(timestamp), parts=parts, actor=actor, details=details
    )


def _name_of_speaker(message: Record, names: Mapping[str, str]) -> Json:
    user = str(message.get("user") or message.get("bot_id") or "")
    if user in names:
        return names[user]
    return find_value(message, "user_profile.real_name") or message.get("username") or user


# ── Discord ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_discord(source: Source) -> Iterator[Conversation]:
    """Read a channel as DiscordChatExporter writes it, or as Discord's own data package does."""
    # A data package has the newest message first.
    packaged: list[Turn] = []
    for record in source.records():
        if "Contents" in record:
            created_at = record.get("Timestamp")
            packaged.append(
                make_turn("user", str(record["Contents"]), key=str(record["ID"]), created_at=created_at)
            )
        else:
            yield from _read_discord_channel(record, source)
    packaged.sort(key=lambda turn: turn["created_at"])
    for turn in packaged:
        if turn["content"]:
            yield Conversation(id=source.path.parent.name or source.stem, messages=[turn])


def _read_discord_channel(record: Record, source: Source) -> Iterator[Conversation]:
    """Read the messages of a channel, without announcements such as a member who joined."""
    channel = record_at(record, "channel")
    id, title = str(channel.get("id") or source.stem), str(channel.get("name") or "")
    for message in records_at(record, "messages"):
        if str(message.get("type") or "Default") not in _SPOKEN:
            source.skip("announcements of the channel")
            continue
        turn = _translate_discord(message)
        if has_content(turn):
            yield Conversation(id=id, title=title, messages=[turn])


def _translate_discord(message: Record) -> Turn:
    author = record_at(message, "author")
    parts: list[Part] = []
    for file in records_at(message, "attachments"):
        parts.append(make_media(None, file.get("url") or file.get("fileName")))
    return make_turn(
        "assistant" if author.get("isBot") else "user",
        str(message.get("content") or ""),
        key=str(message["id"]),
        created_at=message.get("timestamp"),
        parts=parts,
        actor=author.get("nickname") or author.get("name"),
        details={"reply_to": find_value(message, "reference.messageId")},
    )
