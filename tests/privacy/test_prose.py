"""Secrets told in sentences, and tokens by the grammar of who gives them out: what a session shows under `redact`."""

from __future__ import annotations

import importlib.util
import random
import string
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from acms import ACMS, ACMSConfig, Privacy, PrivacyConfig, open_storage

_MADE = random.Random(20)
_LETTERS = string.ascii_letters
_TOKEN = _LETTERS + string.digits + "-_"


def draw_text(size: int, alphabet: str) -> str:
    return "".join(_MADE.choices(alphabet, k=size))


async def read_redacted(texts: Sequence[str]) -> list[str]:
    """Return what a session under `redact` shows of messages."""
    config = ACMSConfig(privacy=PrivacyConfig(mode=Privacy.REDACT))
    async with ACMS("user_123", open_storage("memory://"), config=config) as session:
        for text in texts:
            await session.ingest("user", text)
        return [item.content for item in await session.window(1_000_000)]


#: Tokens by the documentation that `privacy-tokens.jsonl` names. These hold no digit, as the grammars allow.
GRAMMARS: dict[str, Callable[[], str]] = {
    "aws long-term": lambda: "AKIA" + draw_text(16, string.ascii_uppercase),
    "aws temporary": lambda: "ASIA" + draw_text(16, string.ascii_uppercase),
    "gitlab personal": lambda: "glpat-" + draw_text(20, _LETTERS),
    "gitlab runner": lambda: "glrtr-" + draw_text(20, _LETTERS),
    "gitlab workspace": lambda: "glwt-" + draw_text(20, _LETTERS),
    "gitlab routable": lambda: f"glpat-{draw_text(27, _TOKEN)}.01.{draw_text(9, string.ascii_lowercase)}",
    "google api key": lambda: "AIza" + draw_text(35, _LETTERS),
    "google client secret": lambda: "GOCSPX-" + draw_text(28, _LETTERS),
    "sendgrid": lambda: f"SG.{draw_text(22, _LETTERS)}.{draw_text(43, _LETTERS)}",
    "slack rotating": lambda: "xoxe.xoxp-1-" + draw_text(160, _LETTERS),
    "npm": lambda: "npm_" + draw_text(36, _LETTERS),
    "hugging face": lambda: "hf_" + draw_text(34, _LETTERS),
    "azure devops": lambda: f"{draw_text(76, _LETTERS)}AZDO{draw_text(4, _LETTERS)}",
    "azure storage": lambda: f"{draw_text(76, _LETTERS)}+ASt{draw_text(6, _LETTERS)}==",
}


@pytest.mark.parametrize("name", GRAMMARS)
async def test_a_token_without_a_digit_is_redacted(name: str) -> None:
    tokens = [GRAMMARS[name]() for _ in range(20)]
    shown = await read_redacted([f"Please rotate {token} today." for token in tokens])
    assert shown == ["Please rotate [REDACTED: api_key] today."] * len(tokens)


CARD_PINS = """My card's PIN is «4711».
The PIN of my debit card is «4711», and I always forget it.
card PIN: «4711»
I set the PIN of my Visa to «4711» yesterday.
«4711» is the PIN of my credit card.
Die PIN meiner EC-Karte lautet «4711».
El PIN de mi tarjeta es «4711».
Le code de ma carte est le «4711».
カードの暗証番号は«4711»です。
银行卡密码是«4711»。
""".splitlines()

TOLD = """I changed the root passphrase to «correct horse battery staple» last week.
Log in as admin with «hunter2022».
The PIN for the door is «4711».
The combination of the safe is «12-34-56».
If the alarm asks for a code, enter «4711».
Mein Passwort lautet «Sonnenblume».
Die Passphrase ist «regen sonne wind schnee».
Connecte-toi en tant que admin avec «crabe2022».
パスワードを«kani2022»に変更しました。
用admin和«kani2022»登录。
用户名admin，密码«kani2022»。
Mi pasaporte es «AAB123456».
Meine Wiederherstellungsphrase lautet: «apfel birne wolke hafen kerze tulpe besen kanne mantel zwiebel turm nadel»
La frase de recuperación es «abandon ability able about above absent absorb abstract absurd abuse access accident»
助记词是 «abandon ability able about above absent absorb abstract absurd abuse access accident»
""".splitlines()


@pytest.mark.parametrize("marked", CARD_PINS + TOLD)
async def test_a_secret_told_in_a_sentence_is_redacted_and_nothing_else(marked: str) -> None:
    before, secret, after = marked.replace("»", "«").split("«")
    (shown,) = await read_redacted([before + secret + after])
    assert shown.startswith(before + "[REDACTED: ")
    assert shown.endswith("]" + after)


LOOK_ALIKES = """The password must be twelve characters long.
The PIN code field is required.
Log in as admin with your badge.
Log in with Office365, OAuth2 or id_ed25519.
The password was set in 2017.
GPIO pin 1234 is not connected; el pin 1234 tampoco.
The exit code of the alarm script is 1045.
The passphrase is stored encrypted on the server.
Choose a passphrase of four random lowercase words.
Seed phrase: keep your twelve words safe and never share them with anyone else online.
Die PIN ist 6-stellig.
La clave es 2024, un año decisivo.
Le code de la route 2024 est sorti.
パスワードを8文字以上に変更してください。
登录后返回错误代码10061。
{"kv_policy": {"pin": ["frag:macro:123"], "compress": []}}
""".splitlines()


async def test_look_alikes_are_shown_as_they_are() -> None:
    assert await read_redacted(LOOK_ALIKES) == LOOK_ALIKES


def load_benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "privacy_prose.py"
    spec = importlib.util.spec_from_file_location("privacy_prose", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["privacy_prose"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("half", ["development", "held out"])
def test_of_drawn_sentences_most_secrets_and_few_look_alikes_are_redacted(half: str) -> None:
    benchmark = load_benchmark()
    sentences = benchmark.read_halves()[half]
    secrets = list(sentences.draw(1, "+", benchmark.SECRETS))
    look_alikes = list(sentences.draw(1, "-", benchmark.LOOK_ALIKES))
    assert sum(map(benchmark.is_found, secrets)) >= 0.9 * len(secrets)
    assert sum(map(benchmark.is_found, look_alikes)) <= 0.01 * len(look_alikes)
