"""Secrets told in prose, and sentences that look as if they told one, in six languages.

Run:  python benchmarks/privacy_prose.py [--seed 1] [--show]

Each half draws 120 sentences with a secret and 300 look-alikes, as many of each language, from `privacy_prose.txt`.
The halves share no sentence and no word: `development` may be looked at while rules change (`--show` prints what went
wrong), `held out` may not and is the measure. Found: at least half of the secret's characters were redacted under
`redact`. False alarm: a look-alike of which something was redacted.

In a sentence {pw} is a password with digits, {word} and {Word} one word, {phrase} four or five words, {pin} four to six
digits: these are the secrets. {sys}, {user}, {day}, {adj}, {n}, {err} and {year} are what surrounds them.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from acms.model import Privacy
from acms.privacy.detect import find_sensitive_spans

LANGUAGES = ("en", "de", "es", "fr", "ja", "zh")
SECRETS, LOOK_ALIKES = 120, 300
ADJECTIVES = {
    "en": "wrong|too weak|outdated|mandatory|case-sensitive|shared by the team",
    "de": "falsch|schwach|veraltet|kurz|einfach|unsicher",
    "es": "incorrecta|débil|antigua|corta|fácil|insegura",
    "fr": "incorrect|faible|ancien|court|facile|simple",
    "ja": "無効|必須|短すぎる文字列|秘密", "zh": "弱|短|简单|旧",
}  # fmt: skip
_SLOT = re.compile(r"\{(\w+)\}")
_SECRET = ("pw", "word", "Word", "phrase", "pin")


class Sentence(NamedTuple):
    """A sentence, and where in it the secret is; (0, 0) in a look-alike."""

    text: str
    language: str
    start: int
    end: int


class Half:
    """The words and the sentences of one half."""

    def __init__(self, lines: list[str]) -> None:
        self.lists: dict[str, list[str]] = {}
        self.sentences: dict[tuple[str, str], list[str]] = {}
        language = ""
        for line in lines:
            if line.startswith("## "):
                language = line[3:]
            elif line[:2] in ("+ ", "- "):
                self.sentences.setdefault((language, line[0]), []).append(line[2:])
            else:
                name, _, some = line.partition(": ")
                self.lists[name] = some.split("|") if "|" in some else some.split()

    def draw(self, seed: int, sign: str, count: int) -> Iterator[Sentence]:
        """Yield sentences of one sign, as many of each language."""
        for language in LANGUAGES:
            chance = random.Random(f"{seed} {language} {sign}")
            frames = self.sentences[language, sign]
            chance.shuffle(frames)
            for frame in islice(cycle(frames), count // len(LANGUAGES)):
                yield self._fill(frame, language, chance)

    def _fill(self, frame: str, language: str, chance: random.Random) -> Sentence:
        parts: list[str] = []
        start = end = 0
        for at, part in enumerate(_SLOT.split(frame)):
            text = self._value(part, language, chance) if at % 2 else part
            if at % 2 and part in _SECRET:
                start = sum(map(len, parts))
                end = start + len(text)
            parts.append(text)
        text = "".join(parts)
        return Sentence(
            text[0].upper() + text[1:] if chance.random() < 0.5 and start else text, language, start, end
        )

    def _value(self, slot: str, language: str, chance: random.Random) -> str:
        words = self.lists.get(f"words {language}", []) + self.lists["words"]
        word = chance.choice(self.lists.get(f"words {language}", self.lists["words"]))
        digits = "".join(chance.choices("0123456789", k=chance.randint(4, 6)))
        plain = chance.choice(self.lists["words"])
        passwords = (
            f"{plain}{digits[:4]}", f"{plain.title()}{chance.randint(1970, 2029)}!", f"{plain}{digits[:2]}",
            f"{plain}-{chance.choice(self.lists['words'])}-{digits[:2]}", f"{plain.title()}#{digits[:3]}",
            "".join(chance.choices("abcdefghkmnpqrstuvwxyzABCDEFGHKLMNPQRSTUVWXYZ23456789", k=11)) + digits[0],
            plain.replace("e", "3").replace("a", "4").replace("o", "0") + digits[:2] + "$",
        )  # fmt: skip
        of = self.lists.get(f"words {language}", words)
        match slot:
            case "pw":
                return chance.choice(passwords)
            case "word":
                return word
            case "Word":
                return word.title()
            case "phrase":
                return " ".join(chance.sample(of, chance.randint(4, 5)))
            case "pin":
                return digits
            case "sys":
                return chance.choice(self.lists[f"systems {language}"])
            case "user":
                return chance.choice(self.lists["users"])
            case "day":
                return chance.choice(self.lists[f"days {language}"])
            case "adj":
                return chance.choice(ADJECTIVES[language].split("|"))
            case "n":
                return str(chance.choice((4, 6, 8, 10, 12, 16, 90, 365)))
            case "err":
                return str(chance.choice((404, 500, 1045, 10061, 4711)))
            case _:
                return str(chance.randint(2015, 2026))


def read_halves() -> dict[str, Half]:
    """Return the halves of the file by name."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    parts = [part.splitlines() for part in text.split("\n# ")[1:]]
    return {lines[0]: Half(lines[1:]) for lines in parts}


def is_found(sentence: Sentence) -> bool:
    """Return whether at least half of the secret is redacted; of a look-alike, whether anything is."""
    found = find_sensitive_spans(sentence.text, Privacy.REDACT)
    if sentence.end == 0:
        return bool(found)
    covered = sum(max(0, min(one.end, sentence.end) - max(one.start, sentence.start)) for one in found)
    return covered * 2 >= sentence.end - sentence.start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--half", choices=("development", "held out"), help="this half alone")
    parser.add_argument("--show", action="store_true", help="print what went wrong in the development half")
    args = parser.parse_args()
    for name, half in read_halves().items():
        if args.half not in (None, name):
            continue
        for title, sign, count in (("found", "+", SECRETS), ("false alarms", "-", LOOK_ALIKES)):
            drawn = list(half.draw(args.seed, sign, count))
            hits = [one for one in drawn if is_found(one)]
            by = ", ".join(f"{tag} {sum(one.language == tag for one in hits)}" for tag in LANGUAGES)
            print(f"{name:12} {title:13} {len(hits):3} of {count} ({len(hits) / count:.1%}): {by}")
            if args.show and name == "development":
                for one in drawn:
                    if (one in hits) is (sign == "-"):
                        print("   ", one.language, repr(one.text))


if __name__ == "__main__":
    main()
