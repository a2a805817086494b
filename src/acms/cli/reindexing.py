"""The command that makes derived rows again: reindex."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import AsJson, Db, Namespace, app, known, opened, run
from acms.cli.render import Screen
from acms.config import ACMSConfig
from acms.ports import Embedder, StorageBackend
from acms.recall.reindex import Reindexed, reindex


def _embedder(name: str | None) -> str | None:
    if name not in (None, "local"):
        raise typer.BadParameter(f"{name} is not known; local is", param_hint="--embedder")
    return name


@app.command("reindex", epilog="Example:  acms reindex user_123 --embedder local --chroma vectors")
def reindex_(
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Name of a session, or its id; without it every session."),
    ] = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            "--embedder",
            metavar="NAME",
            callback=_embedder,
            help="local: make the vectors of the local embedder too.",
        ),
    ] = None,
    chroma: Annotated[
        str | None,
        typer.Option(
            "--chroma", metavar="PATH|URL", help="Keep the vectors in this Chroma, a folder or a server."
        ),
    ] = None,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Make again from the log what recall needs and has lost: index records, and the vectors of an embedder.

    What is there already is left alone, so an interrupted run is continued by running it again. With --chroma, vectors
    that lie in the store move there, and those of erased entries are deleted there. Vectors of what ACMS_PRIVACY_MODE
    blocks are emptied.
    """

    async def work() -> int:
        model: Embedder | None = None
        if embedder is not None:
            from acms.providers import LocalEmbedder

            model = LocalEmbedder()
        async with opened(db) as storage:
            context = None if session is None else (await known(storage, session, namespace)).id
            place: StorageBackend = storage
            if chroma is not None:
                from acms.storage import ChromaVectors

                is_url = "://" in chroma
                place = ChromaVectors(storage, url=chroma) if is_url else ChromaVectors(storage, path=chroma)
            try:
                with render.progress("reindexing") as tell:
                    mode = ACMSConfig.from_env().privacy.mode
                    done = await reindex(place, context, embedder=model, privacy=mode, progress=tell)
            finally:
                await place.aclose()
        screen = Screen(as_json)
        value: dict[str, Any] = {"session": session, **asdict(done)}
        screen.show(value, lambda: _draw(screen, done, moved=chroma is not None))
        return 1 if done.left else 0

    run(as_json, work())


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
