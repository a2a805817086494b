"""What the requests of an agent keep when its outputs are larger than the budget."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from acms import ACMS, Prompt, open_storage
from acms.codecs import OpenAIChat
from acms.prompt import Rendered

RULE = "Never touch production. Only work on the staging cluster, and answer in French."
CORRECTION = "Correction: the timeout must become 20 s, not 30 s."


async def call_tool(session: ACMS, number: str, command: str, output: str) -> None:
    call = {"id": f"c{number}", "name": "bash", "arguments": json.dumps({"cmd": command})}
    await session.ingest("assistant", "", tool_calls=[call])
    await session.ingest("tool", output, tool_call_id=f"c{number}")


async def render(session: ACMS, question: str, budget: int) -> Rendered:
    return await Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).render(budget=budget)


def contents(rendered: Rendered) -> list[str]:
    return [message.get("content") or "" for message in rendered.payload["messages"]]


def block_of(rendered: Rendered) -> str:
    (block,) = [text for text in contents(rendered) if text.startswith("<recalled>")]
    return block


# ── the user's words ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("budget", [800, 2000, 8000])
async def test_rules_and_corrections_of_the_user_stay(budget: int) -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", RULE)
        await session.ingest("assistant", "Compris.")
        for task in range(8):
            question = f"Task {task}: look at module {task} and fix its failing test."
            await session.ingest("user", CORRECTION if task == 4 else question)
            for step in range(4):
                lines = [f"def f{task}_{step}_{line}(x): return x + {line}" for line in range(60)]
                await call_tool(session, f"{task}_{step}", f"cat m{task}_{step}.py", "\n".join(lines))
            rendered = await render(session, question, budget)
            assert rendered.tokens.upper_bound <= budget
            assert RULE in "\n".join(contents(rendered))
            await session.ingest("assistant", f"Fixed {task}.")
        if budget > 800:
            assert CORRECTION in "\n".join(contents(rendered))


async def work_through_tickets(session: ACMS, count: int, correction: str = "") -> str:
    """Hand over tickets one after the other, all in the same words; return the request for the next one."""
    rng = random.Random(7)
    for number in range(count):
        if correction and number == count // 3:
            await session.ingest("user", correction)
            await session.ingest("assistant", "Noted.")
        await session.ingest(
            "user", f"Next please look into ticket T-{100 + number} and close it if it is done."
        )
        lines = [f"T-{100 + number} line {line}: host h{rng.randrange(99)} is well" for line in range(40)]
        await call_tool(session, str(number), f"ticket T-{100 + number}", "\n".join(lines))
        await session.ingest("assistant", f"T-{100 + number} is closed.")
    question = f"Next please look into ticket T-{100 + count} and close it if it is done."
    await session.ingest("user", question)
    return question


CORRECTED_RULES = {
    "You work through our tickets. Never deploy on Fridays.": (
        "Deploying on Fridays is fine from now on, the freeze is over."
    ),
    "Rule: always answer in French.": "Please use English from now on.",
}


@pytest.mark.parametrize("budget", [500, 800, 2000])
@pytest.mark.parametrize("rule", CORRECTED_RULES)
async def test_an_old_rule_is_not_shown_without_its_correction(rule: str, budget: int) -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", rule)
        await session.ingest("assistant", "Understood.")
        question = await work_through_tickets(session, 40, CORRECTED_RULES[rule])
        rendered = await render(session, question, budget)
    shown = "\n".join(contents(rendered))
    assert CORRECTED_RULES[rule] in shown


async def test_requests_of_the_same_form_are_not_recalled_as_answers() -> None:
    async with ACMS("s", "memory://", None) as session:
        question = await work_through_tickets(session, 40)
        rendered = await render(session, question, 2000)
        first_request = (await session.history(limit=1)).entries[0]
        items = await session.recall(question, budget=300)
        history = await render(session, "What was the state of ticket T-117?", 2000)
    recalled = "\n".join(text for text in contents(rendered) if text.startswith("<recalled>"))
    assert recalled.count("Next please look into ticket") <= 1
    assert "it is the query itself" in str(items.ledger.why(first_request.id))
    assert "T-117 line" in "\n".join(contents(history)), "another question finds the ticket that it names"


async def test_a_question_of_the_form_of_others_keeps_its_subject() -> None:
    async with ACMS("s", "memory://", None) as session:
        for year in range(2015, 2025):
            await session.ingest("user", f"In the hiring report {year - 2010} engineers joined in {year}.")
        for year in (2016, 2018, 2020, 2022):
            await session.ingest("user", f"How many engineers joined in {year}?")
            await session.ingest("assistant", "See the report.")
        for number in range(40):
            await session.ingest("user", f"Poster {number} hangs since 2024.")
        items = await session.recall("How many engineers joined in 2024?", budget=50)
    assert "14 engineers joined in 2024" in items.text()


async def test_the_answer_to_a_question_that_was_asked_often_is_found() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "The refund limit of the shop is 80 EUR.")
        question = "What is the refund limit of the shop?"
        for number in range(30):
            await session.ingest("user", question)
            await session.ingest("assistant", f"I looked it up for you, dear customer {number}.")
            await session.ingest("user", f"Another topic: poster {number} has the wrong colour.")
            await session.ingest("assistant", f"I will tell the designers about poster {number}.")
        items = await session.recall(question, budget=120)
    text = items.text()
    assert "80 EUR" in text
    assert text.count(question) <= 1


async def test_a_chat_without_tools_recalls_no_words_of_the_user_but_answers() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", RULE)
        for number in range(60):
            await session.ingest("user", f"Note {number} about posters.")
            await session.ingest("assistant", f"Filed {number}.")
        rendered = await render(session, "Which note is about posters?", 300)
    assert RULE not in "\n".join(contents(rendered))


async def test_a_request_does_not_begin_with_an_answer() -> None:
    async with ACMS("s", "memory://", None) as session:
        for turn, question in enumerate(("Which commit was it?", "Write the patch and run the tests.")):
            await session.ingest("user", question)
            for step in range(6):
                lines = [f" file{line}.py | {line} ++--" for line in range(30)]
                await call_tool(session, f"{turn}_{step}", f"git show {step}", "\n".join(lines))
            await session.ingest("assistant", "Done.")
        await session.ingest("user", "Summarise the incident for the channel.")
        for budget in (600, 1000, 1500, 3000):
            rendered = await render(session, "Summarise the incident for the channel.", budget)
            assert rendered.payload["messages"][0]["role"] == "user"


# ── outputs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_log(seed: int) -> str:
    rng = random.Random(seed)
    lines = [
        f"2026-11-30T0{rng.randint(1, 9)}:{rng.randint(10, 59)}:00Z {rng.choice(('INFO', 'INFO', 'DEBUG'))} payments "
        f"request id={rng.randrange(16**8):08x} path=/v1/{rng.choice(('cart', 'pay'))} status=200"
        for _ in range(200)
    ]
    lines[66] = '2026-11-30T02:14:03Z ERROR payments upstream=ledger err="context deadline exceeded" after=5s'
    return "\n".join(lines)


@pytest.mark.parametrize("calls", [4, 8, 10, 14])
async def test_the_error_of_every_call_of_a_turn_is_shown(calls: int) -> None:
    question = "Why do the services fail?"
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", question)
        for call in range(calls):
            lines = [f"00:{line:02d} INFO svc{call} job={1000 + line} status=ok" for line in range(100)]
            lines[66] = f"16:22 ERROR svc{call} MARK{call} deadlock detected on ledger_{call}"
            await call_tool(session, str(call), f"tail svc{call}", "\n".join(lines))
        shown = "\n".join(contents(await render(session, question, 8000)))
    assert [call for call in range(calls) if f"MARK{call} deadlock" not in shown] == []


@pytest.mark.parametrize("budget", [600, 900, 1500])
async def test_the_calls_of_the_turn_come_before_the_exchange_in_front_of_it(budget: int) -> None:
    question = "Why is db-pay-1 down?"
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Find every place that reads BACKOFF_SECONDS.")
        places = [f"./mod{number}.py:{number}: sleep(BACKOFF_SECONDS * {number})" for number in range(25)]
        await call_tool(session, "grep", "grep -rn BACKOFF_SECONDS .", "\n".join(places))
        await session.ingest("assistant", "25 places, all in mod0.py to mod24.py.")
        await session.ingest("user", question)
        lines = [
            f"04:{line:02d} db-pay-1 postgres[{line}]: checkpoint complete: {line} buffers"
            for line in range(78)
        ]
        lines.append(
            '04:18 db-pay-1 postgres[901]: PANIC: could not write "xlogtemp.901": No space left on device'
        )
        lines.append("04:18 db-pay-1 systemd[1]: postgresql.service: Failed with result 'exit-code'.")
        await call_tool(session, "journal", "journalctl -u postgresql", "\n".join(lines))
        await call_tool(session, "df", "df -h", "/dev/sdb1 500G 500G 0 100% /var/lib/postgresql")
        shown = "\n".join(contents(await render(session, question, budget)))
    assert "PANIC: could not write" in shown


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [1000, 2000])
async def test_the_error_of_a_log_stays_when_another_call_follows(budget: int, seed: int) -> None:
    question = "Payments are failing since 02:14 UTC. Find the cause and propose a fix."
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", question)
        await call_tool(session, "logs", "kubectl logs deploy/payments", write_log(seed))
        assert "ERROR payments" in "\n".join(contents(await render(session, question, budget)))
        handlers = [
            f"def handler_{number}(e): return call('svc{number}', timeout=30)" for number in range(60)
        ]
        await call_tool(session, "file", "cat handlers.py", "\n".join(handlers))
        assert "ERROR payments" in "\n".join(contents(await render(session, question, budget)))


@pytest.mark.parametrize("budget", range(250, 1500, 125))
async def test_no_record_is_shown_with_a_part_of_another(budget: int) -> None:
    rng = random.Random(budget)
    records = [
        {
            "id": number,
            "name": f"service-{number}",
            "state": rng.choice(("ok", "ok", "degraded")),
            "cpu": rng.random(),
            "owner": f"owner-{number}",
        }
        for number in range(40)
    ]
    question = "Which services are degraded, and who owns service-17?"
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", question)
        await call_tool(session, "get", "curl ops/services", json.dumps({"items": records}, indent=2))
        history = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=budget)
        recalled = await session.recall(question, budget=budget // 3, relevant_only=True)
    for text in (contents(history)[-1], recalled.text()):
        for name, between, owner in re.findall(
            r'"name": "service-(\d+)"(.*?)"owner": "owner-(\d+)"', text, re.DOTALL
        ):
            assert name == owner or '"id"' in between


# ── earlier calls of a turn ─────────────────────────────────────────────────────────────────────────────────────────


async def run_tests(session: ACMS, outcomes: Sequence[str]) -> str:
    question = "Run the tests one by one."
    await session.ingest("user", question)
    for number, outcome in enumerate(outcomes):
        await call_tool(session, f"{number}", f"pytest -k test_{number}", f"test_{number} {outcome}")
    return question


async def test_earlier_calls_are_named_beside_an_output_that_fills_the_budget() -> None:
    async with ACMS("s", "memory://", None) as session:
        question = "Check the timeout of all 14 services."
        await session.ingest("user", question)
        for number in range(10):
            handlers = [
                f"def handler_{line}(event): return call('svc{line}', timeout=30)" for line in range(60)
            ]
            await call_tool(session, f"{number}", f"cat svc{number}/client.py", "\n".join(handlers))
        rendered = await render(session, question, 800)
    block = block_of(rendered)
    assert "9 earlier tool calls (results not shown): " in block
    assert "cat svc8/client.py" in block
    assert "The messages that follow are newer." in block
    assert rendered.tokens.upper_bound <= 800


async def test_a_failed_call_keeps_its_result_among_those_that_passed() -> None:
    async with ACMS("s", "memory://", None) as session:
        outcomes = ["FAILED: assert 20 == 30" if number == 1 else "PASSED" for number in range(24)]
        question = await run_tests(session, outcomes)
        rendered = await render(session, question, 650)
    assert "test_1 FAILED: assert 20 == 30" in block_of(rendered)


async def test_each_result_of_an_excerpt_has_its_call() -> None:
    handlers = "\n".join(f"def handler_{n}(event):\n    timeout = 30\n" for n in range(60))
    calls: list[dict[str, Any]] = [
        {"id": name, "name": "read_file", "arguments": json.dumps({"path": f"payments/{name}"})}
        for name in ("handlers.py", "config.yaml")
    ]
    question = "What timeout do the payments handlers have?"
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Find out why payments time out.")
        await session.ingest("assistant", "", tool_calls=calls)
        await session.ingest("tool", handlers, tool_call_id="handlers.py")
        await session.ingest("tool", "ledger:\n  timeout_s: 5\n", tool_call_id="config.yaml")
        await session.ingest("assistant", "payments waits 5 s for the ledger.")
        for number in range(40):
            await session.ingest("user", f"Note {number} about posters.")
            await session.ingest("assistant", f"Filed {number}.")
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).user(question)
        for budget in range(260, 520, 20):
            text = "\n".join(contents(await prompt.render(budget=budget)))
            assert "timeout_s: 5" not in text or "config.yaml" in text


# ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stated_fact_stands_beside_a_history_that_fits() -> None:
    question = "In which city is our office?"
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Our office is in Lyon.")
        await session.ingest("assistant", "Noted.")
        await session.state("office", "city", "Lyon")
        await session.state("office", "city", "Porto")
        messages = await session.messages(question, budget=300)
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).user(question)
        rendered = await prompt.render(budget=300)
    assert "fact: office, city: Porto (known now)" in messages[0]["content"]
    assert "fact, known now: office, city: Porto" in block_of(rendered)


# ── what the caller puts first ──────────────────────────────────────────────────────────────────────────────────────


async def test_earlier_calls_are_named_if_the_caller_puts_the_question_first() -> None:
    async with ACMS("s", "memory://", None) as session:
        question = "Check the timeout of all 14 services."
        first = await session.ingest("user", question)
        for number in range(10):
            handlers = [
                f"def handler_{line}(event): return call('svc{line}', timeout=30)" for line in range(60)
            ]
            await call_tool(session, f"{number}", f"cat svc{number}/client.py", "\n".join(handlers))
        prompt = Prompt(OpenAIChat("gpt-5")).history(session, first=[first]).recall(session, question)
        rendered = await prompt.render(budget=800)
    assert contents(rendered)[0] == question
    assert "9 earlier tool calls (results not shown): " in block_of(rendered)


async def test_rules_of_the_user_stay_if_only_relevant_messages_are_recalled() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", RULE)
        await session.ingest("assistant", "Compris.")
        question = "Fix the failing test."
        for task in range(3):
            await session.ingest("user", question)
            for step in range(4):
                lines = [f"def f{task}_{step}_{line}(x): return x + {line}" for line in range(60)]
                await call_tool(session, f"{task}_{step}", f"cat m{task}_{step}.py", "\n".join(lines))
        prompt = Prompt(OpenAIChat("gpt-5")).history(session)
        for options in ({"min_relevance": 0.5}, {"limit": 2}):
            rendered = await prompt.recall(session, question, **options).render(budget=1500)
            assert RULE in "\n".join(contents(rendered))


@pytest.mark.parametrize(
    "said", ["The project never uses Postgres.", "Does the project use Postgres or MySQL?"]
)
async def test_a_fact_stays_beside_a_question_or_a_denial_with_its_words(said: str) -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", said)
        await session.ingest("assistant", "Noted.")
        for number in range(40):
            await session.ingest("user", f"Note {number} about posters.")
            await session.ingest("assistant", f"Filed {number}.")
        await session.state("project", "uses", "Postgres")
        question = "Which database does the project use, Postgres?"
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).user(question)
        rendered = await prompt.render(budget=300)
    assert "fact, known now: project, uses: Postgres" in "\n".join(contents(rendered))


async def test_a_failed_call_among_few_is_told_and_the_first_rule_stays() -> None:
    body = "\n".join(f"def f{number}(x):\n    return x * {number}" for number in range(120))
    question = "Add a retry with backoff to Carrier.get."
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", RULE)
        await session.ingest("assistant", "Compris.")
        await session.ingest("user", question)
        await call_tool(session, "1", "cat carrier.py", body)
        await call_tool(
            session, "2", "git apply retry.patch", "error: patch does not apply: hunk 3 of 5 failed"
        )
        await call_tool(session, "3", "cat carrier.py", body)
        await call_tool(session, "4", "git apply retry2.patch", "applied: carrier.py (+6 -1)")
        await call_tool(session, "5", "pytest", "\n".join(f"test_{number} PASSED" for number in range(300)))
        for budget in (800, 1500, 2500):
            text = "\n".join(contents(await render(session, question, budget)))
            assert RULE in text
            assert "error: patch does not apply" in text


async def test_a_short_question_is_recalled_with_its_answer() -> None:
    answers = {"What do they cost?": "31,400 EUR.", "How loud are they?": "38 dB at night."}
    async with ACMS("s", "memory://", None) as session:
        for number, (question, answer) in enumerate(answers.items()):
            await session.ingest("user", question)
            page = "\n".join(f"Paragraph {line} about radiators and tariffs." for line in range(200))
            await call_tool(session, f"{number}", f"curl page{number}", page)
            await session.ingest("assistant", answer)
        await session.ingest("user", "Summarise all figures.")
        for budget in (800, 1500, 3000):
            text = "\n".join(contents(await render(session, "Summarise all figures.", budget)))
            assert all(answer in text for answer in answers.values())


def _on_call_requests(session_log: list[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yield routine requests of five forms about six hosts, each with a long output and a short answer."""
    rnd = random.Random(5)
    forms = (
        "Check the logs of {}.",
        "Anything odd on {}?",
        "List the services on {}.",
        "Why is {} slow?",
        "Show {}.",
    )
    for n in range(count):
        host = rnd.choice(["web1", "web2", "db1", "db2", "queue1", "cache1"])
        yield from session_log if n == count // 4 else ()
        yield {"role": "user", "content": rnd.choice(forms).format(host)}
        call = {"id": f"c{n}", "type": "function", "function": {"name": "run", "arguments": "{}"}}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        lines = [f"{line:05d} GET /items/{rnd.randrange(10**5)} 200" for line in range(150)]
        yield {"role": "tool", "tool_call_id": f"c{n}", "content": "\n".join(lines)}
        yield {"role": "assistant", "content": f"It looks fine ({n})."}


