"""The command that makes derived rows again: reindex."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from acms.cli.base import Ranking, Shell, command, embedder
from acms.cli.render import Screen
from acms.config import ACMSConfig
from acms.ports import StorageBackend
from acms.providers import LocalEmbedder
from acms.recall.reindex import Reindexed, reindex


@command("acms reindex user_123 --embedder local --chroma vectors", name="reindex", resumes=True)
async def reindex_(
    shell: Shell,
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Name of a session, or its id; without it every session."),
    ] = None,
    ranking: Ranking = None,
    chroma: Annotated[
        str | None,
        typer.Option(
            "--chroma", metavar="PATH|URL", help="Keep the vectors in this Chroma, a folder or a server."
        ),
    ] = None,
) -> int:
    """Make again what recall needs and has lost.

    Index records, and with --embedder the vectors of that model; auto is the local one. What is there already is left
    alone, so an interrupted run is continued by running it again. With --chroma, vectors that lie in the store move
    there, and those of erased entries are deleted there. Vectors of what ACMS_PRIVACY_MODE blocks are emptied.
    """
    model = None if ranking is None else embedder(ranking)
    if model == "auto":
        model = LocalEmbedder()
    async with shell.opened() as storage:
        context = None if session is None else (await shell.known(storage, session)).id
        place: StorageBackend = storage
        if chroma is not None:
            from acms.storage import ChromaVectors

            is_url = "://" in chroma
            place = ChromaVectors(storage, url=chroma) if is_url else ChromaVectors(storage, path=chroma)
        try:
            with shell.progress("reindexing") as tell:
                mode = ACMSConfig.from_env().privacy.mode
                done = await reindex(place, context, embedder=model, privacy=mode, progress=tell)
        finally:
            await place.aclose()
    value: dict[str, Any] = {"session": session, **asdict(done)}
    shell.show(value, lambda: _draw(shell, done, moved=chroma is not None))
    return 1 if done.left else 0


def _draw(screen: Screen, done: Reindexed, *, moved: bool) -> None:
    screen.line(
        f"{done.contexts} sessions, {done.entries:,} entries: {done.cards:,} index records and {done.vectors:,} vectors"
        " were made"
    )
    if moved:
        screen.line(
            f"{done.moved:,} vectors moved to Chroma, {done.pruned:,} of erased entries deleted there"
        )
    if done.left:
        screen.line(f"{done.left:,} entries were refused by the embedder", "red")
