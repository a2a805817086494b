"""Commands about prompts: render one and keep it, compare two, ask why something is in it, make it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from acms.cli import render
from acms.cli.base import At, File, Limit, Session, Shell, app, command, interruptible, write_file
from acms.cli.render import Column, Screen
from acms.errors import EntryNotFoundError, ValidationError
from acms.log.encoding import parts_from_json, parts_to_json
from acms.log.in_force import preview_text
from acms.model import Json, Media, Privacy, Reasoning, Role, ToolCall, ToolResult
from acms.model import Text as Words
from acms.ports import Codec
from acms.prompt.manifest import Manifest, Sent
from acms.prompt.manifest_writer import ledger_of_manifest
from acms.prompt.replay import replay as replayed
from acms.prompt.replay import replay_messages as messages_of
from acms.prompt_types import PromptMessage, RenderDetails
from acms.results import Verdict
from acms.text.chat_messages import EXCERPTS, MORE_EXCERPTS

if TYPE_CHECKING:
    from acms.prompt.render import Rendered

FORMAT = 1
"""Version of the file that `--save` writes."""

prompt = typer.Typer(
    help="Render a prompt, compare two, ask why something is in one.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(prompt, name="prompt")


@dataclass(frozen=True)
class Kept:
    """A rendered prompt as a file holds it."""

    name: str
    manifest: Manifest
    payload: Mapping[str, Json]
    #: The messages that were given to the codec, in full.
    messages: tuple[PromptMessage, ...]


RECALLED = 4
"""Part of a budget that what the past says may have: one in so many."""


def _codec(name: str, model: str | None) -> Codec:
    from acms.providers import codecs

    return codecs.named(name, model)


@command(
    'acms prompt render user_123 "what did we choose?" --budget 8000 --save a.json',
    name="render",
    home=prompt,
)
async def render_prompt(
    shell: Shell,
    session: Session,
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="What the user asks now: recalled for, and put last."),
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", min=0, metavar="N", help="Tokens of the whole request.")
    ] = 8000,
    codec: Annotated[
        str,
        typer.Option("--codec", metavar="NAME", help="openai-chat, openai-responses, anthropic or gemini."),
    ] = "openai-chat",
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Model it is counted for.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What the model is told first.")
    ] = None,
    at: At = None,
    after: Annotated[
        Path | None,
        typer.Option(
            "--after", metavar="FILE", help="An earlier prompt: predict what the provider has cached of it."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Keep it, with its text, for the other commands."),
    ] = None,
) -> None:
    """Show the prompt that a model would get: rules, history, what the past says, and the query.

    Every message with its tokens and the versions of the log it shows. The line is drawn where what can be cached ends.
    """
    from acms.prompt.builder import Prompt

    made = Prompt(_codec(codec, model))
    earlier = None if after is None else _kept(after).manifest
    if system is not None:
        made = made.system(system)
    async with shell.looking(session, at) as view:
        made = made.history(view)
        if query is not None:
            made = made.recall(view, query, tokens=budget // RECALLED).user(query)
        found = await made.render(budget=budget, after=earlier)
        manifest = found.manifest
        kept = Kept(session, manifest, found.payload, await messages_of(manifest, view.storage))
    if save is not None:
        _save(save, kept)
    _show(shell, kept, found, query=query, budget=budget, earlier=earlier)


def _show(
    screen: Screen, kept: Kept, found: Rendered, *, query: str | None, budget: int, earlier: Manifest | None
) -> None:
    """Write a prompt that was rendered, for people or as JSON."""
    value = {
        "session": kept.name,
        "query": query,
        "tokens": found.tokens,
        "budget": budget,
        "cache": found.cache,
        "warnings": found.warnings,
        "payload": found.payload,
        "manifest": kept.manifest.to_json(),
    }
    screen.show(value, lambda: _draw(screen, kept, found, budget, earlier))


def _draw(screen: Screen, kept: Kept, found: Rendered, budget: int, earlier: Manifest | None) -> None:
    """Write the messages of a prompt, with a line where what can be cached ends, and what it cost."""
    manifest = kept.manifest
    stable = next((at for at, one in enumerate(manifest.messages) if one.moves), len(kept.messages))
    line, what = stable, "what is above stays the same next time"
    if earlier is not None:
        line = _shared(earlier.messages, manifest.messages)
        what = f"{found.cache.predicted_tokens} tokens are cached: {found.cache.reason}"
    rows = _rows(kept)
    screen.table(SHOWN, [*rows[:line], [f"── {what} ──", "", "", "", "", ""], *rows[line:]])
    screen.line(
        f"{_many(len(kept.messages))}, {_count(manifest.upper_bound)} of {_count(budget)} tokens "
        f"({found.tokens.exactness.value}), {manifest.codec} {manifest.model}{_versions(manifest)}",
        "dim",
    )
    for step in found.steps:
        screen.line(
            f"{step.strategy} {step.path}: {_count(step.before)} → {_count(step.after)} tokens", "dim"
        )
    if manifest.redactions:
        screen.line(_redacted(manifest), "dim")
    render.warn(screen, found.warnings)


@command("acms prompt diff monday.json tuesday.json", name="diff", home=prompt, namespace=None, db=False)
async def diff(shell: Shell, left: File, right: File) -> None:
    """Show two prompts side by side: what they share from the start, and what changed first.

    The shared beginning is what a provider can read from its cache.
    """
    from acms.prompt.cache_forecast import predict_cache

    one, other = _kept(left), _kept(right)
    codec = _codec(other.manifest.codec, other.manifest.model)
    cached = predict_cache(other.manifest, one.manifest, codec)
    shared = _shared(one.manifest.messages, other.manifest.messages)
    paid = cached.paid()
    grown = replace(cached, predicted_tokens=codec.cached(min(one.manifest.tokens, other.manifest.tokens)))
    price = max(0.0, paid - grown.paid())
    rows = list(_aligned(one, other))
    value = {
        "left": {"name": one.name, "tokens": one.manifest.tokens, "messages": len(one.messages)},
        "right": {"name": other.name, "tokens": other.manifest.tokens, "messages": len(other.messages)},
        "different": one.manifest.payload != other.manifest.payload,
        "shared_messages": shared,
        "cache": cached,
        "paid": round(paid),
        "break": round(price),
        "rows": [
            {"sign": sign, "left": _sent_json(one, a), "right": _sent_json(other, b)} for sign, a, b in rows
        ],
    }
    summary = (
        f"{_many(shared)} shared, {_count(cached.predicted_tokens)} tokens from a cache: {cached.reason}; "
        f"it costs {_count(round(paid))} tokens of uncached input, {_count(round(price))} of them for the break"
    )

    def draw() -> None:
        if shell.console is None:
            _unified(shell, one, other, rows, summary)
        else:
            shell.console.print(_beside(one, other, rows, shared))
            shell.line(summary, "dim")

    shell.show(value, draw)


@command("acms prompt why a.json v12", name="why", home=prompt, namespace=None, db=False)
async def why(
    shell: Shell,
    file: File,
    id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Of an entry; its version, as v12; a pin's key; a scope's path."),
    ],
) -> None:
    """Say why something is in a prompt, or why it is not.

    Every message, fact, pin and part of the prompt has an answer, with the rule that decided.
    """
    kept = _kept(file)
    found = ledger_of_manifest(lambda: kept.manifest)
    verdicts = [one for one in found if id in (one.id, f"v{one.version}")]
    if not verdicts:
        try:
            verdicts = [found.why(id)]
        except EntryNotFoundError as error:
            raise EntryNotFoundError(
                f"{kept.name} says nothing of {id!r}",
                options=(
                    "give the id of an entry, as `acms history --json` shows it",
                    "acms prompt why FILE prompt",
                ),
            ) from error
    value = {"file": kept.name, "id": id, "verdicts": verdicts}
    shell.show(value, lambda: shell.list(VERDICTS, verdicts))


@command("acms prompt replay a.json --db sqlite:///notes.db", name="replay", home=prompt, namespace=None)
async def replay(shell: Shell, file: File) -> None:
    """Make a prompt again from its manifest and the log, and check that it is the same, byte for byte.

    What was erased since cannot be made again: the error names it.
    """
    kept = _kept(file)
    codec = _codec(kept.manifest.codec, kept.manifest.model)
    async with shell.opened() as storage:
        payload = await replayed(kept.manifest, storage, codec)
    identical = payload == kept.payload
    if not identical:
        raise ValidationError(
            "the payload in the file is not the one its manifest describes: somebody has changed it",
            field="payload",
        )
    value = {
        "file": kept.name,
        "identical": True,
        "manifest": kept.manifest.digest,
        "payload": kept.manifest.payload,
    }
    count = len(kept.manifest.entries)
    shell.show(
        value,
        lambda: shell.line(
            f"identical: {_many(len(kept.messages))} from {count} entries, {value['payload']}"
        ),
    )


@command("acms prompt log user_123", name="log", home=prompt)
async def log(
    shell: Shell,
    session: Session,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="One of them: what it showed, message by message.")
    ] = None,
    limit: Limit = 20,
    clear: Annotated[bool, typer.Option("--clear", help="Delete what was kept.")] = False,
) -> None:
    """Show what was really sent, newest first: prompts, messages, replies.

    It is kept where the service runs with --renders or ACMS_RENDERS_ENABLED is set.
    """
    async with shell.reading(session) as one:
        if clear:
            await one.forget_renders()
            shell.show({"session": session, "cleared": True}, lambda: shell.line("nothing is kept any more"))
        elif id is None:
            found = await one.renders(limit=limit)
            value = {"session": session, "renders": found}
            shell.show(value, lambda: shell.list(LOGGED, found))
        else:
            details = await one.sent(id)
            left = [verdict for verdict in details.verdicts if not verdict.included]
            shell.show({"session": session, "render": details}, lambda: _sent(shell, details, left))


def _sent(screen: Screen, details: RenderDetails, left: Sequence[Verdict]) -> None:
    screen.list(BLOCKS, details.blocks)
    screen.list(VERDICTS, left)
    if details.cache is not None:
        screen.line(
            f"{_count(details.tokens)} tokens, {_count(details.cache.predicted_tokens)} from a cache: "
            f"{details.cache.reason}",
            "dim",
        )


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _save(file: Path, kept: Kept) -> None:
    written = {
        "acms_prompt": FORMAT,
        "manifest": kept.manifest.to_json(),
        "payload": kept.payload,
        "messages": [
            {"role": one.role.value, "name": one.name, "parts": parts_to_json(one.parts)}
            for one in kept.messages
        ],
    }
    write_file(file, json.dumps(written, ensure_ascii=False))


def _kept(file: Path) -> Kept:
    name = "-" if file.name == "-" else str(file)
    try:
        with interruptible():
            text = typer.get_text_stream("stdin").read() if name == "-" else file.read_text(encoding="utf-8")
        written = json.loads(text)
        if written["acms_prompt"] != FORMAT:
            raise ValidationError(
                f"has format {written['acms_prompt']!r}, this release reads {FORMAT}", field=name
            )
        messages = tuple(
            [
                PromptMessage(role=Role(one["role"]), name=one["name"], parts=parts_from_json(one["parts"]))
                for one in written["messages"]
            ]
        )
        return Kept(name, Manifest.from_json(written["manifest"]), written["payload"], messages)
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=name) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValidationError(
            "is no written prompt", field=name, options=("acms prompt render SESSION --save FILE",)
        ) from error


# ── what is drawn ───────────────────────────────────────────────────────────────────────────────────────────────────

SHOWN = (
    Column("text", wide=True),
    Column("role", "yellow"),
    Column("tokens", right=True),
    Column("log", "cyan"),
    Column("from", "magenta"),
    Column("#", right=True),
)

LOGGED = (
    Column("reason", wide=True, of=lambda one: one.cache.reason if one.cache else ""),
    Column("id", "cyan"),
    Column("kind", "yellow"),
    Column("at", of="created_at"),
    Column("log", "cyan", of=render.version),
    Column("tokens", right=True),
    Column("cached", right=True, of=lambda one: one.cache.predicted_tokens if one.cache else None),
    Column("lost", right=True),
)

BLOCKS = (
    Column("text", wide=True, of=lambda one: preview_text(one.text or f"({one.part}: not kept)", 160)),
    Column("role", "yellow"),
    Column("tokens", right=True),
    Column("part", "magenta"),
    Column("change"),
)

VERDICTS = (
    Column("reason", wide=True),
    Column("decision", of=render.decision),
    Column("what", "cyan", of=lambda one: f"v{one.version} {one.id}" if one.version else one.id),
    Column("rule", "magenta"),
    Column("score", "green", right=True, of=lambda one: one.score or None),
    Column("tokens", right=True),
)


def _rows(kept: Kept) -> list[list[str]]:
    return [
        [
            preview_text(_one_line(message), 160),
            sent.role.value,
            _count(sent.tokens),
            _place(sent),
            sent.path.rpartition("/")[2]
            + ("" if sent.rendition in ("whole", "pieces") else f" ({sent.rendition})"),
            str(number),
        ]
        for number, (sent, message) in enumerate(zip(kept.manifest.messages, kept.messages, strict=True), 1)
    ]


def _count(tokens: int) -> str:
    return f"{tokens:,}"


def _place(sent: Sent) -> str:
    """Return which versions of the log a message shows."""
    if sent.first:
        return f"v{sent.first}" if sent.first == sent.last else f"v{sent.first}-v{sent.last}"
    return f"{len(sent.sources)} entries" if len(sent.sources) > 1 else "".join(sent.sources)


def _redacted(manifest: Manifest) -> str:
    """Return how many entries are not shown as they were stored, and what was taken out."""
    counts: Counter[str] = Counter()
    for one in manifest.redactions:
        counts.update(dict(one.kinds))
    blocked = sum(one.mode is Privacy.BLOCK for one in manifest.redactions)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    parts = [f"{len(manifest.redactions) - blocked} redacted" + (f" ({kinds})" if kinds else "")]
    return f"privacy: {', '.join([*parts, f'{blocked} withheld'] if blocked else parts)}"


def _versions(manifest: Manifest) -> str:
    found = ", ".join(dict.fromkeys(f"v{read.version}" for read in manifest.reads))
    return f", log at {found}" if found else ""


def _one_line(message: PromptMessage) -> str:
    """Return what a message says on one line, calls and results included, without what every recall begins with."""
    said: list[str] = []
    for part in message.parts:
        match part:
            case Words(text):
                said.append(text.replace(EXCERPTS, "", 1).replace(MORE_EXCERPTS, "", 1))
            case Reasoning(text):
                said.append(f"({text})")
            case ToolCall(_, name, arguments):
                said.append(f"→ {name}({arguments})")
            case ToolResult(_, output):
                said.append(f"← {output}")
            case Media(mime, ref):
                said.append(f"[{mime}: {ref}]")
            case _:  # a vendor's own
                said.append(f"[{part.vendor}]")
    return " ".join(said)


def _shared(left: Sequence[Sent], right: Sequence[Sent]) -> int:
    """Return how many messages two prompts share from the start."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one.hash != other.hash:
            return place
    return min(len(left), len(right))


