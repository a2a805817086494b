"""Selection: which ranked candidates fit a budget, in which shares, and why.

Pure functions of the candidates. `acms.recall.planner` writes the chosen ones and counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from acms.recall.planner import LEAST, Candidate, Choice
from acms.results import ContextItem

NEIGHBOURS = 0.07
"""Share of a budget for messages that are not about the query but near one that is: a twentieth of a request."""


class ExternalBudget:
    """The tokens of a plan that external text may take while other text that answers is left out."""

    def __init__(self, share: float, budget: int) -> None:
        self._share = share
        self._total = int(share * budget)
        self._remaining = self._total
        #: Whether other text that answers is left out.
        self.binds = False

    def limit(self, one: Candidate, remaining: int) -> int:
        """Return how many of the remaining tokens a candidate may take."""
        return min(remaining, max(0, self._remaining)) if one.external else remaining

    def spend(self, one: Candidate, tokens: int) -> None:
        """Subtract the tokens that a candidate takes."""
        if one.external:
            self._remaining -= tokens

    def reject(self, one: Candidate) -> Choice:
        """Return the choice to leave out external text."""
        reason = (
            f"external text may take {self._total} tokens ({self._share:.0%}) while other text that answers "
            "is left out"
        )
        return Choice(one, False, "external", reason)


def divide_budget(
    past: Sequence[Candidate],
    current: Sequence[Candidate],
    budget: int,
    floor: float,
    external_share: float,
) -> list[Choice]:
    """Divide a budget between the past and the current episode, both oldest first.

    The latest message comes first; then up to `floor` of the budget goes to the rest of the current episode, marked
    messages and then newest first; then to answers by score, from the past and the current episode alike; then the rest
    to the current episode again. An unused share passes to the next. External text has at most `external_share` of the
    whole budget while other text that answers is left out.
    """
    remaining = budget
    external = ExternalBudget(external_share, budget)
    chosen: dict[int, Choice] = {}  # choices of the current episode, by index

    def choose_episode(index: int, reason: str) -> int:
        """Choose a message of the current episode; return its tokens."""
        one = current[index]
        chosen[index] = Choice(one, True, "episode", f"in the current episode, {reason}")
        external.spend(one, one.tokens)
        return one.tokens

    if current:
        latest = current[-1]
        rule = "latest" if latest.tokens <= remaining else "cut"
        chosen[len(current) - 1] = Choice(latest, True, rule, "the latest message is always shown", remaining)
        remaining -= latest.tokens
        external.spend(latest, latest.tokens)
    newest_first = sorted(range(len(current) - 1), key=lambda index: -current[index].unit.version)
    marked_first = sorted(newest_first, key=lambda index: not current[index].markers)
    reserved = min(remaining, int(budget * floor) - (budget - remaining))
    for index in marked_first:
        if current[index].tokens <= external.limit(current[index], reserved):
            tokens = choose_episode(index, "within its reserved share")
            reserved -= tokens
            remaining -= tokens
    waiting = [index for index in range(len(current)) if index not in chosen]
    competing = [index for index in waiting if current[index].relevance > 0]
    candidates = [*past, *(current[index] for index in competing)]
    choices, remaining = _choose_by_score(candidates, budget, remaining, external)
    chosen.update(zip(competing, choices[len(past) :], strict=True))
    for index in newest_first:
        one = current[index]
        if index in chosen:
            continue
        if one.tokens > remaining:
            chosen[index] = _too_large(one, remaining)
        elif external.binds and one.tokens > external.limit(one, remaining):
            chosen[index] = external.reject(one)
        else:
            remaining -= choose_episode(index, "in the share others left")
    return [*choices[: len(past)], *(chosen[index] for index in range(len(current)))]


def split_neighbours(past: Sequence[Candidate], budget: int) -> tuple[Sequence[Candidate], Sequence[Choice]]:
    """Keep messages about the query and the best of their neighbours; return the rest as rejected choices.

    A message that shares neither a content word nor the meaning of the query is useful only as a part of an exchange:
    such messages together have a small share of the budget, and those without any content word have none.
    """
    remaining = int(NEIGHBOURS * budget)
    rejected: dict[int, Choice] = {}
    neighbours = [one for one in past if one.distance]
    for one in sorted(neighbours, key=best_first):
        has_content = one.distance < 3
        if has_content and one.tokens <= remaining:
            remaining -= one.tokens
            continue
        reason = "it has no word but courtesies"
        if has_content:
            reason = (
                f"only near a message about the query: {remaining} tokens are left of the {NEIGHBOURS:.0%} "
                "that these share"
            )
        rejected[id(one)] = Choice(one, False, "neighbour", reason)
    return [one for one in past if id(one) not in rejected], list(rejected.values())


def limit_items(choices: list[Choice], limit: int, external_share: float) -> list[Choice]:
    """Keep at most `limit` items, the best by rank, and divide no group.

    External text may be `external_share` of the items, one at least; more of it is kept only if other text leaves items
    free.
    """
    included = [index for index, choice in enumerate(choices) if choice.included]
    included.sort(key=lambda index: best_first(choices[index].candidate))
    external = [index for index in included if choices[index].candidate.external]
    external_limit = max(1, int(limit * external_share))
    kept = _best_items(choices, move_external_last(included, external, external_limit), limit)
    kept_without_external_limit = _best_items(choices, included, limit)
    result = list(choices)
    for index in included:
        if index in kept:
            continue
        rule, reason = "limit", f"not among the {limit} best"
        if index in external and index in kept_without_external_limit:
            rule = "external"
            reason = f"external text may be {external_limit} of {limit} items while other text that answers is left out"
        result[index] = choices[index]._replace(included=False, rule=rule, reason=reason)
    return result


def move_external_last(order: Sequence[int], external: Sequence[int], limit: int) -> list[int]:
    """Return an order in which external text comes last, except the first `limit` of it."""
    beyond = set(external[limit:])
    return [*(index for index in order if index not in beyond), *external[limit:]]


def _best_items(choices: Sequence[Choice], order: Sequence[int], limit: int) -> set[int]:
    """Return the first choices of an order that together have at most `limit` items."""
    kept: set[int] = set()
    remaining = limit
    for index in order:
        size = len(choices[index].candidate.costs)
        if size <= remaining:
            kept.add(index)
            remaining -= size
    return kept


def best_first(one: Candidate) -> tuple[float, float, int]:
    """Return a sort key that orders candidates by score, then by relevance and version."""
    return -one.score, -one.relevance, one.unit.version


def _leaders_first(one: Candidate) -> tuple[float, bool, float, int]:
    """Return a sort key by score that puts each companion right after the statement it belongs to."""
    score = max(one.score, one.leader_score)
    return -score, one.leader_score > one.score, -one.relevance, one.unit.version


def _choose_by_score(
    candidates: Sequence[Candidate], budget: int, remaining: int, external: ExternalBudget
) -> tuple[list[Choice], int]:
    """Choose candidates that fit the remaining budget, by score; return the choices and the tokens left.

    External text beyond its share waits until all other text was considered.
    """
    sort_keys = list(map(_leaders_first, candidates))
    order = sorted(range(len(candidates)), key=sort_keys.__getitem__)
    all_fit = sum([one.tokens for one in candidates]) <= remaining
    chosen: dict[int, Choice] = {}
    ranks = {False: 0, True: 0}
    # external candidates that did not fit: whether each may be an excerpt, and whether it is only over its share
    waiting: dict[int, tuple[bool, bool]] = {}
    for index in order:
        one = candidates[index]
        excerpt = ranks[one.external] < 3  # only the best are worth an excerpt
        ranks[one.external] += 1
        limit = external.limit(one, remaining)
        choice = _choose_candidate(one, budget, limit, whole=all_fit, excerpt=excerpt)
        if choice.included:
            tokens = choice.max_tokens or one.tokens
            remaining -= tokens
            external.spend(one, tokens)
        elif one.external:
            waiting[index] = excerpt, one.tokens <= remaining
            continue
        elif one.relevance > 0:
            external.binds = True
        chosen[index] = choice
    for index, (excerpt, over_share) in waiting.items():
        one = candidates[index]
        if external.binds:
            chosen[index] = external.reject(one) if over_share else _too_large(one, remaining)
            continue
        choice = chosen[index] = _choose_candidate(one, budget, remaining, whole=all_fit, excerpt=excerpt)
        if choice.included:
            remaining -= choice.max_tokens or one.tokens
    return [chosen[index] for index in range(len(candidates))], remaining


def _choose_candidate(one: Candidate, budget: int, remaining: int, *, whole: bool, excerpt: bool) -> Choice:
    """Choose a candidate whole, the answering part of a tool call, or an excerpt, if it fits the remaining tokens."""
    tokens = one.tokens
    single = len(one.costs) == 1
    if not single and not whole:  # of a large tool call only the parts that match are shown
        least = min(one.costs) + LEAST
        limit = min(remaining, max(budget // 8, least))
        if tokens > limit >= least:
            reason = f"what answers in a tool call of {tokens} tokens"
            return Choice(one, True, "excerpt", reason, limit)
    if tokens <= remaining:
        return _make_choice((one, True, "score", _inclusion_reason(one), 0))
    is_large = tokens > budget / 2
    if excerpt and single and is_large and remaining >= LEAST:
        reason = f"an excerpt of {tokens} tokens, relevant to the query"
        return Choice(one, True, "excerpt", reason, min(remaining, max(budget // 3, LEAST)))
    return _too_large(one, remaining)


def _inclusion_reason(one: Candidate) -> str:
    """Return why a candidate is shown whole."""
    if one.leader_score > one.score:
        return "the nearest that was said after something relevant"
    if one.score <= 0:
        return "the budget holds the whole session"
    markers = one.unit.markers
    return f"marked {', '.join(markers)}, and relevant" if markers else "relevant to the query"


_make_choice: Callable[[tuple[Candidate, bool, str, str, int]], Choice] = partial(tuple.__new__, Choice)
"""Make a choice of all its fields at once: calling the class takes three times as long."""


def _too_large(one: Candidate, remaining: int) -> Choice:
    reason = f"needs {one.tokens} tokens, {max(remaining, 0)} are left"
    return _make_choice((one, False, "budget", reason, 0))


def warn_of_marked_messages(
    choices: Sequence[Choice], items: Sequence[ContextItem], budget: int
) -> list[str]:
    """Return a warning if marked messages that answer did not fit, with their tokens and those that are left."""
    left_out = [
        choice.candidate for choice in choices if choice.rule == "budget" and choice.candidate.markers
    ]
    if not left_out:
        return []
    needed = sum([one.tokens for one in left_out])
    free = max(0, budget - sum([item.token_count for item in items]))
    return [
        f"{len(left_out)} relevant marked messages did not fit: they take {needed:,} tokens, "
        f"{free:,} of {budget:,} for recall are left"
    ]
