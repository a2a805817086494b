"""Decisions are pure functions: what awaits, reads a clock, a file or chance is named here, module by module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conventions.code import module_files, parse_file

CAPABILITIES = (
    "branches", "compaction", "contract", "erasure", "events", "facts", "log", "plan", "privacy", "prompt", "recall",
    "text", "write",
)  # fmt: skip
NOUNS = ("errors", "knowledge", "model", "ports", "prompt_types", "results")
#: The modules of those capabilities that do I/O: jobs, pipelines, queues. This list only shrinks.
IO = """
    branches.copying branches.export branches.forks branches.limits branches.merge branches.restoring branches.witness
    branches.importing
    branches.importers.archives branches.importers.chat branches.importers.exports branches.importers.langgraph
    compaction.job
    compaction.provided
    contract.caller contract.engine contract.providers contract.session_source
    erasure.erase erasure.proof
    events.delivery events.follow events.pages events.webhooks
    facts.adopt facts.manual facts.job facts.request
    log.known_messages log.policy log.read
    privacy.rules privacy.scan privacy.redactor
    prompt.builder prompt.history.answers prompt.history.new_window prompt.history.placed prompt.history.reader
    prompt.history.cache_window prompt.history.stable_history prompt.messages prompt.pins
    prompt.render prompt.render_log prompt.replay prompt.resolve prompt.selected prompt.summaries
    recall.embeddings recall.filter_evaluation recall.index_cache recall.namespace recall.pipeline
    recall.reindex recall.asking_messages recall.citation_counts recall.reranker_calls recall.window
    write.queue write.retirement write.rewrite write.sync
""".split()

_MODULES = {
    "anyio", "asyncio", "io", "os", "random", "secrets", "socket", "sqlite3", "subprocess", "tempfile", "threading",
    "time", "uuid",
}  # fmt: skip
_FUNCTIONS = {"open", "print", "input", "breakpoint", "__import__"}
_METHODS = {"now", "utcnow", "today", "open", "read_text", "read_bytes", "write_text", "write_bytes"}


def _calls_out(node: ast.AST) -> bool:
    """Return whether a node calls a function or a method that reads a clock, a file or a terminal."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        return called.attr in _METHODS
    return isinstance(called, ast.Name) and called.id in _FUNCTIONS


def _impure_lines(file: Path) -> list[str]:
    """Return the lines of a module that are more than a computation."""
    found: list[str] = []
    for node in ast.walk(parse_file(file)):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        if (
            isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
            or {name.partition(".")[0] for name in imported} & _MODULES
            or _calls_out(node)
        ):
            found.append(f"{file.name}:{node.lineno} {ast.unparse(node).splitlines()[0]}")
    return found


_CHECKED = [name for name in module_files() if name.partition(".")[0] in CAPABILITIES or name in NOUNS]


@pytest.mark.parametrize("name", [name for name in _CHECKED if name not in IO])
def test_a_decision_awaits_nothing_and_asks_nobody(name: str) -> None:
    """No await, clock, file, thread or random number: the caller brings them."""
    assert _impure_lines(module_files()[name]) == []


def test_a_module_listed_as_io_does_some() -> None:
    assert not set(IO) - set(_CHECKED), "gone: take it off the list"
    pure = [name for name in IO if not _impure_lines(module_files()[name])]
    assert not pure, "pure now: take it off the list"