Row = tuple[str, int | None, int | None]
"""How two prompts stand beside each other: a sign, and the place of a message in each."""


def _aligned(one: Kept, other: Kept) -> list[Row]:
    left = [sent.hash for sent in one.manifest.messages]
    right = [sent.hash for sent in other.manifest.messages]
    rows: list[Row] = []
    for tag, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += [(" ", x, y) for x, y in zip(range(a, b), range(c, d), strict=True)]
            continue
        both = min(b - a, d - c)
        rows += [("!", a + n, c + n) for n in range(both)]
        rows += [("-", n, None) for n in range(a + both, b)]
        rows += [("+", None, n) for n in range(c + both, d)]
    return rows


def _sent_json(kept: Kept, place: int | None) -> Json:
    if place is None:
        return None
    sent = kept.manifest.messages[place]
    return {
        "message": place + 1,
        "path": sent.path,
        "role": sent.role.value,
        "tokens": sent.tokens,
        "sources": list(sent.sources),
        "text": _one_line(kept.messages[place]),
    }


def _line(kept: Kept, place: int, length: int) -> str:
    sent = kept.manifest.messages[place]
    head = " ".join(
        filter(
            None,
            (str(place + 1), sent.role.value, f"[{_count(sent.tokens)}]", _place(sent) if sent.first else ""),
        )
    )
    return f"{head} {preview_text(_one_line(kept.messages[place]), length)}"


