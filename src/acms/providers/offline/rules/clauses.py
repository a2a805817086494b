"""Clauses: what a text states, one statement at a time, and which of it is no statement at all.

Code, quoted lines and long quotations are left out before anything is read. A rule is tried at every place where a
clause can begin, so that "Finance has signed it, the budget is 40k" is read like "The budget is 40k".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from acms.text.markers import WORDS

LONGEST = 400
"""Characters of the longest sentence that is read, and how many sentences of one text are."""
MOST = 200

_CODE = re.compile(
    r"^[ \t]{0,20}(?P<fence>```|~~~)[^\n]*\n.*?(?:^[ \t]{0,20}(?P=fence)[^\n]*$|\Z)", re.M | re.S
)
_LINE = re.compile(r"[ \t]{0,40}(?:(?P<list>[-*+\u2022]|\d{1,3}[.)])[ \t]{1,8})?(?:\[[ xX]\] )?(?P<text>.*)")
_PROGRAM = re.compile(
    r"[{}\[\]|<@]|(?:def|class|import|from \w+ import|return|const|let|var|SELECT|INSERT|UPDATE|CREATE|sudo|pip|npm"
    r"|git|docker|curl|\$|#include|function|public|private|Traceback|File \")\s"
)
_ODD = re.compile(r"=>|==|\(\)|\);|;\s*$|\{\s*$|^\s*\w+ = |</|::|&&|\|\|")
_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]{0,2}(?:\s+|$)|(?<=[。！？])")
_SHORT = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|approx|nr|mr|mrs|ms|dr|st|prof|inc|ltd|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov"
    r"|dec)|(?<![\w/.])[a-z]|\A\d{1,3})\.$",
    re.I,
)
_QUOTATION = re.compile(
    r"[\"“„«](?P<in>[^\"“”„«»\n]{2,400}+)[\"”“»]|(?<!\w)['‘](?P<one>[^'‘’\n]{12,300}+)['’](?!\w)"
)
_EMPHASIS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)")
_MARKER = {word.lower(): marker for marker, words in WORDS.items() for word in words}
_KEY = re.compile(r"(?P<key>[A-Za-z][\w '’/&()-]{1,40}?)[ \t]?: +(?P<rest>\S.*)")
#: Words before a colon that announce a change of something said before.
_CHANGES = frozenset(
    "correction|corrected|update|updated|change|changed|change of plan|change of plans|revised|revision|edit|erratum"
    "|small correction|one correction|quick correction|quick update|new decision".split("|")
)
_ANNOUNCE = frozenset(
    "note|fyi|reminder|important|heads up|heads-up|remember|info|context|fact|for the record|decision made"
    "|final decision"
    "|agreed|conclusion|rule|policy|convention|preference".split("|")
)

HYPOTHETICAL = re.compile(
    r"\b(?:if|could|might|(?-i:may)|maybe|perhaps|would|wouldn['’]t|wonder|wondering|suppose|imagine|consider"
    r"|considering"
    r"|thinking (?:about|of)|think about|possibly|probably|potentially|hypothetically|hypothetical|unless"
    r"|whether|either"
    r"|what about|how about|assume|assuming|unsure|not sure|undecided|proposal|propose[ds]?|proposing|suggest\w*"
    r"|recommend\w*|option|options|alternative|alternatively|ideally|in theory|tempted|leaning|hoping|hope|wish"
    r"|want to|wanted to|planning to|plan to|plans to|like to|intend to|going to (?:try|look|see|check|think"
    r"|discuss)"
    r"|haven['’]t|hasn['’]t|have not|has not|not yet|used to|eventually|someday|some day|one day|should|pretend"
    r"|let['’]s say|say we|in case|unlikely|likely|until we|as soon as|once (?:we|the|i|it)|was going to"
    r"|were going to"
    r"|almost|nearly)\b",
    re.I,
)
HEARSAY = re.compile(
    r"\b(?:heard|hear that|they say|people say|they said|said|says|told|tells|claims?|claimed|argues?"
    r"|read (?:that|about"
    r"|a|an|the|some)|reading|reads|apparently|supposedly|reportedly|rumou?rs?|allegedly|according to|popular|many"
    r" (?:teams|people|companies|developers)|most (?:teams|people|companies|developers)|some (?:people|teams|say"
    r"|companies)|article|blog|podcast|tutorial|documentation|docs say|forum|survey|in general"
    r"|generally|typically|usually|often|sometimes|for example|for instance|e\.g|(?:an|one|this) example"
    r"|dreamed|dreamt|movie|novel"
    r"|fictional|character|previous(?:ly)?|formerly|originally|back then|last (?:year|month|week|job|company)"
    r"|years ago"
    r"|in the past|at my old|old job|ex-\w+|competitors?"
    r"|ask(?:ed|s) (?:me|us|him|her|whether|about|for (?:a|my))|wrote (?:that|about))\b",
    re.I,
)

_LEAD = re.compile(
    r"please (?!note\b)|(?:(?:so|now|ok|okay|alright|all right|well|great|good|perfect|right|yes|yeah|yep"
    r"|sure|thanks|thank you|also|and|but"
    r"|then|btw|by the way|fyi|please|note|please note|remember|keep in mind|just so you know|for the record"
    r"|for context"
    r"|for your information|as a reminder|reminder|heads up|heads-up|to clarify|to be clear|in short|in summary"
    r"|hi|hello|hey|again|in the end|today|before we start|first|second|finally|anyway|by now|good news"
    r"|no|nope|actually|sorry|wait|oops|scratch that|never ?mind that|correction|i mean|i meant|rather"
    r"|hold on|my mistake"
    r"|my bad|change of plans?|change of mind|update|quick update|on second thought|on reflection)"
    r"(?: that)?(?:[,:;.!]+ ?|[ ]?[-–—] ?| (?=we\b|i\b|the\b|our\b|my\b|let|never\b|always\b|do\b|don|it\b"
    r"|make\b)))",
    re.I,
)
_CHANGING = re.compile(
    r"(?:now|no|nope|actually|sorry|wait|oops|scratch that|never ?mind that|correction|i meant?|rather|hold on"
    r"|my mistake|my bad|change of plans?|change of mind|update|quick update|on second thought|on reflection)\b",
    re.I,
)
_PHRASE = re.compile(
    r"(?:^|[ ,]{1,2})(?P<new>from (?:now|today|tomorrow|here|this \w{1,20}|next \w{1,20}) on(?:wards?)?"
    r"|going forward"
    r"|after all|as of (?:now|today|tomorrow|this \w{1,20}|next \w{1,20})|effective (?:immediately|today|now)"
    r"|instead(?! of)|any ?more)(?=[\s,.;:!]|$)"
    r"|(?:^|[ ,]{1,2})(?:for now|at the moment|these days|as always|for the time being|at present)(?=[\s,.;:!]|$)",
    re.I,
)
_FILLER = re.compile(
    r"\b(?:(?P<new>now)|currently|still|finally|officially|just|already|definitely|also|really|recently|actually"
    r"|eventually|ultimately|simply|basically|unanimously|all|both)\b ?",
)
_STARTS = re.compile(
    r"(?:[,;:] (?:(?:and|but|so|because|that is why|which is why|therefore|hence) )?|[ ](?:so|but|and|[-–—]+) )"
    r"(?=(?:the|our|my|we|i|we['’]re|we['’]ll|we['’]ve|i['’]m|i['’]ve|let['’]?s|never|always|don['’]t|do not"
    r"|it|it['’]s"
    r"|please|use|in|on|for|as|from|there|make|use|set|team|[A-Z][\w.+#-]{1,30}"
    r"|(?:[a-z]{2,20} ){1,2}(?:is|are|was|were|moves?|moved|changes?|changed))\b)",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A sentence, as a place where statements may be found."""

    #: As said, without list signs, emphasis and what announces it.
    text: str
    #: The marker that announces it, by a word and a colon.
    marker: str | None = None
    #: That word, or the key of a line "Key: value".
    key: str = ""
    #: Something before the colon says that it changes what was said before.
    change: bool = False
    #: It stands in a line "Key: value" of its own.
    listed: bool = False
    question: bool = False
    exclaimed: bool = False


