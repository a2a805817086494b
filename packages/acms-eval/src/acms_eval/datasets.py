"""Conversations with annotated questions, read from files: LoCoMo, REALTALK, BEAM, LongMemEval, or your own.

The sets are research data of others and no part of ACMS; their files are read as they are published. What a file is,
its content says; only the size of a BEAM chat is told by its folder, where one names it. VehicleMemBench and MemSim are
read from files of the shape of LoCoMo: their questions say their kind, and many people speak in the first while the
second is Chinese. A message without text is passed over, evidence that names no message is dropped, and a question
keeps its place even when no evidence is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from acms.branches.importers import Turn
from acms.errors import ValidationError
from acms.log import validation
from acms.model import Json, Role
from acms.providers.tokens import BPETokenCounter
from acms_eval.nouns import Said
from acms_eval.turns import read_turns

__all__ = ["Conversation", "Question", "load", "read_conversations"]

_Record: TypeAlias = Mapping[str, Any]

KNOWN = (
    "LoCoMo, VehicleMemBench or MemSim: one conversation with its qa, or a list of them",
    "REALTALK: one chat with its qa",
    "BEAM: chat.json, beside it probing_questions/probing_questions.json",
    "LongMemEval: a list of questions, each with its haystack_sessions",
    "your own: an object with messages and questions, as docs/how-to/datasets.md describes it",
    "a folder of any of these",
)
_BLOCK = 1 << 20
_BEAM_SIZES = ((200_000, "BEAM-100K"), (700_000, "BEAM-500K"), (3_000_000, "BEAM-1M"))
"""The most tokens of a chat of each size, where no folder names it."""
_BEAM_FOLDER = re.compile(r"(?:beam[\W_]?)?(100k|500k|1m|10m)(?![a-z0-9])", re.IGNORECASE)
_UNDATED = datetime(2000, 1, 1, tzinfo=UTC)
"""When a chat begins that states no time at all."""
_MOMENT = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})\D+(\d{1,2}):(\d{2})")
_NUMBER = re.compile(r"(\d+)")
_TURN = r"D:?(\d+):(\d+)"
_TURNS = re.compile(rf"{_TURN}(?:\s*[-\u2013]\s*(?:{_TURN}|(\d+)\b))?", re.IGNORECASE)
"""A turn of a session, "D12:3", also written "D12:03" or "D:12:3"; or all from one to another: "D12:3-D12:5"."""
_HAN = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the annotators asked about a conversation, and where it is answered."""

    text: str
    #: The kind of question, as its set names it.
    group: str
    #: Indices of the messages that are evidence for the answer; empty when none was annotated.
    gold: frozenset[int]
    #: Messages that state an earlier value than the newest evidence; empty where the set marks none.
    outdated: frozenset[int] = frozenset()
    #: False: the conversation holds no answer to it, and the right thing is to say so.
    answerable: bool = True
    #: When it was asked, where the set says so.
    asked_at: datetime | None = None
    #: What a right answer says; empty where the set gives none in a few words.
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One conversation of a set, and the questions about it."""

    #: Unique within its set.
    name: str
    #: "LoCoMo", "REALTALK", "Vehicle", "MemSim", "BEAM-100K", "BEAM-500K", "BEAM-1M", "BEAM-10M" or "LongMemEval";
    #: of your own conversations the name of their folder.
    dataset: str
    said: tuple[Said, ...]
    questions: tuple[Question, ...]

    def first_occurrences(self) -> list[int]:
        """Return for every message the first one of the same speaker with the same text: showing either shows both."""
        first_places: dict[tuple[str, str], int] = {}
        return [
            first_places.setdefault((message.speaker or message.role, message.text), place)
            for place, message in enumerate(self.said)
        ]


def load(path: str | Path) -> list[Conversation]:
    """Read all conversations of a file or a folder, set by set, each set in the order of names.

    Raises `ValidationError` with file and place when one is broken, or none is found.
    """
    conversations = list(read_conversations(path))
    dataset_order = {
        name: place
        for place, name in enumerate(sorted({conversation.dataset for conversation in conversations}))
    }
    return sorted(conversations, key=lambda conversation: dataset_order[conversation.dataset])


def read_conversations(path: str | Path) -> Iterator[Conversation]:
    """Read conversations one by one, in the order of their files: for sets that are larger than the memory.

    In a folder, at any depth, JSON files that are no conversations are passed over, and so is all beside a `chat.json`.
    """
    path = Path(path)
    if not path.exists():
        raise ValidationError("does not exist", field=str(path), options=KNOWN)
    names: set[tuple[str, str]] = set()
    for file in _list_json_files(path) if path.is_dir() else [path]:
        for conversation in _read_file(file, alone=file == path):
            yield _with_unique_name(conversation, names)
    if not names:
        raise ValidationError("holds no conversation of a known set", field=str(path), options=KNOWN)


def _with_unique_name(conversation: Conversation, names: set[tuple[str, str]]) -> Conversation:
    name, number = conversation.name, 1
    while (conversation.dataset, name) in names:
        number += 1
        name = f"{conversation.name} ({number})"
    names.add((conversation.dataset, name))
    return replace(conversation, name=name)


def _list_json_files(folder: Path) -> list[Path]:
    """Return the JSON files of a folder, `conv-2` before `conv-10`."""
    json_files = [file for file in folder.rglob("*.json") if file.is_file()]
    chats = {file.parent for file in json_files if file.name == "chat.json"}
    conversation_files = [file for file in json_files if file.name == "chat.json" or file.parent not in chats]

    def natural(file: Path) -> list[tuple[int, str]]:
        name_parts = _NUMBER.split(str(file.relative_to(folder)))
        return [(int(name_part), "") if name_part.isdigit() else (-1, name_part) for name_part in name_parts]

    return sorted(conversation_files, key=natural)


def _read_file(file: Path, *, alone: bool) -> Iterator[Conversation]:
    with closing(_read_records(file)) as records:  # the file with them, also when a record is broken
        first_record = next(records, None)
        reader = next(
            (read for knows, read in _READERS if isinstance(first_record, dict) and knows(first_record)), None
        )
        if reader is not None:
            yield from reader(file, chain([first_record], records))
        elif alone:
            raise ValidationError("is no conversation of a known set", field=file.name, options=KNOWN)


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_records(file: Path) -> Generator[Any]:
    """Yield the items of a list one by one, or the one document there is; only one item is held at a time."""
    with _open_text(file) as source:
        text = _Blocks(source, file.name)
        if not text.peek_character():
            raise ValidationError("is empty", field=file.name, options=KNOWN)
        if is_list := text.peek_character() == "[":
            text.at += 1
        while next_character := text.peek_character(" \t\r\n," if is_list else " \t\r\n"):
            if is_list and next_character == "]":
                return
            yield text.read_value()
        if is_list:
            raise text.build_error("the list has no end", len(text.text))


class _Blocks:
    """A JSON file that is read block by block; parsed text is dropped."""

    def __init__(self, source: TextIO, name: str) -> None:
        self.text, self.at = "", 0
        self._source, self._name = source, name
        self._lines = 0
        self._decode = json.JSONDecoder().raw_decode

    def peek_character(self, skipped: str = " \t\r\n") -> str:
        """Skip these characters and return the next one, or "" at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in skipped:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._read_more(_BLOCK):
                return ""

    def read_value(self) -> Any:
        """Read the value that stands here."""
        size = _BLOCK
        while True:
            try:
                item, end = self._decode(self.text, self.at)
            except (json.JSONDecodeError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._read_more(size):
                    reason = getattr(error, "msg", "nested too deeply")
                    raise self.build_error(reason, getattr(error, "pos", self.at)) from error
            else:
                length = end - self.at
                if end < len(self.text) or not self._read_more(size):  # a number may go on in the next block
                    self.at += length
                    return item
            size *= 2

    def build_error(self, reason: str, at: int) -> ValidationError:
        """Return the error for a place in the text."""
        line = self._lines + self.text.count("\n", 0, at) + 1
        return ValidationError(f"is not JSON: {reason}", field=f"{self._name}:{line}")

    def _read_more(self, size: int) -> bool:
        try:
            block = self._source.read(size)
        except (OSError, UnicodeDecodeError) as error:
            raise ValidationError(f"cannot be read: {error}", field=self._name) from error
        self._lines += self.text.count("\n", 0, self.at)
        self.text, self.at = self.text[self.at :] + block, 0
        return bool(block)


def _open_text(file: Path) -> TextIO:
    try:
        return file.open(encoding="utf-8-sig")
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=str(file)) from error


