"""Words that a query is not searched for: question words, words of politeness, and function words without spaces.

A query of a dozen words has two that name its subject. In a long log the others are in most messages and weigh little;
in a short one "which" may be the rarest word of all, and find every other question that holds it.

Chinese, Japanese and Korean text is indexed by pairs of adjacent characters. A pair is a function word if function
words cover both of its characters: 我的, and 的是 between two of them. Any other Chinese character that is left alone
between function words is a word of one character, as 鞋 in 我的鞋是. It is searched for in a log without these pairs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from acms.text.tokenizer import (
    ENGLISH,
    detect_language,
    find_joined_runs,
    function_words,
    is_han,
    split_words,
    strip_accents,
)

QUESTION_MARKS = ("?", "？", "؟")
"""Signs of a question: those of Latin, Chinese and Arabic script."""

#: Question words that are no content word and no name in another language, so not "come", "dove", "hoe" and "kim".
QUESTION_WORDS = frozenset(
    """
    welche welchem welchen welcher welches wer wem wessen wann warum wieso weshalb woher wohin wie wieviel wo
    wat waar wanneer waarom welk welke hoeveel quoi qui que quel quelle quels quelles quand pourquoi combien où lequel
    laquelle qué quién quiénes cuál cuáles cuándo cuánto cuánta cuántos cuántas dónde cómo cual cuales cuando cuanto
    cuantos donde quien qual quais quem quando quanto quanta quantos quantas onde cosa quale quali quanti quante perché
    perche què quin quina quins quines quan kto kogo komu gdzie kiedy dlaczego jak jaki jaka jakie który która które ile
    skąd dokąd kdo kdy proč jaký jaká jaké kolik který která které vad vem när varför hur vilken vilket vilka hva hvad
    hvem hvor hvornår når hvorfor hvordan hvilken hvilket hvilke mikä mitä missä mistä milloin kuka kenen miksi miten
    kuinka montako paljonko mikor miért hogyan hány melyik mennyi nerede nereye nereden nasıl neden niye niçin hangi kaç
    kimin cine unde când cât câte câți câtă apa siapa kapan dimana mengapa kenapa bagaimana berapa
    что кто кого кому какой какая какое какие каких где когда почему зачем как сколько куда откуда
    τι ποιος ποια ποιο ποιες πού πότε γιατί πώς πόσο πόσα
    ماذا متى أين اين لماذا كيف كم هل أي چه چی کجا چرا چطور چگونه چند آیا کدام
    क्या कौन कौनसा कब कहाँ कहां क्यों कैसे कितना कितने कितनी किस किसने
    """.split()
)

#: Words of politeness that are never what is asked for; "good", "right" or "night" may be.
POLITENESS = frozenset(
    """
    please thanks thank thx hi hello hey bitte danke merci gracias grazie obrigado obrigada bedankt alstublieft
    alsjeblieft dziękuję dziekuje dzięki proszę kiitos tack takk děkuji köszönöm teşekkürler teşekkür lütfen mulțumesc
    спасибо пожалуйста здравствуйте привет ευχαριστώ παρακαλώ شكرا شكراً مرحبا धन्यवाद कृपया नमस्ते
    """.split()
)

_COURTESIES = """
    bye goodbye ciao hola hallo salut bonjour morning evening night afternoon day sorry welcome cheers ty np ok okay
    yes yeah yep yup no nope sure right alright great good nice fine cool perfect awesome excellent wonderful
    brilliant wow lol haha hmm well continue go see later noted understood much lot lots help helped helpful
    appreciate appreciated ja nein gern gut schön vielen dank alles klar oui non bien beaucoup parfait super accord sí
    si bueno muchas muchísimas vale perfecto sim não bom muito boa bene mille perfetto va nee goed prima tak nie
    dobrze świetnie kiitoksia joo hej dobře ano igen nem rendben evet hayır tamam sağol merhaba ederim terima kasih
    baik da nu bine hilfe ayuda ajuda aide aiuto hulp помощь да нет хорошо ладно понятно большое отлично ναι όχι نعم
    لا حسنا بله नहीं हाँ ठीक अच्छा बहुत mersi ممنون
"""

#: Function words of Chinese, simplified and traditional, and of Japanese. Characters that are mostly parts of other
#: words, such as 会 in 会议 and 有 in 所有, are not among them.
_CHINESE = """
    的 了 是 吗 嗎 呢 吧 啊 呀 嘛 我 你 您 他 她 它 们 們 就 这 這 那 哪 谁 誰 几 幾 请 請 这个 這個 那个 那個 哪个
    哪個 几个 幾個 有没有 有沒有 什么 什麼 甚麼 什么样 时候 時候 多少 多大 多长 多長 多高 多久 多远 多遠 哪里 哪裡
    哪儿 怎么 怎麼 怎样 怎樣 怎么样 怎麼樣 如何 为什么 為什麼 为何 為何 何时 何時 是否 告诉 告訴 请问 請問 记得 記得
