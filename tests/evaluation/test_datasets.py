"""Published conversations: each file is read exactly, and a broken file is reported with the broken place."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from acms import ValidationError
from acms_eval import Conversation, load
from acms_eval.datasets import read_conversations

LOCOMO: dict[str, Any] = {
    "sample_id": "pair-1",
    "conversation": {
        "speaker_a": "Ines",
        "speaker_b": "Bo",
        "session_1_date_time": "1:05 pm on 3 May, 2024",
        "session_1": [
            {"speaker": "Ines", "dia_id": "D1:1", "text": "I bought a kayak."},
            {"speaker": "Bo", "dia_id": "D1:2", "text": "  "},
            {"speaker": "Bo", "dia_id": "D1:3", "text": "Mine is red."},
        ],
        "session_2_date_time": "9:00 am on 4 May, 2024",
        "session_2": [
            {"speaker": "Ines", "dia_id": "D2:1", "text": "It leaks.", "blip_caption": "a wet kayak"}
        ],
    },
    "qa": [
        {"question": "What leaks?", "answer": "the kayak", "evidence": ["D1:1; D2:1", "D9:9"], "category": 1},
        {"question": "What color is Bo's kayak?", "answer": "red", "evidence": ["D1:3"], "category": 4},
        {"question": "What did nobody note?", "answer": "", "evidence": ["D1:2"], "category": 3},
        {"question": "What color is Ines's kayak?", "evidence": ["D1:3"], "category": 5},
    ],
}
REALTALK: dict[str, Any] = {
    "name": {"speaker_1": "Ada", "speaker_2": "Cy"},
    "session_1": [
        {
            "speaker": "Ada", "dia_id": "D1:1", "clean_text": "I keep bees.", "date_time": "29.12.2023, 21:15:05",
        },
        {"speaker": "Cy", "dia_id": "D1:2", "clean_text": "Do they sting?", "date_time": "29.12.2023, 21:16:00"},
    ],
    "qa": [{"question": "Who keeps bees?", "answer": "Ada", "evidence": ["D1:1", "D7:1"], "category": 5}],
}  # fmt: skip
BEAM: list[dict[str, Any]] = [
    {
        "batch_number": 1,
        "time_anchor": "March-15-2024",
        "turns": [
            [
                {"role": "user", "id": 0, "content": "My parser is slow.", "time_anchor": "March-15-2024"},
                {"role": "assistant", "id": 1, "content": "Profile it."},
            ],
            [{"role": "user", "id": 2, "content": "It takes 9 seconds."}],
        ],
    }
]
PROBES: dict[str, Any] = {
    "abstention": [{"question": "What does the parser cost?"}],
    "knowledge_update": [
        {"question": "How slow is it?", "source_chat_ids": {"original_info": [0], "updated_info": [2, 44]}}
    ],
    "summarization": [{"question": "What was said?", "source_chat_ids": [0, [1, 2]]}],
}
LONG: list[dict[str, Any]] = [
    {
        "question_id": "q1",
        "question_type": "single-session-user",
        "question": "What do I play?",
        "answer": "the cello",
        "question_date": "2023/06/01 (Thu) 10:00",
        "haystack_session_ids": ["late", "early"],
        "haystack_dates": ["2023/05/22 (Mon) 08:30", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"}],
            [
                {"role": "user", "content": "I play the cello.", "has_answer": True},
                {"role": "assistant", "content": "Lovely.", "has_answer": False},
            ],
        ],
        "answer_session_ids": ["early"],
    },
    {
        "question_id": "q2_abs",
        "question_type": "multi-session",
        "question": "What does my sister play?",
        "answer": "You did not say.",
        "question_date": "2023/06/01 (Thu) 10:00",
        "haystack_session_ids": ["one"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": "I play the cello."}, {"role": "assistant", "content": "Nice."}]
        ],
        "answer_session_ids": ["one"],
    },
]


def write_document(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def write_beam(folder: Path, probes: object = PROBES) -> Path:
    write_document(folder / "probing_questions" / "probing_questions.json", probes)
    return write_document(folder / "chat.json", BEAM)


def load_only(path: Path) -> Conversation:
    (found,) = load(path)
    return found


def test_a_locomo_conversation_keeps_speakers_dates_and_evidence(tmp_path: Path) -> None:
    found = load_only(write_document(tmp_path / "anything.json", [LOCOMO]))
    assert (found.dataset, found.name) == ("LoCoMo", "pair-1")
    assert [(said.speaker, said.role, said.text) for said in found.said] == [
        ("Ines", "user", "I bought a kayak."),
        ("Bo", "assistant", "Mine is red."),
        ("Ines", "user", "It leaks. [shares: a wet kayak]"),
    ]
    assert found.said[0].created_at == datetime(2024, 5, 3, 13, 5, 1, tzinfo=UTC)
    assert [(question.group, sorted(question.gold)) for question in found.questions] == [
        ("1", [0, 2]),
        ("4", [1]),
        ("3", []),
        ("5", [1]),
    ]
    assert [question.answerable for question in found.questions] == [True, True, True, False]


def test_a_file_may_hold_several_locomo_conversations(tmp_path: Path) -> None:
    second = {**LOCOMO, "sample_id": "pair-2"}
    path = write_document(tmp_path / "all.json", [LOCOMO, second, LOCOMO])
    assert [found.name for found in load(path)] == ["pair-1", "pair-2", "pair-1 (2)"]


def test_a_realtalk_chat_has_no_unanswerable_questions(tmp_path: Path) -> None:
    found = load_only(write_document(tmp_path / "chat.json", REALTALK))
    assert found.dataset == "REALTALK"
    assert found.said[1].speaker == "Cy"
    assert found.said[0].created_at == datetime(2023, 12, 29, 21, 15, 5, tzinfo=UTC)
    (question,) = found.questions
    assert (question.gold, question.answerable) == (frozenset({0}), True)


def test_a_beam_chat_has_its_questions_beside_it(tmp_path: Path) -> None:
    found = load_only(write_beam(tmp_path / "7"))
    assert (found.dataset, found.name) == ("BEAM-100K", "7")
    assert [said.text for said in found.said] == ["My parser is slow.", "Profile it.", "It takes 9 seconds."]
    assert [(question.group, sorted(question.gold), question.answerable) for question in found.questions] == [
        ("abstention", [], False),
        ("knowledge_update", [0, 2], True),
        ("summarization", [0, 1, 2], True),
    ]


def locomo_conversation(speakers: list[str], texts: list[str], evidence: Any, **more: str) -> dict[str, Any]:
    """Return a conversation of one session a line, in the shape of LoCoMo, with one question."""
    sessions: dict[str, Any] = {"speaker_a": speakers[0], "speaker_b": speakers[-1]}
    for number, text in enumerate(texts, 1):
        sessions[f"session_{number}_date_time"] = "9:00 am on 4 May, 2024"
        speaker = speakers[(number - 1) % len(speakers)]
        sessions[f"session_{number}"] = [
            {"speaker": speaker, "dia_id": f"D{number}:{turn}", "text": f"{text} {turn}"}
            for turn in (1, 2, 3)
        ]
    return {
        "conversation": sessions,
        "qa": [{"question": "What?", "evidence": evidence, "category": 5, **more}],
    }


@pytest.mark.parametrize(
    ("evidence", "gold"),
    [
        (["D1:2"], [1]),
        (["D1:02", "D:2:1"], [1, 3]),
        ("D1:1. D2:3", [0, 5]),
        (["D1:1; D2:3"], [0, 5]),
        (["D1:2-D1:3"], [1, 2]),
        (["D1:2 - 3"], [1, 2]),
        (["D1:2\u2013D1:3", "D2:2"], [1, 2, 4]),
        (["D1:3-D2:2"], [2, 3, 4]),
        (["D2:2-D2:9"], [4, 5]),
        (["D2:2-D2:1", "D", "D7:1", 3, None], []),
        (None, []),
    ],
)
def test_evidence_names_turns_and_ranges_of_turns(tmp_path: Path, evidence: object, gold: list[int]) -> None:
    found = load_only(
        write_document(tmp_path / "x.json", locomo_conversation(["Ines", "Bo"], ["one", "two"], evidence))
    )
    assert sorted(found.questions[0].gold) == gold


def test_a_set_in_the_shape_of_another_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    many, chinese = ["Ada", "Bo", "Cy"], ["我将要参加金融科技精英论坛。", "地点是上海。"]
    for number, (document, dataset, group) in enumerate(
        [
            (
                locomo_conversation(many, ["a b", "c d", "e f"], ["D1:1", "D3:1"], kind="state_shift"),
                "Vehicle",
                "state_shift",
            ),
            (locomo_conversation(["用户"], chinese, ["D1:1", "D2:1"], kind="simple"), "MemSim", "simple"),
            (locomo_conversation(["Ada", "Bo"], ["a b"], ["D1:1"], kind="simple"), "LoCoMo", "5"),
            (locomo_conversation(many, ["a b", "c d"], ["D1:1"]), "LoCoMo", "5"),
        ]
    ):
        found = load_only(write_document(tmp_path / str(number) / "misleading-memsim.json", document))
        (question,) = found.questions
        assert (found.dataset, question.group) == (dataset, group)
        assert question.answerable is (dataset != "LoCoMo")
        assert question.outdated == ({0} if dataset == "Vehicle" else set())


def test_what_beam_calls_original_is_outdated(tmp_path: Path) -> None:
    found = load_only(write_beam(tmp_path / "7"))
    assert [sorted(question.outdated) for question in found.questions] == [[], [0], []]


def test_the_first_of_equal_messages_stands_for_all(tmp_path: Path) -> None:
    document = locomo_conversation(["Ines", "Bo"], ["same", "same", "same"], ["D1:1"])
    assert load_only(write_document(tmp_path / "x.json", document)).first_occurrences() == [
        0,
        1,
        2,
        3,
        4,
        5,
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("folder", "dataset"),
    [
        ("beam-500k-dev/1", "BEAM-500K"),
        ("BEAM_1M/1", "BEAM-1M"),
        ("10M/1", "BEAM-10M"),
        ("beam-1m/100K/1", "BEAM-100K"),
        ("beam-1month/1", "BEAM-100K"),
    ],
)
def test_the_size_of_a_beam_chat_is_what_its_folder_says(tmp_path: Path, folder: str, dataset: str) -> None:
    assert load_only(write_beam(tmp_path / folder)).dataset == dataset


@pytest.mark.parametrize(("tokens", "dataset"), [(450_000, "BEAM-500K"), (1_100_000, "BEAM-1M")])
def test_the_size_of_a_beam_chat_is_that_of_its_text(tmp_path: Path, tokens: int, dataset: str) -> None:
    path = write_beam(tmp_path / "1")
    long = [{"turns": [[{"role": "user", "id": 0, "content": "word " * (tokens * 9 // 10)}]]}]
    assert load_only(write_document(path, long)).dataset == dataset


def test_a_chat_without_times_is_told_a_second_apart(tmp_path: Path) -> None:
    path = write_beam(tmp_path / "1")
    write_document(path, [{"turns": [[{"role": "user", "id": id, "content": "hello"} for id in (0, 1)]]}])
    first, second = load_only(path).said
    assert (second.created_at - first.created_at).total_seconds() == 1


def test_longmemeval_sessions_come_in_the_order_of_their_dates(tmp_path: Path) -> None:
    first, second = load(write_document(tmp_path / "s.json", LONG))
    assert (first.dataset, first.name) == ("LongMemEval", "q1")
    assert [said.text for said in first.said] == ["I play the cello.", "Lovely.", "Hello.", "Hello!"]
    assert first.said[0].created_at == datetime(2023, 5, 20, 2, 21, 1, tzinfo=UTC)
    (question,) = first.questions
    assert question.gold == frozenset({0})
    assert question.asked_at == datetime(2023, 6, 1, 10, 0, tzinfo=UTC)
    (unanswerable,) = second.questions
    assert (unanswerable.group, unanswerable.answerable) == ("abstention", False)
    assert unanswerable.gold == frozenset({0, 1})  # no turn is marked: all of the session


def test_a_folder_may_hold_several_sets_at_any_depth(tmp_path: Path) -> None:
    for number in (2, 10, 1):
        write_document(tmp_path / "a" / f"c{number}.json", [{**LOCOMO, "sample_id": f"c{number}"}])
    write_document(tmp_path / "misleading-beam" / "r.json", REALTALK)
    write_beam(tmp_path / "z" / "deep" / "1")
    write_document(tmp_path / "z" / "deep" / "1" / "plan.json", {"no": "conversation"})
    write_document(tmp_path / "other.json", {"settings": [1, 2]})
    (tmp_path / "README.md").write_text("not JSON")
    assert [(found.dataset, found.name) for found in load(tmp_path)] == [
        ("BEAM-100K", "1"),
        ("LoCoMo", "c1"),
        ("LoCoMo", "c2"),
        ("LoCoMo", "c10"),
        ("REALTALK", "r"),
    ]


def test_a_long_list_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_document(tmp_path / "s.json", json.dumps([*LONG, *LONG], indent=2))
    whole = load(path)
    for size in (1, 7, 100):
        monkeypatch.setattr("acms_eval.datasets._BLOCK", size)
        assert load(path) == whole
    reading = read_conversations(path)
    assert next(reading) == whole[0]
    reading.close()


def test_one_document_and_one_a_line_are_read_like_a_list(tmp_path: Path) -> None:
    assert (
        load_only(write_document(tmp_path / "one.json", "\ufeff\n" + json.dumps(LOCOMO, indent=1))).name
        == "pair-1"
    )
    lines = "\n".join(json.dumps(record) for record in LONG)
    assert [found.name for found in load(write_document(tmp_path / "lines.jsonl", lines))] == ["q1", "q2_abs"]


def changed_record(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the second LongMemEval record, changed."""
    record = json.loads(json.dumps(LONG[1]))
    change(record)
    return record


