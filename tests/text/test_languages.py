"""Languages: a text is found in its own words' other forms, and beside texts of other languages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.recall.query import parse_query
from acms.text.tokenizer import (
    ENGLISH,
    LANGUAGES,
    UNKNOWN,
    content_terms,
    count_terms,
    day_terms,
    detect_language,
    find_names,
    function_words,
    primary_term,
    searchable_terms,
    split_words,
    variant_terms,
)

#: A language, a text in it, and questions that say the same in other forms of its words.
SAID = [
    ("english", "We have moved the databases to another region", "which database did you move?"),
    ("german", "Wir haben die Datenbanken auf einen anderen Rechner verschoben", "Wo ist die Datenbank?"),
    ("spanish", "Nosotros decidimos usar otra base de datos para los pedidos", "¿Qué se decidió?"),
    ("french", "Nous avons choisi les serveurs pour les commandes", "Quel est le serveur que vous avez ?"),
    ("italian", "Abbiamo spostato gli ordini nella nuova banca dati", "Dove sono finiti con il nuovo ordine?"),
    ("portuguese", "Nós mudamos os servidores para uma outra região", "Onde está o servidor que você tem?"),
    ("dutch", "We hebben de bestellingen naar een andere server verplaatst", "Waar is mijn bestelling gebleven?"),
    ("swedish", "Vi har flyttat alla beställningar till en annan server", "Vad är det för beställning som jag har?"),
    ("russian", "Мы решили перенести базы данных на новый сервер", "Где находится база на этом сервере?"),
    ("turkish", "Bu siparişler için daha hızlı bir sunucu gerekiyor", "Bu sipariş ne için?"),
]  # fmt: skip


def indexed_terms(text: str) -> set[int]:
    """All terms under which the index holds a text."""
    return set(count_terms(split_words(text)))


def asked_terms(text: str) -> set[int]:
    """All terms with which a question asks."""
    return {number for word in parse_query(text).words for number in word.terms}


@pytest.mark.parametrize(("language", "text", "asked"), SAID, ids=[language for language, *_ in SAID])
def test_a_text_is_found_by_other_forms_of_its_words(language: str, text: str, asked: str) -> None:
    assert detect_language(split_words(text)) == detect_language(split_words(asked)) == language
    also = variant_terms(split_words(text))
    function = [word for word in also if word in function_words(language)]
    of_no_subject = {number for word in function for number in (primary_term(word), *also[word])}
    assert (indexed_terms(text) & asked_terms(asked)) - of_no_subject


@pytest.mark.parametrize(("language", "text", "asked"), SAID, ids=[language for language, *_ in SAID])
def test_a_text_is_found_by_each_of_its_words(language: str, text: str, asked: str) -> None:
    for word in split_words(text):
        assert primary_term(word) in indexed_terms(text), word


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Onde está a chave do portão?", "A chave do portão fica com a vizinha"),
        ("Anahtar nerede?", "Anahtar komşuda duruyor"),
    ],
)
def test_a_wrong_guess_of_the_language_takes_no_word_away(question: str, text: str) -> None:
    shared = set(split_words(question)) & set(split_words(text))
    assert {primary_term(word) for word in shared} <= indexed_terms(text) & asked_terms(question) | {
        primary_term(word) for word in shared & function_words(ENGLISH)
    }


def test_english_function_words_do_not_count() -> None:
    assert content_terms(split_words("the order was for a customer")) == content_terms(
        split_words("order customer")
    )


@given(st.sampled_from([text for _, text, _ in SAID]) | st.text(max_size=60))
def test_terms_are_the_same_each_time_and_in_capitals(text: str) -> None:
    assert content_terms(split_words(text)) == content_terms(split_words(text))
    if text.upper().lower() == text.lower():
        assert searchable_terms(text.upper().lower()) == searchable_terms(text.lower())


@pytest.mark.parametrize("text", ["", "PostgreSQL 18", "42", "🙂", "src/core/rank.py"])
def test_a_text_without_function_words_is_in_no_language(text: str) -> None:
    assert detect_language(split_words(text)) == UNKNOWN


@pytest.mark.parametrize(
    ("text", "language"),
    [("сервер", "russian"), ("διακομιστής", "greek"), ("सर्वर", "hindi"), ("خادوم", "arabic")],
)
def test_a_script_of_few_languages_tells_one(text: str, language: str) -> None:
    assert detect_language(split_words(text)) == language


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_function_words_and_stems(language: str) -> None:
    assert len(function_words(language)) > 40
    assert "postgres" in variant_terms([*sorted(function_words(language)), "postgres"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Müller", "Muller"),
        ("résumé", "resume"),
        ("ещё", "еще"),
        ("Größe", "GRÖSSE"),
        ("Ørsted", "orsted"),
        ("re\u0301sume\u0301", "résumé"),
        ("ＡＢＣ１２３", "abc123"),
    ],
)
def test_accents_and_widths_make_no_difference(one: str, other: str) -> None:
    assert set(searchable_terms(one)) & set(searchable_terms(other))
    assert set(searchable_terms(f"wir haben die {one} und das ist nicht der")) & set(searchable_terms(other))


@pytest.mark.parametrize(
    "text",
    [
        "我养了一只猫名字叫小白",
        "データベースを使う",
        "แมวของฉันชื่อ",
        "고양이가",
        "ຂ້ອຍມີແມວ",
        "ខ្ញុំមានឆ្មា",
        "ငါ့မှာကြောင်",
    ],
)
def test_unspaced_scripts_are_found_by_any_two_adjacent_characters(text: str) -> None:
    counted = count_terms(split_words(f"{text} 42"))
    assert sum(counted.values()) >= len(text) - 1
    for at in range(len(text) - 1):
        (number,) = set(content_terms(split_words(text[at : at + 2])))
        assert counted[number] >= 1


def test_a_chinese_character_is_found_alone() -> None:
    assert set(content_terms(split_words("猫"))) <= set(searchable_terms("我养了一只猫名字叫小白"))
    assert [name.text for name in find_names("小白")] == ["小", "白"]


@pytest.mark.parametrize(
    "text",
    ["May", "Mai", "im Mai", "mayo", "en mai", "maggio", "5月", "2024年5月3日", "五月", "5월", "in May"],
)
def test_a_month_is_one_term_in_every_language(text: str) -> None:
    assert asked_terms(text) & set(day_terms(19_849))  # 2024-05-06
    assert not asked_terms(text) & set(day_terms(19_519))  # 2023-06-11


@pytest.mark.parametrize("text", ["März", "marzo", "le 3 mars", "3月", "三月", "March"])
def test_march_is_another(text: str) -> None:
    assert asked_terms(text) & set(day_terms(19_785))  # 2024-03-03


@pytest.mark.parametrize("text", ["August", "août", "aout", "agosto", "8月", "八月"])
def test_accents_of_a_month_may_be_left_out(text: str) -> None:
    assert asked_terms(text) & set(day_terms(19_940))  # 2024-08-05


def test_november_is_not_january_in_chinese() -> None:
    november, january = day_terms(20_028)[1], day_terms(19_723)[1]
    assert november in content_terms(split_words("十一月的会议"))
    assert january not in content_terms(split_words("十一月的会议"))
    assert november in content_terms(split_words("11月"))
