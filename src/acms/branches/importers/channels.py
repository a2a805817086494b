"""Channels of people: exports of Slack and Discord. Bots speak as the assistant, all others as users by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from acms.branches.importers.conversation import Conversation, as_mapping, as_mapping_list, make_turn
from acms.branches.importers.shapes import any_of, has_value, is_list, is_text
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json, Media, Part

__all__ = ["DISCORD", "SLACK", "read_discord", "read_slack"]

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
_ANNOUNCES = (
    "channel_join",
    "channel_leave",
    "channel_topic",
    "channel_purpose",
    "channel_name",
    "channel_archive",
)
_SPOKEN = ("Default", "Reply", "ThreadStarterMessage", "ChatInputCommand", "ContextMenuCommand")


def read_slack(source: Source) -> Iterator[Conversation]:
    """Read one day of a channel; the folder of the file is the channel, `users.json` beside it has the names."""
    channel = source.path.parent.name or source.stem
    names = {str(user.get("id")): _slack_name(user) for user in as_mapping_list(source.users())}
    for _, value in source.records():
        message = as_mapping(value)
        if message.get("subtype") in _ANNOUNCES:
            source.skip("announcements of the channel")
            continue
        turn = _slack_turn(message, names)
        if turn["content"] or turn.get("parts"):
            yield Conversation(id=channel, messages=[turn])


def _slack_name(user: Mapping[str, Json]) -> str:
    profile = as_mapping(user.get("profile"))
    found = user.get("real_name") or profile.get("real_name") or user.get("name")
    return str(found or user.get("id"))


def _slack_turn(message: Mapping[str, Json], names: Mapping[str, str]) -> Turn:
    ts, user = str(message.get("ts")), str(message.get("user") or message.get("bot_id") or "")
    profile = as_mapping(message.get("user_profile"))
    name = names.get(user) or profile.get("real_name") or message.get("username") or user
    text = _MENTION.sub(lambda found: f"@{names.get(found[1], found[1])}", str(message.get("text") or ""))
    parts: list[Part] = []
    for file in as_mapping_list(message.get("files")):
        reference = file.get("url_private") or file.get("name") or file.get("id")
        parts.append(Media(str(file.get("mimetype") or "application/octet-stream"), str(reference)))
    role = "assistant" if message.get("bot_id") or message.get("subtype") == "bot_message" else "user"
    thread = message.get("thread_ts") if message.get("thread_ts") != ts else None
    return make_turn(role, text, key=ts, at=float(ts), parts=parts, actor=name, details={"thread": thread})


def read_discord(source: Source) -> Iterator[Conversation]:
    """Read a channel as DiscordChatExporter writes it, or as Discord's own data package does."""
    own: list[Turn] = []
    for _, value in source.records():
        record = as_mapping(value)
        if "Contents" in record:
            turn = make_turn(
                "user", str(record["Contents"]), key=str(record["ID"]), at=record.get("Timestamp")
            )
            own += [turn] if turn["content"] else []
            continue
        channel = as_mapping(record.get("channel"))
        id = str(channel.get("id") or source.stem)
        for message in as_mapping_list(record.get("messages")):
            if str(message.get("type") or "Default") not in _SPOKEN:
                source.skip("announcements of the channel")
                continue
            turn = _discord_turn(message)
            if turn["content"] or turn.get("parts"):
                yield Conversation(id=id, title=str(channel.get("name") or ""), messages=[turn])
    own.sort(key=lambda turn: turn["created_at"])
    for turn in own:
        yield Conversation(id=source.path.parent.name or source.stem, messages=[turn])


def _discord_turn(message: Mapping[str, Json]) -> Turn:
    author = as_mapping(message.get("author"))
    parts: list[Part] = []
    for file in as_mapping_list(message.get("attachments")):
        parts.append(Media("application/octet-stream", str(file.get("url") or file.get("fileName"))))
    role = "assistant" if author.get("isBot") else "user"
    reply = as_mapping(message.get("reference")).get("messageId")
    name = author.get("nickname") or author.get("name")
    text = str(message.get("content") or "")
    return make_turn(
        role,
        text,
        key=str(message["id"]),
        at=message.get("timestamp"),
        parts=parts,
        actor=name,
        details={"reply_to": reply},
    )
