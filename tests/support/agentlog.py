"""Agent logs with planted details: what a summary is put to the test with.

The filler is hostile within reason: it has numbers with units, ids, paths and names of its own, most of them said again
and again, some unique in every line, as in real logs; and it shares its words with the sentences that are planted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from acms.ports import Turn
from acms.text.extract import extract_summary

STYLES = ("chatter", "logs", "json", "prose", "mixed")

_NOUNS = (
    "cache queue worker schema index session request deploy branch cluster shard replica token backup report test "
    "module parser ticket invoice build image volume secret policy timeout batch stream window page table column"
).split()
_VERBS = (
    "check update restart inspect rename move compare retry measure document review split merge trace".split()
)
_ADJECTIVES = "slow old new broken flaky large small shared local remote empty stale green noisy".split()
_TEAM = ["Dana", "Marcus", "Yusuf", "Ingrid", "Dana Whitfield", "Marcus Olsen"]
_KNOWN = [
    "src/app/main.py",
    "/var/log/app.log",
    "config/settings.yaml",
    "/tmp/build",
    "Makefile",
    "README.md",
]
_FIGURES = ["200 ms", "30 s", "50%", "3 retries", "8080", "512 MB", "100%", "v2.1.0", "404", "15 minutes"]


def _make_chatter(rng: random.Random) -> str:
    noun, verb, adjective = rng.choice(_NOUNS), rng.choice(_VERBS), rng.choice(_ADJECTIVES)
    other, also = rng.choice(_NOUNS), rng.choice(_VERBS)
    return rng.choice(
        (
            f"Okay, I'll {verb} the {noun} and then {also} the {other}.",
            f"Let me {verb} the {adjective} {noun} first.",
            f"The {noun} looks {adjective}, so we should {verb} it before the {other}.",
            f"Hmm, that is strange: the {noun} should not be {adjective} after the {other} is done.",
            f"Sounds good! I think the {noun} can wait until we {verb} the {other}.",
            f"Can you {verb} the {noun} again? It was {adjective} when I looked.",
            f"I don't think the {adjective} {noun} matters here, but let's {verb} it anyway.",
            f"Done. The {noun} took {rng.choice(_FIGURES)} as usual.",
            f"{rng.choice(_TEAM)} asked about the {noun} again, I said we {verb} it later.",
            f"Nothing new in {rng.choice(_KNOWN)}, it is as {adjective} as before.",
            "Sure, go ahead.",
            "Thanks, that helps a lot.",
        )
    )


def _make_log_line(rng: random.Random) -> str:
    stamp = f"2026-03-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}Z"
    noun = rng.choice(_NOUNS)
    return rng.choice(
        (
            f"{stamp} INFO {noun} request id={rng.getrandbits(32):08x} took {rng.randint(2, 900)} ms status=200\n",
            f"{stamp} DEBUG {noun} flushed {rng.randint(10, 9999)} rows in {rng.random():.3f} s\n",
            f"{stamp} WARN {noun} retry {rng.randint(1, 5)} of 5 for job-{rng.randint(1000, 9999)}\n",
            f"  PASS tests/{noun}/test_{rng.choice(_VERBS)}.py ({rng.randint(1, 90)} tests)\n",
        )
    )


def _make_json_line(rng: random.Random) -> str:
    return (
        f'{{"id": "{rng.getrandbits(48):012x}", "name": "{rng.choice(_NOUNS)}", '
        f'"status": "{rng.choice(("ok", "failed"))}", '
        f'"ms": {rng.randint(1, 5000)}, "path": "{rng.choice(_KNOWN)}"}}\n'
    )


def _make_prose(rng: random.Random) -> str:
    noun, other, third = rng.choice(_NOUNS), rng.choice(_NOUNS), rng.choice(_NOUNS)
    return rng.choice(
        (
            f"{rng.choice(_TEAM)} and {rng.choice(_TEAM)} went over the {noun} with {rng.choice(_FIGURES)} to spare.",
            f"On Tuesday {rng.choice(_TEAM)} said the {noun} needs {rng.randint(2, 60)} more {other}s than last week.",
            f"The {rng.choice(_ADJECTIVES)} {noun} in {rng.choice(_KNOWN)} grew to {rng.randint(10, 99)} lines.",
            f"We saw {rng.randint(100, 9999)} {noun}s, which is {rng.choice(_FIGURES)} over the {other}.",
            f"According to {rng.choice(_TEAM)}, a {noun} without a {other} is only a {third}.",
            f"It is a {rng.choice(_ADJECTIVES)} {noun}, and the {other} behind it is {rng.choice(_ADJECTIVES)} too.",
            f"Nobody has looked at the {noun} since GitHub moved the {other} to Docker.",
        )
    )


def _make_mixed_text(rng: random.Random) -> str:
    return rng.choice((_make_chatter, _make_chatter, _make_log_line, _make_json_line, _make_prose))(rng)


_FILLERS: dict[str, Callable[[random.Random], str]] = {
    "chatter": _make_chatter,
    "logs": _make_log_line,
    "json": _make_json_line,
    "prose": _make_prose,
    "mixed": _make_mixed_text,
}
#: Letters of a token, about.
_LETTERS = {"chatter": 4.0, "logs": 2.3, "json": 2.2, "prose": 4.0, "mixed": 2.8}


def _make_word(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))


def _plant_path(rng: random.Random) -> tuple[str, str]:
    made = rng.choice(
        (
            f"/srv/{_make_word(rng)}/{_make_word(rng)}-{rng.randint(1, 99)}.conf",
            f"src/{_make_word(rng)}/{_make_word(rng)}_{rng.choice(_NOUNS)}.ts",
            f"C:\\Data\\{_make_word(rng)}\\{_make_word(rng)}.xlsx",
            f"~/.{_make_word(rng)}/credentials.json",
            f"{_make_word(rng)}_{_make_word(rng)}.ipynb",
        )
    )
    said = (
        "The override file for the {noun} is {detail} on that machine.",
        "I put the patched version into {detail} for now.",
        "Everything about the {noun} is described in {detail}, please read it.",
        "It reads {detail} before the {noun} starts.",
    )
    return made, rng.choice(said)


def _plant_id(rng: random.Random) -> tuple[str, str]:
    made = rng.choice(
        (
            f"ORD-{rng.randint(1000, 99999)}",
            f"{rng.getrandbits(28):07x}a1",
            f"INC{rng.randint(100000, 999999)}",
            f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-4{rng.getrandbits(12):03x}-a{rng.getrandbits(12):03x}-"
            f"{rng.getrandbits(48):012x}",
            f"MAX_{_make_word(rng).upper()}_{rng.choice(_NOUNS).upper()}",
            f"{_make_word(rng)}{_make_word(rng).title()}Handler",
        )
    )
    said = (
        "The customer complains about {detail} since the last {noun}.",
        "The culprit seems to be {detail}, it changed the {noun}.",
        "Please keep {detail} in mind for the {noun}.",
        "We track the {noun} problem as {detail} from now on.",
    )
    return made, rng.choice(said)


def _plant_figure(rng: random.Random) -> tuple[str, str]:
    made = rng.choice(
        (
            f"{rng.randint(1, 99)},{rng.randint(100, 999)} MB",
            f"${rng.randint(1, 9)},{rng.randint(100, 999)}.{rng.randint(10, 99)}",
            f"{rng.randint(1, 98)}.{rng.randint(1, 9)}%",
            f"{rng.randint(100, 899)} GB",
            f"{rng.randint(31, 180)} seconds",
            f"€{rng.randint(1000, 90000)}",
        )
    )
    said = (
        "The hard limit for the {noun} is {detail} on this plan.",
        "They will not pay more than {detail} for the {noun}.",
        "The {noun} alarm should go off at {detail} and not earlier.",
        "In the contract the {noun} is guaranteed {detail} at least.",
    )
    return made, rng.choice(said)


def _plant_name(rng: random.Random) -> tuple[str, str]:
    made = rng.choice(
        (
            f"{_make_word(rng).title()} {_make_word(rng).title()}",
            f"{_make_word(rng).title()} {_make_word(rng).title()}-{_make_word(rng).title()}",
            f"Zoë {_make_word(rng).title()}",
            f"{_make_word(rng).title()} van {_make_word(rng).title()}",
            f"{_make_word(rng).title()}ström",
        )
    )
    said = (
        "The {noun} has to be approved by {detail} from legal.",
        "If it breaks at night, call {detail} about the {noun}.",
        "The {noun} was written by {detail}, who left last year.",
        "Send the {noun} to {detail} when it is ready.",
    )
    return made, rng.choice(said)


def _plant_date(rng: random.Random) -> tuple[str, str]:
    made = rng.choice(
        (
            f"2027-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            f"{rng.choice(('March', 'June', 'October'))} {rng.randint(1, 28)}, 2027",
            f"https://{_make_word(rng)}.example.com/{_make_word(rng)}?id={rng.randint(10, 9999)}",
            f"{_make_word(rng)}@{_make_word(rng)}.example.org",
            f"{_make_word(rng)}-{rng.randint(1, 9)}.internal:{rng.randint(1000, 9999)}",
            f"10.{rng.randint(0, 255)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}",
        )
    )
    said = (
        "For the {noun} they gave us {detail} to remember.",
        "The old {noun} ends with {detail}, after that it is gone.",
        "The only thing the {noun} knows is {detail}, nothing else.",
        "Use {detail} for the {noun} next time.",
    )
    return made, rng.choice(said)


def agent_log(
    rng: random.Random, *, style: str, turns: int = 1000, tokens: int = 45
) -> tuple[list[Turn], list[str]]:
    """Return a log and the 50 details planted in it, each in one turn, each said once."""
    filler = _FILLERS[style]
    texts: list[list[str]] = []
    for _ in range(turns):
        size = rng.uniform(0.66, 1.33) * tokens * _LETTERS[style]
        parts: list[str] = []
        while sum(map(len, parts)) < size:
            part = filler(rng)
            if sum(map(len, parts)) + len(part) > 1.4 * size and parts:
                break
            parts.append(part)
        texts.append(parts)
    planted: list[str] = []
    kinds = (_plant_path, _plant_id, _plant_figure, _plant_name, _plant_date)
    said = "\n".join(part for parts in texts for part in parts)
    for number, place in enumerate(rng.sample(range(turns), 50)):
        detail, sentence = kinds[number % 5](rng)
        while detail in said or any(detail in other or other in detail for other in planted):
            detail, sentence = kinds[number % 5](rng)
        planted.append(detail)
        spot = rng.randint(0, len(texts[place]))
        text = sentence.format(detail=detail, noun=rng.choice(_NOUNS))
        texts[place].insert(
            spot, text + ("\n" if spot < len(texts[place]) and texts[place][spot].endswith("\n") else "")
        )
    speakers = ("user", "assistant", "tool", "assistant")
    return [
        Turn(speaker=speakers[number % 4], text=_join_parts(parts), version=number + 1)
        for number, parts in enumerate(texts)
    ], planted


def _join_parts(parts: Sequence[str]) -> str:
    return "".join(part if part.endswith("\n") else part + " " for part in parts).strip()


def rounds(turns: Sequence[Turn], share: float, count: Callable[[str], int], parts: int = 3) -> str:
    """Return the rest of the turns after a third was compacted, then its summary with the next third, and so on."""
    summary: list[Turn] = []
    text = ""
    for part in range(parts):
        stretch = [*summary, *turns[part * len(turns) // parts : (part + 1) * len(turns) // parts]]
        limit = int(share * sum(count(turn.text) for turn in stretch))
        text = extract_summary(stretch, limit, count)
        assert count(text) <= limit
        summary = [Turn(speaker="summary", text=text, version=len(turns) + part + 1, summary=True)]
    return text