@pytest.mark.parametrize(
    ("old", "change"),
    [
        (
            "Rule: you may restart services on db1 and db2 without asking me first.",
            "Change of rule: never restart services on db1 or db2 without asking me.",
        ),
        (
            "By the way, the primary database is db1 and it listens on port 5432.",
            "We failed over: the primary database is db2 now.",
        ),
    ],
)
@pytest.mark.parametrize("greeting", [[], ["Hello, I am Sam."]])
async def test_routine_requests_of_several_forms_hide_no_change_of_what_the_user_said(
    old: str, change: str, greeting: list[str]
) -> None:
    async with ACMS("s", open_storage("memory://"), None) as session:
        for text in (*greeting, old):
            await session.ingest("user", text)
            await session.ingest("assistant", "Understood.")
        changed = [{"role": "user", "content": change}, {"role": "assistant", "content": "Understood."}]
        await session.ingest_many(list(_on_call_requests(changed, 100)))
        for question in ("Fix the slow queries.", "Show the config of db1.", "Check the logs of cache1."):
            prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question)
            rendered = await prompt.user(question).render(budget=4000)
            text = json.dumps(rendered.payload)
            assert text.count("It looks fine") < 20  # half of them behind a quoted question that they answer
            assert -1 < text.find(old) < text.find(change), question
