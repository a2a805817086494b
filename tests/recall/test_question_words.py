"""Questions and the words around their subject: question words find nothing, and thanks are not searched for."""

from __future__ import annotations

import json

import pytest

from acms import ACMS, Prompt, open_storage
from acms.codecs import OpenAIChat
from acms.testing import HashEmbedder

GOODS = ("A1", "B2", "C3", "D4", "E5", "F6")


async def render_question(session: ACMS, question: str) -> tuple[str, int]:
    """Return the messages of a request that asks a question, and the tokens recalled for it."""
    prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question).user(question)
    rendered = await prompt.render(budget=500)
    return json.dumps(rendered.payload, ensure_ascii=False), rendered.use.recalled


@pytest.mark.parametrize(
    ("purchase", "other", "questions"),
    [
        (
            "我买了云步3代跑鞋,42码,蓝色。",
            "{}有什么推荐?",
            ("我第一次买的是什么鞋?", "我的鞋多大?", "我的鞋多少钱?", "我买的鞋是什么颜色?"),
        ),
        ("我買了紅色球鞋,42碼。", "{}有什麼推薦?", ("我的鞋是什麼顏色?",)),
        (
            "赤い靴を買いました。サイズは24です。",
            "{}は何がおすすめですか?",
            ("私が買った靴は何色ですか?", "靴はいくらでしたか?"),
        ),
        ("빨간 신발을 샀어요.", "{} 추천은 무엇인가요?", ("제가 산 신발은 무엇인가요?",)),
        ("Ich habe rote Schuhe gekauft.", "Welche {} sind gut?", ("Welche Schuhe habe ich gekauft?",)),
        (
            "J'ai acheté des baskets rouges.",
            "Quelles {} sont jolies ?",
            ("Quelles baskets ai-je achetées ?",),
        ),
        ("Compré unos zapatos rojos.", "¿Cuáles {} son bonitos?", ("¿Cuáles zapatos compré yo?",)),
        ("Я купил красные кроссовки.", "Какие {} стоят внимания?", ("Какие кроссовки я купил?",)),
        ("Kupiłem czerwone buty.", "Jakie {} polecasz?", ("Jakie buty kupiłem?",)),
        ("Kırmızı ayakkabı aldım.", "Hangi {} tavsiye edilir?", ("Hangi ayakkabıyı aldım?",)),
        ("اشتريت حذاء أحمر.", "لماذا {} أفضل؟", ("لماذا اشتريت حذاء؟",)),
    ],
    ids=["zh", "zh-hant", "ja", "ko", "de", "fr", "es", "ru", "pl", "tr", "ar"],
)
async def test_a_question_finds_its_subject_and_not_other_questions(
    purchase: str, other: str, questions: tuple[str, ...]
) -> None:
    async with ACMS("shop", open_storage("memory://"), None) as session:
        await session.ingest("user", purchase)
        await session.ingest("assistant", "Pumo.")
        for number in range(24):
            await session.ingest("user", other.format(GOODS[number % 6]))
            await session.ingest(
                "assistant", f"Model {number} of {100 + number} others, seven of them in stock."
            )
        for question in questions:
            items = await session.recall(question, token_budget=400, relevant_only=True)
            contents = [item.content for item in items]
            assert purchase in contents
            assert not any(other.format(goods) in contents for goods in GOODS)


THANKS = (
    "thanks!",
    "ok, thank you",
    "Great, thanks so much for your help.",
    "Vielen Dank dir!",
    "merci beaucoup",
    "muchas gracias por tu ayuda",
    "Большое спасибо",
    "谢谢你！",
    "好的，谢谢",
    "ありがとうございます。",
    "감사합니다",
    "धन्यवाद",
    "شكرا",
)


@pytest.mark.parametrize("embedder", [None, HashEmbedder()], ids=["words", "meaning"])
async def test_thanks_are_not_searched_for(embedder: HashEmbedder | None) -> None:
    async with ACMS("shop", open_storage("memory://"), embedder) as session:
        await session.state("Sam", "thanks", "merci, thanks, ありがとう")
        for thanks in THANKS:
            await session.ingest("user", f"{thanks} Can you order item {len(thanks)} again?")
            await session.ingest(
                "assistant", "Ordered: ten boxes of paper for the printers on the third floor."
            )
        for number in range(30):
            await session.ingest("user", f"Move desk {number} to the window.")
            await session.ingest(
                "assistant", f"Desk {number} will stand at the window from tomorrow morning on."
            )
        for thanks in THANKS:
            text, recalled = await render_question(session, thanks)
            assert recalled == 0
            assert "Desk 29 will stand" in text


async def test_a_greeting_with_a_question_is_searched_for() -> None:
    async with ACMS("shop", open_storage("memory://"), None) as session:
        await session.ingest("user", "My name is Sam. Tell me what I like to do and how.")
        for number in range(60):
            await session.ingest("user", f"Desk {number} stands near window {number}.")
        for question in ("Hi, what do I like?", "Thanks! And Sam?"):
            text, _ = await render_question(session, question)
            assert "My name is Sam." in text
