"""Fit: reduce a prompt to its budget, or report why that is impossible.

Sections with a cap are reduced to it first, each as if it were a prompt of its own. Then, while the whole is over the
limit, sections shrink in the order of their priorities, the largest number first, children before parents. Each shrinks
in one step, as far as needed and possible; a section that cannot shrink is skipped. The cost of a message is counted
once, and again only when the message is cut, so the total time is proportional to the number of messages (decision
0037).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from acms.errors import FitError, PayloadError
from acms.model import Role
from acms.plan.nodes import (
    ComposedMessage,
    FittedPrompt,
    KeptEnd,
    MessageGroup,
    NeedSummary,
    Omission,
    PlacedMessage,
    Scope,
    Step,
    Truncate,
    Window,
)
from acms.plan.tool_groups import is_placeholder
from acms.ports import Codec
from acms.prompt.fit_state import LOWEST_RANK, Leaf, Section, build_section_tree, compose_message, end_to_keep
from acms.prompt.strategies import apply_strategy, cut_mandatory, drop_pieces, name_of_strategy
from acms.prompt_types import PromptMessage, Tool

Summarising: TypeAlias = Generator[NeedSummary, str | None, None]
"""A step that may ask for summaries."""

# Prompts have thousands of these: without keywords and defaults they are made in a third of the time.
_new_placement: Any = partial(tuple.__new__, PlacedMessage)
_new_omission: Any = partial(tuple.__new__, Omission)


def fit_prompt(
    tree: Scope, codec: Codec, limit: int | None, *, tools: Sequence[Tool] = (), budget: int | None = None
) -> Generator[NeedSummary, str | None, FittedPrompt]:
    """Fit a prompt into `limit` raw tokens, base included; with None, reduce only sections over their ceiling.

    Yield a request for each summary needed, to be answered with a text or None, and return the prompt. Raise `FitError`
    when the required content does not fit. `budget` is the caller's budget, named in the error.
    """
    fit = _Fit(tree, codec, limit, tools)
    yield from fit.run(budget)
    return fit.build_fitted()


class _Fit:
    """The sections of a prompt, and the steps taken to make it smaller."""

    def __init__(self, tree: Scope, codec: Codec, limit: int | None, tools: Sequence[Tool]) -> None:
        self._codec = codec
        self._tools = tools
        self._base = codec.base(tools)
        #: Raw tokens that all messages may have.
        self._limit = None if limit is None else limit - self._base
        self._root = build_section_tree(tree, codec, None if self._limit is None else max(0, self._limit))
        self._steps: list[Step] = []
        self._placed: list[PlacedMessage] = []
        self._omissions: list[Omission] = []
        self._summaries: list[tuple[str, str, int]] = []

    def run(self, budget: int | None) -> Summarising:
        """Shrink the sections until the prompt fits; raise `FitError` if it cannot."""
        root = self._root
        for section in list(root.sections()):
            section.floor = section.scope.floor
            if section.max_tokens is not None:
                section.floor = min(section.floor, section.max_tokens)
                yield from self._enforce_cap(section)
        if self._limit is None:
            return
        yield from self._shrink(root, self._limit)
        if root.tokens > self._limit:
            raise self._build_error(root.tokens - self._limit, self._limit + self._base, budget)

    # ── shrinking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _enforce_cap(self, section: Section) -> Summarising:
        """Shrink a section to its own cap and ceiling, as if it were a prompt of its own; `FitError` if it cannot.

        A cap is the limit of a truncate strategy, a ceiling the limit of the section itself. Inside a section with a
        cap, only sections shrink that would shrink no later than it in the whole prompt.
        """
        strategy = section.scope.strategy
        if isinstance(strategy, Truncate) and strategy.tokens is not None:
            yield from self._shrink(section, strategy.tokens, least_priority=section.scope.priority)
            for leaf in section.leaves():  # a cap leaves out even units that must stay
                if section.tokens > strategy.tokens and leaf.section.count_spare_tokens() >= leaf.tokens:
                    leaf.omit("truncate", "even cut it did not fit the cap")
        ceiling = section.scope.ceiling
        if ceiling is None or section.tokens <= ceiling:
            return
        yield from self._shrink(section, ceiling)
        if section.tokens > ceiling:
            tokens_before = self._root.tokens
            self._drop_first(section, ceiling)
            self._record_step(section, "ceiling", tokens_before)
        if section.tokens > ceiling:
            excess = section.tokens - ceiling
            raise FitError(
                f"{section.path} needs {section.tokens} tokens, {excess} more than its ceiling of {ceiling}",
                budget=ceiling,
                required=section.tokens,
                where=section.path,
                tried=self._describe_steps(),
                options=(
                    f"raise the ceiling of {section.path} to {section.tokens}",
                    *_suggest_options(section, excess),
                ),
            )

    def _drop_first(self, section: Section, ceiling: int) -> None:
        """Leave units and pieces out from the start, even without a strategy; mandatory units and the last one stay."""
        leaves = [leaf for leaf in section.leaves() if not leaf.gone]
        for leaf in leaves:
            if section.tokens > ceiling and isinstance(leaf.node, ComposedMessage):
                drop_pieces(section, leaf, ceiling, self._codec)
            if section.tokens <= ceiling:
                return
            is_optional = leaf is not leaves[-1] and not leaf.mandatory
            if is_optional and leaf.section.count_spare_tokens() >= leaf.tokens:
                leaf.omit(
                    "ceiling", f"its section may have {ceiling} tokens, and what comes first goes first"
                )

    def _shrink(self, area: Section, limit: int, *, least_priority: int | None = None) -> Summarising:
        """Shrink the sections of an area until it costs no more than `limit`, or none can shrink.

        With `least_priority` only sections of that priority number or a larger one shrink.
        """
        shrinking: list[Section] = []
        for section in area.sections():
            has_priority = least_priority is None or section.scope.priority >= least_priority
            if section.scope.strategy is not None and has_priority:
                shrinking.append(section)
        shrinking.sort(key=lambda section: -section.scope.priority)
        for section in shrinking:
            excess = area.tokens - limit
            if excess > 0:
                tokens_before = self._root.tokens
                yield from apply_strategy(section, excess, limit, self._codec)
                self._record_step(section, name_of_strategy(section), tokens_before)
        # Only when no strategy can do more: what must stay is cut, a last resort before the error.
        for section in shrinking:
            if area.tokens > limit:
                tokens_before = self._root.tokens
                cut_mandatory(section, area.tokens - limit, self._codec)
                self._record_step(section, name_of_strategy(section), tokens_before)

    def _record_step(self, section: Section, strategy: str, tokens_before: int) -> None:
        """Note that a strategy made the prompt smaller; `tokens_before` are the tokens of its messages until then."""
        tokens_after = self._root.tokens
        if tokens_after != tokens_before:
            base = self._base
            self._steps.append(
                Step(
                    section.path, section.scope.priority, strategy, base + tokens_before, base + tokens_after
                )
            )

    # ── the error ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _build_error(self, excess: int, limit: int, budget: int | None) -> FitError:
        """Return the error with the excess in tokens, the largest section, the steps tried, and suggested remedies."""
        tool_tokens = self._base - self._codec.base(()) if self._tools else 0
        if budget is None:
            budget, required = limit, limit + excess
        else:
            required = self._find_required_budget(budget, limit, excess)
        own_tokens = {section.path: _count_own_tokens(section) for section in self._root.sections()}
        where = max(own_tokens, key=lambda path: own_tokens[path])
        if tool_tokens > own_tokens[where]:
            where = "tools"
        options = [f"raise the budget by {required - budget}", *_suggest_options(self._root, excess)]
        if tool_tokens >= excess:
            options.append(f"offer fewer tools: they take {tool_tokens} tokens")
        return FitError(
            budget=budget,
            required=required,
            where=where,
            tried=self._describe_steps(),
            options=tuple(options),
        )

    def _find_required_budget(self, budget: int, limit: int, excess: int) -> int:
        """Return a budget whose limit is `excess` more: if the codec keeps a margin, the budget grows by more."""
        tool_tokens = self._base - self._codec.base(())
        required = budget + excess
        for _ in range(50):  # in case a codec's limit does not grow with the budget
            missing = limit + excess - self._codec.limit(required, tool_tokens)
            if missing <= 0:
                break
            required += missing
        return required

    def _describe_steps(self) -> tuple[str, ...]:
        return tuple(
            [
                f"{step.strategy} of {step.path} (priority {step.priority}): {step.before} → {step.after} tokens"
                for step in self._steps
            ]
        )

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def build_fitted(self) -> FittedPrompt:
        """Return the fitted prompt, with everything shown and everything omitted."""
        self._write_section(self._root)
        return FittedPrompt(
            tuple(self._placed),
            self._base + self._root.tokens,
            tuple(self._omissions),
            tuple(self._steps),
            tuple(self._summaries),
        )

    def _write_section(self, section: Section) -> None:
        """Record which content a section shows and which it omits."""
        strategy = section.scope.strategy
        is_window = isinstance(strategy, Window)
        # Uncounted messages stand at the end that is not kept: before all others, or after them.
        keeps_end = end_to_keep(section) is KeptEnd.END
        if keeps_end:
            self._write_uncounted(section, is_window=is_window)
        if section.has_new_summary:
            self._summaries.append((getattr(strategy, "id", ""), section.summary_text, section.covered_count))
        summary = section.summary
        if summary is not None and summary.messages and not summary.gone:
            message, number = summary.messages[0], len(self._placed)
            self._placed.append(
                PlacedMessage(message, section.path, "summary", summary.tokens, section.moves, number)
            )
        for part in section.parts:
            if isinstance(part, Section):
                self._write_section(part)
            elif isinstance(part.node, ComposedMessage):
                self._write_composed(part, part.node)
            else:
                self._write_group(part, part.node)
        if not keeps_end:
            self._write_uncounted(section, is_window=is_window)

    def _write_composed(self, leaf: Leaf, node: ComposedMessage) -> None:
        """Record which pieces of a composed message are shown and which are not."""
        if leaf.rule:
            self._omissions += self._list_omitted_pieces(leaf, node)
        if leaf.gone:
            return
        section, number = leaf.section, len(self._placed)
        message = leaf.messages[0] if leaf.messages else compose_message(node, leaf.pieces)
        kind = "cut" if leaf.is_cut else "pieces"
        self._placed.append(
            PlacedMessage(message, section.path, kind, leaf.tokens, section.moves, number, leaf.pieces)
        )

    def _list_omitted_pieces(self, leaf: Leaf, node: ComposedMessage) -> Iterator[Omission]:
        """Yield the pieces of a composed message that are not shown, or only in part."""
        shown_texts = {} if leaf.gone else {piece.id: piece.text for piece in leaf.pieces}
        for piece in node.pieces:
            text = shown_texts.get(piece.id)
            if text == piece.text:
                continue
            tokens = self._codec.counter.count(piece.text) if piece.tokens is None else piece.tokens
            rule, reason = leaf.rule, leaf.reason
            if text is None and not leaf.gone:
                rule, reason = "pieces", LOWEST_RANK
            yield _new_omission(((piece.id,), leaf.section.path, rule, reason, tokens, text is None))

    def _write_uncounted(self, section: Section, *, is_window: bool) -> None:
        """Record the messages that were never counted, with the tokens of their text where these are known."""
        rule = "window" if is_window else "truncate"
        reason = "older than all messages that fit" if is_window else "later than all messages that fit"
        for group in section.uncounted_groups:
            tokens = sum([message.tokens or 0 for message in group.messages])
            ids = _collect_entry_ids(group.messages) or (section.path,)
            self._omissions.append(_new_omission((ids, section.path, rule, reason, tokens, True)))

    def _write_group(self, leaf: Leaf, node: MessageGroup) -> None:
        """Record which messages of a unit are shown, and if it was cut or left out."""
        path, moves = leaf.section.path, leaf.section.moves
        if leaf.rule:
            ids = _collect_entry_ids(node.messages) or (path,)
            self._omissions.append(
                _new_omission((ids, path, leaf.rule, leaf.reason, leaf.full_tokens - leaf.tokens, leaf.gone))
            )
        if leaf.gone:
            return
        number = len(self._placed)
        messages = leaf.messages or node.messages
        costs = leaf.costs or leaf.whole_costs or (leaf.full_tokens,)
        for original, message, cost in zip(node.messages, messages, costs, strict=True):
            rendition = "whole"
            if message is not original:
                rendition = "cut"
            elif message.role is Role.TOOL and is_placeholder(message):
                rendition = "placeholder"
            self._placed.append(
                _new_placement((message, path, rendition, cost, moves, number, (), node.first, node.last))
            )


def _count_own_tokens(section: Section) -> int:
    """Return the tokens of a section without its subsections."""
    total = 0 if section.summary is None else section.summary.tokens
    return total + sum([part.tokens for part in section.parts if isinstance(part, Leaf)])


def build_empty_error(tree: Scope, fitted: FittedPrompt, budget: int | None) -> FitError | PayloadError:
    """Return the error for a prompt without a message: a `FitError` if the fit left all of them out."""
    add_message = "add a message that is required, such as user(…)"
    left_out = [omission for omission in fitted.omissions if omission.gone and omission.tokens]
    if not left_out:
        return PayloadError(
            "there is no message to send: nothing was there", field="messages", options=(add_message,)
        )
    smallest = min(left_out, key=lambda omission: omission.tokens)
    cap = _find_cap(tree, smallest.path)
    needed = smallest.tokens
    if smallest.rule == "omit":  # such a section is left out as a whole
        needed = sum(omission.tokens for omission in left_out if omission.path == smallest.path)
    required = fitted.tokens + needed
    if cap is not None and (budget is None or fitted.tokens + cap < budget):
        return FitError(
            f"no message is left to send: {smallest.path} may have {cap} tokens, which hold no message, even cut",
            budget=cap,
            required=max(cap + 1, smallest.tokens),
            where=smallest.path,
            options=(f"raise the tokens of {smallest.path}", add_message),
        )
    allowed = 0 if budget is None else budget
    return FitError(
        f"no message is left to send: {smallest.path} needs a budget of about {required} tokens",
        budget=allowed,
        required=max(allowed + 1, required),
        where=smallest.path,
        options=("raise the budget", add_message),
    )


def _find_cap(tree: Scope, path: str) -> int | None:
    """Return the cap of the innermost truncate strategy around a path, or None."""
    cap: int | None = None
    scope, names = tree, path.split("/")[1:]
    while True:
        if isinstance(scope.strategy, Truncate) and scope.strategy.tokens is not None:
            cap = scope.strategy.tokens
        inner_scopes = [child for child in scope.children if isinstance(child, Scope)]
        inner = next((child for child in inner_scopes if names and child.id == names[0]), None)
        if inner is None:
            return cap
        scope, names = inner, names[1:]


def _suggest_options(area: Section, excess: int) -> Iterator[str]:
    """Yield remedies that would each be enough alone, the largest section first."""
    largest_first = sorted(area.sections(), key=lambda section: (-section.tokens, section.path))
    for section in largest_first:
        shrinks = any(inner.scope.strategy is not None for inner in section.sections())
        if section.floor and shrinks and section.tokens >= excess:
            yield f"lower the floor of {section.path} to {max(0, section.tokens - excess)}"
    for section in largest_first:
        own_tokens = _count_own_tokens(section)
        if section.parent is None:
            if own_tokens >= excess:
                yield (
                    f"let messages directly in {section.path} shrink, by truncate or omit: "
                    f"they take {own_tokens} tokens"
                )
        elif own_tokens and section.tokens >= excess and not _can_shrink(section):
            yield f"give {section.path} a priority and a strategy: it takes {section.tokens} tokens"


def _can_shrink(section: Section) -> bool:
    return any(enclosing.scope.strategy is not None for enclosing in (section, *section.ancestors()))


def _collect_entry_ids(messages: Sequence[PromptMessage]) -> tuple[str, ...]:
    """Return the ids of the entries that some messages show, each once."""
    if len(messages) == 1:
        return messages[0].sources
    return tuple(dict.fromkeys([source for message in messages for source in message.sources]))