@pytest.mark.parametrize(
    ("document", "where", "why"),
    [
        ("", "x.json", "is empty"),
        ("[", "x.json:1", "no end"),
        ("[" + json.dumps(LONG[0]) + ",\n", "x.json:2", "no end"),
        (json.dumps([LONG[0]])[:-1] + ',\n{"a": }]', "x.json:2", "is not JSON"),
        (json.dumps([LONG[0]], indent=1)[:-2] + ',\n{"question_id"', "x.json:", "is not JSON"),
        ("hello", "x.json:1", "is not JSON"),
        ("[" * 200_000, "x.json:1", "is not JSON"),
        ({"settings": 1}, "x.json", "no conversation of a known set"),
        ([1, 2], "x.json", "no conversation of a known set"),
        ("[]", "x.json", "no conversation of a known set"),
        ({**LOCOMO, "qa": [{"question": "a?", "category": 1}, {}]}, "x.json: record 1, qa[1]", "category"),
        ({**LOCOMO, "qa": [{"question": 3, "category": 1}]}, "x.json: record 1, qa[0]", "question: must be a string"),
        ({**LOCOMO, "qa": 7}, "x.json: record 1", "not iterable"),
        ({**LOCOMO, "conversation": {"speaker_a": "Ines", "session_1": [{}]}}, "x.json", "session_1_date_time"),
        ([LONG[0], {"haystack_sessions": []}], "x.json: record 2", "question_id"),
        ([LONG[0], changed_record(lambda record: record.pop("haystack_dates"))], "x.json: q2_abs", "haystack_dates"),
        ([changed_record(lambda record: record["haystack_dates"].append("2023/05/20 10:00"))], "q2_abs", "shorter"),
        ([changed_record(lambda record: record.update(haystack_dates=["May"]))], "x.json: q2_abs", "'May'"),
        ([changed_record(lambda record: record.update(haystack_dates=["2023/13/20 02:21"]))],
            "x.json: q2_abs", "month"),
        ([changed_record(lambda record: record["haystack_sessions"][0].append({"role": "user"}))], "q2_abs", "content"),
        ([changed_record(lambda record: record["haystack_sessions"][0].append("hi"))], "q2_abs", "string"),
    ],
)  # fmt: skip
def test_a_broken_file_says_where(tmp_path: Path, document: object, where: str, why: str) -> None:
    path = write_document(tmp_path / "x.json", document)
    with pytest.raises(ValidationError) as failed:
        load(path)
    said = f"{failed.value.field}: {failed.value}"
    assert where in said
    assert why in said