def clauses(text: str) -> list[Clause]:
    """Return the sentences of a text that may state something, at most `MOST`."""
    if "```" in text or "~~~" in text:
        text = _CODE.sub("\n", text)
    found = (clause for line in text.split("\n") if line.strip() for clause in _line(line.rstrip()))
    return list(islice(found, MOST))


def _line(line: str) -> Iterator[Clause]:
    stripped = line.lstrip()
    if stripped.startswith((">", "|", "    ", "\t")) or line.startswith(("    ", "\t")):
        return
    match = _LINE.match(line)
    said = (match["text"] if match else line).lstrip("#").strip()
    said = _EMPHASIS.sub("", said)
    if not said or _PROGRAM.match(said):
        return
    marker, key, change = None, "", False
    listed = False
    for _ in range(3):
        announced = _KEY.match(said)
        if not announced:
            break
        word = announced["key"].strip().lower().replace("’", "'")
        if word in _MARKER:
            marker, key, said = _MARKER[word], announced["key"].strip(), announced["rest"]
        elif word in _CHANGES or word in _ANNOUNCE:
            change = change or word in _CHANGES
            said = announced["rest"]
        else:
            if not marker and len(word.split()) <= 4:
                key, said, listed = announced["key"].strip(), announced["rest"], True
            break
    first = True
    for sentence in _sentences(said):
        bare = sentence.rstrip()
        yield Clause(
            text=_mask(bare.rstrip(" .!?…。！？")),
            marker=marker if first else None,
            key=key if first else "",
            change=change,
            listed=listed and first,
            question=bare.endswith(("?", "？")) or bare.endswith(('?"', "?)", "?'")),
            exclaimed=bare.endswith("!"),
        )
        first = False


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for end in (*(match.end() for match in _END.finditer(text)), len(text)):
        if end < len(text) and _SHORT.search(text[max(start, end - 14) : end].rstrip()):
            continue
        piece = text[start : min(end, start + LONGEST + 1)].strip() if end - start <= 2 * LONGEST else ""
        if piece and len(piece) <= LONGEST and not _ODD.search(piece):
            yield piece
        start = end


