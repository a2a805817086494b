"""Details: the strings of a text that a reader cannot reconstruct: paths, ids, numbers, dates, names, quotations.

A sentence can be said in other words; `ORD-4312` cannot. Words are looked at one by one and remembered, so that plain
chatter costs a look-up a word; every repetition in a pattern is possessive or bounded, so that time grows with the
length of a text whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from acms.text.tokenizer import content_term

KINDS = ("url", "email", "path", "host", "id", "version", "date", "number", "code", "name", "quote")
"""What a detail can be."""

CORE = ("url", "email", "path", "host", "id", "version", "date", "number", "name")
"""Kinds that name something exactly: without such a detail it cannot be looked up, reached or relied on."""


class Detail(NamedTuple):
    """A string to be kept letter by letter, and its position in its text."""

    kind: str
    text: str
    start: int
    end: int


_FoundDetail = tuple[int, int, str]
"""Start, end and kind of a detail found in a text."""

_EXTENSIONS = (
    "bak bat bin c cc cfg class cnf conf config cpp crt cs css csv dat db dll doc docx dylib env exe gif go gz h hpp "
    "htm html ico ini ipynb jar java jpeg jpg js json jsonl jsx key kt kts less lock log lua md mdx mjs mk mov mp3 mp4 "
    "npy npz onnx orc out parquet patch pdf pem php pid pkl plist png pptx properties proto ps1 pt py pyc pyi r rar rb "
    "rs rst sass scala scss service sh so sock sql sqlite sqlite3 svelte svg swift tar tex tf tfvars tgz tmp toml ts "
    "tsv tsx txt vue wal war wasm wav webp whl xls xlsx xml yaml yml zip zst"
).replace(" ", "|")
_UNITS = (
    "%|‰|°[CF]?|[kKMGTP]i?(?:B|bit)(?:/s|ps)?|[KMGT]bps|[kMGT]?Hz|B|bytes?|bits?|[mµun]?s|secs?|seconds?|milliseconds?|"
    "microseconds?|mins?|minutes?|hrs?|hours?|h|d|days?|weeks?|months?|years?|tokens?|rows?|requests?|req/s|rps|qps|"
    "[kcmµn]?m|km/h|mph|miles?|ft|feet|inch(?:es)?|[kmµ]?g|lbs?|oz|tons?|m?[lL]|[kMG]?Wh?|m?[AV]|mAh|K|C|F|px|pt|em|"
    "dpi|fps|bps|rpm|percent|pct|points?|dollars?|euros?|cents?|pounds?|EUR|USD|GBP|CHF|JPY|CNY|INR|[$€£¥₹]|"
    "k|M|bn|million|billion|thousand|x|Stunden?|Minuten?|Sekunden?|Tage?n?|Wochen?|Monate?n?|Jahre?n?|Prozent|Euro|"
    "[万亿千百]?(?:元|美元|欧元|人|次|个|条|台|件|吨|公里|米|秒|分钟|小时|天|年|月|日|兆|字节)|毫秒|[万亿]"
)
_NUMBER = r"\d{1,3}(?>(?:[,.'’\u202f]\d{3})+)(?>(?:[.,]\d{1,9}+)?)(?![\d])|\d{1,30}+(?>(?:[.,]\d{1,15}+)?)"
_A = "A-Za-z0-9_"

#: The details in one word; the first alternative that fits. Boundaries are ASCII: Chinese has no spaces around an id.
_GRAMMAR = re.compile(
    rf"""
      (?P<url>   (?<![{_A}]) (?:[A-Za-z][A-Za-z0-9+.-]{{1,15}}://|www\.) [!\#-&(-;=?-\[\]-_a-z\|~À-ɏ]{{2,2000}}+ )
    | (?P<email> (?<![{_A}.+-]) [A-Za-z0-9._%+-]{{1,64}}+ @ [A-Za-z0-9-]{{1,63}}+
                 (?>(?:\.[A-Za-z0-9-]{{1,63}}+){{1,5}}) )
    | (?P<stamp> (?<![{_A}]) \d{{4}}-\d\d-\d\d (?>(?: [T_] \d\d:?\d\d (?>(?: :?\d\d (?>(?:[.,]\d{{1,9}}+)?) )?)
                 (?>(?: Z | [+-]\d\d:?\d\d )?) )?) (?![{_A}-])
               | (?<![{_A}./]) \d{{1,4}}+ (?P<sep>[./]) \d{{1,2}}+ (?P=sep) \d{{2,4}}+ (?![{_A}/]|\.\d)
               | (?<![{_A}:]) [0-2]?\d : [0-5]\d (?>(?: :[0-5]\d (?>(?:[.,]\d{{1,9}}+)?) )?) (?>(?:[ap]m|Z)?)
                 (?![{_A}:])
               | \d{{2,4}}+年 (?>(?:\d{{1,2}}+月 (?>(?:\d{{1,2}}+[日号])?) )?) | \d{{1,2}}+月\d{{1,2}}+[日号] )
    | (?P<path>  (?<![{_A}]) [A-Za-z]:\\ [^\s"'<>|*?:;,()]{{1,400}}+ (?>(?: :\d{{1,6}}+ )?)
               | (?<![{_A}\\]) \\\\ [\w.$-]{{1,64}}+ (?>(?: \\{{1,2}} [\w.$ -]{{1,64}}+ ){{1,20}})
               | (?<![{_A}./~<)\]}}"'`]) (?>(?:~|\.{{1,2}})?) / (?=[\w.@-]) (?>(?: [\w.@+%=,~-]{{1,120}}+ /?+ ){{1,30}})
                 (?>(?: :\d{{1,6}}+ ){{0,2}})
               | (?<=["'`]) (?>(?:~|\.{{1,2}})?) / (?=[\w.@-]) (?>(?: [\w.@+%=,~-]{{1,120}}+ /?+ ){{1,30}})
                 (?>(?: :\d{{1,6}}+ ){{0,2}})
               | (?<![{_A}./-]) (?>(?: [A-Za-z0-9_.@+-]{{1,120}}+ / ){{2,30}}) (?>(?:[A-Za-z0-9_.@+%=-]{{1,120}}+)?)
                 (?>(?: :\d{{1,6}}+ ){{0,2}})
               | (?<![{_A}./-]) (?>(?: [A-Za-z0-9_.@+-]{{1,120}}+ / )?) (?: [A-Za-z0-9_@+-]{{0,80}}+ \. ){{1,6}}
                 (?<=[A-Za-z0-9_+/-]\.) (?:{_EXTENSIONS}) (?! [{_A}/(@] | \.[A-Za-z0-9] | -[A-Za-z] )
                 (?>(?: :\d{{1,6}}+ ){{0,2}}) )
    | (?P<host>  (?<![{_A}.]) \d{{1,3}} (?:\.\d{{1,3}}){{3}} (?>(?: /\d{{1,2}} | :\d{{1,5}} )?) (?![{_A}]|\.\d)
               | (?<![{_A}:]) [0-9A-Fa-f]{{1,4}} (?: ::? [0-9A-Fa-f]{{1,4}} ){{3,7}} (?![{_A}:])
               | (?<![{_A}.-]) [A-Za-z] [A-Za-z0-9.-]{{0,120}}+ :\d{{2,5}} (?![{_A}:]) )
    | (?P<code>  (?<![{_A}-]) --[A-Za-z][A-Za-z0-9_-]{{0,80}}+ (?>(?: =[^\s"'`,;()]{{1,120}}+ )?)
               | (?<![{_A}]) @[a-z0-9-]{{1,60}}+/[a-z0-9._-]{{1,100}}+ )
    | (?P<id>    (?<![{_A}-]) [0-9a-fA-F]{{8}} (?: -[0-9a-fA-F]{{4}} ){{3}} -[0-9a-fA-F]{{12}} (?![{_A}])
               | (?<![{_A}]) 0x [0-9a-fA-F]{{1,64}}+ (?![{_A}])
               | (?<![{_A}&]) \# \d{{1,12}}+ (?![{_A}]) )
    | (?P<version> (?<![{_A}.-]) (?: v\d{{1,5}}+ (?>(?:\.\d{{1,5}}+){{0,3}}) | \d{{1,5}}+ (?>(?:\.\d{{1,5}}+){{2,3}}) )
                 (?>(?: [-+] [A-Za-z0-9] (?>(?: \.?[A-Za-z0-9] ){{0,30}}) | (?:rc|a|b|\.dev|\.post)\d{{1,4}}+ )?)
                 (?![{_A}]) )
    | (?P<number> (?<![{_A}.,]) (?>(?: [$€£¥₹] | US\$ )?) (?: [-−+~≈<>]?+ (?>(?: [$€£¥₹])?) ) (?: {_NUMBER} )
                 (?>(?: (?: {_UNITS} ) (?![{_A}]) )?) (?>(?: /(?:s|min|h|day|month|year|mo|yr) (?![{_A}]) )?)
                 (?! [{_A}] | -[A-Za-z0-9] | [:/]\d ) )
    | (?P<word>  (?<![{_A}-]) (?>(?: [@#$] (?=[A-Za-z]) )?)
                 [{_A}]{{1,200}}+ (?>(?: (?: - | \. | :: | -> ) (?=[{_A}]) [{_A}]{{1,200}}+ ){{0,40}}) (?>(?: \(\) )?) )
    """,
    re.VERBOSE,
)
#: A quotation of several words, or anything in backticks; the key of a JSON object is none.
_QUOTED = re.compile(
    r"""["“„«「『《`'] (?: (?<=") [^"\n]{3,160}+ "(?!\s?:) | (?<=[“„]) [^“”„"\n]{2,160}+ [”“"] 
    | (?<=«) [^«»\n]{2,160}+ »
    | (?<=「) [^「」\n]{1,160}+ 」 | (?<=『) [^『』\n]{1,160}+ 』 | (?<=《) [^《》\n]{1,160}+ 》
    | (?<=`) [^`\n]{2,160}+ ` | (?<=(?<!\w)') [^'\n]{3,160}+ '(?!\w) )""",
    re.VERBOSE,
)
_QUOTES = re.compile("[\"“„«「『《`']")
_UNIT = re.compile(rf"[ \u00a0\u202f](?:{_UNITS})(?![{_A}])(?:/(?:s|min|h|day|month|year))?")
_MONTHS = (
    "Jan(?:uary|uar)?|Feb(?:ruary|ruar)?|Mar(?:ch)?|März|Apr(?:il)?|May|Mai|June?|Juni|July?|Juli|Aug(?:ust)?|"
    "Sept?(?:ember)?|Oct(?:ober)?|Oktober|Okt|Nov(?:ember)?|Dec(?:ember)?|Dezember|Dez"
)
_MONTH = re.compile(rf"(?:{_MONTHS})\.?,?")
_DATE = re.compile(
    rf"\b(?:(?P<day>\d{{1,2}}(?:st|nd|rd|th)?\.?(?: of)? ))?(?:{_MONTHS})\b\.?"
    r"(?P<more>(?: \d{1,2}(?:st|nd|rd|th)?(?!\d|:|\.\d))?(?:,? \d{4}\b)?)"
)
_CLOCK = re.compile(r",? (?:at )?\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?(?:[ap]m|Z|UTC|CET|GMT))?\b")
_ZONE = re.compile(r" (?:[ap]m|AM|PM|UTC|GMT|CE?S?T|[EP][SD]?T|Uhr)\b")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th|s)|[A-Za-z]-\d", re.ASCII)
_OPERATOR = re.compile(r"::|->|\(\)")
_HEX = re.compile(r"(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}", re.ASCII)

_EDGE = ".,;:!?()[]{}<>\"'“”„«»‘’…*_-—–|。，、；：！？（）【】"
_STARTS = ".!?:;\n\"'“„«(-*•>#|…。！？—–"
#: What may stand between two parts of a name.
_JOINTS = frozenset(
    (" ", " of ", " de ", " van ", " von ", " der ", " van der ", " von der ", " del ", " della ", " la ", " da ",
     " di ", " dos ", " du ", " el ", " bin ", " ibn ", " & ", "-")
)  # fmt: skip
_WITHOUT_JOINTS = str.maketrans("", "", "'’-")
_TITLES = frozenset("Dr Mr Mrs Ms St Prof Sr Jr Mme Herr Frau".split())
#: Capitals that say nothing: of English, of logs, and days without a date.
_USUAL = frozenset(
    """a ai am api ascii cet cli cpu css csv db debug done eof error fatal fyi gmt gpu ha hi hm hmm html http https i id
    ids info io ip it json kb llm mb n/a na nb none null ok okay os pdf pm pr prs ps qa ram sdk sql ssh std tbd tcp tls
    trace ui url urls usa utc utf ux warn warning xml yaml yes hello hey dear thanks thank please sure great good nice
    right well also next then now maybe perhaps however meanwhile finally first second third last let note see still
    today tomorrow yesterday true false new user assistant system tool agent step result output input""".split()
)  # fmt: skip
_GERMAN = frozenset(
    "der die das und ist nicht ein eine einen mit für auf von zu wir ich es im den dem".split()
)

#: Preliminary kinds of a word, decided with the words around it; a unit may follow a number at the end of a word.
_CAPITALISED, _NUMBER_AT_END, _MONTH_NAME = "capitalised", "number at end", "month name"


def find_details(text: str) -> list[Detail]:
    """Return the details of a text in order of appearance, each once; a quotation may contain others."""
    words = text.split()
    found_details, capital_spans, has_month = _scan_words(text, words)
    if capital_spans:
        found_details += _find_proper_names(text, capital_spans, words)
    if has_month:
        found_details += _find_written_dates(text)
    if _QUOTES.search(text):
        found_details += _find_quotes(text)
    return _deduplicate_details(text, found_details) if found_details else []


def _scan_words(text: str, words: list[str]) -> tuple[list[_FoundDetail], list[tuple[int, int]], bool]:
    """Return the details in single words, the spans of capitalised words, and whether a month is named."""
    found_details: list[_FoundDetail] = []
    capital_spans: list[tuple[int, int]] = []
    has_month = False
    position = 0
    # The words of longer texts, such as logs, would displace the others in the cache.
    is_cached = len(text) <= 400
    classify = _cached_classify_word if is_cached else _classify_word
    for word, details in zip(words, map(classify, words), strict=True):
        if details is None:
            continue
        # The words skipped since the last one have no details, so none of them contains this word.
        position = text.index(word, position)
        for kind, first, last in details:
            start, end = position + first, position + last
            if kind == _CAPITALISED:
                capital_spans.append((start, end))
            elif kind == _MONTH_NAME:
                has_month = True
            elif kind == _NUMBER_AT_END:
                unit = _UNIT.match(text, end)
                if unit is not None:
                    found_details.append((start, unit.end(), "number"))
                elif end - start > 1:  # a single digit without a unit is no detail
                    found_details.append((start, end, "number"))
            elif kind == "date":
                found_details.append((start, _end_of_date(text, end), kind))
            else:
                found_details.append((start, end, kind))
        position += len(word)
    return found_details, capital_spans, has_month


def _end_of_date(text: str, end: int) -> int:
    """Return the end of a date, including a time of day or a time zone that follows it."""
    time_or_zone = _CLOCK.match(text, end) or _ZONE.match(text, end)
    return time_or_zone.end() if time_or_zone else end


def _find_written_dates(text: str) -> Iterator[_FoundDetail]:
    """Yield dates whose month is written out."""
    for match in _DATE.finditer(text):
        if match["day"] or match["more"]:
            time = _CLOCK.match(text, match.end())
            end = time.end() if time else match.end()
            yield match.start(), end, "date"


def _find_quotes(text: str) -> Iterator[_FoundDetail]:
    """Yield quotations of several words, and anything in backticks or Chinese quotation marks."""
    for match in _QUOTED.finditer(text):
        content = match[0][1:-1]
        is_always_quote = match[0][0] in "`「『《"
        if is_always_quote or " " in content.strip() or not content.isascii():
            yield match.start() + 1, match.end() - 1, "quote"


def _deduplicate_details(text: str, found_details: list[_FoundDetail]) -> list[Detail]:
    """Return the details in order, each text once, without those inside another one, such as the year of a date."""
    if len(found_details) > 1:
        found_details.sort(key=_start_and_longest_first)
    by_text: dict[str, Detail] = {}
    end_of_previous = -1
    for start, end, kind in found_details:
        is_quote = kind == "quote"  # a quotation may contain other details
        if not is_quote:
            if start < end_of_previous:
                continue
            end_of_previous = end
        content = text[start:end]
        if content not in by_text:
            by_text[content] = Detail(kind, content, start, end)
    return list(by_text.values())


def _start_and_longest_first(found_detail: _FoundDetail) -> tuple[int, int]:
    start, end, _ = found_detail
    return start, -end


def _classify_word(word: str) -> tuple[tuple[str, int, int], ...] | None:
    """Return (kind, start, end) of each detail in a word, or None for a plain lower-case word."""
    core = word.strip(_EDGE)
    if not core:
        return None
    is_alphabetic = core.isalpha() or core.translate(_WITHOUT_JOINTS).isalpha()
    if is_alphabetic:
        is_option = "--" in word.rstrip(_EDGE) or "__" in word
        if core.islower() and not is_option:
            return None
        details = _classify_alphabetic(word, core)
        if details is not None:
            return details
    return tuple(_match_grammar(word))


def _classify_alphabetic(word: str, core: str) -> tuple[tuple[str, int, int], ...] | None:
    """Return the details in a word of letters, or None if the grammar has to find them."""
    has_case = core.lower() != core.upper()
    if core[0].isupper() and (core.isascii() or has_case):
        return _classify_capitalized(word, core, word.index(core))
    starts_foreign = not core.isascii() and not core[0].isascii()
    if starts_foreign or not has_case:
        return ()  # a lower-case foreign word, or a script without capitals: no details
    return None


def _match_grammar(word: str) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) of each detail that the grammar finds in a word."""
    for match in _GRAMMAR.finditer(word):
        start, end = match.span()
        kind = match.lastgroup
        if kind == "word":
            kind = _classify_identifier(match[0])
        elif kind == "number":
            kind = _classify_number(match[0], at_end=end == len(word))
        elif kind in ("stamp", "sep"):
            kind = "date"
        elif kind in ("url", "path", "code"):
            end = _trim_punctuation(word, start, end)
        if kind:
            yield kind, start, end


def _trim_punctuation(word: str, start: int, end: int) -> int:
    """Return the end of an address without the punctuation after it; `end` includes the punctuation."""
    while end > start and word[end - 1] in ".,;:!?)]}'*":
        if word[end - 1] == ")" and "(" in word[start:end]:
            break
        end -= 1
    return end


def _classify_number(number: str, *, at_end: bool) -> str | None:
    """Return the kind of a number, or None for a single digit; a unit may follow a number at the end of its word."""
    if at_end and number[-1].isdigit():
        return _NUMBER_AT_END
    is_single_digit = len(number) == 1 and number.isdigit()
    return None if is_single_digit else "number"


_cached_classify_word = lru_cache(maxsize=65_536)(_classify_word)


def _classify_capitalized(word: str, core: str, first: int) -> tuple[tuple[str, int, int], ...] | None:
    """Return the details in a word that begins with a capital, or None if it has capitals inside, too."""
    for possessive in ("'s", "’s"):
        core = core.removesuffix(possessive)
    last = first + len(core)
    if _MONTH.fullmatch(core):
        return ((_MONTH_NAME, first, last),)
    is_initial = len(core) == 1 and core.isupper() and word[first + 1 : first + 2] == "."
    if is_initial:
        return ((_CAPITALISED, first, first + 1),)
    if _is_usual_word(core):
        return ()
    if core.isupper():
        may_be_name = 2 <= len(core) <= 6
        return ((_CAPITALISED, first, last),) if may_be_name else ()
    if not core.startswith(("Mc", "Mac")):
        parts = re.split(r"['’-]", core)
        if any(part[1:] != part[1:].lower() for part in parts):
            return None
    return ((_CAPITALISED, first, last),)


def _is_usual_word(core: str) -> bool:
    """Return whether a capitalised word is a function word, another usual word, or a contraction."""
    small = core.lower()
    is_contraction = "'" in core[-3:] or "’" in core[-3:]
    return is_contraction or small in _USUAL or content_term(small) == 0


def _classify_identifier(word: str) -> str | None:
    """Return the kind of a word of letters, digits, hyphens, dots and operators, or None for a plain word."""
    bare = word.lstrip("@#$")
    has_operator = _OPERATOR.search(bare) is not None
    if any(letter.isdigit() for letter in bare):
        return _classify_with_digits(bare, has_operator)
    if word != bare:
        return "code" if len(bare) > 1 else None
    if has_operator or "_" in bare:
        return "code" if len(bare.strip("_")) > 1 else None
    if "." in bare:
        return _classify_dotted(bare.split("."))
    if "-" in bare:
        return "id" if bare.isupper() and len(bare) > 4 else None
    inner = bare[1:]
    has_inner_capital = inner not in (inner.lower(), inner.upper())
    return "code" if has_inner_capital else None


def _classify_with_digits(bare: str, has_operator: bool) -> str | None:
    """Return the kind of an identifier that has digits."""
    if bare.isdigit() or _ORDINAL.fullmatch(bare):
        return None
    is_plain = "." not in bare and not has_operator
    if is_plain or _HEX.fullmatch(bare):
        return "id"
    return "host" if "-" in bare else "code"


def _classify_dotted(parts: list[str]) -> str | None:
    """Return the kind of words joined by dots, or None if they are no identifier."""
    if any(len(part) < 2 for part in parts):
        return None
    lacks_space = parts[-1][0].isupper() and parts[0].islower()  # two sentences: "done.Next"
    if lacks_space:
        return None
    has_hyphen = any("-" in part for part in parts)
    return "host" if has_hyphen or len(parts) > 3 else "code"


def _find_proper_names(text: str, capitals: list[tuple[int, int]], words: list[str]) -> list[_FoundDetail]:
    """Return the names in a text: runs of capitalised words, without a first word that only starts a sentence."""
    names: list[_FoundDetail] = []
    for run in _join_capitalised_words(text, capitals):
        start, end_of_first = run[0]
        _, end = run[-1]
        first_word = text[start:end_of_first]
        if _starts_sentence(text, start) and (len(run) == 1 or _is_ordinary_start(first_word)):
            if len(run) == 1:
                continue
            start, _ = run[1]
        if end - start > 1:
            names.append((start, end, "name"))
    single_words = [name for name in names if " " not in text[name[0] : name[1]]]
    is_german = len(_GERMAN.intersection(words)) > 1  # in German all nouns have capitals
    if is_german and len(single_words) > 1:
        return [name for name in names if name not in single_words]
    return names


def _join_capitalised_words(text: str, capitals: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return capitalised words as runs that may be one name, such as "Dr. Jane van Dam"."""
    runs: list[list[tuple[int, int]]] = []
    for start, end in capitals:
        if runs and _continues_name(text, runs[-1][-1], start):
            runs[-1].append((start, end))
        else:
            runs.append([(start, end)])
    return runs


def _continues_name(text: str, previous: tuple[int, int], start: int) -> bool:
    """Return whether a capitalised word may belong to the same name as the one before it."""
    first, last = previous
    if start - last >= 12:  # longer than any joint
        return False
    gap = text[last:start]
    word = text[first:last]
    is_abbreviated = len(word) == 1 or word in _TITLES
    return gap in _JOINTS or (gap == ". " and is_abbreviated)


def _is_ordinary_start(word: str) -> bool:
    """Return whether a word at the start of a sentence is probably no part of a name."""
    return word.lower() in _GERMAN or word.endswith(("ing", "ed"))


def _starts_sentence(text: str, start: int) -> bool:
    """Return whether a sentence or a line starts at a position."""
    end_of_previous = start
    while end_of_previous > 0 and text[end_of_previous - 1] in " \t":
        end_of_previous -= 1
    return end_of_previous == 0 or text[end_of_previous - 1] in _STARTS