class _RecordErrors:
    """Turns every error of reading a record into a `ValidationError` that names its place."""

    def __init__(self, record_place: str) -> None:
        self.record_place = record_place

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValidationError) and not error.field.startswith(self.record_place):
            raise ValidationError(str(error), field=self.record_place, options=error.options) from error
        if isinstance(error, KeyError):
            raise ValidationError(f"has no {error}", field=self.record_place) from error
        if isinstance(error, TypeError | AttributeError | ValueError | IndexError):
            raise ValidationError(f"cannot be understood: {error}", field=self.record_place) from error


# ── sets ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_ids(evidence: Json) -> Iterator[str]:
    """Yield the ids in an annotation: a text of several, a list, or an object of lists."""
    if isinstance(evidence, str):
        yield from evidence.replace(";", " ").replace(",", " ").split()
    elif isinstance(evidence, dict):
        for nested in evidence.values():
            yield from _read_ids(nested)
    elif isinstance(evidence, list):
        for nested in evidence:
            yield from _read_ids(nested)
    elif evidence is not None:
        yield str(evidence)


def _read_messages(turns: Iterator[Turn], key: str) -> tuple[tuple[Said, ...], dict[str, int]]:
    """Return the messages, and the index of each by its id."""
    said: list[Said] = []
    places: dict[str, int] = {}
    for turn in turns:
        places[str(turn["metadata"][key])] = len(said)
        said.append(
            Said(
                role=turn["role"],
                text=turn["content"],
                speaker=turn.get("actor_id"),
                created_at=turn.get("created_at") or _UNDATED + timedelta(seconds=len(said)),
            )
        )
    return tuple(said), places