def _mask(text: str) -> str:
    """Blank out what is quoted, unless it is short enough to be a name or a value."""
    if not any(sign in text for sign in "\"“„«'‘"):
        return text

    def hidden(match: re.Match[str]) -> str:
        inside = match["in"] or match["one"]
        if match["in"] and len(inside.split()) <= 3:
            return match[0]
        return "\ufffc"

    return _QUOTATION.sub(hidden, text)


def plainly(text: str) -> tuple[str, bool]:
    """Return a clause without openings and fillers, and whether they say that something changed."""
    change = False
    for _ in range(4):
        lead = _LEAD.match(text)
        if not lead:
            break
        change = change or bool(_CHANGING.match(lead[0]))
        text = text[lead.end() :]

    def gone(match: re.Match[str]) -> str:
        nonlocal change
        change = change or match["new"] is not None
        return ""

    text = _PHRASE.sub(gone, text)
    text = _FILLER.sub(gone, text)
    return text.strip(" ,;:–—"), change


_BEFORE = re.compile(
    r"(?:(?:after|because of|in front of|due to|following|given|thanks to|per|based on|behind|on top of"
    r"|before) [^,;]{2,60}?"
    r"|(?:we|the team|our team|they|everyone|everybody)(?: have|['’]ve)?(?: finally| all| now)? (?:agreed"
    r"|decided|settled|confirmed"
    r"|concluded) that|(?:after .{2,40} )?it(?: is|['’]s) (?:now )?(?:clear|decided|agreed|settled|official"
    r"|final|confirmed) that"
    r"|(?:i|we) (?:can |should |want to )?(?:confirm|mention|say|add|introduce myself)(?: that)?),? "
    r"(?=(?:we|our|my|the|[a-z]{3,20} (?:is|are))\b)",
    re.I,
)


def starts(text: str) -> list[int]:
    """Return where a clause may begin."""
    found = [match.end() for match in _STARTS.finditer(text)]
    if before := _BEFORE.match(text):
        found = sorted({before.end(), *found})
    return [0, *found][:12]
