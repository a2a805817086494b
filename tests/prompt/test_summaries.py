"""A summary inside a prompt: requested only when the budget is short, only about new messages, stored only when used.

Cases of the suite of the library that summaries in prompts come from, in our words (summary.test.ts,
prompt-plugins.test.ts):

| there | here |
| --- | --- |
| writes only when over budget; under budget the store stays empty | under_budget, over_budget |
| the update request holds the previous summary and the new detail | update |
| load validates the shape; get trims, blank and missing give nothing | get, something_else |
| metadata are stored; write now | metadata, write_now |

Its defects 3 and 4 are shown absent: no_shorter, three_times, goes_on, window, failed_fit, shrinks_again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from acms import ProviderError, RetryConfig, Role, ToolCall, ToolResult, ValidationError
from acms.errors import StorageUnavailableError
from acms.kv import InMemoryKV, KVEntry, open_kv
from acms.model import Json
from acms.pins import create_pin_registry
from acms.plan.nodes import FittedPrompt, MessageGroup, Omit, Scope
from acms.ports import KVMemory, SummaryRequest
from acms.prompt.fit import fit_prompt
from acms.prompt.summaries import Summaries, SummaryRun
from acms.prompt.summary_coverage import FIELD, parse_watermark
from acms.providers import Endpoint, HTTPSummarizer
from acms.text.chat_messages import wrap_summary
from tests.providers.server import Behave, ModelServer
from tests.support.toy import Toy, numbered_words, text_group, text_message, texts_of_fit

ID = "trip"
ONCE = RetryConfig(max_attempts=1)


class Scribe:
    """Writes the scripted text, and keeps its requests."""

    def __init__(
        self, model: str = "scribe-1", *, say: Callable[[SummaryRequest], Any] | None = None
    ) -> None:
        self.model = model
        self.requests: list[SummaryRequest] = []
        self.say: Callable[[SummaryRequest], Any] = lambda request: f"summary number {len(self.requests)}"
        #: Calls wait for it.
        self.gate: asyncio.Event | None = None
        self.called = asyncio.Event()

    async def summarize(self, request: SummaryRequest) -> str:
        self.requests.append(request)
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        answer: str = self.say(request)
        return answer


def word_for_number(number: int) -> str:
    """A word for a message: a number would be a detail, which is added to a summary that leaves it out."""
    return "of" + "".join(chr(97 + int(digit)) for digit in str(number))


def history_groups(count: int, size: int = 10, *, mark: str = "word") -> list[MessageGroup]:
    """Messages of `size` words; the newest has to stay."""
    groups = [
        text_group(f"{mark} {word_for_number(number)}" + " and" * (size - 2)) for number in range(count)
    ]
    return [*groups[:-1], groups[-1]._replace(mandatory=True)]


async def render_history(
    summaries: Summaries,
    groups: list[MessageGroup],
    limit: int | None,
    *,
    tokens: int = 20,
    beside: tuple[Scope, ...] = (),
) -> tuple[FittedPrompt, SummaryRun]:
    """Render a prompt of one summarised history and adjacent parts, as the prompt builder does."""
    codec = Toy()
    run = summaries.run(ID, codec.counter, tokens=tokens)
    loaded = await run.load(groups)
    assert loaded is not None
    scope = Scope(id="summary", children=loaded.groups, priority=3, strategy=loaded.strategy)
    steps = fit_prompt(Scope(id="prompt", children=(*beside, scope)), codec, limit)
    answer: str | None = None
    while True:
        try:
            answer = await run.answer(steps.send(answer))
        except StopIteration as end:
            fitted: FittedPrompt = end.value
            await run.commit(fitted.summaries)
            return fitted, run


@pytest.fixture
def store() -> InMemoryKV:
    return InMemoryKV()


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


@pytest.fixture
def summaries(store: InMemoryKV, scribe: Scribe) -> Summaries:
    return Summaries(store, summarizer=scribe)


# ── when it is asked for, and when it is stored ─────────────────────────────────────────────────────────────────────


async def test_under_budget_nobody_is_asked_and_nothing_is_stored(
    summaries: Summaries, store: InMemoryKV, scribe: Scribe
) -> None:
    fitted, _ = await render_history(summaries, history_groups(5), 60)
    assert len(fitted.placed) == 5
    assert await store.get(ID) is None
    assert await summaries.get(ID) is None
    assert scribe.requests == []


async def test_over_budget_a_summary_stands_for_the_oldest_messages(
    summaries: Summaries, store: InMemoryKV, scribe: Scribe
) -> None:
    fitted, run = await render_history(summaries, history_groups(20), 100)
    assert fitted.tokens <= 100
    assert texts_of_fit(fitted)[0] == wrap_summary("summary number 1")
    assert fitted.placed[0].message.role is Role.USER  # what users and tools said never instructs
    assert await summaries.get(ID) == "summary number 1"
    entry = await store.get(ID)
    assert entry is not None
    assert entry.data == "summary number 1"  # a plain text under the id itself, so that it can be pinned
    mark = parse_watermark(entry.metadata)
    assert mark is not None
    assert mark.atoms == len(scribe.requests[0].turns) == 20 - (len(fitted.placed) - 1)
    assert run.warnings == []


async def test_three_times_the_same_prompt_ask_once(
    summaries: Summaries, store: InMemoryKV, scribe: Scribe
) -> None:
    """Defect 4: there every render asks again about everything."""
    first, _ = await render_history(summaries, history_groups(20), 100)
    before = await store.get(ID)
    for _ in range(2):
        again, _ = await render_history(summaries, history_groups(20), 100)
        assert again.placed == first.placed
    assert len(scribe.requests) == 1
    assert await store.get(ID) == before


async def test_a_summary_goes_on_from_where_it_ended(summaries: Summaries, scribe: Scribe) -> None:
    """No message is ever read twice, and earlier new messages are not lost."""
    for count in range(20, 60):
        fitted, _ = await render_history(summaries, history_groups(count), 100)
        assert fitted.tokens <= 100
        assert texts_of_fit(fitted)[-1].startswith(f"word {word_for_number(count - 1)} ")
    read = [turn.text.split()[1] for request in scribe.requests for turn in request.turns if not turn.summary]
    assert read == [word_for_number(number) for number in range(len(read))]
    assert len(scribe.requests) <= 40 / 3
    for number, request in enumerate(scribe.requests[1:], 1):
        assert request.turns[0].summary
        assert request.turns[0].text == f"summary number {number}"


async def test_an_update_reads_the_previous_summary_and_the_new_detail(
    summaries: Summaries, scribe: Scribe
) -> None:
    await render_history(summaries, history_groups(20), 100)
    await render_history(summaries, [*history_groups(20)[:-1], *history_groups(20, mark="new")], 100)
    _, update = scribe.requests
    assert update.turns[0].summary
    assert update.turns[0].text == "summary number 1"
    assert any(f"new {word_for_number(3)} " in turn.text for turn in update.turns)
    assert not any(f"word {word_for_number(0)} " in turn.text for turn in update.turns)


async def test_another_process_goes_on_too(tmp_path: Any) -> None:
    """Unchanged messages are known from the store alone."""
    url = f"sqlite:///{tmp_path}/kv.db"
    scribe, other = Scribe(), Scribe()
    async with open_kv(url) as kv:
        first, _ = await render_history(Summaries(kv, summarizer=scribe), history_groups(20), 100)
    async with open_kv(url) as kv:
        again, _ = await render_history(Summaries(kv, summarizer=other), history_groups(20), 100)
    assert again.placed == first.placed
    assert (len(scribe.requests), len(other.requests)) == (1, 0)


# ── when it does not match ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_that_was_changed_makes_it_start_anew(summaries: Summaries, scribe: Scribe) -> None:
    await render_history(summaries, history_groups(20), 100)
    other = [text_group("another" + " and" * 9), *history_groups(20)[1:]]
    fitted, run = await render_history(summaries, other, 100)
    assert "has changed" in run.reason
    assert scribe.requests[1].turns[0].text.startswith("another")
    assert texts_of_fit(fitted)[0] == wrap_summary("summary number 2")


async def test_fewer_messages_than_it_stands_for_make_it_start_anew(summaries: Summaries) -> None:
    await render_history(summaries, history_groups(20), 100)
    fitted, run = await render_history(summaries, history_groups(9), 60)
    assert "there are 9" in run.reason
    assert texts_of_fit(fitted)[0] == wrap_summary("summary number 2")


async def test_another_summarizer_starts_anew(summaries: Summaries, store: InMemoryKV) -> None:
    await render_history(summaries, history_groups(20), 100)
    other = Scribe("scribe-2")
    fitted, run = await render_history(Summaries(store, summarizer=other), history_groups(20), 100)
    assert "written by scribe-1" in run.reason
    assert len(other.requests) == 1
    assert not other.requests[0].turns[0].summary
    assert texts_of_fit(fitted)[0] == wrap_summary("summary number 1")


async def test_one_that_is_too_long_now_is_written_again(summaries: Summaries, scribe: Scribe) -> None:
    scribe.say = lambda request: numbered_words(request.max_tokens // 2, "s")
    await render_history(summaries, history_groups(20), 100, tokens=40)
    assert len((await summaries.get(ID) or "").split()) > 10
    fitted, run = await render_history(summaries, history_groups(20), 100, tokens=10)
    assert "more than 10 tokens" in run.reason
    assert len((await summaries.get(ID) or "").split()) <= 10
    assert fitted.tokens <= 100


# ── the summarizer ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer", [" \n", "", None, RuntimeError("their words"), ProviderError("x", provider="y")]
)
async def test_a_summarizer_that_fails_leaves_the_fit_to_others(
    summaries: Summaries, store: InMemoryKV, scribe: Scribe, answer: Any
) -> None:
    def say(request: SummaryRequest) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    scribe.say = say
    extra = Scope(id="extra", children=(text_group(numbered_words(50)),), priority=1, strategy=Omit())
    fitted, run = await render_history(summaries, history_groups(5), 70, beside=(extra,))
    assert len(fitted.placed) == 5
    assert "<summary>" not in texts_of_fit(fitted)[0]
    (warning,) = run.warnings
    assert "no new summary 'trip'" in warning
    assert "their words" not in warning
    assert await store.get(ID) is None


async def test_a_summary_that_is_no_shorter_does_not_end_the_render(
    summaries: Summaries, store: InMemoryKV, scribe: Scribe
) -> None:
    """Defect 3: there a summary longer than its input is an error, though an omit would have been enough."""
    scribe.say = lambda request: numbered_words(500, "s")
    extra = Scope(id="extra", children=(text_group(numbered_words(50)),), priority=1, strategy=Omit())
    fitted, run = await render_history(summaries, history_groups(5), 70, beside=(extra,))
    assert len(fitted.placed) == 5
    assert "no shorter than its input" in run.warnings[0]
    assert await store.get(ID) is None


async def test_a_summarised_history_shrinks_again(summaries: Summaries, scribe: Scribe) -> None:
    """Defect 4: there a summarised history can only fail."""
    await render_history(summaries, history_groups(20), 100)
    fitted, _ = await render_history(summaries, history_groups(20), 30)
    assert fitted.tokens <= 30


async def test_a_window_is_kept_by_handing_over_pieces(store: InMemoryKV) -> None:
    """Defect 4: there the request for a summary has no budget itself."""

    class Narrow(Scribe):
        window = 200

    scribe = Narrow()
    scribe.say = lambda request: numbered_words(8, "s")
    fitted, _ = await render_history(Summaries(store, summarizer=scribe), history_groups(60), 120)
    assert fitted.tokens <= 120
    assert len(scribe.requests) > 3
    for request in scribe.requests:
        assert sum(len(turn.text.split()) for turn in request.turns) + request.max_tokens <= 200


async def test_without_a_summarizer_the_extractive_one_writes(store: InMemoryKV) -> None:
    groups = [text_group(f"The invoice ORD-{4300 + n} is due on May {n + 1}.") for n in range(20)]
    groups[-1] = groups[-1]._replace(mandatory=True)
    first, _ = await render_history(Summaries(store), groups, 80)
    entry = await store.get(ID)
    assert entry is not None
    assert "ORD-43" in entry.data
    assert entry.metadata[FIELD]["model"] == "extractive2"
    again, _ = await render_history(Summaries(store), groups, 80)
    assert again.placed == first.placed
    assert (await store.get(ID)) == entry


async def test_tool_calls_are_read_with_their_answers(summaries: Summaries, scribe: Scribe) -> None:
    call = text_message("", Role.ASSISTANT)
    group = MessageGroup(
        (
            call.__class__(role=Role.ASSISTANT, parts=(ToolCall("c1", "weather", '{"city": "Ulm"}'),)),
            call.__class__(role=Role.TOOL, parts=(ToolResult("c1", "rain all day"),)),
        )
    )
    await render_history(summaries, [group, *history_groups(20)], 100)
    assert [(turn.speaker, turn.text) for turn in scribe.requests[0].turns[:2]] == [
        ("assistant", 'weather({"city": "Ulm"})'),
        ("tool", "rain all day"),
    ]


async def test_a_summarizer_over_http_is_asked_once(store: InMemoryKV) -> None:
    async with (
        ModelServer(say=lambda body: "They plan a trip to Ulm.") as server,
        HTTPSummarizer(Endpoint(server.url, retry=ONCE), "test-chat") as writer,
    ):
        summaries = Summaries(store, summarizer=writer)
        fitted, _ = await render_history(summaries, history_groups(20), 100)
        await render_history(summaries, history_groups(20), 100)
        assert texts_of_fit(fitted)[0] == wrap_summary("They plan a trip to Ulm.")
        assert len(server.calls) == 1
        server.script = [Behave(status=500)]
        grown, run = await render_history(summaries, history_groups(23), 100)
        assert grown.tokens <= 100
        assert (run.warnings, len(server.calls)) == ([], 1)  # three messages more still fit
        longer, run = await render_history(summaries, history_groups(40), 100)
        assert "no new summary" in run.warnings[0]
        assert longer.tokens <= 100
        assert (
            "They plan a trip" in texts_of_fit(longer)[0]
        )  # what is stored is still true of what it stands for
    assert await summaries.get(ID) == "They plan a trip to Ulm."


# ── two at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_question_at_the_same_time_is_asked_once(summaries: Summaries, scribe: Scribe) -> None:
    scribe.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(render_history(summaries, history_groups(20), 100)) for _ in range(8)]
        await scribe.called.wait()
        scribe.gate.set()
    shown = [task.result()[0].placed for task in tasks]
    assert all(placed == shown[0] for placed in shown)
    assert len(scribe.requests) == 1


async def test_when_the_one_who_asks_gives_up_another_asks(summaries: Summaries, scribe: Scribe) -> None:
    scribe.gate = asyncio.Event()
    first = asyncio.ensure_future(render_history(summaries, history_groups(20), 100))
    await scribe.called.wait()
    second = asyncio.ensure_future(render_history(summaries, history_groups(20), 100))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    scribe.gate.set()
    fitted, _ = await second
    assert fitted.tokens <= 100
    assert len(scribe.requests) == 2


async def test_of_two_renders_the_summary_that_stands_for_more_stays(
    summaries: Summaries, store: InMemoryKV
) -> None:
    for longer_first in (True, False):
        await store.delete(ID)
        short, long = summaries.run(ID, Toy().counter), summaries.run(ID, Toy().counter)
        await short.load(history_groups(20))
        await long.load(history_groups(30))
        results = [(short, [(ID, "short", 12)]), (long, [(ID, "long", 25)])]
        for run, made in reversed(results) if longer_first else results:
            await run.commit(made)
        assert await summaries.get(ID) == "long"


async def test_nothing_is_torn_when_many_store_at_once(tmp_path: Any) -> None:
    async with open_kv(f"sqlite:///{tmp_path}/kv.db") as kv:
        summaries = Summaries(kv, summarizer=Scribe())
        runs = [summaries.run(ID, Toy().counter) for _ in range(12)]
        for run in runs:
            await run.load(history_groups(20))
        made = [[(ID, f"of {covers}", covers)] for covers in range(1, 13)]
        await asyncio.gather(*(run.commit(one) for run, one in zip(runs, made, strict=True)))
        entry = await kv.get(ID)
    assert entry is not None
    mark = parse_watermark(entry.metadata)
    assert mark is not None
    assert (entry.data, mark.atoms) == ("of 12", 12)
    assert not any(run.warnings for run in runs)


async def test_a_store_without_compare_and_set_will_do(scribe: Scribe) -> None:
    class Plain:
        """The least that is asked of a store."""

        def __init__(self) -> None:
            self._kv = InMemoryKV()
            self.get, self.set, self.delete, self.aclose = (
                self._kv.get, self._kv.set, self._kv.delete, self._kv.aclose,
            )  # fmt: skip

    kv: KVMemory = Plain()
    summaries = Summaries(kv, summarizer=scribe)
    await asyncio.gather(*(render_history(summaries, history_groups(count), 100) for count in (20, 40, 30)))
    entry = await kv.get(ID)
    assert entry is not None
    mark = parse_watermark(entry.metadata)
    assert mark is not None
    assert mark.atoms > 30


async def test_a_store_that_fails_costs_a_warning(scribe: Scribe) -> None:
    class Broken(InMemoryKV):
        async def compare_and_set(
            self, key: str, data: Json, *, expect: str | None, metadata: Any = None
        ) -> KVEntry:
            raise StorageUnavailableError

    fitted, run = await render_history(Summaries(Broken(), summarizer=scribe), history_groups(20), 100)
    assert fitted.tokens <= 100
    assert "could not be stored" in run.warnings[0]


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_get_trims_and_gives_nothing_for_what_is_blank(summaries: Summaries, store: InMemoryKV) -> None:
    assert await summaries.get(ID) is None
    await store.set(ID, "  \n ")
    assert await summaries.get(ID) is None
    await store.set(ID, "  by hand \n ")
    assert await summaries.get(ID) == "by hand"


@pytest.mark.parametrize("data", [{"content": "x"}, None, 3, ["x"]])
async def test_something_else_under_the_id_is_not_touched(
    summaries: Summaries, store: InMemoryKV, data: Json
) -> None:
    await store.set(ID, data)
    with pytest.raises(ValidationError, match="has a value that is not a summary"):
        await summaries.get(ID)
    with pytest.raises(ValidationError) as caught:
        await render_history(summaries, history_groups(20), 100)
    assert caught.value.options[0] == "choose another id"
    entry = await store.get(ID)
    assert entry is not None
    assert entry.data == data


async def test_a_text_by_hand_stands_for_nothing_and_is_replaced(
    summaries: Summaries, store: InMemoryKV
) -> None:
    await store.set(ID, "by hand")
    fitted, run = await render_history(summaries, history_groups(20), 100)
    assert "its stored record is missing" in run.reason
    assert texts_of_fit(fitted)[0] == wrap_summary("summary number 1")


async def test_metadata_are_stored_beside_the_watermark(store: InMemoryKV, scribe: Scribe) -> None:
    summaries = Summaries(store, summarizer=scribe, metadata={"sessionId": "s-1"})
    await render_history(summaries, history_groups(20), 100)
    entry = await store.get(ID)
    assert entry is not None
    assert set(entry.metadata) == {"sessionId", FIELD}
    assert entry.metadata["sessionId"] == "s-1"
    with pytest.raises(ValidationError, match="metadata"):
        Summaries(store, metadata={FIELD: 1})


async def test_write_now_reads_all_of_it_and_only_once(summaries: Summaries, scribe: Scribe) -> None:
    groups = history_groups(6)
    assert await summaries.write(ID, groups, tokens=20) == "summary number 1"
    assert await summaries.write(ID, groups, tokens=20) == "summary number 1"
    assert await summaries.get(ID) == "summary number 1"
    assert await summaries.write(ID, [*groups, text_group(" and" * 30)], tokens=20) == "summary number 2"
    assert [len(request.turns) for request in scribe.requests] == [6, 2]
    fitted, _ = await render_history(
        summaries, [*groups, text_group(" and" * 30), *history_groups(2, mark="n")], 60
    )
    assert len(scribe.requests) == 2  # a prompt goes on from it
    assert texts_of_fit(fitted)[0] == wrap_summary("summary number 2")


async def test_write_now_says_why_it_cannot(summaries: Summaries, store: InMemoryKV, scribe: Scribe) -> None:
    scribe.say = lambda request: ""
    with pytest.raises(ProviderError, match="no text"):
        await summaries.write(ID, history_groups(3))
    with pytest.raises(ValidationError, match="no messages"):
        await summaries.write(ID, [])
    with pytest.raises(ProviderError, match="no text to summarise"):
        await summaries.write(ID, [text_group(" ")])
    assert await store.get(ID) is None


@pytest.mark.parametrize("given", [{"summarizer": "gpt"}])
def test_what_makes_no_sense_is_refused(store: InMemoryKV, given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        Summaries(store, **given)
    with pytest.raises(ValidationError, match="store"):
        Summaries({})  # type: ignore[arg-type]


# ── pinned ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stored_summary_is_pinned_once(store: InMemoryKV, scribe: Scribe) -> None:
    registry = create_pin_registry(store, namespace="user:1")
    summaries = Summaries(store, summarizer=scribe, pin=registry)
    await render_history(summaries, history_groups(5), 100)
    assert await registry.list() == ()
    await render_history(summaries, history_groups(20), 100)
    (pin,) = await registry.list()
    assert pin.key == ID
    await registry.pin(ID, label="The trip so far", priority=5)
    await render_history(summaries, history_groups(60), 100)
    (pin,) = await registry.list()
    assert pin.metadata.label == "The trip so far"  # what the caller says of it stays
