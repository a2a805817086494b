"""Whether a statement stands in a text: in any language, by numbers, names and words, without likeness."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from acms.text.grounding import Evidence, is_placeholder

WEDNESDAY = datetime(2026, 3, 11, 9, tzinfo=UTC)


def evidence_says(text: str, statement: str, field: str = "") -> bool:
    return Evidence([(text, WEDNESDAY)]).says(statement, field)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("The budget is 55,000 euros.", "55 000 euros"),
        ("Make that 55k euros.", "55,000 euros"),
        ("Keep it below 200ms.", "200 ms"),
        ("The staging server is at 10.0.3.17, port 8443.", "10.0.3.17:8443"),
        ("Friday at 10.", "10:00 on Friday"),
        ("The tag will be v2.4.1.", "2.4.1"),
        ("截止日期是三月二十日。", "3月20日"),
        ("Der Termin ist der 20. März.", "20. März"),
        ("The meeting is next Friday.", "March 13, 2026"),
        ("Wir treffen uns nächsten Freitag.", "2026-03-13"),
        ("The meeting is today.", "2026-03-11"),
    ],
)
def test_numbers_and_dates_stand_however_they_are_written(text: str, statement: str) -> None:
    assert evidence_says(text, statement)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("The budget is 55,000 euros.", "45,000 euros"),
        ("We use PostgreSQL.", "PostgreSQL 16"),
        ("Keep it below 200 ms.", "below 20 ms"),
        ("The meeting is next Friday.", "2026-03-14"),
        ("It moved to Wednesday at 14:00.", "2026-03-11"),
        ("截止日期是三月二十日。", "3月21日"),
    ],
)
def test_another_number_does_not_stand(text: str, statement: str) -> None:
    assert not evidence_says(text, statement)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("Never deploy on Fridays.", "no deployments on Fridays"),
        ("She works as a counsellor.", "counselor"),
        ("I am allergic to nuts.", "nut allergy"),
        ("Das Haus steht in Bern.", "Häuser"),
        ("Wir haben kurze Sätze vereinbart.", "kurzer Satz"),
        ("Prefiero respuestas cortas.", "respuesta corta"),
        ("Les réunions sont annulées.", "réunion annulée"),
        ("База данных переехала.", "базу данных"),
        ("Toplantılar pazartesi günü.", "toplantı"),
        ("我们决定用蓝色的图标。", "蓝色图标"),
        ("我的猫叫咪咪。", "猫"),
        ("ノマドでデプロイします。", "ノマド"),
        ("우리는 서울에서 만납니다.", "서울"),
        ("My emoji is 🎉.", "🎉"),
    ],
)
def test_a_short_value_may_be_inflected_or_put_in_other_words(text: str, statement: str) -> None:
    assert evidence_says(text, statement)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("We moved to Nomad.", "orders service"),
        ("We use PostgreSQL.", "MySQL"),
        ("The city is Berlin.", "Bergen"),
        ("我们决定用蓝色的图标。", "红色"),
        ("Мы выбрали синий цвет.", "красный"),
    ],
)
def test_another_word_does_not_stand(text: str, statement: str) -> None:
    assert not evidence_says(text, statement)


def test_words_of_the_field_do_not_count() -> None:
    assert evidence_says("We use PostgreSQL.", "PostgreSQL database", "orders database")
    assert not evidence_says("Our database is small.", "Oracle database", "orders database")


def test_a_coined_name_must_stand_whatever_stands_beside_it() -> None:
    assert not evidence_says("Our own small database server.", "small MySQL database server")


@pytest.mark.parametrize("text", ["…", "...", "-", "?", "<>", "___", "“”"])
def test_signs_alone_are_a_placeholder(text: str) -> None:
    assert is_placeholder(text)


@pytest.mark.parametrize("text", ["", "a", "C#", "7", "猫", "🎉", "€"])
def test_a_letter_a_digit_or_an_emoji_is_none(text: str) -> None:
    assert not is_placeholder(text)