def test_a_beam_chat_without_questions_or_with_broken_ones_says_so(tmp_path: Path) -> None:
    lonely = write_document(tmp_path / "1" / "chat.json", BEAM)
    with pytest.raises(ValidationError, match="without questions"):
        load(lonely)
    for place, probes in enumerate(("[]", '{"abstention": [{}]}', '{"abstention": 3}', "{")):
        with pytest.raises(ValidationError) as failed:
            load(write_beam(tmp_path / f"b{place}", probes))
        assert "probing_questions.json" in str(failed.value.field)


def test_what_is_no_text_or_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "x.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValidationError, match="cannot be read"):
        load(tmp_path / "x.json")
    with pytest.raises(ValidationError, match="no conversation"):
        load(write_beam(tmp_path / "2").parent / "probing_questions")


OWN = {
    "name": "orders",
    "messages": [
        {"role": "user", "text": "Orders run on MySQL.", "speaker": "Ines"},
        {"role": "assistant", "text": "Noted."},
        {"role": "user", "text": "We moved orders to PostgreSQL.", "at": "2026-05-04T09:00:00Z"},
    ],
    "questions": [
        {"text": "Which database do orders use?", "gold": [2], "stale": [0], "kind": "update"},
        {"text": "Where do orders run?", "gold": [0], "asked_after": 2, "answer": "MySQL"},
    ],
}


