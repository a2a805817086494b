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


def find_hoisted_roles(
    normal: Callable[[Sequence[PromptMessage]], Sequence[PromptMessage]],
) -> frozenset[Role]:
    """Return the roles whose messages a codec sends before all others, whatever their position: system text in some.

    `normal` is that of the codec: it returns messages in the order of the request.
    """
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
    prediction = CachePrediction(key=key, total_tokens=base + _count_tokens(now.messages))
    if previous is None:
        return replace(prediction, reason="there is no earlier prompt to compare with")
    hoisted = find_hoisted_roles(codec.normal)
    old, new = _sort_as_read(previous, hoisted), _sort_as_read(now, hoisted)
    old_messages, new_messages = [sent for _, sent in old], [sent for _, sent in new]
    preamble_change = _find_preamble_change(now, previous, key)
    if preamble_change is not None:
        changed, reason = preamble_change
        first = _change_at(new, 0, now) if new else None
        return replace(prediction, compared=True, changed=changed, first_change=first, reason=reason)
    shared = count_shared_messages(old_messages, new_messages)
    shared_tokens = base + _count_tokens(new_messages[:shared])
    readable_tokens = shared_tokens
    reason = _explain_first_change(old_messages, new_messages, shared)
    if codec.marks_only:
        marked = _count_marked_messages(previous, old, shared, implicit=codec.implicit_mark)
        if marked is not None and (now.marks or codec.implicit_mark):
            readable_tokens = base + _count_tokens(new_messages[:marked])
        else:
            readable_tokens = 0
            reason += "; nothing is cached, as no mark ends what is shared: give a cache hint"
    prediction = replace(
        prediction,
        predicted_tokens=codec.cached(readable_tokens),
        shared_tokens=shared_tokens,
        reason=reason,
        compared=True,
    )
    if shared == len(old):
        return prediction
    changed = _changed_part(old_messages, new_messages, shared)
    return replace(prediction, first_change=_change_at(new, shared, now), changed=changed)


def _count_tokens(messages: Sequence[Sent]) -> int:
    return sum([sent.tokens for sent in messages])


def count_shared_messages(old: Sequence[Sent], new: Sequence[Sent]) -> int:
    """Return how many messages two prompts begin with in common."""
    shared = 0
    while shared < min(len(old), len(new)) and old[shared].hash == new[shared].hash:
        shared += 1
    return shared


def _find_preamble_change(now: Manifest, previous: Manifest, key: str) -> tuple[Changed, str] | None:
    """Return the difference before the first message, and a description; None when there is none."""
    if (previous.codec, previous.model) != (now.codec, now.model):
        reason = f"it was sent to {previous.model} by {previous.codec}, this one goes to {now.model} by {now.codec}"
        return Changed.MODEL, reason
    if key and previous.marks and now.marks:
        old_mark, new_mark = previous.marks[0], now.marks[0]
        if (old_mark.id, old_mark.version) != (new_mark.id, new_mark.version):
            reason = (
                f"it is cached as {new_mark.id}:{new_mark.version}, "
                f"the earlier one was as {old_mark.id}:{old_mark.version}"
            )
            return Changed.KEY, reason
    if previous.tools != now.tools:
        return Changed.TOOLS, _describe_tools_change(previous, now)
    return None


def _change_at(new: Sequence[tuple[int, Sent]], index: int, now: Manifest) -> Change:
    """Return the message that differs; the end of the prompt if it is shorter than the earlier one."""
    if index == len(new):
        return Change(index=len(now.messages), role=None, path="")
    place, sent = new[index]
    return Change(index=place, role=sent.role, path=sent.path)


def _changed_part(old: Sequence[Sent], new: Sequence[Sent], index: int) -> Changed:
    """Return the part of the request that the first difference is in."""
    only_system_before = all(sent.role in LEADING for sent in old[:index])
    differing = [*old[index : index + 1], *new[index : index + 1]]
    in_system = any(sent.role in LEADING for sent in differing)
    return Changed.SYSTEM if only_system_before and in_system else Changed.MESSAGES


def diagnosis_agrees(prediction: CachePrediction, usage: Usage, *, asked: bool = False) -> bool | None:
    """Return whether a provider's diagnosis matches the prediction; None without a diagnosis of the prompt.

    `asked` says that the request asked for a diagnosis: then a provider that reports nothing found no difference.
    """
    diagnosis = usage.diagnosis
    if diagnosis is None or not prediction.compared:
        return None
    outcome = diagnosis.outcome
    if outcome is Outcome.UNKNOWN or (outcome is Outcome.SILENT and not asked):
        return None
    if outcome is not Outcome.MISS:
        return prediction.changed is None
    if diagnosis.changed in (None, Changed.SETTINGS):
        return None
    if diagnosis.changed is Changed.INPUT:
        return prediction.changed in (Changed.SYSTEM, Changed.MESSAGES)
    return diagnosis.changed is prediction.changed


COUNT_ERROR = 0.05
"""Share by which a predicted count may exceed that of a provider whose tokenizer is not public."""


