"""The command that rebuilds derived rows: reindex."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from acms.cli.base import Ranking, Shell, create_embedder, define_command
from acms.cli.output import Screen, count_noun
from acms.cli.stores import refuse_option
from acms.config import ACMSConfig
from acms.ports import StorageBackend
from acms.providers import LocalEmbedder
from acms.recall.reindex import ReindexResult, reindex


@define_command("reindex", "acms reindex user_123 --embedder local --chroma vectors", resumes=True)
async def rebuild_index(
    shell: Shell,
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Name of a session, or its id; default: all."),
    ] = None,
    ranking: Ranking = None,
    chroma: Annotated[
        str | None,
        typer.Option(
            "--chroma", metavar="PATH|URL", help="Store the vectors in this Chroma folder or server."
        ),
    ] = None,
) -> int:
    """Rebuild missing index records and vectors.

    Vectors are rebuilt with --embedder; auto means the local model. Existing rows are kept, so running an interrupted
    command again continues it. With --chroma, vectors of the store are moved to Chroma, and vectors of erased entries
    are deleted there. Vectors of entries that ACMS_PRIVACY_MODE blocks are cleared.
    """
    model = None if ranking is None else create_embedder(ranking)
    if model == "auto":  # a session would choose the model itself, and here is none
        model = LocalEmbedder()
    async with shell.open_store() as storage:
        context = None
        if session is not None:
            context = (await shell.find_session(storage, session)).id
        target: StorageBackend = storage
        if chroma is not None:
            from acms.storage import ChromaVectors

            is_url = "://" in chroma
            with refuse_option("chroma"):
                target = ChromaVectors(storage, url=chroma) if is_url else ChromaVectors(storage, path=chroma)
        try:
            with shell.progress("reindexing") as report:
                mode = ACMSConfig.from_env().privacy.mode
                result = await reindex(target, context, embedder=model, privacy=mode, progress=report)
        finally:
            await target.aclose()
    value: dict[str, Any] = {"session": session, **asdict(result)}
    shell.show(value, lambda: _draw_result(shell, result, moved=chroma is not None))
    return 1 if result.left else 0


def _draw_result(screen: Screen, result: ReindexResult, *, moved: bool) -> None:
    rebuilt = f"{result.cards:,} index records and {result.vectors:,} vectors"
    screen.line(
        f"{count_noun(result.contexts, 'session')}, {count_noun(result.entries, 'entry')}: {rebuilt} were made"
    )
    if result.strays:
        screen.line(f"{result.strays:,} derived rows without an entry deleted")
    if moved:
        screen.line(
            f"{result.moved:,} vectors moved to Chroma, {result.pruned:,} of erased entries deleted there"
        )
    if result.left:
        screen.line(f"{result.left:,} entries were refused by the embedder", "red")