def test_conversations_of_your_own_are_read_as_the_page_says(tmp_path: Path) -> None:
    folder = tmp_path / "support"
    folder.mkdir()
    (folder / "orders.json").write_text(json.dumps(OWN))
    early, whole = load(folder)
    assert (early.dataset, early.name) == ("support", "orders, the first 2")
    assert [message.speaker for message in early.said] == ["Ines", None]
    assert (early.questions[0].gold, early.questions[0].answer) == ({0}, "MySQL")
    assert (whole.name, len(whole.said)) == ("orders", 3)
    assert whole.said[2].created_at == datetime(2026, 5, 4, 9, tzinfo=UTC)
    (asked,) = whole.questions
    assert (asked.gold, asked.outdated, asked.group) == ({2}, {0}, "update")


@pytest.mark.parametrize(
    ("place", "change", "about"),
    [
        ("questions", {"gold": [3]}, "gold"),
        ("questions", {"asked_after": 4}, "asked_after"),
        ("questions", {"text": 5}, "text"),
        ("messages", {"role": "robot"}, "role"),
        ("messages", {"at": "yesterday"}, "yesterday"),
    ],
)
def test_a_mistake_in_conversations_of_your_own_is_named_with_its_place(
    tmp_path: Path, place: str, change: dict[str, object], about: str
) -> None:
    broken = json.loads(json.dumps(OWN))
    broken[place][0] |= change
    file = tmp_path / "orders.json"
    file.write_text(json.dumps(broken))
    with pytest.raises(ValidationError, match=about) as error:
        load(file)
    assert f"{place}[0]" in str(error.value)
