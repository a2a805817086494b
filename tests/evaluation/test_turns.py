"""The messages of published conversations, as they are read from their files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from acms import ACMS, Kind, ValidationError, open_storage
from acms_eval.turns import read_file, read_turns

LOCOMO = [
    {
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Ben",
            "session_10_date_time": "12:05 am on 9 June, 2023",
            "session_10": [{"speaker": "Ben", "dia_id": "D10:1", "text": "later"}],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_2": [
                {"speaker": "Ann", "dia_id": "D2:1", "text": "Hi"},
                {"speaker": "Ben", "dia_id": "D2:2", "text": "Look", "blip_caption": "a dog"},
            ],
            "session_3_date_time": "1:00 am on 1 July, 2023",
        },
        "qa": [],
    }
]


def test_locomo() -> None:
    first, second, third = read_turns(LOCOMO, "c.json")
    assert first == {
        "role": "user",
        "content": "Hi",
        "actor_id": "Ann",
        "metadata": {"dia_id": "D2:1"},
        "created_at": datetime(2023, 5, 8, 13, 56, 1, tzinfo=UTC),
        "key": "D2:1",
    }
    assert (second["role"], second["content"]) == ("assistant", "Look [shares: a dog]")
    assert third["created_at"] == datetime(2023, 6, 9, 0, 5, 1, tzinfo=UTC)


def test_realtalk_and_beam() -> None:
    said = {"clean_text": "Hey", "speaker": "Ann", "date_time": "29.12.2023, 22:42:04", "dia_id": "D1:1"}
    talk = {"name": {"speaker_1": "Ann", "speaker_2": "ben"}, "session_1": [said, {**said, "speaker": "ben"}]}
    one, two = read_turns(talk, "c.json")
    assert (one["role"], one["actor_id"], two["role"]) == ("user", "Ann", "assistant")
    assert one["created_at"] == datetime(2023, 12, 29, 22, 42, 4, tzinfo=UTC)
    ask = {"role": "user", "id": 0, "time_anchor": "March-15-2024", "content": "Plan?"}
    beam = [{"batch_number": 1, "turns": [[ask, {"role": "assistant", "id": 1, "content": "Yes."}]]}]
    one, two = read_turns(beam, "c.json")
    assert (one["key"], two["key"]) == ("0", "1")
    assert two["created_at"] == datetime(2024, 3, 15, 0, 0, 2, tzinfo=UTC)


async def test_real_locomo_file(data_dir: Path) -> None:
    file = data_dir / "locomo-dev" / "conv-26.json"
    if not file.is_file():
        pytest.skip(f"{file.name} is not in {file.parent}")
    turns = read_file(file)
    source = json.loads(file.read_text(encoding="utf-8"))[0]["conversation"]
    ids = [turn["dia_id"] for name, said in source.items() if isinstance(said, list) for turn in said]
    assert [turn["key"] for turn in turns] == ids
    assert {turn["actor_id"] for turn in turns if turn["role"] == "user"} == {source["speaker_a"]}
    assert turns == sorted(turns, key=lambda turn: turn["created_at"])
    async with ACMS("s", open_storage("memory://")) as session:
        await session.ingest_many(turns)
        page = await session.history(limit=1)
        assert page.entries[0].kind is Kind.MESSAGE
        assert (await session.get_session_stats()).messages == len(ids) == 419


def test_every_real_file_is_read(data_dir: Path) -> None:
    files = [
        *data_dir.glob("locomo-dev/*.json"),
        *data_dir.glob("realtalk-dev/*.json"),
        *data_dir.glob("*/*/chat.json"),
    ]
    if not files:
        pytest.skip(f"no conversations in {data_dir}")
    for file in files:
        turns = read_file(file)
        assert len(turns) > 100, file
        assert len({turn["key"] for turn in turns}) == len(turns), file


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([{"conversation": {"speaker_a": "A"}}, {"conversation": {"speaker_a": "B"}}], "holds 2"),
        ([{"conversation": {"speaker_a": "A", "session_1": [{}]}}], "session_1_date_time"),
        ({"some": "thing"}, "no conversation of LoCoMo"),
    ],
)
def test_errors_say_what_is_wrong(document: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        list(read_turns(document, "c.json"))
