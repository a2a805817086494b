"""Predict the provider's cache hits for a prompt from two manifests, and check them against its usage report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from acms.log.encoding import is_summary
from acms.log.trust import LEADING
from acms.model import Role, Text
from acms.ports import Codec
from acms.prompt.manifest import Manifest, Sent
from acms.prompt_types import CachePrediction, Change, Changed, Diagnosis, Outcome, PromptMessage, Usage

NAMED = 3
"""Pieces that a reason names."""


def find_hoisted_roles(
    normal: Callable[[Sequence[PromptMessage]], Sequence[PromptMessage]],
) -> frozenset[Role]:
    """Return the roles whose messages a codec sets before all others, by its `normal`: system text in some formats."""
    spoken = PromptMessage(role=Role.USER, parts=(Text("a"),))
    found: set[Role] = set()
    for role in LEADING:
        first = normal((spoken, PromptMessage(role=role, parts=(Text("b"),))))[0]
        if first.role is not Role.USER:
            found.add(role)
    return frozenset(found)


def predict_cache(
    now: Manifest, previous: Manifest | None, codec: Codec, *, key: str = ""
) -> CachePrediction:
    """Predict which part of a prompt the provider can read from its cache after an earlier prompt, and why.

    Whole messages are compared by their hashes, in the order in which the provider reads them: tools, hoisted messages,
    then the rest. `key` is the name under which the cache is kept, if a hint gave one.
    """
    base = codec.base(now.tools)
    plain = CachePrediction(key=key, total_tokens=base + sum([one.tokens for one in now.messages]))
    if previous is None:
        return replace(plain, reason="there is no earlier prompt to compare with")
    front = find_hoisted_roles(codec.normal)
    old, new = _sort_as_read(previous, front), _sort_as_read(now, front)
    outside = _find_preamble_change(now, previous, key)
    if outside is not None:
        first = Change(index=new[0][0], role=new[0][1].role, path=new[0][1].path) if new else None
        changed, reason = outside
        return replace(plain, compared=True, changed=changed, first_change=first, reason=reason)
    place = 0
    shared = base
    while place < min(len(old), len(new)) and old[place][1].hash == new[place][1].hash:
        shared += new[place][1].tokens
        place += 1
    readable = shared
    reason = _explain_first_change([one for _, one in old], [one for _, one in new], place)
    if codec.marks_only:
        end = _count_marked_messages(previous, old, place, implicit=codec.implicit_mark)
        if end is None or not (now.marks or codec.implicit_mark):
            readable = 0
            reason += "; nothing is cached, as no mark ends what is shared: give a cache hint"
        else:
            readable = base + sum([one.tokens for _, one in new[:end]])
    change, changed = _find_first_change(now, old, new, place)
    return replace(
        plain,
        predicted_tokens=codec.cached(readable),
        shared_tokens=shared,
        first_change=change,
        reason=reason,
        compared=True,
        changed=changed,
    )


def _find_preamble_change(now: Manifest, previous: Manifest, key: str) -> tuple[Changed, str] | None:
    """Return the difference before the first message, and a description; None when there is none."""
    if (previous.codec, previous.model) != (now.codec, now.model):
        reason = f"it was sent to {previous.model} by {previous.codec}, this one goes to {now.model} by {now.codec}"
        return Changed.MODEL, reason
    was, is_now = [[(mark.id, mark.version) for mark in one.marks[:1]] for one in (previous, now)]
    if key and was and is_now and was != is_now:
        return (
            Changed.KEY,
            f"it is cached as {':'.join(is_now[0])}, the earlier one was as {':'.join(was[0])}",
        )
    return (Changed.TOOLS, _describe_tools_change(previous, now)) if previous.tools != now.tools else None


def _find_first_change(
    now: Manifest,
    old: Sequence[tuple[int, Sent]],
    new: Sequence[tuple[int, Sent]],
    place: int,
) -> tuple[Change, Changed] | tuple[None, None]:
    """Return the first message that differs, and the part of the request it is in."""
    if place == len(old):
        return None, None
    index, sent = new[place] if place < len(new) else (len(now.messages), None)
    change = Change(
        index=index, role=None if sent is None else sent.role, path="" if sent is None else sent.path
    )
    leading = all(one.role in LEADING for _, one in old[:place])
    differing = [one for _, one in (*old[place : place + 1], *new[place : place + 1])]
    system = leading and any(one.role in LEADING for one in differing)
    return change, Changed.SYSTEM if system else Changed.MESSAGES


def diagnosis_agrees(prediction: CachePrediction, usage: Usage, *, asked: bool = False) -> bool | None:
    """Return whether a provider's diagnosis matches the prediction; None without a diagnosis of the prompt.

    `asked` says that the request asked for a diagnosis: then a provider that reports nothing found no difference.
    """
    told = usage.diagnosis
    if told is None or not prediction.compared or told.outcome is Outcome.UNKNOWN:
        return None
    if told.outcome is Outcome.SILENT and not asked:
        return None
    if told.outcome is not Outcome.MISS:
        return prediction.changed is None
    if told.changed in (None, Changed.SETTINGS):
        return None
    if told.changed is Changed.INPUT:
        return prediction.changed in (Changed.SYSTEM, Changed.MESSAGES)
    return told.changed is prediction.changed


def describe_cache_mismatch(prediction: CachePrediction, usage: Usage, *, asked: bool = False) -> str:
    """Describe the difference between a prediction and the provider's report; "" when there is none.

    Reading more tokens than predicted is not an error: the provider may know the prompt from elsewhere. A reason given
    by the provider is reported beside the predicted one, also when no token was missed but the reasons differ.
    """
    missed = prediction.predicted_tokens - usage.cached_tokens
    agreed = diagnosis_agrees(prediction, usage, asked=asked)
    if missed <= 0 and agreed is not False:
        return ""
    told = _describe_diagnosis(usage.diagnosis, asked=asked)
    both = f"the provider says {told}, the forecast {prediction.reason!r}" if told else ""
    if missed <= 0:
        return both
    if usage.cached_tokens:
        found = f"{usage.cached_tokens} of the {prediction.predicted_tokens} tokens predicted were read from the cache"
    else:
        found = f"none of the {prediction.predicted_tokens} tokens predicted were read from the cache"
        if usage.diagnosis is None or usage.diagnosis.outcome is not Outcome.MISS:
            found += ": it had expired, was never written, or another machine has it"
    return f"{found}; {both}" if both else found


def _describe_diagnosis(diagnosis: Diagnosis | None, *, asked: bool) -> str:
    """Return a diagnosis in words; "" when there is none."""
    if diagnosis is None or (diagnosis.outcome is Outcome.SILENT and not asked):
        return ""
    match diagnosis.outcome:
        case Outcome.MISS:
            about = f" (about {diagnosis.missed_tokens} tokens)" if diagnosis.missed_tokens else ""
            return f"{diagnosis.reason}{about}"
        case Outcome.UNKNOWN:
            return diagnosis.reason
        case Outcome.HIT | Outcome.SILENT:
            return "that nothing changed"


def _sort_as_read(manifest: Manifest, front: frozenset[Role]) -> list[tuple[int, Sent]]:
    """Return the messages with their places, in the order in which the provider reads them."""
    return sorted(enumerate(manifest.messages), key=lambda one: one[1].role not in front)


def _count_marked_messages(
    manifest: Manifest, order: Sequence[tuple[int, Sent]], place: int, *, implicit: bool
) -> int | None:
    """Return how many messages, as the provider reads them, end at the last mark within the first `place`."""
    places = {index: number + 1 for number, (index, _) in enumerate(order)}
    ends = [places.get(mark.messages - 1, 0) for mark in manifest.marks]
    if implicit:
        eligible = [number for number, (_, one) in enumerate(order, 1) if one.role in (Role.USER, Role.TOOL)]
        ends += eligible[-1:]
    return max((end for end in ends if end <= place), default=None)


def _describe_tools_change(old: Manifest, new: Manifest) -> str:
    before, after = {tool.name: tool for tool in old.tools}, {tool.name: tool for tool in new.tools}
    found = [f"{name} is new" for name in after if name not in before]
    found += [f"{name} is gone" for name in before if name not in after]
    found += [f"{name} changed" for name in after if name in before and before[name] != after[name]]
    return f"tools come first, and {', '.join(found) or 'their order changed'}"


def _explain_first_change(old: Sequence[Sent], new: Sequence[Sent], place: int) -> str:
    """Describe in words the first difference between two prompts."""
    if place == len(old):
        added = len(new) - place
        return (
            "nothing changed"
            if not added
            else f"the earlier prompt is the beginning of this one, {_format_message_count(added)} more"
        )
    was = old[place]
    if place == len(new):
        return f"this prompt ends where the earlier one went on with {was.path}"
    is_now = new[place]
    if was.moves:
        return f"what was recalled stood here: {was.path} is chosen anew every turn"
    if was.path != is_now.path:
        if any(one.hash == is_now.hash for one in old[place:]):
            return f"{was.path} is gone"
        return f"{is_now.path} stands where {was.path} was"
    if was.rendition == "pieces" or is_now.rendition == "pieces":
        return _describe_pieces_change(was, is_now)
    return _describe_history_change(was, is_now, old, new, place)


def _describe_pieces_change(was: Sent, is_now: Sent) -> str:
    """Return which pieces of a message changed: pins."""
    new = [name for name in is_now.pieces if name not in was.pieces]
    gone = [name for name in was.pieces if name not in is_now.pieces]
    found = [*_list_changed_names(new, "new"), *_list_changed_names(gone, "gone")]
    if not found:
        same = is_now.pieces == was.pieces
        found = [f"the text of {' or '.join(is_now.pieces)} changed" if same else "their order changed"]
    return f"{is_now.path}: {', '.join(found)}"


def _list_changed_names(names: Sequence[str], what: str) -> list[str]:
    """Return that some pieces are new or gone; of many the first ones, and how many more."""
    said = [f"{name} is {what}" for name in names[:NAMED]]
    return [*said, f"{len(names) - NAMED} more are {what}"] if len(names) > NAMED else said


def _describe_history_change(
    was: Sent, is_now: Sent, old: Sequence[Sent], new: Sequence[Sent], place: int
) -> str:
    """Describe the change of a history."""
    after = new[place + 1] if place + 1 < len(new) else None
    if is_now.rendition == "summary" and was.rendition != "summary":
        return f"{is_now.path}: a summary stands for what began here"
    if is_now.rendition == "summary":
        return f"{is_now.path}: the summary changed"
    if not (is_now.first and was.first):
        return f"{is_now.path}: the text changed"
    if after is not None and after.path == is_now.path and is_now.first > after.first > was.first:
        what = "a summary" if all(map(is_summary, is_now.sources)) else "an edit"
        return f"{is_now.path}: {what}, v{is_now.first}, stands for {_format_version_span(was.first, after.first - 1)}"
    if any(one.hash == is_now.hash for one in old[place:]):
        if place and old[place - 1].path == was.path:
            return f"{is_now.path}: {_format_version_span(was.first, max(was.first, is_now.first - 1))} left"
        left = _format_version_span(was.first, max(was.first, is_now.first - 1))
        return f"the start of {is_now.path} moved: {left} left"
    if any(one.hash == was.hash for one in new[place:]):
        added = _format_version_span(is_now.first, max(is_now.first, was.first - 1))
        return f"{is_now.path}: {added} came in before v{was.first}"
    if is_now.first == was.first:
        how = f" and is now {is_now.rendition}" if is_now.rendition != was.rendition else ""
        return f"{is_now.path}: v{was.first} changed{how}"
    return f"{is_now.path}: v{is_now.first} stands where v{was.first} was"


def _format_version_span(first: int, last: int) -> str:
    return f"v{first}" if first == last else f"v{first} to v{last}"


def _format_message_count(count: int) -> str:
    return "one message" if count == 1 else f"{count} messages"