def _people_reader(dataset: str) -> Callable[[Path, Iterator[_Record]], Iterator[Conversation]]:
    """Return a reader of conversations between people: the LoCoMo format, or REALTALK."""

    def read_people(file: Path, records: Iterator[_Record]) -> Iterator[Conversation]:
        for number, record in enumerate(records):
            record_place = f"{file.name}: record {number + 1}"
            with _RecordErrors(record_place):
                name = str(record.get("sample_id") or (f"{file.stem}-{number + 1}" if number else file.stem))
                said, places = _read_messages(read_turns(record, record_place), "dia_id")
                qa_records = list(record["qa"])
                set_name = _guess_dataset(said, qa_records) if dataset == "LoCoMo" else dataset
            turns = _places_by_turn(places)
            questions: list[Question] = []
            for place, qa_record in enumerate(qa_records):
                with _RecordErrors(f"{record_place}, qa[{place}]"):
                    group = str(qa_record["category"])
                    gold = frozenset(_gold_places(qa_record.get("evidence"), places, turns))
                    questions.append(
                        Question(
                            text=validation.validate_text(qa_record["question"], "question"),
                            group=group
                            if set_name in ("LoCoMo", "REALTALK")
                            else str(qa_record.get("kind", group)),
                            gold=gold,
                            outdated=gold - {max(gold)} if set_name == "Vehicle" and gold else frozenset(),
                            answerable=(set_name, group) != ("LoCoMo", "5"),
                            answer=str(qa_record.get("answer", "")),
                        )
                    )
            yield Conversation(name=name, dataset=set_name, said=said, questions=tuple(questions))

    return read_people


def _guess_dataset(said: Sequence[Said], qa_records: Sequence[_Record]) -> str:
    """Return the set of a conversation in the format of LoCoMo, judged by its content."""
    if not any("kind" in record for record in qa_records):
        return "LoCoMo"
    text = "".join(record.text for record in said)
    if len(_HAN.findall(text)) > len(text) / 3:
        return "MemSim"
    return "Vehicle" if len({record.speaker for record in said}) > 2 else "LoCoMo"


_Turn: TypeAlias = tuple[int, int]


def _places_by_turn(places: Mapping[str, int]) -> dict[_Turn, int]:
    """Return the place of each message by its session and its turn."""
    matches = {id: _TURNS.fullmatch(id) for id in places}
    return {(int(match[1]), int(match[2])): places[id] for id, match in matches.items() if match is not None}


