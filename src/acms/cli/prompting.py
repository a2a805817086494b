"""Commands for prompts: render and save one, compare two, explain a decision, replay one."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from acms.cli import output
from acms.cli.base import At, File, Limit, Session, Shell, allow_interrupt, app, define_command, write_file
from acms.cli.output import Column, Screen, count_noun
from acms.errors import EntryNotFoundError, NotFoundError, ValidationError
from acms.log.active_entries import preview_text
from acms.log.encoding import parts_from_json, parts_to_json
from acms.model import Json, Media, Privacy, Reasoning, Role, ToolCall, ToolResult
from acms.model import Text as MessageText
from acms.ports import Codec
from acms.prompt.manifest import Manifest, Sent
from acms.prompt.manifest_writer import ledger_of_manifest
from acms.prompt.replay import replay, replay_messages
from acms.prompt_types import PromptMessage, RenderDetails
from acms.results import Verdict
from acms.session import ACMS
from acms.text.chat_messages import EXPLANATIONS

if TYPE_CHECKING:
    from acms.prompt.render import Rendered

FORMAT = 1
"""Version of the file that `--save` writes."""

prompt = typer.Typer(
    help="Render, compare, explain and replay prompts.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(prompt, name="prompt")


@dataclass(frozen=True)
class SavedPrompt:
    """A rendered prompt that a file can store."""

    name: str
    manifest: Manifest
    payload: Mapping[str, Json]
    #: The full input messages of the codec.
    messages: tuple[PromptMessage, ...]

    def pair_messages(self) -> Iterator[tuple[Sent, PromptMessage]]:
        """Yield each message with its record in the manifest."""
        return zip(self.manifest.messages, self.messages, strict=True)


def _create_codec(name: str, model: str | None) -> Codec:
    from acms.providers import codecs

    return codecs.named(name, model)


QueryArgument = Annotated[
    str | None,
    typer.Argument(metavar="[QUERY]", help="Current user message: the recall query and the last message."),
]
BudgetOption = Annotated[
    int, typer.Option("--budget", min=0, metavar="N", help="Token budget of the whole request.")
]
CodecOption = Annotated[
    str,
    typer.Option("--codec", metavar="NAME", help="openai-chat, openai-responses, anthropic or gemini."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Model whose tokens are counted.")
]
SystemOption = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")]
AfterOption = Annotated[
    Path | None,
    typer.Option(
        "--after",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Saved earlier prompt, to predict cache hits.",
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Save the prompt for the other commands."),
]


@define_command(
    "render",
    'acms prompt render user_123 "what did we choose?" --budget 8000 --save a.json',
    group=prompt,
)
async def render_prompt(
    shell: Shell,
    session: Session,
    query: QueryArgument = None,
    budget: BudgetOption = 8000,
    codec: CodecOption = "openai-chat",
    model: ModelOption = None,
    system: SystemOption = None,
    at: At = None,
    after: AfterOption = None,
    save: SaveOption = None,
) -> None:
    """Show the prompt for a model: rules, history, recalled excerpts and the query.

    Prints each message with its tokens and log versions. A line marks the end of the cacheable part.
    """
    from acms.prompt.builder import Prompt

    if query is not None and not query.strip():
        raise ValidationError(
            "must not be blank", field="query", options=("leave it out for the newest messages alone",)
        )
    builder = Prompt(_create_codec(codec, model))
    earlier = None if after is None else _load_prompt(after).manifest
    if system is not None:
        builder = builder.system(system)
    async with shell.open_view(session, at) as view:
        builder = builder.history(view)
        if query is not None:
            recall_budget = budget // 4  # most of the request stays free for the history
            builder = builder.recall(view, query, tokens=recall_budget).user(query)
        rendered = await builder.render(budget=budget, after=earlier)
        messages = await replay_messages(rendered.manifest, view.storage)
    prompt = SavedPrompt(session, rendered.manifest, rendered.payload, messages)
    if save is not None:
        _save_prompt(save, prompt)
    value = {
        "session": session,
        "query": query,
        "tokens": rendered.tokens,
        "budget": budget,
        "cache": rendered.cache,
        "warnings": rendered.warnings,
        "payload": rendered.payload,
        "manifest": rendered.manifest.to_json(),
    }
    shell.show(value, lambda: _draw_prompt(shell, prompt, rendered, budget, earlier))


def _draw_prompt(
    screen: Screen, prompt: SavedPrompt, rendered: Rendered, budget: int, earlier: Manifest | None
) -> None:
    """Write the messages, the end of the cacheable part, the cost and the warnings."""
    manifest = prompt.manifest
    if earlier is None:
        boundary = _count_stable(manifest.messages)
        label = "what is above stays the same next time"
    else:
        boundary = _count_shared(earlier.messages, manifest.messages)
        label = f"{rendered.cache.predicted_tokens} tokens are cached: {rendered.cache.reason}"
    rows = _message_rows(prompt)
    rows.insert(boundary, [f"── {label} ──", "", "", "", "", ""])
    screen.table(SHOWN, rows)
    count = count_noun(len(prompt.messages), "message")
    model = f"{manifest.codec} {manifest.model}{_log_versions(manifest)}"
    screen.line(
        f"{count}, {manifest.upper_bound:,} of {budget:,} tokens ({rendered.tokens.exactness.value}), {model}",
        "dim",
    )
    for step in rendered.steps:
        screen.line(f"{step.strategy} {step.path}: {step.before:,} → {step.after:,} tokens", "dim")
    if manifest.redactions:
        screen.line(_redaction_summary(manifest), "dim")
    output.write_warnings(screen, rendered.warnings)


@define_command("diff", "acms prompt diff monday.json tuesday.json", group=prompt, namespace=None, db=False)
async def diff_prompts(shell: Shell, left: File, right: File) -> None:
    """Compare two prompts: the shared beginning and the first change.

    A provider can read the shared beginning from its cache.
    """
    from acms.prompt.cache_forecast import predict_cache

    left_prompt, right_prompt = _load_prompt(left), _load_prompt(right)
    codec = _create_codec(right_prompt.manifest.codec, right_prompt.manifest.model)
    cache = predict_cache(right_prompt.manifest, left_prompt.manifest, codec)
    shared = _count_shared(left_prompt.manifest.messages, right_prompt.manifest.messages)
    paid = cache.paid()
    # The price of the break is the difference to a prompt that only grew at its end, so that nothing was read again.
    common_tokens = min(left_prompt.manifest.tokens, right_prompt.manifest.tokens)
    unbroken = replace(cache, predicted_tokens=codec.cached(common_tokens))
    price = max(0.0, paid - unbroken.paid())
    rows = _align_messages(left_prompt, right_prompt)
    value = {
        "left": _prompt_json(left_prompt),
        "right": _prompt_json(right_prompt),
        "different": left_prompt.manifest.payload != right_prompt.manifest.payload,
        "shared_messages": shared,
        "cache": cache,
        "paid": round(paid),
        "break": round(price),
        "rows": [
            {
                "sign": row.sign,
                "left": _message_json(left_prompt, row.left),
                "right": _message_json(right_prompt, row.right),
            }
            for row in rows
        ],
    }
    summary = (
        f"{count_noun(shared, 'message')} shared, {cache.predicted_tokens:,} tokens from a cache: {cache.reason}; "
        f"it costs {round(paid):,} tokens of uncached input, {round(price):,} of them because the cache breaks"
    )

    def draw() -> None:
        if shell.console is None:
            _draw_unified(shell, left_prompt, right_prompt, rows, summary)
        else:
            shell.console.print(_build_side_by_side(left_prompt, right_prompt, rows, shared))
            shell.line(summary, "dim")

    shell.show(value, draw)


def _prompt_json(prompt: SavedPrompt) -> dict[str, Json]:
    return {"name": prompt.name, "tokens": prompt.manifest.tokens, "messages": len(prompt.messages)}


@define_command("why", "acms prompt why a.json v12", group=prompt, namespace=None, db=False)
async def explain_decision(
    shell: Shell,
    file: File,
    id: Annotated[
        str,
        typer.Argument(metavar="ID", help="An entry's id or version (v12), a pin's key, or a scope's path."),
    ],
) -> None:
    """Explain why something is in a prompt or not.

    Prints the decision and its rule for a message, fact, pin or part of the prompt.
    """
    prompt = _load_prompt(file)
    ledger = ledger_of_manifest(lambda: prompt.manifest)
    verdicts = [verdict for verdict in ledger if id in (verdict.id, f"v{verdict.version}")]
    if not verdicts:
        try:
            verdicts = [ledger.why(id)]
        except EntryNotFoundError as error:
            raise EntryNotFoundError(
                f"{prompt.name} has no verdict on {id!r}",
                options=(
                    "give the id of an entry, as `acms history --json` shows it",
                    "acms prompt why FILE prompt",
                ),
            ) from error
    value = {"file": prompt.name, "id": id, "verdicts": verdicts}
    shell.show_list(value, VERDICTS, verdicts)


@define_command("replay", "acms prompt replay a.json --db sqlite:///notes.db", group=prompt, namespace=None)
async def replay_prompt(shell: Shell, file: File) -> None:
    """Rebuild a prompt from its manifest and the log, and check that it is identical.

    Erased entries cannot be rebuilt; the error names them.
    """
    prompt = _load_prompt(file)
    manifest = prompt.manifest
    codec = _create_codec(manifest.codec, manifest.model)
    async with shell.open_store() as storage:
        payload = await replay(manifest, storage, codec)
    if payload != prompt.payload:
        raise ValidationError(
            "the payload in the file does not match its manifest: the file was changed",
            field="payload",
        )
    value = {
        "file": prompt.name,
        "identical": True,
        "manifest": manifest.digest,
        "payload": manifest.payload,
    }
    count = count_noun(len(prompt.messages), "message")
    message = f"identical: {count} from {count_noun(len(manifest.entries), 'entry')}, {manifest.payload}"
    shell.show_line(value, message)


@define_command("log", "acms prompt log user_123", group=prompt)
async def list_renders(
    shell: Shell,
    session: Session,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of a request, to show its messages.")
    ] = None,
    limit: Limit = 20,
    clear: Annotated[bool, typer.Option("--clear", help="Delete the stored requests.")] = False,
) -> None:
    """List the stored requests and replies, newest first.

    Requests are stored by a service with --renders or ACMS_RENDERS_ENABLED.
    """
    async with shell.open_session(session) as reader:
        if clear:
            await reader.forget_renders()
            shell.show_line({"session": session, "cleared": True}, "the stored requests are deleted")
        elif id is None:
            renders = await reader.renders(limit=limit)
            value = {"session": session, "renders": renders}
            if_empty = "no requests are stored; acms serve --renders stores them"
            shell.show_list(value, LOGGED, renders, if_empty=if_empty)
        else:
            details = await _read_render(reader, session, id)
            shell.show({"session": session, "render": details}, lambda: _draw_render(shell, details))


async def _read_render(reader: ACMS, session: str, id: str) -> RenderDetails:
    """Return a stored request; the error for an unknown id names the command that lists them."""
    try:
        return await reader.sent(id)
    except NotFoundError as error:
        command = shlex.join(["acms", "prompt", "log", session])
        raise NotFoundError(str(error), options=(f"{command} lists the stored requests",)) from error


def _draw_render(screen: Screen, details: RenderDetails) -> None:
    screen.list(BLOCKS, details.blocks)
    screen.list(VERDICTS, [verdict for verdict in details.verdicts if not verdict.included])
    if details.cache is not None:
        cached = f"{details.cache.predicted_tokens:,} from a cache: {details.cache.reason}"
        screen.line(f"{details.tokens:,} tokens, {cached}", "dim")


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _save_prompt(file: Path, prompt: SavedPrompt) -> None:
    messages = [
        {"role": message.role.value, "name": message.name, "parts": parts_to_json(message.parts)}
        for message in prompt.messages
    ]
    value = {
        "acms_prompt": FORMAT,
        "manifest": prompt.manifest.to_json(),
        "payload": prompt.payload,
        "messages": messages,
    }
    write_file(file, json.dumps(value, ensure_ascii=False))


def _load_prompt(file: Path) -> SavedPrompt:
    name = str(file)
    try:
        with allow_interrupt():
            text = typer.get_text_stream("stdin").read() if name == "-" else file.read_text(encoding="utf-8")
        return _parse_prompt(name, json.loads(text))
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=name) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValidationError(
            "is not a saved prompt", field=name, options=("acms prompt render SESSION --save FILE",)
        ) from error


def _parse_prompt(name: str, value: Any) -> SavedPrompt:
    version = value["acms_prompt"]
    if version != FORMAT:
        raise ValidationError(f"has format {version!r}, this release reads {FORMAT}", field=name)
    messages: list[PromptMessage] = []
    for message in value["messages"]:
        parts = parts_from_json(message["parts"])
        messages.append(PromptMessage(role=Role(message["role"]), name=message["name"], parts=parts))
    manifest = Manifest.from_json(value["manifest"])
    return SavedPrompt(name, manifest, value["payload"], tuple(messages))


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SHOWN = (
    Column("text", wide=True),
    Column("role", "yellow"),
    Column("tokens", align_right=True),
    Column("log", "cyan"),
    Column("from", "magenta"),
    Column("#", align_right=True),
)

LOGGED = (
    Column("reason", wide=True, value=lambda record: record.cache.reason if record.cache else ""),
    Column("id", "cyan"),
    Column("kind", "yellow"),
    Column("at", value="created_at"),
    Column("log", "cyan", value=output.format_version),
    Column("tokens", align_right=True),
    Column(
        "cached",
        align_right=True,
        value=lambda record: record.cache.predicted_tokens if record.cache else None,
    ),
    Column("lost", align_right=True),
)

BLOCKS = (
    Column(
        "text", wide=True, value=lambda block: preview_text(block.text or f"({block.part}: not kept)", 160)
    ),
    Column("role", "yellow"),
    Column("tokens", align_right=True),
    Column("part", "magenta"),
    Column("change"),
)


def _verdict_subject(verdict: Verdict) -> str:
    return f"v{verdict.version} {verdict.id}" if verdict.version else verdict.id


VERDICTS = (
    Column("reason", wide=True),
    Column("decision", value=output.decision_label),
    Column("what", "cyan", value=_verdict_subject),
    Column("rule", "magenta"),
    Column("score", "green", align_right=True, value=lambda verdict: verdict.score or None),
    Column("tokens", align_right=True),
)


def _message_rows(prompt: SavedPrompt) -> list[list[str]]:
    rows: list[list[str]] = []
    for number, (record, message) in enumerate(prompt.pair_messages(), 1):
        scope = record.path.rpartition("/")[2]
        if record.rendition not in ("whole", "pieces"):
            scope = f"{scope} ({record.rendition})"
        text = preview_text(_message_text(message), 160)
        rows.append([text, record.role.value, f"{record.tokens:,}", _log_range(record), scope, str(number)])
    return rows


def _count_stable(messages: Sequence[Sent]) -> int:
    """Return the number of messages before the first one that changes from turn to turn."""
    for index, message in enumerate(messages):
        if message.moves:
            return index
    return len(messages)


def _log_range(record: Sent) -> str:
    """Return the versions of the log in a message, or its sources if it has no versions."""
    if not record.first:
        sources = record.sources
        return count_noun(len(sources), "entry") if len(sources) > 1 else "".join(sources)
    if record.first == record.last:
        return f"v{record.first}"
    return f"v{record.first}-v{record.last}"


def _redaction_summary(manifest: Manifest) -> str:
    """Return the numbers of redacted and withheld entries, and of the redacted values by kind."""
    counts: Counter[str] = Counter()
    blocked = 0
    for redaction in manifest.redactions:
        counts.update(dict(redaction.kinds))
        blocked += redaction.mode is Privacy.BLOCK
    summary = f"privacy: {len(manifest.redactions) - blocked} redacted"
    if counts:
        kinds = [f"{count} {kind}" for kind, count in sorted(counts.items())]
        summary += f" ({', '.join(kinds)})"
    if blocked:
        summary += f", {blocked} withheld"
    return summary


def _log_versions(manifest: Manifest) -> str:
    versions = dict.fromkeys(f"v{log_read.version}" for log_read in manifest.reads)
    return f", log at {', '.join(versions)}" if versions else ""


def _message_text(message: PromptMessage) -> str:
    """Return a message with its calls and results, without the introduction of recalled excerpts."""
    texts: list[str] = []
    for part in message.parts:
        match part:
            case MessageText(text):
                for explanation in EXPLANATIONS:
                    text = text.replace(explanation, "", 1)
                texts.append(text)
            case Reasoning(text):
                texts.append(f"({text})")
            case ToolCall(_, name, arguments):
                texts.append(f"→ {name}({arguments})")
            case ToolResult(_, output):
                texts.append(f"← {output}")
            case Media(mime, ref):
                texts.append(f"[{mime}: {ref}]")
            case _:  # a part of one vendor
                texts.append(f"[{part.vendor}]")
    return " ".join(texts)


def _count_shared(left: Sequence[Sent], right: Sequence[Sent]) -> int:
    """Return the number of messages that two prompts share from the start."""
    count = 0
    for left_message, right_message in zip(left, right, strict=False):
        if left_message.hash != right_message.hash:
            break
        count += 1
    return count


class Row(NamedTuple):
    """One row of a comparison: a sign, and the index of a message on each side."""

    sign: Literal[" ", "!", "-", "+", "~"]
    left: int | None
    right: int | None
    #: Number of equal messages that a folded row ("~") replaces.
    folded: int = 0


def _align_messages(left_prompt: SavedPrompt, right_prompt: SavedPrompt) -> list[Row]:
    left_hashes = [record.hash for record in left_prompt.manifest.messages]
    right_hashes = [record.hash for record in right_prompt.manifest.messages]
    matcher = SequenceMatcher(None, left_hashes, right_hashes, autojunk=False)
    rows: list[Row] = []
    for tag, left_start, left_end, right_start, right_end in matcher.get_opcodes():
        sign: Literal[" ", "!"] = " " if tag == "equal" else "!"
        pairs = min(left_end - left_start, right_end - right_start)
        rows += [Row(sign, left_start + offset, right_start + offset) for offset in range(pairs)]
        rows += [Row("-", index, None) for index in range(left_start + pairs, left_end)]
        rows += [Row("+", None, index) for index in range(right_start + pairs, right_end)]
    return rows


def _message_json(prompt: SavedPrompt, index: int | None) -> Json:
    if index is None:
        return None
    record = prompt.manifest.messages[index]
    return {
        "message": index + 1,
        "path": record.path,
        "role": record.role.value,
        "tokens": record.tokens,
        "sources": list(record.sources),
        "text": _message_text(prompt.messages[index]),
    }


def _message_line(prompt: SavedPrompt, index: int, length: int) -> str:
    record = prompt.manifest.messages[index]
    heading = f"{index + 1} {record.role.value} [{record.tokens:,}]"
    if record.first:
        heading = f"{heading} {_log_range(record)}"
    return f"{heading} {preview_text(_message_text(prompt.messages[index]), length)}"


def _prompt_title(prompt: SavedPrompt) -> str:
    manifest = prompt.manifest
    return f"{prompt.name} ({manifest.codec} {manifest.model}, {manifest.tokens:,} tokens)"


def _draw_unified(
    screen: Screen, left_prompt: SavedPrompt, right_prompt: SavedPrompt, rows: Sequence[Row], summary: str
) -> None:
    screen.line(f"--- {_prompt_title(left_prompt)}")
    screen.line(f"+++ {_prompt_title(right_prompt)}")
    screen.line(f"@@ {summary} @@")
    for row in _fold_rows(rows):
        if row.folded:
            screen.line(f"  … {count_noun(row.folded, 'message')} the same")
            continue
        if row.sign == " " and row.right is not None:
            screen.line(f"  {_message_line(right_prompt, row.right, 160)}")
            continue
        if row.left is not None:
            screen.line(f"- {_message_line(left_prompt, row.left, 160)}")
        if row.right is not None:
            screen.line(f"+ {_message_line(right_prompt, row.right, 160)}")


def _fold_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows; runs of equal messages away from changes become one folded row."""
    context = 2  # equal messages around a change: one exchange of user and assistant
    visible: set[int] = set()
    for index, row in enumerate(rows):
        if row.sign != " ":
            visible.update(range(index - context, index + context + 1))
    start = 0
    while start < len(rows):
        end = start
        while end < len(rows) and end not in visible:
            end += 1
        if end - start > 1:
            yield Row("~", None, None, folded=end - start)
            start = end
        else:
            yield rows[start]
            start += 1


_ROW_STYLES = {" ": "dim", "!": "yellow", "-": "red", "+": "green", "~": "dim"}


def _build_side_by_side(
    left_prompt: SavedPrompt, right_prompt: SavedPrompt, rows: Sequence[Row], shared: int
) -> Table:
    table = Table(box=output.ROUNDED, header_style="bold", border_style="dim", expand=True)
    for prompt in (left_prompt, right_prompt):
        title = output.strip_control_characters(_prompt_title(prompt))
        table.add_column(title, ratio=1, overflow="fold")
    for row in _fold_rows(rows):
        if row.folded:
            left_cell = right_cell = f"… {count_noun(row.folded, 'message')} the same"
        else:
            left_cell = "" if row.left is None else f"{row.sign} {_message_line(left_prompt, row.left, 300)}"
            right_cell = (
                "" if row.right is None else f"{row.sign} {_message_line(right_prompt, row.right, 300)}"
            )
        style = _ROW_STYLES[row.sign]
        cells = [Text(output.strip_control_characters(cell), style=style) for cell in (left_cell, right_cell)]
        is_last_shared = row.right is not None and row.right == shared - 1
        table.add_row(*cells, end_section=is_last_shared)
    return table
