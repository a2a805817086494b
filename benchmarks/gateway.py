"""The gateway in front of a scripted upstream that refuses what providers refuse: figures beside what is accepted.

    python -m benchmarks.gateway                               # everything that needs nothing else, some minutes
    python -m benchmarks.gateway bytes fuzz latency            # some parts
    python -m benchmarks.gateway fuzz --conversations 5000
    python -m benchmarks.gateway clients --bin ~/npm/node_modules/.bin        # claude, codex and opencode by npm
    ACMS_MODEL_URL=http://127.0.0.1:18080/v1 python -m benchmarks.gateway model     # a llama.cpp server

Parts: bytes, fuzz, prefix, latency, locked, kill, noise; clients and model only when they are named. `latency` sends
the same streamed request directly and through the gateway, in turns. `kill` ends the gateway by SIGKILL in the middle
of streams and repeats each request. `noise` asks questions that earlier sessions answer, and others that they do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2
from tests.gateway.conversations import PATHS, Conversation
from tests.gateway.serving import Running, running_gateway, serve_app
from tests.gateway.upstream import Upstream
from tests.providers import judge

from acms import ACMS, open_storage
from acms.codecs import named
from acms.gateway import GatewayConfig, create_gateway
from acms.kv import list_entries

CHECKS: dict[str, Callable[[Any], list[str]]] = {
    "anthropic": judge.anthropic,
    "openai-chat": judge.chat,
    "openai-responses": judge.responses,
}
WORDS = "ledger invoice harbour cargo printer valve turbine sensor archive tunnel bridge orchard pigment copper".split()


def say(part: str, **figures: Any) -> None:
    """Print the figures of a part as one line of JSON."""
    print(json.dumps({"part": part, **figures}), flush=True)


@contextmanager
def process(
    db: str, upstream: str, *options: str, port: int = 0
) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """Run `acms gateway` as a process of its own."""
    command = [sys.executable, "-m", "acms.cli", "gateway", "--json", "--db", db, "--port", str(port)]
    command += ["--upstream", f"openai={upstream}", "--upstream", f"anthropic={upstream}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield json.loads(started.stdout.readline())["url"], started
        finally:
            started.terminate()


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def any_json(chance: random.Random, depth: int = 0) -> Any:
    """Return a random JSON value with the numbers and characters that a second writer changes."""
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return chance.choice([1.0, 1e21, 0.1, -0.0, 12345678901234567890123, 1.10])
    if kind == 1:
        return "".join(chance.choices('aé😀\\"\n\u2028/<&', k=chance.randrange(9)))
    if kind < 6:
        return chance.choice([None, True, False, 0, "", [], {}])
    if kind == 6:
        return [any_json(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {f"k{n}": any_json(chance, depth + 1) for n in range(chance.randrange(4))}


def measure_bytes(options: argparse.Namespace) -> None:
    """Count bodies that arrive changed although nothing had to change."""
    chance = random.Random(1)
    changed = total = 0
    with running_gateway() as running:
        for number in range(options.bodies):
            path = chance.choice(list(PATHS.values()))
            field = "input" if path.endswith("responses") else "messages"
            body = {
                **any_object(chance),
                field: [{"role": "user", "content": f"hello {number}"}],
                "model": "m",
            }
            dump = json.dumps(body, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5)
            raw = dump.replace('"model"', '"dup":1,"dup":2.50,"model"', 1).encode("utf-8", "surrogatepass")
            running.client.post(path, content=raw)
            total += 1
            changed += running.newest.body != raw
    say("bytes", bodies=total, changed=changed, accept="0 changed")


def any_object(chance: random.Random) -> dict[str, Any]:
    return {f"x{n}": any_json(chance) for n in range(chance.randrange(5))}


# ── fuzz ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fuzz_one(running: Running, chance: random.Random, number: int) -> Conversation:
    """Hold one conversation with tools, thinking, edits and clients that trim, at a tight budget."""
    protocol = chance.choice(list(PATHS))
    budget = chance.choice([1_500, 2_500, 4_000]) * (3 if protocol == "anthropic" else 1)
    headers = {"x-acms-budget": str(budget), "x-acms-namespace": f"n{number}"}
    if chance.random() < 0.5:
        headers["x-acms-session"] = f"s{number}"
    talk = Conversation(running.client, protocol, headers=headers, stream=chance.random() < 0.5)
    for turn in range(chance.randrange(4, 14)):
        text = f"Turn {turn}: " + " ".join(chance.choices(WORDS, k=chance.choice([5, 40, 150])))
        if chance.random() < 0.4:
            text = "THINK " + text
        calls = chance.choice([0, 0, 1, 2, 3])
        text += "".join(f'\nCALL f {{"a": {call}}}' for call in range(calls))
        if not calls:
            text += f" SIZE={chance.choice([20, 200, 800])}"
        talk.say(text, result=" ".join(chance.choices(WORDS, k=chance.choice([5, 60, 250]))))
        if chance.random() < 0.1 and len(talk.messages) > 4:
            talk.messages = talk.messages[: first_turn_after(talk, len(talk.messages) // 2)]
    return talk


def first_turn_after(talk: Conversation, index: int) -> int:
    """Return where a turn of the user begins, at or after a message: a client edits there."""
    for at in range(index, len(talk.messages)):
        message = talk.messages[at]
        content = message.get("content")
        if message.get("role") == "user" and (isinstance(content, str) or content[0]["type"] == "input_text"):
            return at
    return len(talk.messages)


def measure_fuzz(options: argparse.Namespace) -> None:
    """Count requests of ours that a provider would refuse, or that are over their budget."""
    chance = random.Random(options.seed)
    outcomes = Counter[str]()
    requests = invalid = over = 0
    with running_gateway() as running:
        for number in range(options.conversations):
            before = len(running.upstream.received)
            talk = fuzz_one(running, chance, number)
            received = running.upstream.received[before:]
            codec = named(talk.protocol, "gpt-4o" if talk.protocol != "anthropic" else None)
            requests += len(received)
            outcomes.update(answer.headers["x-acms-memory"] for answer in talk.answers)
            for one in received:
                invalid += bool(CHECKS[talk.protocol](one.json)) or bool(one.problem)
            for answer, one in zip(talk.answers, received, strict=False):
                if answer.headers["x-acms-memory"] in ("trimmed", "recalled"):
                    over += codec.count(one.json).tokens > int(talk.headers["x-acms-budget"])
            del running.upstream.received[:]
    say("fuzz", conversations=options.conversations, requests=requests, invalid=invalid, over_budget=over,
        outcomes=dict(outcomes), accept="0 invalid of 5,000 conversations, 0 over budget")  # fmt: skip


def measure_prefix(options: argparse.Namespace) -> None:
    """Count steps of 42-turn tool loops that keep the whole list before, with about thirty turns in the budget."""
    for protocol in PATHS:
        chance = random.Random(5)
        budget = 14_000 if protocol == "anthropic" else 6_000
        with running_gateway(GatewayConfig(budget=budget)) as running:
            talk = Conversation(running.client, protocol)
            for turn in range(42):
                text = f"Turn {turn}: " + " ".join(chance.choices(WORDS, k=60))
                text = "THINK " + text if turn % 3 == 0 else text
                text += '\nCALL f {"a": 1}\nCALL f {"a": 2}' if turn % 4 == 1 else " SIZE=400"
                talk.say(text, result="result " + " ".join(chance.choices(WORDS, k=80)))
            field = "input" if protocol == "openai-responses" else "messages"
            lists = [one.json[field] for one in running.upstream.received]
        kept = sum(after[: len(before)] == before for before, after in pairwise(lists))
        say("prefix", protocol=protocol, steps=len(lists) - 1, kept=kept, accept="47 of 52")


# ── latency ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SIZES = {"small": (20, 6.0), "76 KB": (74_000, 8.0), "400 KB": (390_000, 15.0)}
"""Characters of the first messages, and milliseconds at the median that may be added."""


def growing_body(size: int, turn: int) -> bytes:
    """Return a list that has grown by so many turns."""
    begin = [f"message {number} " + "lorem ipsum dolor " * 110 for number in range(max(1, size // 2_000))]
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(begin)
    ]
    if len(messages) % 2 == 0:
        messages.append({"role": "user", "content": "go"})
    for number in range(turn):
        messages.append({"role": "assistant", "content": f"answer {number} " + "text " * 40})
        messages.append({"role": "user", "content": f"next {number} " + "word " * 40})
    return json.dumps({"model": "gpt-4o", "stream": True, "messages": messages}).encode()


def measure_latency(options: argparse.Namespace) -> None:
    """Measure what the gateway adds to a whole short stream, in turns with direct requests."""
    upstream = Upstream(keeps=False)
    with tempfile.TemporaryDirectory() as folder, serve_app(upstream.app, "off") as (address, _):
        db = f"sqlite:///{folder}/log.db"
        with process(db, address, "--budget", "200000", "--embedder", options.embedder) as (url, _process):
            for name, (size, goal) in SIZES.items():
                direct, through = measure_turns(address, url, size, options.requests, name)
                added = statistics.median(through) - statistics.median(direct)
                say("latency", body=name, direct_p50=round(statistics.median(direct), 1),
                    through_p50=round(statistics.median(through), 1), added_p50=round(added, 1),
                    added_p95=round(percentile(through) - percentile(direct), 1), accept=goal)  # fmt: skip


def measure_turns(
    address: str, url: str, size: int, requests: int, name: str
) -> tuple[list[float], list[float]]:
    times: dict[str, list[float]] = {address: [], url: []}
    headers = {
        "authorization": "Bearer k",
        "x-acms-session": f"lat {name}",
        "content-type": "application/json",
    }
    with httpx2.Client(timeout=60) as client:
        for turn in range(requests):
            raw = growing_body(size, turn)
            for base in random.sample([address, url], 2):
                began = time.perf_counter()
                answer = client.post(f"{base}/v1/chat/completions", content=raw, headers=headers)
                times[base].append(1000 * (time.perf_counter() - began))
                assert answer.status_code == 200, answer.text
            time.sleep(0.05)
    warm = max(1, requests // 10)
    return times[address][warm:], times[url][warm:]


def percentile(values: list[float], part: float = 0.95) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────

LOCK = (
    "import sqlite3, sys; s = sqlite3.connect(sys.argv[1], isolation_level=None); s.execute('begin exclusive'); \
print('locked', flush=True); sys.stdin.read()"
)


def measure_locked(options: argparse.Namespace) -> None:
    """Measure requests while another process holds the store."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.db"
        with running_gateway(GatewayConfig(budget=900), f"sqlite:///{file}", memory_timeout=2.0) as running:
            long = Conversation(running.client, "openai-chat")
            for turn in range(12):
                long.say(f"Turn {turn} " + "ledger invoice " * 40)
            running.settle()
            command = [sys.executable, "-c", LOCK, str(file)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lock:
                assert lock.stdout is not None
                lock.stdout.readline()
                short = Conversation(running.client, "openai-chat")
                began = time.perf_counter()
                short.say("fits")
                fits = time.perf_counter() - began
                began = time.perf_counter()
                long.say("does not fit")
                too_long = time.perf_counter() - began
                raw = running.newest.body == long.answers[-1].request.content
                assert lock.stdin is not None
                lock.stdin.close()
            stored = "fits" in running.sessions()[short.session]
    say("locked", fits_seconds=round(fits, 3), too_long_seconds=round(too_long, 2), raw_bytes=raw,
        stored_later=stored, accept="2.1 s, then raw bytes")  # fmt: skip


def measure_kills(options: argparse.Namespace) -> None:
    """Kill the gateway in the middle of streams, repeat each request, and look for what is lost or there twice."""
    upstream = Upstream(keeps=False, pause=0.01)
    chance = random.Random(3)
    with tempfile.TemporaryDirectory() as folder, serve_app(upstream.app, "off") as (address, _):
        db = f"sqlite:///{folder}/log.db"
        said: list[str] = []
        messages: list[dict[str, Any]] = []
        broken = 0
        for number in range(options.kills + 1):
            url, running = start_gateway(db, address)
            if number:
                said.append(repeat_request(url, messages))
            if number == options.kills:
                time.sleep(2)  # the last answer is stored
                running.kill()
                break
            messages = messages[-40:] if len(messages) > 200 else messages
            messages.append({"role": "user", "content": f"SLOW question {number} SIZE=200"})
            broken += kill_in_stream(url, running, messages, chance.random() * 0.4)
        texts = asyncio.run(read_store(db))
    newest = texts[-1] if texts else []
    twice = sum(count > 1 for one in texts for text, count in Counter(one).items() if "question" in text)
    lost = [text for text in said if not any(text in one for one in texts)]
    say("kill", kills=options.kills, broken_streams=broken, sessions=len(texts), twice=twice, lost=len(lost),
        newest_session=len(newest), accept="nothing twice, nothing lost that was answered")  # fmt: skip


def start_gateway(db: str, upstream: str) -> tuple[str, BaseProcess]:
    """Start a gateway in a process of its own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["acms.gateway.app", "acms.session", "tests.gateway.serving"])
    receiver, sender = context.Pipe(duplex=False)
    running = context.Process(target=serve_until_killed, args=(db, upstream, sender), daemon=True)
    running.start()
    return receiver.recv(), running


def serve_until_killed(db: str, upstream: str, sender: Connection) -> None:
    """Serve a gateway and send its URL."""
    config = GatewayConfig(upstreams={"openai": upstream, "anthropic": upstream})
    with serve_app(create_gateway(db, config, embedder=None)) as (url, _):
        sender.send(url)
        threading.Event().wait()


def repeat_request(url: str, messages: list[dict[str, Any]]) -> str:
    """Send a list again, append the answer to it, and return the answer."""
    answer = httpx2.post(f"{url}/v1/chat/completions", json=chat(messages), timeout=60)
    answer.raise_for_status()
    messages.append(answer.json()["choices"][0]["message"])
    return str(messages[-1]["content"])


def chat(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": messages, **more}


def kill_in_stream(url: str, running: BaseProcess, messages: list[dict[str, Any]], seconds: float) -> bool:
    """Return whether the stream broke off."""
    try:
        body = chat(messages, stream=True)
        with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            began = time.perf_counter()
            for _ in answer.iter_raw():
                if time.perf_counter() - began > seconds:
                    running.kill()
    except httpx2.HTTPError:
        return True
    finally:
        running.kill()
        running.join()
    return False


async def read_store(db: str) -> list[list[str]]:
    """Return the texts of all sessions of a store."""
    found: list[list[str]] = []
    async with open_storage(db) as storage:
        page = await storage.sessions(limit=500)
        for one in page.sessions:
            async with ACMS(one.session_id, storage, None, namespace=one.namespace) as session:
                found.append([entry.content for entry in await session.entries()])
    return found


# ── noise ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

TOPICS = (
    "billing search mail export import login profile cart stock price report chat upload backup cache".split()
)
CHOICES = (
    "PostgreSQL Redis Kafka Rust Elixir nginx Terraform Vue SQLite Erlang Haskell Grafana Consul Vault Scala"
)
PLACES = ("the Lyon office", "the Oslo lab", "the Porto warehouse", "the Turin plant")


def related_prompts() -> list[tuple[str, str, str]]:
    """Return facts, the questions about them, and what the answer must contain."""
    found: list[tuple[str, str, str]] = []
    for index, topic in enumerate(TOPICS):
        choice = CHOICES.split()[index]
        found.append((f"We decided that the {topic} service is built on {choice}.",
                      f"What is the {topic} service built on?", choice))  # fmt: skip
        place = PLACES[index % len(PLACES)]
        found.append((f"The owner of {topic} works in {place}, her name is Ines{index}.",
                      f"Who is the owner of {topic}?", f"Ines{index}"))  # fmt: skip
    return found


UNRELATED = """
Write a poem about spring rain. | Translate "good evening" into French. | How does a violin make its sound?
Give me a recipe for onion soup. | Summarise the plot of Hamlet. | Why is the sky blue? | Tell me a joke about cats.
Sort these numbers: 5, 3, 9. | What is the capital of Peru? | Explain gravity to a child. | Draft a birthday card.
Name three rivers in Asia. | How many legs has a spider? | Convert 12 miles to kilometres. | Who painted Guernica?
Fix the grammar: she go home. | Suggest a name for a puppy. | How long do turtles live? | Plan a weekend in Rome.
What rhymes with orange? | Describe a sunset at sea. | Is a tomato a fruit? | How do bees find flowers?
Give me a stretch for a stiff neck. | What causes thunder? | Recommend a novel by Tolstoy. | Solve x + 4 = 11.
How is cheese made? | When did the Berlin Wall fall? | Spell necessary. | What does a thyroid do?
Write a limerick on winter. | Compare oak and pine wood. | How far away is the moon? | List the primary colours.
What is a haiku? | Teach me to whistle. | Who wrote Faust? | How do magnets attract iron? | Which planet has rings?
Give two synonyms for happy. | How deep is the Pacific? | What do pandas eat? | Describe the taste of saffron.
Explain the offside rule. | What is a prime number? | How do I remove a wine stain? | Tell me about the Aztecs.
What makes bread rise? | Should I water cacti daily?
"""


def measure_noise(options: argparse.Namespace) -> None:
    """Count recalled tokens of unrelated prompts, and related ones that get their message."""
    from acms.providers.tokens import default_counter

    count = default_counter().count
    with running_gateway(GatewayConfig(recall="namespace")) as running:
        facts = related_prompts()
        for number, (fact, _, _) in enumerate(facts):
            talk = Conversation(running.client, "openai-chat", headers={"x-acms-session": f"fact {number}"})
            talk.say(fact)
        running.settle()
        noise: list[int] = []
        for number, prompt in enumerate(UNRELATED.replace("\n", " | ").strip(" |").split(" | ")):
            noise.append(count(recalled_text(running, f"other {number}", prompt)))
        hits = 0
        for number, (_, question, answer) in enumerate(facts):
            hits += answer in recalled_text(running, f"question {number}", question)
    say("noise", unrelated=len(noise), median=statistics.median(noise), p95=percentile([*map(float, noise)]),
        related=len(facts), found=hits, accept="median 0, found 24 of 30")  # fmt: skip


def recalled_text(running: Running, session: str, prompt: str) -> str:
    headers = {"x-acms-session": session}
    Conversation(running.client, "openai-chat", headers=headers).say(prompt)
    messages = running.newest.json["messages"]
    return "\n".join(one["content"] for one in messages if "<recalled>" in str(one["content"]))


# ── the world outside ─────────────────────────────────────────────────────────────────────────────────────────────────

COMMANDS: dict[str, tuple[int, list[str], list[str], str]] = {
    "claude": (
        38_000,
        ["claude", "--model", "claude-opus-4-8", "--allowedTools", "Bash", "-p"],
        ["--continue"],
        'CALL Bash {"command": "seq 1 400", "description": "count"}',
    ),
    "codex": (
        12_000,
        ["codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"],
        ["resume", "--last"],
        'CALL exec_command {"cmd": "seq 1 400"}',
    ),
    "opencode": (
        9_000,
        ["opencode", "run", "--model", "openai/gpt-5"],
        ["--continue"],
        'CALL bash {"command": "seq 1 400", "description": "count"}',
    ),
}
"""A budget that is tight for its system text, how it is called and goes on, and a call of one of its tools."""


def measure_clients(options: argparse.Namespace) -> None:
    """Hold a conversation with each coding agent, headless, at a budget that its system text nearly fills."""
    for name, (budget, command, goes_on, call) in COMMANDS.items():
        if options.client not in ("", name):
            continue
        if not (options.bin / name).exists():
            say("clients", client=name, skipped="not installed")
            continue
        with (
            running_gateway(GatewayConfig(budget=budget)) as running,
            tempfile.TemporaryDirectory() as home,
        ):
            environ = client_environment(running.url, Path(home), options.bin)
            exits: list[int] = []
            for turn in range(options.turns):
                text = f"Turn {turn}: reply in one word. THINK. {'ledger invoice ' * 150} SIZE=900\n{call}"
                words = [*command, *(goes_on if turn else [])]
                ran = subprocess.run(words, env=environ, cwd=home, capture_output=True, text=True,
                                     input=text, timeout=600)  # fmt: skip
                exits.append(ran.returncode)
            asked = [
                one for one in running.upstream.received if one.target.partition("?")[0] in PATHS.values()
            ]
            outcomes = read_outcomes(running)
            sessions = [len(texts) for texts in running.sessions().values()]
            say("clients", client=name, exits=exits, requests=len(asked), outcomes=outcomes, sessions=sessions,
                invalid=sum(bool(one.problem) for one in asked), problems=running.upstream.problems[:3],
                output=(ran.stdout or ran.stderr)[-60:])  # fmt: skip


def read_outcomes(running: Running) -> dict[str, int]:
    """Return how often each thing was done with a request."""
    running.settle()

    async def read() -> Counter[str]:
        found = Counter[str]()
        memory = await running.gateway.tenants.memory("default")
        async for entry in list_entries(memory._kv, "requests/"):
            found.update(one["outcome"] for one in entry.data["requests"])
        return found

    return dict(running.inside(read))


def client_environment(url: str, home: Path, programs: Path) -> dict[str, str]:
    """Return an environment in which all three clients call the gateway."""
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        'model = "gpt-5"\nmodel_provider = "acms"\n[model_providers.acms]\nname = "acms"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n'
    )
    (home / "opencode.json").write_text(
        json.dumps({"provider": {"openai": {"options": {"baseURL": f"{url}/v1", "apiKey": "sk-test"}}}})
    )
    own = {
        "HOME": str(home),
        "PWD": str(home),
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-ant-test",
        "OPENAI_API_KEY": "sk-test",
        "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }
    return {**os.environ, **own}


def measure_model(options: argparse.Namespace) -> None:
    """Ask a real model for a fact that was stated twenty turns earlier and trimmed away, at a budget of 900."""
    address = os.environ.get("ACMS_MODEL_URL", "").removesuffix("/v1")
    if not address:
        say("model", skipped="ACMS_MODEL_URL is not set")
        return
    answered = trimmed = cached = prompt_tokens = 0
    with tempfile.TemporaryDirectory() as folder:
        db = f"sqlite:///{folder}/log.db"
        with process(db, address, "--budget", "900") as (url, _), httpx2.Client(timeout=600) as client:
            for run in range(options.runs):
                color = COLORS[run % len(COLORS)]
                answers = ask_model(client, url, f"run {run}", color, random.Random(run))
                usages = [answer["usage"] for answer in answers]
                cached += sum(
                    (one.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for one in usages
                )
                prompt_tokens += sum(one["prompt_tokens"] for one in usages)
                text = answers[-1]["choices"][0]["message"]["content"]
                answered += color in text.lower()
                time.sleep(1)  # the decision is stored after the answer
                trimmed += was_left_out(db, f"run {run}", FACT_INDEX)
                say("model", run=run, answer=text, color=color, answered=answered, trimmed_away=trimmed,
                    cached_share=round(cached / max(1, prompt_tokens), 3))  # fmt: skip
    say("model", runs=options.runs, answered=answered, trimmed_away=trimmed,
        cached_share=round(cached / max(1, prompt_tokens), 3),
        accept="9 of 10, 69 % of prompt tokens from the cache")  # fmt: skip


COLORS = ["violet", "amber", "teal", "crimson", "olive"]
FACT_INDEX = 3
"""Index of the message with the fact. What stands before the first answer is always shown, so it is not there."""


def ask_model(
    client: httpx2.Client, url: str, session: str, color: str, chance: random.Random
) -> list[dict[str, Any]]:
    """State a fact, talk about other things for twenty turns, ask for the fact, and return all answers."""
    texts = ["Hello, I am going to tell you some notes. Just say ok."]
    texts.append(f"My boat is called Aurora and it is painted {color}. Just say ok.")
    texts += [f"Note {n}: {' '.join(chance.choices(WORDS, k=25))}. Just say ok." for n in range(20)]
    texts.append("What color is my boat Aurora? One word.")
    talk: list[dict[str, Any]] = [{"role": "system", "content": "You answer briefly."}]
    answers: list[dict[str, Any]] = []
    for text in texts:
        talk.append({"role": "user", "content": text})
        body = {"model": "qwen", "messages": talk, "max_tokens": 12, "temperature": 0}
        answer = client.post(f"{url}/v1/chat/completions", json=body, headers={"x-acms-session": session})
        answers.append(answer.json())
        talk.append(answers[-1]["choices"][0]["message"])
    return answers


def was_left_out(db: str, session: str, index: int) -> bool:
    """Return whether the newest request of a session was sent without a message of the client."""
    command = [sys.executable, "-m", "acms.cli", "gateway", "why", session, "--db", db, "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    newest = json.loads(shown)["requests"][-1]
    return any(first <= index <= last for first, last in newest.get("left_out", ()))


PARTS = {
    "bytes": measure_bytes,
    "fuzz": measure_fuzz,
    "prefix": measure_prefix,
    "latency": measure_latency,
    "locked": measure_locked,
    "kill": measure_kills,
    "noise": measure_noise,
    "clients": measure_clients,
    "model": measure_model,
}
OUTSIDE = ("clients", "model")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--bodies", type=int, default=500)
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--embedder", default="none")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--bin", type=Path, default=Path("node_modules/.bin"))
    parser.add_argument("--client", default="", help="one of claude, codex and opencode")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    for name in options.parts or [name for name in PARTS if name not in OUTSIDE]:
        PARTS[name](options)


if __name__ == "__main__":
    main()
