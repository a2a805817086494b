"""Selection: which ranked candidates fit a token budget, in which shares, and why.

Pure functions of the candidates. `acms.recall.planner` renders the chosen ones and counts their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import NamedTuple

from acms.recall.planner import FRAME_TOKENS, MIN_EXCERPT_TOKENS, Candidate, Choice, Topic
from acms.results import ContextItem

HALF_RELEVANCE = 0.5
"""Relevance of a message that holds half of the information of a question."""
USER_WORDS_REASON = (
    "short words of the user with their answers, and marked ones, are shown before outputs of tools"
)
"""Reason for such messages in the log of an agent."""
EXCHANGE_REASON = "a question with its answer"
"""Beginning of the reason for both."""
SMALL_CALL_TOKENS = 120
"""Tokens up to which a tool call is not cut, if they are no more than a quarter of the budget."""
COMPANIONS_SHARE = 0.2
"""Share of a budget for what was said later about the best answers, whatever its own score.

With a half of 500 tokens LoCoMo loses 5 points of evidence; with an eighth, 3 points more of VehicleMemBench's answers
are outdated ones alone.
"""
NEIGHBOURS_SHARE = 0.07
"""Share of a budget for messages that are near one about the query but are not about it themselves."""


class ExternalBudget:
    """A limit on the tokens of external text, which holds while other text that answers is left out."""

    def __init__(self, share: float, budget: int) -> None:
        self._share = share
        self._total = int(share * budget)
        self._remaining = self._total
        #: Whether the limit holds: other text that answers is left out.
        self.is_enforced = False

    def limit(self, candidate: Candidate, remaining: int) -> int:
        """Return how many of the `remaining` tokens of a budget a candidate may take."""
        return min(remaining, max(0, self._remaining)) if candidate.external else remaining

    def spend(self, candidate: Candidate, tokens: int) -> None:
        """Subtract the tokens that a candidate takes."""
        if candidate.external:
            self._remaining -= tokens

    def reject(self, candidate: Candidate) -> Choice:
        """Return the choice to leave out external text."""
        reason = (
            f"external text may take {self._total} tokens ({self._share:.0%}) while other matching text "
            "is left out"
        )
        return Choice(candidate, False, "external", reason)


def divide_budget(
    past: Sequence[Candidate],
    current: Sequence[Candidate],
    budget: int,
    floor: float,
    external_share: float,
) -> list[Choice]:
    """Choose candidates of the past and of the current episode, both oldest first, within a token budget.

    In this order, the budget goes to the latest message; to the rest of the current episode up to the share `floor`,
    marked messages first, then the newest; to answers by score, from the past and the current episode alike; and to the
    current episode again. Tokens that one step leaves go to the next. External text gets at most `external_share` of
    the budget while other text that answers is left out.
    """
    remaining = budget
    external = ExternalBudget(external_share, budget)
    episode_choices: dict[int, Choice] = {}  # by index in `current`

    def choose_from_episode(index: int, reason: str) -> int:
        """Choose a message of the current episode; return its tokens."""
        candidate = current[index]
        episode_choices[index] = Choice(candidate, True, "episode", f"in the current episode, {reason}")
        external.spend(candidate, candidate.tokens)
        return candidate.tokens

    if current:
        latest = current[-1]
        rule = "latest" if latest.tokens <= remaining else "cut"
        reason = "the latest message is always shown"
        episode_choices[len(current) - 1] = Choice(latest, True, rule, reason, remaining)
        remaining -= latest.tokens
        external.spend(latest, latest.tokens)
    newest_first = sorted(range(len(current) - 1), key=lambda index: -current[index].unit.version)
    marked_first = sorted(newest_first, key=lambda index: not current[index].markers)
    # The share of the current episode, less the tokens of the latest message.
    reserved_tokens = min(remaining, int(budget * floor) - (budget - remaining))
    for index in marked_first:
        if current[index].tokens <= external.limit(current[index], reserved_tokens):
            tokens = choose_from_episode(index, "within its reserved share")
            reserved_tokens -= tokens
            remaining -= tokens
    unchosen_indexes = [index for index in range(len(current)) if index not in episode_choices]
    competing_indexes = [index for index in unchosen_indexes if current[index].relevance > 0]
    candidates = [*past, *(current[index] for index in competing_indexes)]
    choices, remaining = _choose_by_score(candidates, budget, remaining, external)
    past_choices, competing_choices = choices[: len(past)], choices[len(past) :]
    episode_choices.update(zip(competing_indexes, competing_choices, strict=True))
    for index in newest_first:
        candidate = current[index]
        if index in episode_choices:
            continue
        if candidate.tokens > remaining:
            episode_choices[index] = _too_large(candidate, remaining)
        elif external.is_enforced and candidate.tokens > external.limit(candidate, remaining):
            episode_choices[index] = external.reject(candidate)
        else:
            remaining -= choose_from_episode(index, "in the share others left")
    return [*past_choices, *(episode_choices[index] for index in range(len(current)))]


def split_neighbours(past: Sequence[Candidate], budget: int) -> tuple[Sequence[Candidate], Sequence[Choice]]:
    """Return the candidates about the query with the best of their neighbours, and the rejections of the others.

    A neighbour is a message that shares neither a content word nor the meaning of the query: it is useful only as part
    of an exchange. All neighbours together get the share `NEIGHBOURS_SHARE` of the budget; those without any content
    word are rejected.
    """
    remaining = int(NEIGHBOURS_SHARE * budget)
    rejections: dict[int, Choice] = {}  # by identity of the candidate
    neighbours = [candidate for candidate in past if candidate.topic > Topic.ON]
    for candidate in sorted(neighbours, key=best_first):
        has_content = candidate.topic < Topic.EMPTY
        if has_content and candidate.tokens <= remaining:
            remaining -= candidate.tokens
            continue
        reason = "it holds only function words and courtesies"
        if has_content:
            reason = (
                f"not about the query itself: {remaining} tokens are left of the {NEIGHBOURS_SHARE:.0%} "
                "that such messages share"
            )
        rejections[id(candidate)] = Choice(candidate, False, "neighbour", reason)
    kept_candidates = [candidate for candidate in past if id(candidate) not in rejections]
    return kept_candidates, list(rejections.values())


def limit_items(choices: list[Choice], limit: int, external_share: float) -> list[Choice]:
    """Exclude choices beyond the best `limit` items; the items of a tool group are kept or excluded together.

    External text may be the share `external_share` of the items, at least one; more of it is kept only if there is not
    enough other text.
    """
    included_indexes = [index for index, choice in enumerate(choices) if choice.included]
    included_indexes.sort(key=lambda index: best_first(choices[index].candidate))
    external_indexes = [index for index in included_indexes if choices[index].candidate.external]
    external_limit = max(1, int(limit * external_share))
    order = move_external_last(included_indexes, external_indexes, external_limit)
    kept_indexes = _best_items(choices, order, limit)
    kept_without_limit = _best_items(choices, included_indexes, limit)
    result = list(choices)
    for index in included_indexes:
        if index in kept_indexes:
            continue
        rule, reason = "limit", f"not among the {limit} best"
        if index in external_indexes and index in kept_without_limit:
            rule = "external"
            reason = f"external text may be {external_limit} of {limit} items while other matching text is left out"
        result[index] = choices[index]._replace(included=False, rule=rule, reason=reason)
    return result


def move_external_last(order: Sequence[int], external_indexes: Sequence[int], limit: int) -> list[int]:
    """Move the indexes of external text to the end of an order, except the first `limit` of them."""
    moved_indexes = set(external_indexes[limit:])
    other_indexes = [index for index in order if index not in moved_indexes]
    return [*other_indexes, *external_indexes[limit:]]


def _best_items(choices: Sequence[Choice], order: Sequence[int], limit: int) -> set[int]:
    """Return the indexes of the first choices of an order that together have at most `limit` items."""
    kept_indexes: set[int] = set()
    remaining = limit
    for index in order:
        size = len(choices[index].candidate.costs)
        if size <= remaining:
            kept_indexes.add(index)
            remaining -= size
    return kept_indexes


def best_first(candidate: Candidate) -> tuple[bool, float, float, int]:
    """Return a sort key that orders candidates by score, then by relevance and version, words of the user first."""
    return (
        candidate.topic != Topic.USER_WORDS,
        -candidate.score,
        -candidate.relevance,
        -candidate.unit.version,
    )


def _order_by_score(candidates: Sequence[Candidate], budget: int) -> list[int]:
    """Return the indexes of candidates by score, words of the user first, each companion right after its leader."""
    companions = _find_companions(candidates, budget)
    sort_keys = [_score_key(candidate, budget) for candidate in candidates]
    order = [index for index in range(len(candidates)) if index not in companions]
    order.sort(key=sort_keys.__getitem__)
    for companion in reversed(companions):
        order.insert(_find_place_of_companion(candidates, order, companion), companion)
    return order


def _find_place_of_companion(candidates: Sequence[Candidate], order: Sequence[int], companion: int) -> int:
    """Return the place in an order right after the leader of a companion."""
    leader_score = candidates[companion].leader_score
    for place, index in enumerate(order, 1):
        if candidates[index].topic != Topic.USER_WORDS and candidates[index].score <= leader_score:
            return place
    return len(order)


def _find_companions(candidates: Sequence[Candidate], budget: int) -> list[int]:
    """Return the indexes of the companions that are chosen right after their leaders, those of the best leader first.

    These are as many as their share holds, and at least the newest companion of the best answer.
    """
    companions = [
        index for index, candidate in enumerate(candidates) if candidate.leader_score > candidate.score
    ]
    companions.sort(key=lambda index: (-candidates[index].leader_score, -candidates[index].unit.version))
    remaining = int(budget * COMPANIONS_SHARE)
    if companions:
        remaining = max(remaining, candidates[companions[0]].tokens)
    chosen: list[int] = []
    for index in companions:
        if candidates[index].tokens <= remaining:
            remaining -= candidates[index].tokens
            chosen.append(index)
    return chosen


def _score_key(candidate: Candidate, budget: int) -> tuple[bool, float, float, int]:
    """Return a sort key that orders candidates by score, kept words of the user first.

    What is shown as an excerpt competes with the excerpt's cost: a large tool call, and a message larger than half of
    the budget that holds half of the question.
    """
    score = candidate.score
    is_large = candidate.tokens > budget / 2
    if candidate.is_tool_group or (is_large and candidate.relevance >= HALF_RELEVANCE):
        most_tokens = _excerpt_tokens(budget)
        if candidate.is_tool_group:
            most_tokens = _tool_excerpt_tokens(candidate, budget)
        excerpt_tokens = min(candidate.tokens, most_tokens)
        score *= sqrt((candidate.tokens + FRAME_TOKENS) / (excerpt_tokens + FRAME_TOKENS))
    is_kept = candidate.topic == Topic.USER_WORDS
    return not is_kept, -score, -candidate.relevance, candidate.unit.version


def _excerpt_tokens(budget: int) -> int:
    """Return the most tokens of an excerpt of a message that is larger than half of a budget."""
    return max(budget // 3, MIN_EXCERPT_TOKENS)


def _tool_excerpt_tokens(candidate: Candidate, budget: int) -> int:
    """Return the most tokens of an excerpt of a tool call; a small one is shown whole."""
    return max(budget // 8, _least_excerpt(candidate), min(SMALL_CALL_TOKENS, budget // 4))


def _least_excerpt(candidate: Candidate) -> int:
    """Return the fewest tokens that are worth an excerpt: of a tool call or an exchange, its shortest message more."""
    return MIN_EXCERPT_TOKENS + (min(candidate.costs) if len(candidate.costs) > 1 else 0)


def _choose_by_score(
    candidates: Sequence[Candidate], budget: int, remaining: int, external: ExternalBudget
) -> tuple[list[Choice], int]:
    """Choose candidates by score while they fit the remaining tokens; return all choices, and the tokens left.

    External candidates that do not fit are considered again after all others.
    """
    order = _order_by_score(candidates, budget)
    all_fit = sum([candidate.tokens for candidate in candidates]) <= remaining
    choices: dict[int, Choice] = {}  # by index
    ranks = {False: 0, True: 0}  # candidates considered so far, of other text and of external text
    postponed_candidates: dict[int, _PostponedCandidate] = {}  # by index
    for index in order:
        candidate = candidates[index]
        # Only the best are worth an excerpt, and those that hold half of the question.
        may_excerpt = ranks[candidate.external] < 3 or candidate.relevance >= HALF_RELEVANCE
        ranks[candidate.external] += 1
        limit = external.limit(candidate, remaining)
        choice = _choose_candidate(candidate, budget, limit, all_fit=all_fit, may_excerpt=may_excerpt)
        if choice.included:
            tokens = choice.max_tokens or candidate.tokens
            remaining -= tokens
            external.spend(candidate, tokens)
        elif candidate.external:
            postponed_candidates[index] = _PostponedCandidate(may_excerpt, candidate.tokens <= remaining)
            continue
        elif candidate.relevance > 0:
            external.is_enforced = True
        choices[index] = choice
    for index, (may_excerpt, fits_budget) in postponed_candidates.items():
        candidate = candidates[index]
        if external.is_enforced:
            choices[index] = external.reject(candidate) if fits_budget else _too_large(candidate, remaining)
            continue
        choice = _choose_candidate(candidate, budget, remaining, all_fit=all_fit, may_excerpt=may_excerpt)
        choices[index] = choice
        if choice.included:
            remaining -= choice.max_tokens or candidate.tokens
    return [choices[index] for index in range(len(candidates))], remaining


class _PostponedCandidate(NamedTuple):
    """An external candidate that did not fit the limit of external text."""

    #: Whether an excerpt of it may be shown.
    may_excerpt: bool
    #: Whether it fitted the remaining tokens of the whole budget.
    fits_budget: bool


def _choose_candidate(
    candidate: Candidate, budget: int, remaining: int, *, all_fit: bool, may_excerpt: bool
) -> Choice:
    """Choose a candidate whole, or an excerpt of it, or reject it if neither fits the remaining tokens.

    A large tool call is shown as an excerpt unless `all_fit`, which means that all candidates fit whole.
    """
    tokens = candidate.tokens
    if candidate.is_tool_group and not all_fit:
        limit = min(remaining, _tool_excerpt_tokens(candidate, budget))
        if tokens > limit >= _least_excerpt(candidate):
            reason = f"the matching part of a tool call of {tokens} tokens"
            return Choice(candidate, True, "excerpt", reason, limit)
    if tokens <= remaining:
        return _make_choice((candidate, True, "score", _inclusion_reason(candidate), 0))
    is_large = candidate.is_exchange or (tokens > budget / 2 and not candidate.is_tool_group)
    if may_excerpt and is_large and remaining >= _least_excerpt(candidate):
        reason = f"an excerpt of {tokens} tokens, {_describe_relevance(candidate)}"
        if candidate.is_exchange:
            reason = f"{EXCHANGE_REASON}, {reason}"
        limit = max(_excerpt_tokens(budget), _least_excerpt(candidate))
        return Choice(candidate, True, "excerpt", reason, min(remaining, limit))
    return _too_large(candidate, remaining)


def _inclusion_reason(candidate: Candidate) -> str:
    """Return why a candidate is shown whole."""
    if candidate.topic == Topic.USER_WORDS:
        return f"{EXCHANGE_REASON}, {USER_WORDS_REASON}" if candidate.is_exchange else USER_WORDS_REASON
    if candidate.leader_score > candidate.score:
        return "said later about the same, perhaps a correction"
    if candidate.score <= 0:
        return "the budget holds the whole session"
    relevance = _describe_relevance(candidate)
    if candidate.is_exchange:
        relevance = f"{EXCHANGE_REASON}, {relevance}"
    markers = candidate.unit.markers
    if markers:
        return f"marked {', '.join(markers)}, and {relevance.removesuffix(' to the query')}"
    return relevance


def _describe_relevance(candidate: Candidate) -> str:
    """Return whether a candidate matches the query itself, or has its score from the messages beside it."""
    if candidate.relevance <= 0:
        return "said beside something relevant"
    return "relevant to the query" if candidate.topic <= Topic.ON else "weakly relevant to the query"


_make_choice: Callable[[tuple[Candidate, bool, str, str, int]], Choice] = partial(tuple.__new__, Choice)
"""Make a choice of all its fields at once: calling the class takes three times as long."""


def _too_large(candidate: Candidate, remaining: int) -> Choice:
    reason = f"needs {candidate.tokens} tokens, {max(remaining, 0)} are left"
    return _make_choice((candidate, False, "budget", reason, 0))


def warn_of_marked_messages(
    choices: Sequence[Choice], items: Sequence[ContextItem], budget: int
) -> list[str]:
    """Return a warning if relevant marked messages did not fit: their tokens, and the tokens left of the budget."""
    omitted_candidates = [
        choice.candidate for choice in choices if choice.rule == "budget" and choice.candidate.markers
    ]
    if not omitted_candidates:
        return []
    needed_tokens = sum([candidate.tokens for candidate in omitted_candidates])
    free_tokens = max(0, budget - sum([item.token_count for item in items]))
    return [
        f"{len(omitted_candidates)} relevant marked messages did not fit: they take {needed_tokens:,} tokens, "
        f"{free_tokens:,} of {budget:,} for recall are left"
    ]
