"""The command that erases content: of messages, a session, a speaker or a namespace."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import typer

from acms.branches.forks import find_context_to_erase
from acms.cli.base import Shell, Yes, build_session, define_command, resolve_entry
from acms.cli.output import count_noun, shell_words, to_json_value
from acms.config import ACMSConfig
from acms.erasure.erase import erase_context, erase_entries, erase_subject
from acms.errors import CorruptRecordError, NotFoundError, ValidationError
from acms.log.policy import CompactionPolicy
from acms.log.validation import UNNAMED, require_same_namespace
from acms.model import Context
from acms.ports import Progress, StorageBackend
from acms.privacy.detect import safe_key
from acms.results import Erasure
from acms.session import ACMS

KEPT = {
    "source": "stays: the message that the fact was made from",
    "statement": "stays: a fact that was stated by hand and says the same",
    "quote": "stays: it repeats the text, or personal data in it, word for word",
    "copy": "stays: the original or another copy of it, or something made from one",
}
"""Messages for each kind of `Erasure.remaining`."""
PROVED = {
    "rows": "nothing of it is left in the rows of the store; no file was searched for what it said",
    "bytes": "nothing of it is left in the store, in no row and no byte of the files that held it",
}
"""Messages for each `Erasure.proof`."""
LISTED = 20
"""Remaining entries that a terminal shows: about one screen. --json lists all."""


SessionArgument = Annotated[
    str | None,
    typer.Argument(metavar="[SESSION]", help="Name of the session, or its id; a deleted one too."),
]
MessageOption = Annotated[
    list[str] | None,
    typer.Option("--message", metavar="ID", help="Id, key or version (v5) of an entry; repeatable."),
]
EverythingOption = Annotated[
    bool, typer.Option("--all", help="Erase all entries of the session, but no inherited ones.")
]
ActorOption = Annotated[
    str | None,
    typer.Option("--actor", metavar="NAME", help="Erase the messages of one speaker, in every session."),
]
WholeOption = Annotated[
    str | None, typer.Option("--namespace-all", metavar="NAME", help="Erase all sessions of a namespace.")
]
VerifyOption = Annotated[
    bool,
    typer.Option("--verify", help="Search for remaining copies and report how far the search reached."),
]
RewriteOption = Annotated[
    bool,
    typer.Option("--rewrite", help="Rewrite the file or the tables, so that no trace of the content stays."),
]
MissingOption = Annotated[
    bool,
    typer.Option("--missing-ok", help="Exit with 0 if nothing is found, such as for a repeated erasure."),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Namespace of the session.")
]


@define_command("erase", "acms erase user_123 --message ID --verify", namespace=None, resumes=True)
async def erase_content(
    shell: Shell,
    session: SessionArgument = None,
    message: MessageOption = None,
    everything: EverythingOption = False,
    actor: ActorOption = None,
    whole_namespace: WholeOption = None,
    verify: VerifyOption = False,
    rewrite: RewriteOption = False,
    missing_ok: MissingOption = False,
    yes: Yes = False,
    namespace: NamespaceOption = None,
) -> int:
    """Erase content permanently, in every fork; tombstones stay.

    Edits of the content and all summaries and facts made from it are erased too; the entries of such a summary are
    active again. Source messages of an erased fact, and the originals of merged or copied entries, stay and are listed.
    --verify also finds messages that were imported twice, and exits with 1 if anything is left. An actor or namespace
    of whom nothing is stored, or no longer, is an error unless --missing-ok is given. PostgreSQL keeps old
    row versions in its files until --rewrite, which locks the tables. Pinned values, stored summaries, vectors in
    Chroma and copies elsewhere are not reached; the output lists them.
    """
    target = _Target(
        session, actor, whole_namespace, namespace, messages=message or [], everything=everything
    )
    target.check()
    description = target.describe()
    shell.confirm(f"Erase {description}, and whatever was made from it? There is no way back.", yes)
    async with shell.open_store() as storage:
        context = None
        if session is not None:
            context = await find_context_to_erase(storage, session, namespace=namespace or UNNAMED)
            require_same_namespace(namespace or UNNAMED, context.namespace, session)
        with shell.progress("erasing") as report:
            options = _ErasureOptions(
                verify=verify,
                rewrite=rewrite,
                service=ACMSConfig.from_env().compaction,
                progress=report,
            )
            if context is None:
                erasure = await _erase_subject(storage, target, options)
            elif everything:
                erasure = await erase_context(storage, context.id, **options)
            else:
                ids = await _resolve_messages(storage, context, target.messages)
                erasure = await erase_entries(storage, context.id, ids, **options)
        if context is None and not erasure.ids and not missing_ok:
            raise NotFoundError(
                f"{description}: nothing was found to erase",
                options=(
                    "check the name and the namespace",
                    "--missing-ok if it may have been erased before",
                ),
            )
        owners = {entry.context: await storage.context(entry.context) for entry in erasure.remaining}
    shell.show(
        {"what": description, **to_json_value(erasure)},
        lambda: _draw_erasure(shell, description, erasure, owners),
    )
    unverified = verify and bool(erasure.ids) and not erasure.verified
    return 1 if erasure.residue or unverified else 0


class _ErasureOptions(TypedDict):
    """The options that all kinds of erasure take."""

    verify: bool
    rewrite: bool
    service: CompactionPolicy
    progress: Progress


async def _resolve_messages(storage: StorageBackend, context: Context, names: Sequence[str]) -> Sequence[str]:
    """Return the ids of named entries; a deleted session cannot be opened, so it knows only ids and keys."""
    if context.deleted_at is not None:
        return names
    async with build_session(storage, context, context.id) as session:
        return [await _resolve_message(storage, session, context, name) for name in names]


async def _resolve_message(storage: StorageBackend, session: ACMS, context: Context, name: str) -> str:
    """Return the id of a named entry; a damaged one, which a session does not read, must be erasable by its version."""
    try:
        return await resolve_entry(session, name)
    except CorruptRecordError:
        version = int(name[1:])
        (entry,) = await storage.read(context.id, after=version - 1, before=version + 1)
        return entry.id


async def _erase_subject(storage: StorageBackend, target: _Target, options: _ErasureOptions) -> Erasure:
    """Erase the messages of a speaker, or a namespace; an error about the namespace names the option."""
    try:
        return await erase_subject(storage, **target.subject(), **options)
    except ValidationError as error:
        if error.field != "namespace" or target.whole_namespace is None:
            raise
        raise ValidationError(
            str(error).removeprefix("namespace: "), field="namespace_all", options=error.options
        ) from error


@dataclass(frozen=True, slots=True)
class _Target:
    """The content to erase, as the options name it."""

    session: str | None
    actor: str | None
    whole_namespace: str | None
    namespace: str | None
    messages: Sequence[str]
    everything: bool

    def check(self) -> None:
        """Refuse options that do not name exactly one target."""
        targets = (self.session, self.actor, self.whole_namespace)
        if targets.count(None) != 2:
            raise typer.BadParameter("give SESSION, --actor or --namespace-all, and only one of them")
        has_messages = bool(self.messages)
        if self.session is not None and has_messages == self.everything:
            raise typer.BadParameter("give --message ID or --all", param_hint="SESSION")
        if self.session is None and (has_messages or self.everything):
            raise typer.BadParameter("--message and --all belong to a session", param_hint="SESSION")
        if self.whole_namespace is not None and self.namespace is not None:
            raise typer.BadParameter("already names a namespace", param_hint="--namespace-all")

    def describe(self) -> str:
        """Return the target for the confirmation."""
        if self.session is not None:
            count = "everything" if self.everything else count_noun(len(self.messages), "entry")
            return f"{count} of {self.session}"
        if self.whole_namespace is not None:
            return f"everything in namespace {self.whole_namespace}"
        namespaces = "every namespace" if self.namespace is None else f"namespace {self.namespace}"
        return f"everything {self.actor!r} said in {namespaces}"

    def subject(self) -> dict[str, str]:
        """Return the arguments of `erase_subject`."""
        namespace = self.namespace if self.whole_namespace is None else self.whole_namespace
        arguments = {"actor": self.actor, "namespace": namespace}
        return {name: value for name, value in arguments.items() if value is not None}


def _session_name(context: Context) -> str:
    """Return the name of a session, or the id if it has none or is deleted."""
    return context.key if context.key and context.deleted_at is None else context.id


def _draw_erasure(shell: Shell, description: str, erasure: Erasure, owners: Mapping[str, Context]) -> None:
    """Write the result; `owners` are the contexts of the entries that remain."""
    sessions = count_noun(len(erasure.contexts), "session")
    if erasure.ids:
        shell.line(
            f"{description}: erased {count_noun(len(erasure.ids), 'entry')} in {sessions},"
            f" {len(erasure.cascaded)} of them summaries and facts made from others"
        )
    else:
        shell.line(f"{description}: nothing was found to erase", "yellow")
        return
    for entry in erasure.remaining[:LISTED]:
        context = owners[entry.context]
        shell.line(f"{_session_name(context)} v{entry.version} {KEPT[entry.kind]}", "yellow")
        if shell.db is None or safe_key(shell.db):  # an address with a password is not printed
            shell.line(f"  to erase it too: {_erase_command(context, entry.id, shell.db)}", "yellow")
    unlisted = len(erasure.remaining) - LISTED
    if unlisted > 0:
        shell.line(f"{unlisted} more stay: --json lists them", "yellow")
    if erasure.rewritten:
        shell.line(f"written anew: {', '.join(erasure.rewritten)}")
    for residue in erasure.residue:
        shell.line(f"still there: {residue}", "red")
    if erasure.proof is not None and not erasure.residue:
        besides = "besides these entries, " if erasure.remaining else ""
        shell.line(f"{besides}{PROVED[erasure.proof]}", "yellow" if besides else "green")
    for copy in erasure.unreached:
        shell.line(f"not reached: {shell_words(copy)}")


def _erase_command(context: Context, entry: str, db: str | None) -> str:
    words = ["acms", "erase", _session_name(context), "--message", entry]
    if context.namespace != UNNAMED:
        words += ["--namespace", context.namespace]
    if db:
        words += ["--db", db]
    return shlex.join(words)