def _title(kept: Kept) -> str:
    return f"{kept.name} ({kept.manifest.codec} {kept.manifest.model}, {_count(kept.manifest.tokens)} tokens)"


def _unified(screen: Screen, one: Kept, other: Kept, rows: Sequence[Row], summary: str) -> None:
    screen.line(f"--- {_title(one)}")
    screen.line(f"+++ {_title(other)}")
    screen.line(f"@@ {summary} @@")
    for sign, a, b in _folded(rows):
        if sign == FOLD:
            screen.line(f"  … {_many(a or 0)} the same")
            continue
        if sign == " " and b is not None:
            screen.line(f"  {_line(other, b, 160)}")
            continue
        if a is not None:
            screen.line(f"- {_line(one, a, 160)}")
        if b is not None:
            screen.line(f"+ {_line(other, b, 160)}")


FOLD = "~"
"""Sign of a row that stands for messages which are the same: their number is in the place of the first."""
CONTEXT = 2
"""Messages that are the same which a comparison shows before and after a change."""


def _folded(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows with long runs of the same messages folded."""
    near = [False] * len(rows)
    for place, (sign, _, _) in enumerate(rows):
        if sign != " ":
            low, high = max(0, place - CONTEXT), min(len(rows), place + CONTEXT + 1)
            near[low:high] = [True] * (high - low)
    place = 0
    while place < len(rows):
        end = place
        while end < len(rows) and not near[end]:
            end += 1
        if end - place > 1:
            yield FOLD, end - place, None
            place = end
        else:
            yield rows[place]
            place += 1


def _many(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"


def _beside(one: Kept, other: Kept, rows: Sequence[Row], shared: int) -> Table:
    table = Table(box=render.ROUNDED, header_style="bold", border_style="dim", expand=True)
    for kept in (one, other):
        table.add_column(render.clean(_title(kept)), ratio=1, overflow="fold")
    styles = {" ": "dim", "!": "yellow", "-": "red", "+": "green"}
    for sign, a, b in _folded(rows):
        if sign == FOLD:
            table.add_row(*[Text(f"… {_many(a or 0)} the same", style="dim")] * 2)
            continue
        cells = [
            "" if at is None else f"{sign} {_line(kept, at, 300)}" for kept, at in ((one, a), (other, b))
        ]
        last = b is not None and b == shared - 1
        table.add_row(*[Text(render.clean(cell), style=styles[sign]) for cell in cells], end_section=last)
    return table