def _gold_places(evidence: Json, places: Mapping[str, int], turns: Mapping[_Turn, int]) -> Iterator[int]:
    """Yield the places of the messages that an annotation names: by their ids, by turns, or by ranges of these."""
    if isinstance(evidence, dict):
        evidence = list(evidence.values())
    if isinstance(evidence, list):
        for annotation in evidence:
            nested = annotation if isinstance(annotation, str | list | dict) else str(annotation)
            yield from _gold_places(nested, places, turns)
    if not isinstance(evidence, str):
        return
    for id in _read_ids(evidence):
        if id in places:
            yield places[id]
    for match in _TURNS.finditer(evidence):
        session, turn, last_session, last_turn, last_of_session = [
            int(number or 0) for number in match.groups()
        ]
        first = (session, turn)
        last = (last_session or session, last_turn or last_of_session or turn)
        if last == first and first in turns:
            yield turns[first]
        elif last != first:
            for position, place in turns.items():
                if first <= position <= last:
                    yield place


def _read_beam(file: Path, records: Iterator[_Record]) -> Iterator[Conversation]:
    said, places = _read_messages(read_turns(list(records), file.name), "chat_id")
    probe_files = [
        file.parent / "probing_questions" / "probing_questions.json",
        file.parent / "probing_questions.json",
    ]
    probes = next((path for path in probe_files if path.is_file()), None)
    if probes is None:
        raise ValidationError(
            "is a BEAM chat without questions: there is no probing_questions/probing_questions.json beside it",
            field=str(file),
        )
    questions: list[Question] = []
    with _RecordErrors(probes.name):
        document: Any = next(_read_records(probes), None)
        abilities = [(ability, list(ability_probes)) for ability, ability_probes in document.items()]
    for ability, ability_probes in abilities:
        for place, probe in enumerate(ability_probes):
            with _RecordErrors(f"{probes.name}: {ability}[{place}]"):
                sources = probe.get("source_chat_ids")
                gold = frozenset(places[id] for id in _read_ids(sources) if id in places)
                outdated = frozenset[int]()
                if isinstance(sources, dict) and "updated_info" in sources:
                    newest = {places[id] for id in _read_ids(sources["updated_info"]) if id in places}
                    outdated = gold - newest if newest else outdated
                questions.append(
                    Question(
                        text=validation.validate_text(probe["question"], "question"),
                        group=ability,
                        gold=gold,
                        outdated=outdated,
                        answerable=ability != "abstention",
                    )
                )
    dataset = _beam_size_by_folder(file) or _beam_size_by_tokens(said)
    name = file.parent.resolve().name if file.stem == "chat" else file.stem
    yield Conversation(name=name, dataset=dataset, said=said, questions=tuple(questions))


def _beam_size_by_folder(file: Path) -> str | None:
    """Return the size that a folder's name states, the nearest folder first: "beam-100k-dev", "500K"."""
    folders = (_BEAM_FOLDER.match(folder_name) for folder_name in reversed(file.resolve().parent.parts))
    return next((f"BEAM-{match[1].upper()}" for match in folders if match is not None), None)


def _beam_size_by_tokens(said: Sequence[Said]) -> str:
    tokens = sum(BPETokenCounter("cl100k_base").count(message.text) for message in said)
    return next((name for max_tokens, name in _BEAM_SIZES if tokens < max_tokens), "BEAM-10M")


def _read_longmemeval(file: Path, records: Iterator[_Record]) -> Iterator[Conversation]:
    """Read LongMemEval: every question has a conversation of its own, sessions in the order of their dates."""
    for number, record in enumerate(records):
        record_place = f"{file.name}: record {number + 1}"
        with _RecordErrors(record_place):
            name, group, question_text = (
                str(record["question_id"]),
                record["question_type"],
                record["question"],
            )
            record_place = f"{file.name}: {name}"
        with _RecordErrors(record_place):
            sessions = sorted(
                zip(
                    map(_parse_date, record["haystack_dates"]),
                    record["haystack_session_ids"],
                    record["haystack_sessions"],
                    strict=True,
                ),
                key=lambda session: session[0],
            )
            answers = set(record.get("answer_session_ids") or ())
            said: list[Said] = []
            with_answer_mark: set[int] = set()
            in_answer_sessions: set[int] = set()
            for started, session, turns in sessions:
                for second, turn in enumerate(turns, 1):
                    if not turn["content"].strip():
                        continue
                    if turn.get("has_answer"):
                        with_answer_mark.add(len(said))
                    if session in answers:
                        in_answer_sessions.add(len(said))
                    said.append(
                        Said(
                            role=validation.parse_choice(turn["role"], Role, "role").value,
                            text=turn["content"],
                            created_at=started + timedelta(seconds=second),
                        )
                    )
            unanswerable = name.endswith("_abs")
            question = Question(
                text=validation.validate_text(question_text, "question"),
                group="abstention" if unanswerable else str(group),
                gold=frozenset(with_answer_mark or in_answer_sessions),
                answerable=not unanswerable,
                asked_at=_parse_date(record["question_date"]) if record.get("question_date") else None,
                answer=str(record.get("answer", "")),
            )
            conversation = Conversation(
                name=name, dataset="LongMemEval", said=tuple(said), questions=(question,)
            )
        yield conversation


