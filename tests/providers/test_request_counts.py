"""Counts of whole requests: by the server that receives them, by a local tokenizer, or an estimate that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from acms import ACMS, ConfigurationError, Prompt, open_storage
from acms.codecs import AnthropicMessages, Calibration, Exactness, Gemini, OpenAIChat, Tool, Usage
from acms.ports import Codec
from acms.providers import Endpoint, LocalTokenizer, ServerTokenCounter
from tests.providers.prompts import make_count
from tests.providers.server import Behave, ModelServer

TOOL = Tool(
    name="look_up",
    description="Looks up a host in the register",
    parameters={
        "type": "object",
        "properties": {"host": {"type": "string", "description": "Name of the host"}},
    },
)
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}<tool> {{ tool | tojson }} </tool> {% endfor %}{% endif %}"
    "{% for message in messages %}<start> {{ message.role }} {{ message.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<start> assistant{% endif %}"
)


async def sample_session() -> ACMS:
    session = ACMS("talk", open_storage("memory://"))
    for number in range(60):
        await session.ingest(
            "user", f"Note {number}: the crate with the blue label goes to hall {number % 7}."
        )
    return session


def codec_of(api: str, counter: ServerTokenCounter) -> Codec:
    if api == "anthropic":
        return AnthropicMessages("claude-opus-5", max_tokens=100, request_counter=counter)
    if api == "gemini":
        return Gemini("gemini-3-pro", request_counter=counter)
    return OpenAIChat("qwen2.5", request_counter=counter)


@pytest.mark.parametrize("api", ["llama.cpp", "vllm", "anthropic", "gemini"])
@pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["plain", "tools"])
async def test_the_server_counts_what_it_receives(api: Any, tools: tuple[Tool, ...]) -> None:
    async with ModelServer() as server, ServerTokenCounter(server.url, api=api) as counter:
        session = await sample_session()
        prompt = Prompt(codec_of(api, counter)).tools(tools).history(session).user("What goes where?")
        for budget in (600, 900):
            rendered = await prompt.render(budget=budget)
            expected = await counter.count_request(rendered.payload, model="gemini-3-pro")
            assert rendered.tokens.exactness is Exactness.SERVER
            assert rendered.tokens.tokens == rendered.tokens.upper_bound == expected <= budget
            assert not any("estimated" in warning for warning in rendered.warnings)
        await session.close()


async def test_a_request_over_the_budget_by_the_servers_count_is_made_smaller() -> None:
    async with ModelServer() as server, ServerTokenCounter(server.url, api="llama.cpp") as counter:
        session = await sample_session()
        server.script = [Behave(), Behave(body={"tokens": [0] * 700})]  # the first count is above the budget
        rendered = (
            await Prompt(codec_of("llama.cpp", counter)).history(session).user("Where?").render(budget=600)
        )
        assert rendered.tokens.upper_bound <= 600
        assert rendered.tokens.tokens == await counter.count_request(rendered.payload, model="")
        await session.close()


async def test_a_server_that_cannot_count_leaves_an_estimate_and_a_warning() -> None:
    async with ModelServer() as server:
        server.otherwise = Behave(status=404)
        counter = ServerTokenCounter(Endpoint(server.root), api="vllm")
        session = await sample_session()
        rendered = await Prompt(codec_of("vllm", counter)).history(session).user("Where?").render(budget=600)
        assert rendered.tokens.exactness is Exactness.ESTIMATE
        assert rendered.tokens.upper_bound <= 600
        assert any("could not be counted" in warning for warning in rendered.warnings)
        await counter.aclose()
        await session.close()


async def test_a_report_above_the_servers_count_raises_the_next_bounds() -> None:
    async with ModelServer() as server, ServerTokenCounter(server.url, api="llama.cpp") as counter:
        session = await sample_session()
        prompt = Prompt(codec_of("llama.cpp", counter)).history(session).user("Where?")
        first = await prompt.render(budget=600)
        report = first.report(
            {"prompt_tokens": first.tokens.tokens + 9, "completion_tokens": 1, "total_tokens": 1}
        )
        assert not report.within
        second = await prompt.render(budget=600)
        assert second.tokens.upper_bound == second.tokens.tokens + 9 <= 600
        await session.close()


def test_a_counter_needs_a_known_api() -> None:
    with pytest.raises(ConfigurationError, match=r"llama\.cpp"):
        ServerTokenCounter("http://127.0.0.1:1", api="other")  # type: ignore[arg-type] - what a caller may mistype


# ── a local tokenizer ─────────────────────────────────────────────────────────────────────────────────────────────────


def write_tokenizer(folder: Path, *, template: bool = True) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment] - untyped setter
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


async def test_a_local_tokenizer_counts_requests_as_the_template_writes_them(tmp_path: Path) -> None:
    tokenizer = LocalTokenizer(write_tokenizer(tmp_path))
    codec = OpenAIChat("smollm2", request_counter=tokenizer)
    session = await sample_session()
    rendered = await Prompt(codec).tools([TOOL]).history(session).user("What goes where?").render(budget=600)
    tools = [f"<tool> {json.dumps(tool)} </tool>" for tool in rendered.payload["tools"]]
    messages = [f"<start> {one['role']} {one['content']} <end>" for one in rendered.payload["messages"]]
    expected = len(" ".join([*tools, *messages, "<start> assistant"]).split())
    assert rendered.tokens.exactness is Exactness.EXACT
    assert rendered.tokens.tokens == rendered.tokens.upper_bound == expected <= 600
    assert codec.counter is tokenizer
    await session.close()


async def test_a_local_tokenizer_without_a_template_counts_texts(tmp_path: Path) -> None:
    tokenizer = LocalTokenizer(write_tokenizer(tmp_path, template=False) / "tokenizer.json")
    assert tokenizer.count("three words here") == 3
    assert tokenizer.count("half \ud83c an emoji") == 4
    session = await sample_session()
    codec = OpenAIChat("smollm2", request_counter=tokenizer)
    rendered = await Prompt(codec).history(session).user("What goes where?").render(budget=600)
    assert rendered.tokens.exactness is Exactness.CALIBRATED
    await session.close()


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not a tokenizer\.json"):
        LocalTokenizer(tmp_path)


# ── neither ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unknown_model_has_an_estimate_until_enough_was_reported() -> None:
    session = await sample_session()
    codec = OpenAIChat("qwen2.5")
    prompt = Prompt(codec).history(session).user("What goes where?")
    first = await prompt.render(budget=2_000)
    assert first.tokens.exactness is Exactness.ESTIMATE
    for _ in range(codec.calibration.needed):
        first.report({"prompt_tokens": first.tokens.tokens, "completion_tokens": 1, "total_tokens": 1})
    assert codec.count(first.payload).exactness is Exactness.CALIBRATED
    await session.close()


@pytest.mark.parametrize("model", ["gpt-6-sol", "o9-mini"])
def test_models_of_openai_are_counted_with_the_newest_public_vocabulary(model: str) -> None:
    codec = OpenAIChat(model)
    assert codec.counter.name == "o200k_base"
    assert codec.counted(1_000, covered=False).exactness is Exactness.ESTIMATE


def test_reports_correct_tools_apart_from_text() -> None:
    codec = OpenAIChat("qwen2.5", calibration=Calibration(1.0, margin=0))
    for text in (1_000, 2_000, 3_000, 1_500):  # the template takes three tokens for each of ours in tools
        codec.observe(make_count(text + 400, tools=400), Usage(input_tokens=text + 1_200))
    bound = codec.calibration.upper
    assert bound(10_000) <= 1.05 * 10_000
    assert 3_200 <= bound(2_400, 400) <= 3_300
    assert codec.limit(bound(2_400, 400), tools=400) == 2_400
    restored = Calibration(1.0, margin=0)
    restored.restore(codec.calibration.state())
    assert restored.upper(2_400, 400) == bound(2_400, 400)


@pytest.mark.parametrize(
    ("text", "qwen", "smollm2", "gemma"),
    [
        # Counted by the models' own tokenizers.
        ("We moved the deadline to March 20, because the vendor is late.", 16, 16, 16),
        ("締め切りは三月二十日に変更されました。注文サービスはPostgreSQLで動いています。", 24, 64, 19),
        ("Können wir den Liefertermin auf übermorgen verschieben?", 16, 21, 14),
        ('{"id": 17823645812, "ts": "2026-11-03T04:15:22.118Z", "mem": 0.7312}', 56, 56, 56),
    ],
)
def test_the_estimate_is_above_what_real_vocabularies_need(
    text: str, qwen: int, smollm2: int, gemma: int
) -> None:
    estimate = OpenAIChat("an-open-model").counter.count(text)
    largest = max(qwen, smollm2, gemma)
    assert largest <= estimate <= 1.5 * largest
