"""Predict the provider's cache hits for a prompt from two manifests, and check them against its usage report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from acms.log.encoding import is_summary_id
from acms.log.trust import LEADING
from acms.model import Role, Text
from acms.ports import Codec
from acms.prompt.manifest import Manifest, Sent
from acms.prompt_types import CachePrediction, Change, Changed, Diagnosis, Outcome, PromptMessage, Usage


def find_hoisted_roles(
    normal: Callable[[Sequence[PromptMessage]], Sequence[PromptMessage]],
) -> frozenset[Role]:
    """Return the roles whose messages a codec sends before all others, whatever their position: system text in some.

    `normal` is the method of the codec that returns messages in the order of the request.
    """
    user_message = PromptMessage(role=Role.USER, parts=(Text("a"),))
    hoisted_roles: set[Role] = set()
    for role in LEADING:
        first_message = normal((user_message, PromptMessage(role=role, parts=(Text("b"),))))[0]
        if first_message.role is not Role.USER:
            hoisted_roles.add(role)
    return frozenset(hoisted_roles)


def predict_cache(
    current: Manifest, previous: Manifest | None, codec: Codec, *, key: str = ""
) -> CachePrediction:
    """Predict which part of a prompt the provider can read from its cache after an earlier prompt, and why.

    Whole messages are compared by their hashes, in the order in which the provider reads them: tools, hoisted messages,
    then the rest. `key` is the name under which the cache is kept, if a hint gave one.
    """
    base = codec.base(current.tools)
    # Costs of single messages are upper bounds: a merged message, and a result without its call, take fewer tokens.
    total_tokens = min(current.tokens, base + _count_tokens(current.messages))
    prediction = CachePrediction(key=key, total_tokens=total_tokens)
    if previous is None:
        return replace(prediction, reason="there is no earlier prompt to compare with")
    hoisted_roles = find_hoisted_roles(codec.normal)
    previous_read = _sort_as_read(previous, hoisted_roles)
    current_read = _sort_as_read(current, hoisted_roles)
    old_messages = [sent for _, sent in previous_read]
    new_messages = [sent for _, sent in current_read]
    preamble_change = _find_preamble_change(current, previous, key)
    if preamble_change is not None:
        changed_part, reason = preamble_change
        first = _change_at(current_read, 0, current) if current_read else None
        return replace(prediction, compared=True, changed=changed_part, first_change=first, reason=reason)
    shared_count = count_shared_messages(old_messages, new_messages)
    shared_tokens = min(total_tokens, base + _count_tokens(new_messages[:shared_count]))
    readable_tokens = shared_tokens
    reason = _explain_first_change(old_messages, new_messages, shared_count)
    if codec.marks_only:  # such a provider caches nothing but prefixes that end with a mark
        marked_count = _count_marked_messages(
            previous, previous_read, shared_count, implicit=codec.implicit_mark
        )
        if marked_count is not None and (current.marks or codec.implicit_mark):
            readable_tokens = min(total_tokens, base + _count_tokens(new_messages[:marked_count]))
        else:
            readable_tokens = 0
            advice = "" if previous.marks and current.marks else ": give a cache hint"
            reason += f"; nothing is read from the cache, as no mark ends what is shared{advice}"
    prediction = replace(
        prediction,
        predicted_tokens=codec.cached(readable_tokens),
        shared_tokens=shared_tokens,
        reason=reason,
        compared=True,
    )
    if shared_count == len(previous_read):
        return prediction
    changed_part = _changed_part(old_messages, new_messages, shared_count)
    return replace(
        prediction, first_change=_change_at(current_read, shared_count, current), changed=changed_part
    )


def _count_tokens(messages: Sequence[Sent]) -> int:
    return sum([sent.tokens for sent in messages])


def count_shared_messages(old_messages: Sequence[Sent], new_messages: Sequence[Sent]) -> int:
    """Return how many messages two prompts begin with in common."""
    count = 0
    while (
        count < min(len(old_messages), len(new_messages))
        and old_messages[count].hash == new_messages[count].hash
    ):
        count += 1
    return count


def _find_preamble_change(current: Manifest, previous: Manifest, key: str) -> tuple[Changed, str] | None:
    """Return the difference before the first message, and a description; None when there is none."""
    if (previous.codec, previous.model) != (current.codec, current.model):
        reason = (
            f"it was sent to {previous.model} by {previous.codec}, "
            f"this one goes to {current.model} by {current.codec}"
        )
        return Changed.MODEL, reason
    if key and previous.marks and current.marks:
        old_mark, new_mark = previous.marks[0], current.marks[0]
        if (old_mark.id, old_mark.version) != (new_mark.id, new_mark.version):
            reason = (
                f"it is cached as {new_mark.id}:{new_mark.version}, "
                f"the earlier one was as {old_mark.id}:{old_mark.version}"
            )
            return Changed.KEY, reason
    if previous.tools != current.tools:
        return Changed.TOOLS, _describe_tools_change(previous, current)
    return None


def _change_at(sent_as_read: Sequence[tuple[int, Sent]], index: int, current: Manifest) -> Change:
    """Return where two requests differ first: at an index in the order in which providers read, or at the end."""
    if index == len(sent_as_read):
        return Change(index=len(current.messages), role=None, path="")
    message_index, sent = sent_as_read[index]
    return Change(index=message_index, role=sent.role, path=sent.path)


def _changed_part(old_messages: Sequence[Sent], new_messages: Sequence[Sent], index: int) -> Changed:
    """Return the part of the request that the first difference is in."""
    only_system_before = all(sent.role in LEADING for sent in old_messages[:index])
    differing = [*old_messages[index : index + 1], *new_messages[index : index + 1]]
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
        return None  # the prediction knows messages and tools, not the settings of a request
    if diagnosis.changed is Changed.INPUT:  # the provider does not say which part of its input
        return prediction.changed in (Changed.SYSTEM, Changed.MESSAGES)
    return diagnosis.changed is prediction.changed


COUNT_ERROR = 0.05
"""Share by which a predicted count may exceed that of a provider whose tokenizer is not public."""


def describe_cache_mismatch(prediction: CachePrediction, usage: Usage, *, asked: bool = False) -> str:
    """Describe the difference between a prediction and the provider's report; "" when there is none.

    Reading more tokens than predicted is not an error: the provider may have the prefix from another request. A reason
    given by the provider is reported beside the predicted one, also when no token was missed but the reasons differ.
    """
    missed_tokens = prediction.predicted_tokens - usage.cached_tokens
    if missed_tokens <= prediction.predicted_tokens * COUNT_ERROR:
        missed_tokens = 0
    if missed_tokens <= 0 and diagnosis_agrees(prediction, usage, asked=asked) is not False:
        return ""
    diagnosis = _describe_diagnosis(usage.diagnosis, asked=asked)
    reasons = f"the provider says {diagnosis}, the forecast {prediction.reason!r}" if diagnosis else ""
    if missed_tokens <= 0:
        return reasons
    cached_tokens = usage.cached_tokens or "none"
    mismatch = (
        f"{cached_tokens} of the {prediction.predicted_tokens} tokens predicted were read from the cache"
    )
    is_explained = usage.diagnosis is not None and usage.diagnosis.outcome is Outcome.MISS
    if not usage.cached_tokens and not is_explained:
        mismatch += ": it had expired, was never written, or another machine has it"
    return f"{mismatch}; {reasons}" if reasons else mismatch


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


def _sort_as_read(manifest: Manifest, hoisted_roles: frozenset[Role]) -> list[tuple[int, Sent]]:
    """Return the messages with their indexes, in the order in which the provider reads them."""
    return sorted(
        enumerate(manifest.messages), key=lambda indexed_sent: indexed_sent[1].role not in hoisted_roles
    )


def _count_marked_messages(
    manifest: Manifest, as_read: Sequence[tuple[int, Sent]], max_messages: int, *, implicit: bool
) -> int | None:
    """Return how many of the first messages are cached, by the last mark within the first `max_messages` of them.

    `as_read` has the messages in the order in which the provider reads them. With `implicit` the provider also marks
    the newest message of the user or a tool. None if there is no mark.
    """
    # By the index of a message in the manifest: how many messages the provider has read once it has read this one.
    counts = {message_index: count for count, (message_index, _) in enumerate(as_read, 1)}
    ends = [counts.get(mark.messages - 1, 0) for mark in manifest.marks]
    if implicit:
        eligible = [
            count for count, (_, sent) in enumerate(as_read, 1) if sent.role in (Role.USER, Role.TOOL)
        ]
        ends += eligible[-1:]
    return max((end for end in ends if end <= max_messages), default=None)


def _describe_tools_change(previous: Manifest, current: Manifest) -> str:
    """Describe in words how the tools of two prompts differ."""
    old_tools = {tool.name: tool for tool in previous.tools}
    new_tools = {tool.name: tool for tool in current.tools}
    changes = [f"{name} is new" for name in new_tools if name not in old_tools]
    changes += [f"{name} is gone" for name in old_tools if name not in new_tools]
    changes += [
        f"{name} changed" for name in new_tools if name in old_tools and old_tools[name] != new_tools[name]
    ]
    return f"tools come first, and {', '.join(changes) or 'their order changed'}"


def _explain_first_change(old_messages: Sequence[Sent], new_messages: Sequence[Sent], index: int) -> str:
    """Describe in words the first difference between two prompts: their messages at an index."""
    if index == len(old_messages):
        added_count = len(new_messages) - index
        if not added_count:
            return "nothing changed"
        count = "one message" if added_count == 1 else f"{added_count} messages"
        return f"the earlier prompt is the beginning of this one, {count} more"
    old_sent = old_messages[index]
    if index == len(new_messages):
        return f"this prompt ends where the earlier one went on with {old_sent.path}"
    new_sent = new_messages[index]
    path, renditions = new_sent.path, (old_sent.rendition, new_sent.rendition)
    is_recalled_every_turn = old_sent.moves
    if is_recalled_every_turn:
        return f"what was recalled stood here: {old_sent.path} is chosen anew every turn"
    if old_sent.path != path:
        is_later = any(later_sent.hash == new_sent.hash for later_sent in old_messages[index:])
        return f"{old_sent.path} is gone" if is_later else f"{path} stands where {old_sent.path} was"
    has_pieces = "pieces" in renditions
    if has_pieces:
        return f"{path}: {_describe_pieces_change(old_sent, new_sent)}"
    is_summarised = "summary" in renditions
    is_written_by_caller = not (old_sent.first and new_sent.first)  # only messages of a log have versions
    if is_summarised or is_written_by_caller:
        return f"{path}: {_describe_text_change(old_sent, new_sent)}"
    return _describe_history_change(old_messages, new_messages, index)


def _describe_pieces_change(old_sent: Sent, new_sent: Sent) -> str:
    """Return which pieces of a message changed: pins."""
    added_names = [name for name in new_sent.pieces if name not in old_sent.pieces]
    removed_names = [name for name in old_sent.pieces if name not in new_sent.pieces]
    if added_names or removed_names:
        return ", ".join(
            [*_list_changed_names(added_names, "new"), *_list_changed_names(removed_names, "gone")]
        )
    if new_sent.pieces == old_sent.pieces:
        return f"the text of {' or '.join(new_sent.pieces)} changed"
    return "their order changed"


def _list_changed_names(names: Sequence[str], change: str) -> list[str]:
    """Return phrases that say which pieces are new or gone: one for each of the first three, and one for the others."""
    phrases = [f"{name} is {change}" for name in names[:3]]
    if len(names) > 3:
        phrases.append(f"{len(names) - 3} more are {change}")
    return phrases


def _describe_text_change(old_sent: Sent, new_sent: Sent) -> str:
    if new_sent.rendition != "summary":
        return "the text changed"
    if old_sent.rendition == "summary":
        return "the summary changed"
    return "a summary replaces the messages that began here"


def _describe_history_change(old_messages: Sequence[Sent], new_messages: Sequence[Sent], index: int) -> str:
    """Describe the change of a history whose messages have versions."""
    old_sent, new_sent = old_messages[index], new_messages[index]
    path = new_sent.path
    following = new_messages[index + 1] if index + 1 < len(new_messages) else None
    # An edit or a summary has a later version than the message after it.
    if following is not None and following.path == path and new_sent.first > following.first > old_sent.first:
        replacement = "a summary" if all(map(is_summary_id, new_sent.sources)) else "an edit"
        replaced_versions = _format_versions(old_sent.first, following.first - 1)
        return f"{path}: {replacement}, v{new_sent.first}, replaces {replaced_versions}"
    if any(other.hash == new_sent.hash for other in old_messages[index:]):
        left_versions = _format_versions(old_sent.first, max(old_sent.first, new_sent.first - 1))
        is_inside = index > 0 and old_messages[index - 1].path == old_sent.path
        if is_inside:
            return f"{path}: {left_versions} left"
        return f"the start of {path} moved: {left_versions} left"
    if any(other.hash == old_sent.hash for other in new_messages[index:]):
        added_versions = _format_versions(new_sent.first, max(new_sent.first, old_sent.first - 1))
        return f"{path}: {added_versions} came in before v{old_sent.first}"
    if new_sent.first != old_sent.first:
        return f"{path}: v{new_sent.first} stands where v{old_sent.first} was"
    rendition = f" and is now {new_sent.rendition}" if new_sent.rendition != old_sent.rendition else ""
    return f"{path}: v{old_sent.first} changed{rendition}"


def _format_versions(first: int, last: int) -> str:
    return f"v{first}" if first == last else f"v{first} to v{last}"