def _read_own(file: Path, records: Iterator[_Record]) -> Iterator[Conversation]:
    """Read conversations of the caller; questions asked in the middle are asked of the messages before them."""
    for number, record in enumerate(records):
        place = f"{file.name}: record {number + 1}"
        with _RecordErrors(place):
            name = str(record.get("name") or (f"{file.stem}-{number + 1}" if number else file.stem))
            records_of_messages = list(record["messages"])
        said: list[Said] = []
        for index, message in enumerate(records_of_messages):
            with _RecordErrors(f"{place}, messages[{index}]"):
                said.append(_read_own_message(message, index))
        questions_by_end: dict[int, list[Question]] = {}
        for index, asked in enumerate(record["questions"]):
            with _RecordErrors(f"{place}, questions[{index}]"):
                end = _read_asked_after(asked, len(said))
                questions_by_end.setdefault(end, []).append(_read_own_question(asked, end))
        for end, questions in sorted(questions_by_end.items()):
            yield Conversation(
                name=name if end == len(said) else f"{name}, the first {end}",
                dataset=file.resolve().parent.name,
                said=tuple(said[:end]),
                questions=tuple(questions),
            )


def _read_own_message(message: _Record, index: int) -> Said:
    written_at = message.get("at")
    created_at = _UNDATED + timedelta(seconds=index)
    if written_at:
        created_at = datetime.fromisoformat(written_at)
        created_at = created_at if created_at.tzinfo else created_at.replace(tzinfo=UTC)
    return Said(
        role=validation.parse_choice(message["role"], Role, "role").value,
        text=validation.validate_text(message["text"], "text"),
        speaker=message.get("speaker") or None,
        created_at=created_at,
    )


def _read_asked_after(asked: _Record, total: int) -> int:
    """Return how many messages stand before a question: all, unless it says less."""
    end = asked.get("asked_after")
    return total if end is None else validation.validate_integer(end, "asked_after", minimum=1, maximum=total)


def _read_own_question(asked: _Record, end: int) -> Question:
    gold, outdated = (
        frozenset(
            validation.validate_integer(place, name, minimum=0, maximum=end - 1)
            for place in asked.get(name) or ()
        )
        for name in ("gold", "stale")
    )
    return Question(
        text=validation.validate_text(asked["text"], "text"),
        group=str(asked.get("kind", "all")),
        gold=gold,
        outdated=outdated,
        answerable=bool(asked.get("answerable", True)),
        answer=str(asked.get("answer", "")),
    )


def _parse_date(date_text: str) -> datetime:
    match = _MOMENT.search(date_text)
    if match is None:
        raise ValueError(f"{date_text!r} is not a date like 2023/05/20 (Sat) 02:21")
    year, month, day, hour, minute = map(int, match.groups())
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


_READERS: tuple[
    tuple[Callable[[_Record], bool], Callable[[Path, Iterator[_Record]], Iterator[Conversation]]], ...
] = (
    (lambda one: isinstance(one.get("conversation"), dict) and "qa" in one, _people_reader("LoCoMo")),
    (lambda one: isinstance(one.get("name"), dict) and "qa" in one, _people_reader("REALTALK")),
    (lambda one: "haystack_sessions" in one, _read_longmemeval),
    (lambda one: isinstance(one.get("messages"), list) and "questions" in one, _read_own),
    (lambda one: isinstance(one.get("turns"), list), _read_beam),
)