def describe_cache_mismatch(prediction: CachePrediction, usage: Usage, *, asked: bool = False) -> str:
    """Describe the difference between a prediction and the provider's report; "" when there is none.

    Reading more tokens than predicted is not an error: the provider may know the prompt from elsewhere. A reason given
    by the provider is reported beside the predicted one, also when no token was missed but the reasons differ.
    """
    missed = prediction.predicted_tokens - usage.cached_tokens
    if missed <= prediction.predicted_tokens * COUNT_ERROR:
        missed = 0
    if missed <= 0 and diagnosis_agrees(prediction, usage, asked=asked) is not False:
        return ""
    diagnosis = _describe_diagnosis(usage.diagnosis, asked=asked)
    reasons = f"the provider says {diagnosis}, the forecast {prediction.reason!r}" if diagnosis else ""
    if missed <= 0:
        return reasons
    read = usage.cached_tokens or "none"
    found = f"{read} of the {prediction.predicted_tokens} tokens predicted were read from the cache"
    is_explained = usage.diagnosis is not None and usage.diagnosis.outcome is Outcome.MISS
    if not usage.cached_tokens and not is_explained:
        found += ": it had expired, was never written, or another machine has it"
    return f"{found}; {reasons}" if reasons else found


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
    """Return the messages with their indexes, in the order in which the provider reads them."""
    return sorted(enumerate(manifest.messages), key=lambda indexed: indexed[1].role not in front)


def _count_marked_messages(
    manifest: Manifest, as_read: Sequence[tuple[int, Sent]], most: int, *, implicit: bool
) -> int | None:
    """Return how many messages, as the provider reads them, are cached by the last mark within the first `most`.

    With `implicit` the provider also marks the newest message of the user or a tool. None if there is no mark.
    """
    # By the index of a message in the manifest: how many messages the provider has read once it has read this one.
    counts = {place: count for count, (place, _) in enumerate(as_read, 1)}
    ends = [counts.get(mark.messages - 1, 0) for mark in manifest.marks]
    if implicit:
        eligible = [
            count for count, (_, sent) in enumerate(as_read, 1) if sent.role in (Role.USER, Role.TOOL)
        ]
        ends += eligible[-1:]
    return max((end for end in ends if end <= most), default=None)


def _describe_tools_change(old: Manifest, new: Manifest) -> str:
    """Describe in words how the tools of two prompts differ."""
    before = {tool.name: tool for tool in old.tools}
    after = {tool.name: tool for tool in new.tools}
    changes = [f"{name} is new" for name in after if name not in before]
    changes += [f"{name} is gone" for name in before if name not in after]
    changes += [f"{name} changed" for name in after if name in before and before[name] != after[name]]
    return f"tools come first, and {', '.join(changes) or 'their order changed'}"


def _explain_first_change(old: Sequence[Sent], new: Sequence[Sent], index: int) -> str:
    """Describe in words the first difference between two prompts."""
    if index == len(old):
        added = len(new) - index
        if not added:
            return "nothing changed"
        count = "one message" if added == 1 else f"{added} messages"
        return f"the earlier prompt is the beginning of this one, {count} more"
    was = old[index]
    if index == len(new):
        return f"this prompt ends where the earlier one went on with {was.path}"
    sent = new[index]
    if was.moves:
        return f"what was recalled stood here: {was.path} is chosen anew every turn"
    if was.path != sent.path:
        is_later = any(one.hash == sent.hash for one in old[index:])
        return f"{was.path} is gone" if is_later else f"{sent.path} stands where {was.path} was"
    if "pieces" in (was.rendition, sent.rendition):
        return f"{sent.path}: {_describe_pieces_change(was, sent)}"
    if "summary" in (was.rendition, sent.rendition) or not (sent.first and was.first):
        return f"{sent.path}: {_describe_text_change(was, sent)}"
    return _describe_history_change(old, new, index)


def _describe_pieces_change(was: Sent, sent: Sent) -> str:
    """Return which pieces of a message changed: pins."""
    added = [name for name in sent.pieces if name not in was.pieces]
    gone = [name for name in was.pieces if name not in sent.pieces]
    if added or gone:
        return ", ".join([*_list_changed_names(added, "new"), *_list_changed_names(gone, "gone")])
    if sent.pieces == was.pieces:
        return f"the text of {' or '.join(sent.pieces)} changed"
    return "their order changed"


def _list_changed_names(names: Sequence[str], change: str) -> list[str]:
    """Return that some pieces are new or gone: the first three, and how many more."""
    phrases = [f"{name} is {change}" for name in names[:3]]
    if len(names) > 3:
        phrases.append(f"{len(names) - 3} more are {change}")
    return phrases


def _describe_text_change(was: Sent, sent: Sent) -> str:
    if sent.rendition != "summary":
        return "the text changed"
    return "the summary changed" if was.rendition == "summary" else "a summary stands for what began here"


def _describe_history_change(old: Sequence[Sent], new: Sequence[Sent], index: int) -> str:
    """Describe the change of a history whose messages have versions."""
    was, sent = old[index], new[index]
    path = sent.path
    following = new[index + 1] if index + 1 < len(new) else None
    # An edit or a summary has a later version than the message after it.
    if following is not None and following.path == path and sent.first > following.first > was.first:
        what = "a summary" if all(map(is_summary, sent.sources)) else "an edit"
        return f"{path}: {what}, v{sent.first}, stands for {_format_versions(was.first, following.first - 1)}"
    if any(one.hash == sent.hash for one in old[index:]):
        left = _format_versions(was.first, max(was.first, sent.first - 1))
        is_inside = index > 0 and old[index - 1].path == was.path
        return f"{path}: {left} left" if is_inside else f"the start of {path} moved: {left} left"
    if any(one.hash == was.hash for one in new[index:]):
        added = _format_versions(sent.first, max(sent.first, was.first - 1))
        return f"{path}: {added} came in before v{was.first}"
    if sent.first != was.first:
        return f"{path}: v{sent.first} stands where v{was.first} was"
    rendition = f" and is now {sent.rendition}" if sent.rendition != was.rendition else ""
    return f"{path}: v{was.first} changed{rendition}"


def _format_versions(first: int, last: int) -> str:
    return f"v{first}" if first == last else f"v{first} to v{last}"
