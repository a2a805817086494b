"""Replay: the payload of a prompt that was rendered before, made again from its manifest and the log."""

from __future__ import annotations

from collections.abc import Sequence

from acms.errors import ExpiredError, GoneError, ValidationError
from acms.model import Entry, Json, Privacy, State
from acms.ports import Codec, StorageBackend
from acms.prompt.manifest import Manifest
from acms.prompt.manifest_writer import hash_payload, revive_messages
from acms.prompt_types import PromptMessage

__all__ = ["replay", "replay_messages"]

BATCH = 500
"""Entries read at once."""


async def replay(manifest: Manifest, storage: StorageBackend, codec: Codec) -> dict[str, Json]:
    """Return the payload of a prompt as it was rendered, byte for byte; every entry it shows is read once.

    Entries retracted, replaced or summarised since are still available. `GoneError` names the erased entries,
    `ExpiredError` those that retention has deleted. `ValidationError` is raised for another codec or model than the
    manifest names, and when this release or this store would make another payload.
    """
    for field, expected, actual in (
        ("codec", manifest.codec, codec.name),
        ("model", manifest.model, codec.model),
    ):
        if expected != actual:
            raise ValidationError(
                f"is {actual!r}, the prompt was rendered for {expected!r}",
                field=field,
                options=(f"replay it with the codec {manifest.codec!r} and the model {manifest.model!r}",),
            )
    payload = codec.render(
        await replay_messages(manifest, storage), tools=manifest.tools, marks=manifest.marks
    )
    if manifest.payload and hash_payload(payload) != manifest.payload:
        raise ValidationError(
            "this release of the codec writes another payload for the same messages",
            field="manifest",
            options=("replay it with the release that rendered it", "render the prompt again"),
        )
    return payload


async def replay_messages(manifest: Manifest, storage: StorageBackend) -> tuple[PromptMessage, ...]:
    """Return the messages of a prompt as they were given to its codec; the same errors as `replay`."""
    entries = await _load_entries(storage, manifest.entries)
    modes = {redacted.entry: redacted.mode for redacted in manifest.redactions}
    return revive_messages(
        manifest, {id: _redact_as_rendered(entry, modes.get(id)) for id, entry in entries.items()}
    )


def _redact_as_rendered(entry: Entry, mode: Privacy | None) -> Entry:
    """Return an entry as the privacy stage redacted it; its token count is not used."""
    if mode is None:
        return entry
    from acms.privacy.redact_entry import apply_privacy_mode  # the rules come with it

    return apply_privacy_mode(entry, mode, len)


async def _load_entries(storage: StorageBackend, ids: Sequence[str]) -> dict[str, Entry]:
    """Return entries by id; `GoneError` or `ExpiredError` if the content of one is not there any more."""
    entries: dict[str, Entry] = {}
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        for id, entry in zip(batch, await storage.get(batch), strict=True):
            if entry is None:
                raise GoneError(
                    f"the store has no entry {id!r}, which the prompt shows",
                    options=("replay it from the store it was rendered from",),
                )
            if entry.state is not State.LIVE:
                kind = ExpiredError if entry.state is State.EXPIRED else GoneError
                raise kind(f"the prompt shows {id!r} (v{entry.version}), which is {entry.state.value}")
            entries[id] = entry
    return entries
