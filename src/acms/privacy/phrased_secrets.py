"""Secrets in sentences, in many languages: a name, the tie between it and a value, and the look of the value.

A value may follow its name ("the PIN of the door is 4711"), come before it ("use hunter22 as the password"), answer a
question, or be part of a request to sign in. The looser the tie, the more random the value must look. Words are data;
sentences are not.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from acms.privacy.detector_types import Detection, Name, ScanBudget
from acms.privacy.rules import get_word_set, join_literals, load_pattern
from acms.privacy.value_checks import (
    COUNTED,
    COUNTER,
    DIGIT,
    ODD,
    is_no_value,
    is_stop_word,
    looks_harmless,
    looks_like_secret,
    looks_random,
    names_itself,
    rate_randomness,
    shannon_entropy,
    skip_match,
    trim_bare_value,
)

CLOSE = re.compile(r"""(?>(?:[\\"`\])*]|'(?!s[ \t])){0,6})""")
MAX_WORDS_BETWEEN, MAX_WORDS_TIED = 7, 9
"""Maximum number of words between a name and its value, without and with a word such as "is" that ties them."""
_REACH = 110
"""Characters of a line after a name within which a sentence gives its value."""
_OPEN, _SHUT = "\"'`“„«「『(*", "\"'`”“»」』)*"
_WORD = re.compile(r"\S+")
_QUOTED = re.compile(r"""["'`>]|<(?!\d)""")
#: The beginning of a word in a script without blanks: Chinese, Japanese, Korean.
_SCRIPTED = re.compile("[\u2e80-\uffff][\u2e80-\uffff「“\"']*")
_STOPS = (".", "?", "!", ";")
#: Postpositions of a value in Japanese: "…を4711に変更", "4711と入力".
_POSTPOSED = re.compile(r"""["'”」』]?(?:(?P<enter>[とを]入力|と打)|[にへ])""")


def find_phrased_secret(text: str, lower_text: str, name: Name, scan_budget: ScanBudget) -> Detection | None:
    """Return the value that a sentence gives for a name."""
    scan_budget.spend(300)
    return (
        _find_after(text, lower_text, name)
        or _find_before(text, lower_text, name)
        or _find_answer(text, lower_text, name)
    )


# ── after the name ──────────────────────────────────────────────────────────────────────────────────────────────────


#: Text right after a name that makes it part of an expression, an address or a question.
_NO_SENTENCE = re.compile(r"[=@|:/\\<>&?.;({]|\S=")
#: Verbs of a change.
_TURNED = tuple(get_word_set("turned"))
Tie: TypeAlias = Literal["", "stated", "signed", "named", "changed", "enter"]
"""What ties a value to a name: nothing, "is", a sign such as ":", "called", "changed to", or "enter"."""
Link: TypeAlias = Literal["stated", "named", "changed", "enter", "loose", "next", "far"]
"""How closely a word follows a name: right after a tie of this kind, one or two words after one ("loose"), as the next
word without a tie ("next"), or further away ("far")."""
#: Ties that introduce the value itself.
_TIED = ("stated", "named", "changed")
_INTRODUCING = (*_TIED, "enter")
_CLOSE_LINKS = (*_TIED, "loose")
_MIN_TIED, _MIN_NEXT, _MIN_FAR = 12, 16, 20
"""Minimum characters of a key by its link: tied, the next word, and further away."""


def _find_after(text: str, lower_text: str, name: Name) -> Detection | None:
    """Return the value that a sentence gives after a name: the more random it looks, the further away it may be.

    `lower_text` is the text in lower case. The sentence ends with its line.
    """
    line = lower_text.find("\n", name.end, name.end + _REACH)
    stop = line if line >= 0 else name.end + _REACH
    if "code" in name.form and not DIGIT.search(text, name.end, stop):
        return None
    begin = skip_match(CLOSE, text, name.end)
    if _NO_SENTENCE.match(text, begin):
        return None
    return _Scan(text, lower_text, name, stop).find_value(begin)


class _Scan:
    """A scan of the words after a name, for the value that the sentence gives it.

    A *tie* is a word or sign that ties a value to the name, such as "is", ":" or "changed to".
    """

    #: Number of words after the last tie.
    words_since_tie = 0
    #: Number of words between the name and the current word.
    position = 0
    #: Whether the current word directly follows Chinese, Japanese or Korean characters.
    follows_script = False

    def __init__(self, text: str, lower_text: str, name: Name, stop: int) -> None:
        self.text, self.lower_text, self.name, self.stop = text, lower_text, name, stop
        #: The kind of tie between the name and the value, or "". A name may end with a tie.
        self.tie: Tie = "stated" if name.word.rpartition(" ")[2] in get_word_set("links") else ""

    def find_value(self, begin: int) -> Detection | None:
        """Return the first value tied closely enough for its looks; `begin` is the end of quotes around the name."""
        for position, piece in enumerate(_WORD.finditer(self.text, self.name.end, self.stop)):
            if position > (MAX_WORDS_TIED if self.tie else MAX_WORDS_BETWEEN):
                return None
            self.position = position
            if piece.start() == self.name.end:
                written, start = self.text[begin : piece.end()], begin
                if self._read_suffix(written):
                    continue
            else:
                written, start = piece[0], piece.start()
                if not written.strip("=!?"):
                    return None
            self._read_word(written, start)
            if self._keep_tie() or self._is_tied_article():
                continue
            if self._is_about_name():  # such as "password policy": no value follows
                return None
            end = self._find_end()
            if end:
                return Detection(self.start, end, self.name.kind)
            if self._ends_sentence():
                return None
            self._pass_word()
        return None

    def _read_suffix(self, written: str) -> bool:
        """Read the rest of a word that begins with the name; return False if it is a word of its own."""
        if written[:1] not in ("", ",", "'", "’"):
            return False
        if written in ("'s", "’s"):
            self.tie = "stated"
        return True

    def _is_tied_article(self) -> bool:
        """Return whether the word is an article right after a tie."""
        return bool(self.tie) and self.words_since_tie == 0 and self.word in get_word_set("articles")

    def _read_word(self, written: str, start: int) -> None:
        """Make a piece of text the current word. Chinese, Japanese or Korean before it may tie it to the name."""
        script = _SCRIPTED.match(written)
        self.follows_script = script is not None
        if script:
            if not get_word_set("links").isdisjoint(script[0]):
                self.tie, self.words_since_tie = "stated", 0
            elif script[0].endswith(tuple(get_word_set("enter"))):
                self.tie, self.words_since_tie = "enter", 0
            written, start = written[script.end() :], start + script.end()
        #: The word as it is written, where it starts, and the word in lower case without punctuation.
        self.written = written.lstrip(_OPEN)
        self.start = start + len(written) - len(self.written)
        self.word = self.written.lower().rstrip(".,:;?!" + _SHUT)

    def _keep_tie(self) -> bool:
        """Record the tie if the word is one, such as "is"; return False otherwise."""
        if self.word in get_word_set("naming"):
            self.tie = "named"
        elif self.word in get_word_set("links"):
            self.tie = "stated"
        elif self.word in get_word_set("enter"):
            self.tie = "enter"
        elif self.word in get_word_set("towards") and self._is_of_change():
            self.tie = "changed"
        else:
            return False
        self.words_since_tie = 0
        return True

    def _is_of_change(self) -> bool:
        """Return whether the sentence states that a value changed."""
        sentence = self.lower_text[max(0, self.name.start - 48) : self.stop]
        return any(verb in sentence for verb in _TURNED)

    def _is_about_name(self) -> bool:
        """Return whether the word begins a description of the secret, not its value."""
        if self.tie or self.word not in get_word_set("about") or self.written.endswith(","):
            return False
        return self.position == 0 or not self.word.startswith(_TURNED)

    def _ends_sentence(self) -> bool:
        """Return whether the word ends the sentence, and is no abbreviation."""
        return self.written.endswith(_STOPS) and len(self.word) > 2

    def _find_end(self) -> int:
        """Return the end of the value that begins with the word, or 0 if it is not a value."""
        value = _QUOTED.split(trim_bare_value(self.written), 1)[0].rstrip(_SHUT)
        if not value:
            return 0
        link: Link = self._grade_link()
        if self.follows_script:
            end = find_phrase(self.text, self.start) or self.start + len(value)
            postposition = _POSTPOSED.match(self.text, end)
            if postposition:
                link = "enter" if postposition["enter"] else "changed"
        if "code" in self.name.form:
            end = self._find_code_end(value, link)
        elif self.name.kind == "password":
            end = self._find_password_end(value, link)
        else:
            end = 0
        if not end and _is_stated_value(self.text, value, self.start, self.name, link):
            end = self.start + len(value)
        return end

    def _find_code_end(self, value: str, link: Link) -> int:
        """Return the end of the code that begins with the word, or 0."""
        is_near = link in _INTRODUCING or (link == "next" and self.name.form == "code")
        if not is_near or (link == "changed" and _YEAR.fullmatch(value)):
            return 0
        return find_code(self.text, self.start, self.name)

    def _find_password_end(self, value: str, link: Link) -> int:
        """Return the end of the passphrase, the word or the digits that begin here, or 0."""
        may_be_phrase = link in _INTRODUCING or (link == "next" and self.name.form == "phrase")
        if may_be_phrase and self.name.word != "pass":
            phrase_end = find_phrase(self.text, self.start)
            if phrase_end:
                return phrase_end
        # "the password was changed in 2024"
        is_year = link == "changed" and _YEAR.fullmatch(value) is not None
        if link not in _TIED or is_year:
            return 0
        is_quoted = self.tie != "signed" and self.text[self.start - 1] in _OPEN
        is_alone = is_quoted or link == "named"
        if not _is_word(self.text, value, self.start, is_alone):
            return 0
        return self.start + len(value)

    def _grade_link(self) -> Link:
        """Return how closely the word is tied to the name."""
        if self.tie and self.words_since_tie == 0:
            return "stated" if self.tie == "signed" else self.tie
        if self.tie in _TIED and self.words_since_tie < 3:
            return "loose"
        return "next" if self.position == 0 else "far"

    def _pass_word(self) -> None:
        """Count the word, which is no value. A sign at its end ties the next one to the name."""
        self.words_since_tie += 1
        was_signed = self.tie == "signed"
        if self.written.endswith((":", "=", "：", ":**")) or (was_signed and not self.word):
            self.tie, self.words_since_tie = "signed", 0
        elif was_signed:
            self.tie = ""


#: Digits in one group or several, with the keypad symbols around them.
_CODE = re.compile(
    r"[#*]?\d{1,12}(?>(?:[ -]\d{1,6}){0,5})[#*]?(?![.,:/]?\w)|[#*]?\d{3,12}[#*]?(?=[\u2e80-\uffff])"
)
_YEAR = re.compile(r"(?:19|20)\d\d")
_CLAUSE_END = re.compile(r"""["'”»)]?[.,;!?]?(?:\s*$|[.,;!?)]|\r?\n)""")


def find_code(text: str, start: int, name: Name) -> int:
    """Return the end of the code that begins here, or 0. A PIN has at least four digits, other codes three."""
    code = _CODE.match(text, start)
    if code is None or name.suffix == "s":
        return 0
    is_short_pin = name.word.startswith("pin") and len(code[0]) < 4
    return code.end() if not is_short_pin and _is_code(text, code) else 0


def _is_code(text: str, code: re.Match[str]) -> bool:
    """Return whether digits are a code, not a count or a year within a sentence."""
    size = sum(map(str.isdigit, code[0]))
    if not 3 <= size <= 12 or COUNTED.match(text, code.end()):
        return False
    return not _YEAR.fullmatch(code[0]) or _CLAUSE_END.match(text, code.end()) is not None


def _is_word(text: str, value: str, start: int, is_alone: bool) -> bool:
    """Return whether digits or one word are a password that a sentence states."""
    end = start + len(value)
    if value.isdigit():
        code = _CODE.match(text, start)
        return code is not None and code.end() == end and len(value) > 3 and _is_code(text, code)
    if not is_alone or not value.isalpha() or len(value) < 5 or is_stop_word(value):
        return False
    return not _is_function_word(value.lower()) and _CLAUSE_END.match(text, end) is not None


def _is_function_word(word: str) -> bool:
    """Return whether a word has a grammatical function, or describes a secret."""
    return word in get_word_set("function") or word in get_word_set("about")


_PLAIN_WORD = re.compile(r"[a-zß-öø-ÿœ]{2,14}+(?![A-Z0-9_'’-])")
_NUMBER = re.compile(r" \d{1,6}(?!\w)")
#: Participles and adverbs: they describe a passphrase and are seldom part of one.
_DESCRIPTIVE = re.compile(r".*(?:ed|ing|ly|ad[ao]s?|id[ao]s?|mente|ée?s?|iert|ment)")


def find_phrase(text: str, start: int) -> int:
    """Return the end of the passphrase that begins here, or 0.

    It has at least four words in lower case, none of them a function word; three are enough with a number after them.
    """
    words: list[str] = []
    offset, end = start, 0
    while len(words) < 24:  # as many as the longest BIP 39 mnemonic has: a longer run is prose
        word = _PLAIN_WORD.match(text, offset)
        if word is None or _is_function_word(word[0]):
            break
        words.append(word[0])
        end = word.end()
        offset = end + 1
        if text[end:offset] != " ":
            break
    if not words:
        return 0
    number = _NUMBER.match(text, end)
    min_words = 3 if number else 4
    doubtful_words = [word for word in words if is_stop_word(word) or _DESCRIPTIVE.fullmatch(word)]
    if len(words) < min_words or len(doubtful_words) > 1:
        return 0
    return number.end() if number else end


def _is_stated_value(text: str, value: str, start: int, name: Name, link: Link) -> bool:
    """Return whether a string near a name looks random enough to be its value."""
    if is_no_value(text, value, start) or looks_harmless(value) or name.suffix == "s":
        return False
    is_tied = link in _CLOSE_LINKS
    if not is_tied and (names_itself(value) or name.word == "pass" or COUNTER.fullmatch(value)):
        return False
    if name.form == "login" and is_tied:
        min_length = 6 if name.kind == "secret" else 8
        if len(value) >= min_length and looks_like_secret(value):
            return True
    if "code" in name.form:
        return link != "far" and rate_randomness(value) >= 2
    if name.kind == "password":
        return _is_stated_password(text, value, start, link)
    return _is_stated_key(text, value, start, link)


def _is_stated_key(text: str, value: str, start: int, link: Link) -> bool:
    """Return whether a string near the name is long and random enough for a key: a looser link needs a longer one."""
    is_hash = _HASH.search(text, max(0, start - 14), start)  # "sha256: " directly before it
    if is_hash or names_itself(value):
        return False
    if link == "far":
        return len(value) >= _MIN_FAR and looks_random(value)
    return _is_long(value, _MIN_TIED if link in _CLOSE_LINKS else _MIN_NEXT)


def _is_stated_password(text: str, value: str, start: int, link: Link) -> bool:
    """Return whether a string near the name looks random enough: a looser link needs a more random string."""
    rating, size = rate_randomness(value), len(value)
    if link in ("next", "enter"):
        return rating >= 2 and size >= 6
    if link == "far":
        return rating == 3 and size >= 7 and ODD.search(value) is not None
    if rating >= 1:
        return True
    return value.isdigit() and size >= 6 and not COUNTED.match(text, start + size)


def _is_long(value: str, min_size: int) -> bool:
    rating = rate_randomness(value)
    min_length = 8 if rating == 3 else min_size
    return rating >= 2 and len(value) >= min_length and shannon_entropy(value) >= 2.8


_HASH = load_pattern("hash named")

# ── before the name ─────────────────────────────────────────────────────────────────────────────────────────────────

_EARLIER = load_pattern("earlier")
_EARLIER_SCRIPT = load_pattern("earlier script")
_ENTERED = re.compile(
    rf"(?i)(?<![^\W\d_])(?:{join_literals(sorted(get_word_set('enter')))})[ ][\"'`“]?"
    r"(?P<value>[^\s\"'`”]{4,64}+)[\"'`”]?[ ][^.!?\n]{0,60}$"
)


def _find_before(text: str, lower_text: str, name: Name) -> Detection | None:
    """Return a value that precedes its name: "use … as the password"."""
    if name.kind != "password":
        return None
    start = max(0, name.start - _REACH)
    match = _match_before(text[start : name.start], lower_text[start : name.start], name)
    if not match:
        return None
    value, value_start = match["value"].rstrip(","), start + match.start("value")
    detection = Detection(value_start, value_start + len(value), "password")
    is_digits = len(value) > 3 and _CODE.fullmatch(value) and not _YEAR.fullmatch(value)
    if "code" in name.form and is_digits:
        return detection
    if names_itself(value) or not _is_stated_value(text, value, value_start, name, "loose"):
        return None
    return detection


def _match_before(text_before: str, lower_before: str, name: Name) -> re.Match[str] | None:
    """Return the match of a value in the text before its name; `lower_before` is that text in lower case."""
    entered = _ENTERED.search(text_before) if DIGIT.search(text_before) else None
    if entered and ("code" in name.form or _is_entered_password(entered["value"])):
        return entered
    joins = get_word_set("joins")
    if any(f" {join} " in lower_before for join in joins):
        match = _EARLIER.search(text_before)
        if not match or match["join"].lower() not in joins:
            return None
        is_poor = match["of"].strip().endswith(tuple(get_word_set("poor")))
        return None if is_poor else match
    return None if text_before.isascii() else _EARLIER_SCRIPT.search(text_before)


def _is_entered_password(value: str) -> bool:
    return looks_like_secret(value) and any(map(str.islower, value))


# ── in an answer ────────────────────────────────────────────────────────────────────────────────────────────────────

_ANSWER = load_pattern("answer")
_ASKED = load_pattern("asked")


def _find_answer(text: str, lower_text: str, name: Name) -> Detection | None:
    """Return the value in the answer to a question for a secret: "the password?", and the value on the next line."""
    line_before = lower_text[max(0, name.start - 60) : name.start].rpartition("\n")[2]
    match = _ANSWER.match(text, name.end, name.end + 300)
    if not match and any(word in line_before for word in ("send", "need", "give", "tell")):
        match = _ASKED.match(text, name.end, name.end + 300)
    if not match:
        return None
    value, start = match[1].rstrip(".,"), match.start(1)
    if sum(map(str.isdigit, value)) < 2 and not ODD.search(value, 1):
        return None
    question = text[name.end : start].partition("\n")[0].lower().strip("?？ ").split()
    if not get_word_set("about").isdisjoint(question):  # such as "the password policy?"
        return None
    if not _is_stated_value(text, value, start, name, "loose"):
        return None
    return Detection(start, start + len(value), name.kind)


# ── in a request to sign in ─────────────────────────────────────────────────────────────────────────────────────────

#: Values in a request to sign in: after "with", or as the second of a pair.
_WITH = load_pattern("sign in with")
_WITHIN_SCRIPT = re.compile(r"(?<![!-~])[!-~]{6,64}+")


def find_sign_in(text: str, verb: Name) -> Detection | None:
    """Return the password in a request to sign in that does not call it one: "log in as admin with …"."""
    for start, written_value, is_pair in _list_sign_in_values(text, verb):
        value = trim_bare_value(written_value).rstrip(_SHUT)
        if len(value) < 6 or not looks_like_secret(value):
            continue
        digits = sum(map(str.isdigit, value))
        is_varied = value[:1].islower() and (is_pair or digits > 3)
        if is_varied or rate_randomness(value) == 3:
            return Detection(start, start + len(value), "password")
    return None


def _list_sign_in_values(text: str, verb: Name) -> list[tuple[int, str, bool]]:
    """Return the values that may be passwords: offset, text, and whether a user is named with it."""
    line = text.find("\n", verb.end, verb.end + 80)
    stop = line if line >= 0 else verb.end + 80
    if verb.word.isascii() or verb.word < "\u2e80":
        matches = _WITH.finditer(text, verb.end, stop)
        return [(match.start("value"), match["value"], bool(match["user"])) for match in matches]
    earliest = max(0, verb.start - 60)
    start = text.rfind("\n", earliest, verb.start) + 1 or earliest
    return [(match.start(), match[0], True) for match in _WITHIN_SCRIPT.finditer(text, start, stop)]