"""
_JAPANESE = """
    は が を に で と も の へ か ね よ から まで より です ですか でした でしたか だ だった ます ました ましたか
    ません ない した して している しました する ある あります いる います た て って この その あの これ それ あれ
    ここ そこ どこ どれ どの どんな どう どちら なぜ いつ だれ 誰 何 なに なん いくら いくつ 私 僕 俺 あなた ください
    下さい 教えて という について
"""
#: Korean words, and endings of words; they are function words only at the start and at the end of a word.
_KOREAN = """
    나는 내가 나의 제가 저는 당신 우리 무엇 무슨 어떤 어느 어디 언제 누구 누가 어떻게 얼마 얼마나
"""
_KOREAN_ENDINGS = """
    은 는 이 가 을 를 에 의 도 와 과 로 으로 에서 에게 한테 까지 부터 입니까 인가요 이에요 예요 나요 습니까 습니다
    어요 아요 했나요 했어요 했습니까 합니다
"""
#: Words that are mostly parts of other words unless they stand alone: Korean function words, acknowledgments.
_SHORT_KOREAN = "나 내 제 저 너 이 그 것 뭐 왜 몇"
_SHORT_COURTESIES = "好 嗯 对 對 行 是 네 예"
_JOINED_COURTESIES = """
    谢谢 謝謝 多谢 多謝 感谢 感謝 谢谢你 好的 好吧 你好 您好 不客气 不客氣 知道了 明白了 再见 再見 早上好 晚安 早安
    辛苦了 ありがとう ありがとうございます ありがとうございました どうも こんにちは こんばんは おはよう はい いいえ
    うん 了解 了解です わかりました 分かりました お願い お願いします よろしく すみません 감사합니다 감사해요 고마워
    고마워요 고맙습니다 아니요 안녕 안녕하세요 알겠습니다 알겠어요 좋아요 부탁해요 부탁합니다
"""


@lru_cache(maxsize=1)
def courtesies() -> frozenset[str]:
    """Return greetings, thanks and acknowledgments of all languages, and the pieces of those without spaces."""
    words = POLITENESS.union(_COURTESIES.split())
    joined = f"{_JOINED_COURTESIES} {_SHORT_COURTESIES}".split()
    pieces = [piece for word in joined for piece in (*split_words(word), *filter(is_han, word))]
    return words.union(map(strip_accents, words), pieces)


class FunctionPairs(NamedTuple):
    """What function words cover of a text in scripts without spaces."""

    #: Its words of one or two characters that function words cover wholly.
    covered: frozenset[str]
    #: Chinese characters that stand alone between function words, each with the pairs that contain it.
    single_characters: dict[str, list[str]]


def find_function_pairs(text: str) -> FunctionPairs:
    """Return which pairs of characters of a text are function words, and which characters stand alone among them."""
    covered: set[str] = set()
    content: set[str] = set()
    single_characters: dict[str, list[str]] = {}
    for run in find_joined_runs(text):
        is_covered = [False] * len(run)
        for match in _joined_pattern().finditer(run):
            is_covered[match.start() : match.end()] = [True] * len(match[0])
        for start in range(max(1, len(run) - 1)):
            pair = run[start : start + 2]
            if all(is_covered[start : start + 2]):
                covered.add(pair)
            else:
                content.add(pair)
        for index in _find_single(is_covered):
            character = run[index]
            is_word = is_han(character) and character not in function_words("chinese")
            if is_word and len(run) > 1:
                adjacent = run[max(0, index - 1) : index + 2]
                pairs = [first + second for first, second in pairwise(adjacent)]
                single_characters.setdefault(character, []).extend(pairs)
    return FunctionPairs(frozenset(covered - content), single_characters)


def _find_single(is_covered: list[bool]) -> Iterator[int]:
    """Yield the indexes of the characters that are not covered and have no such neighbour."""
    start = 0
    for value, group in groupby(is_covered):
        size = len(list(group))
        if not value and size == 1:
            yield start
        start += size


@lru_cache(maxsize=1)
def _joined_pattern() -> re.Pattern[str]:
    """Return a pattern of the function words and courtesies of scripts without spaces, the longest first."""
    anywhere = f"{_CHINESE} {_JAPANESE} {_JOINED_COURTESIES}".split()
    alone = _join_alternatives(f"{_SHORT_KOREAN} {_SHORT_COURTESIES}".split())
    korean = _join_alternatives(_KOREAN.split())
    endings = _join_alternatives(_KOREAN_ENDINGS.split())
    return re.compile(f"{_join_alternatives(anywhere)}|^{alone}$|^{korean}(?={endings}*$)|{endings}$")


def _join_alternatives(words: Sequence[str]) -> str:
    return "(?:" + "|".join(sorted(words, key=len, reverse=True)) + ")"


def asks_nothing(text: str, words: Sequence[str], covered: Collection[str]) -> bool:
    """Return whether a text is a greeting, thanks or an acknowledgment: a courtesy, and otherwise function words.

    These are the `covered` of its words, and those of English and of the language that it seems to be in. A text with
    a question mark asks something: "Hi, what do I like?".
    """
    if any(mark in text for mark in QUESTION_MARKS) or courtesies().isdisjoint(words):
        return False
    language = detect_language(words)
    without_subject = courtesies().union(covered, function_words(ENGLISH), function_words(language))
    return without_subject.issuperset(words)
