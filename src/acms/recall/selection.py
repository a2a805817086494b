"""Selection: which ranked candidates fit a budget, in which shares, and why.

Pure functions of the candidates. `acms.recall.planner` writes the chosen ones and counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from acms.recall.planner import LEAST, Candidate, Choice

EXCERPT = 0.5
"""A unit larger than this share of the budget may be shown as an excerpt when it does not fit."""
EXCERPTS = 3
"""Best candidates that may be shown as an excerpt."""
NEIGHBOURS = 0.07
"""Share of a budget for messages that are not about the query but near one that is: a twentieth of a request."""
RESULT = 0.125
"""A tool call whose answers exceed this share of the budget is shown with only their matching parts."""


class ExternalBudget:
    """The tokens of a plan that external text may take while other text that answers is left out."""

    def __init__(self, share: float, budget: int) -> None:
        self._share = share
        self._most = int(share * budget)
        self._left = self._most
        #: Whether other text that answers is left out.
        self.binds = False

    def limit(self, one: Candidate, left: int) -> int:
        """Return how many of the tokens that are left a candidate may take."""
        return min(left, max(0, self._left)) if one.external else left

    def spend(self, one: Candidate, tokens: int) -> None:
        """Note the tokens that a candidate takes."""
        if one.external:
            self._left -= tokens

    def left_out(self, one: Candidate) -> Choice:
        """Return the choice to leave out external text."""
        reason = (
            f"external text may take {self._most} tokens ({self._share:.0%}) while other text that answers "
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
    shown: list[Choice | None] = [None] * len(current)
    left = budget
    external = ExternalBudget(external_share, budget)
    if current:
        latest = current[-1]
        rule = "latest" if latest.tokens <= left else "cut"
        shown[-1] = Choice(latest, True, rule, "the latest message is always shown", left)
        left -= latest.tokens
        external.spend(latest, latest.tokens)
    reserved = min(left, int(budget * floor) - (budget - left))
    rest = range(len(current) - 1)

    def first(index: int) -> tuple[bool, int]:
        return not current[index].markers, -current[index].unit.version

    for index in sorted(rest, key=first):
        one = current[index]
        if one.tokens <= external.limit(one, reserved):
            shown[index] = Choice(one, True, "episode", "in the current episode, within its reserved share")
            reserved -= one.tokens
            left -= one.tokens
            external.spend(one, one.tokens)
    competing = [index for index in rest if shown[index] is None and current[index].relevance > 0]
    found, left = _choose_by_score([*past, *(current[index] for index in competing)], budget, left, external)
    for index in competing[::-1]:
        shown[index] = found.pop()
    for index in sorted(rest, key=lambda index: -current[index].unit.version):
        if shown[index] is not None:
            continue
        one = current[index]
        if one.tokens > left:
            shown[index] = _too_large(one, left)
        elif external.binds and one.tokens > external.limit(one, left):
            shown[index] = external.left_out(one)
        else:
            shown[index] = Choice(one, True, "episode", "in the current episode, in the share others left")
            left -= one.tokens
            external.spend(one, one.tokens)
    return found + [choice for choice in shown if choice is not None]


def split_neighbours(past: Sequence[Candidate], budget: int) -> tuple[Sequence[Candidate], Sequence[Choice]]:
    """Keep messages about the query and the best of their neighbours; return the rest as rejected choices.

    A message that shares neither a content word nor the meaning of the query is useful only as a part of an exchange:
    such messages together have a small share of the budget, and those without any content word have none.
    """
    left = int(NEIGHBOURS * budget)
    gone: dict[int, Choice] = {}
    for one in sorted([one for one in past if one.distance], key=best_first):
        if one.distance < 3 and one.tokens <= left:
            left -= one.tokens
            continue
        reason = (
            f"only near a message about the query: {left} tokens are left of the {NEIGHBOURS:.0%} that these share"
            if one.distance < 3
            else "it has no word but courtesies"
        )
        gone[id(one)] = Choice(one, False, "neighbour", reason)
    return [one for one in past if id(one) not in gone], list(gone.values())


def limit_items(choices: list[Choice], most: int, external_share: float) -> list[Choice]:
    """Keep the best items by rank, so many at most, no group divided.

    External text may be `external_share` of the items, one at least; more of it is kept only where other text leaves
    items free.
    """
    there = [index for index, choice in enumerate(choices) if choice.included]
    there.sort(key=lambda index: best_first(choices[index].candidate))
    external = [index for index in there if choices[index].candidate.external]
    held = max(1, int(most * external_share))
    kept = _best_items(choices, move_external_last(there, external, held), most)
    by_rank = _best_items(choices, there, most)
    found = list(choices)
    for index in there:
        if index in kept:
            continue
        rule, reason = "limit", f"not among the {most} best"
        if index in external and index in by_rank:
            rule = "external"
            reason = f"external text may be {held} of {most} items while other text that answers is left out"
        found[index] = choices[index]._replace(included=False, rule=rule, reason=reason)
    return found


def move_external_last(order: Sequence[int], external: Sequence[int], held: int) -> list[int]:
    """Return an order in which external text comes last, except the first `held` of it."""
    beyond = set(external[held:])
    return [*(index for index in order if index not in beyond), *external[held:]]


def _best_items(choices: Sequence[Choice], order: Sequence[int], most: int) -> set[int]:
    """Return the first choices of an order that have so many items together."""
    kept: set[int] = set()
    left = most
    for index in order:
        size = len(choices[index].candidate.costs)
        if size <= left:
            kept.add(index)
            left -= size
    return kept


def best_first(one: Candidate) -> tuple[float, float, int]:
    """Return a sort key that orders candidates by score, then by relevance and version."""
    return -one.score, -one.relevance, one.unit.version


def _leaders_first(one: Candidate) -> tuple[float, bool, float, int]:
    """Return a sort key by score that puts each companion right after the statement it belongs to."""
    worth = max(one.score, one.leader_score)
    return -worth, one.leader_score > one.score, -one.relevance, one.unit.version


def _choose_by_score(
    past: Sequence[Candidate], budget: int, left: int, external: ExternalBudget
) -> tuple[list[Choice], int]:
    """Choose candidates of the past that fit the remaining budget, by score; return the choices and the rest.

    External text beyond its share waits until all other text had its turn.
    """
    order = sorted(range(len(past)), key=list(map(_leaders_first, past)).__getitem__)
    whole = sum([one.tokens for one in past]) <= left
    chosen: dict[int, Choice] = {}
    ranks = {False: 0, True: 0}
    waiting: dict[int, bool] = {}
    beyond_share: set[int] = set()
    for index in order:
        one = past[index]
        excerpt = ranks[one.external] < EXCERPTS
        ranks[one.external] += 1
        choice = _choose_candidate(one, budget, external.limit(one, left), whole=whole, excerpt=excerpt)
        if choice.included:
            taken = choice.room or one.tokens
            left -= taken
            external.spend(one, taken)
        elif one.external:
            waiting[index] = excerpt
            if one.tokens <= left:
                beyond_share.add(index)
            continue
        chosen[index] = choice
    external.binds = any(
        not choice.included and choice.candidate.relevance > 0
        for choice in chosen.values()
        if not choice.candidate.external
    )
    for index, excerpt in waiting.items():
        one = past[index]
        if external.binds:
            chosen[index] = external.left_out(one) if index in beyond_share else _too_large(one, left)
        else:
            choice = chosen[index] = _choose_candidate(one, budget, left, whole=whole, excerpt=excerpt)
            left -= (choice.room or one.tokens) if choice.included else 0
    return list(map(chosen.__getitem__, range(len(past)))), left


def _choose_candidate(one: Candidate, budget: int, left: int, *, whole: bool, excerpt: bool) -> Choice:
    """Choose a candidate whole, the answering part of a tool call, or an excerpt, if it fits into `left` tokens."""
    tokens = one.tokens
    single = len(one.costs) == 1
    if not single and not whole:
        least = min(one.costs) + LEAST
        room = min(left, max(int(budget * RESULT), least))
        if tokens > room >= least:
            why = f"what answers in a tool call of {tokens} tokens"
            return Choice(one, True, "excerpt", why, room)
    if tokens <= left:
        return _chosen((one, True, "score", _inclusion_reason(one), 0))
    if excerpt and single and tokens > budget * EXCERPT and left >= LEAST:
        why = f"an excerpt of {tokens} tokens, relevant to the query"
        return Choice(one, True, "excerpt", why, min(left, max(budget // 3, LEAST)))
    return _too_large(one, left)


def _inclusion_reason(one: Candidate) -> str:
    """Return why a candidate is shown whole."""
    if one.leader_score > one.score:
        return "the nearest that was said after something relevant"
    if one.score <= 0:
        return "the budget holds the whole session"
    markers = one.unit.markers
    return f"marked {', '.join(markers)}, and relevant" if markers else "relevant to the query"


_chosen: Callable[[tuple[Candidate, bool, str, str, int]], Choice] = partial(tuple.__new__, Choice)
"""Make a choice of all its fields at once: calling the class takes three times as long."""


def _too_large(one: Candidate, left: int) -> Choice:
    return _chosen((one, False, "budget", f"needs {one.tokens} tokens, {max(left, 0)} are left", 0))
