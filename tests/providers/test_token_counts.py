"""Exactness of the BPE counters against tiktoken, and the bounds of the estimates.

tiktoken downloads its vocabularies; here they are rebuilt from the counter's own wheel, and tiktoken accepts
them only because their SHA-256 equals the one it was released with. The reference is therefore tiktoken's
code on its own data.
"""

from __future__ import annotations

import ast
import base64
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken
import tiktoken.load
import toktok
from hypothesis import given
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from acms import ConfigurationError, ValidationError
from acms.providers import BPETokenCounter, EstimatingTokenCounter, HeuristicTokenCounter
from acms.providers.tokens import build_batch_counter, default_counter, token_counter

ENCODINGS = ("o200k_base", "cl100k_base")
STDLIB = Path(sysconfig.get_paths()["stdlib"])

# Ranges random characters are drawn from, and fragments that sit on the seams of the encodings' patterns.
PLANES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF),
    (0x5D0, 0x5EA), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F),
    (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xFFFF),
    (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2FFFF), (0xE0000, 0x10FFFF),
]  # fmt: skip
FRAGMENTS = [
    "<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>", "<|im_start|>", " ", "  ", "\t\t", "\n", "\r\n",
    "\n\n\n", " \n ", "\u00a0", "\u2028", "\u3000", "\u200d", "\ufeff", "'s", "'LL", "'\u017f", "don't",
    "HTTPServer", "camelCase", "\u01c5", "\u02b0", "1234567", "\u0663\u0664\u0665\u0666",
    "\u00b2\u00bd\u2167",
    "e\u0301", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1e9\U0001f1ea\U0001f1eb", "\U0001f44d\U0001f3fd", "שלום", "مرحبا", "नमस्ते", "你好世界", "…", "//",
    "the ", " conversation", "====", "\x00",
]  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tiktoken.Encoding]]:
    def read(url: str) -> bytes:
        values = toktok._encoding(url.rpartition("/")[2].removesuffix(".tiktoken")).token_byte_values()
        return b"".join(b"%s %d\n" % (base64.b64encode(value), rank) for rank, value in enumerate(values))

    with pytest.MonkeyPatch.context() as patch:
        # With a cache directory tiktoken checks the hash of what it reads; the directory starts empty.
        patch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path_factory.mktemp("tiktoken")))
        patch.setattr(tiktoken.load, "read_file", read)
        yield {name: tiktoken.Encoding(**getattr(openai_public, name)()) for name in ENCODINGS}


def random_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(FRAGMENTS) * rng.choice((1, 1, 1, 2, 3)))
        elif kind < 0.5:
            parts.append(rng.choice(" \t\n\r0a-") * rng.randint(1, 40))
        else:
            low, high = rng.choice(PLANES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12))))
    return "".join(parts)


def assert_exact(texts: list[str], reference: tiktoken.Encoding) -> None:
    counter = BPETokenCounter(reference.name)
    expected = [len(reference.encode_ordinary(text)) for text in texts]
    wrong = [t for t, n in zip(texts, expected, strict=True) if counter.count(t) != n]
    assert not wrong, f"{len(wrong)} of {len(texts)} differ from tiktoken, the first: {wrong[0][:200]!r}"


def stdlib_sources(limit: int) -> list[str]:
    paths = sorted([*STDLIB.glob("*.py"), *STDLIB.glob("[a-l]*/*.py")])
    random.Random(5).shuffle(paths)
    texts = []
    for path in paths:
        if "site-packages" not in path.parts:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        if len(texts) == limit:
            break
    return texts


def strings_in(value: object) -> Iterator[str]:
    """Every string value of a JSON document, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def texts_of_files(folder: Path) -> list[str]:
    paths = sorted(folder.glob("**/*.json"))
    assert paths
    texts = []
    for path in paths:
        if path.name.startswith("probing"):
            continue
        texts += strings_in(json.loads(path.read_text(encoding="utf-8")))
    return texts


@pytest.mark.parametrize("encoding", ENCODINGS)
class TestExactness:
    @pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
    def test_random_unicode(self, encoding: str, count: int, reference: dict[str, tiktoken.Encoding]) -> None:
        rng = random.Random(20261121)
        assert_exact([random_text(rng) for _ in range(count)], reference[encoding])

    @pytest.mark.soak
    def test_random_unicode_soak(self, encoding: str, reference: dict[str, tiktoken.Encoding]) -> None:
        rng = random.Random(19)
        assert_exact([random_text(rng) for _ in range(100_000)], reference[encoding])

    def test_python_sources(self, encoding: str, reference: dict[str, tiktoken.Encoding]) -> None:
        texts = stdlib_sources(60)
        assert len(texts) == 60
        assert_exact(texts, reference[encoding])

    @pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
    def test_conversations(
        self, encoding: str, every: int, reference: dict[str, tiktoken.Encoding], data_dir: Path
    ) -> None:
        assert_exact(texts_of_files(data_dir)[::every], reference[encoding])

    def test_long_runs(self, encoding: str, reference: dict[str, tiktoken.Encoding]) -> None:
        assert_exact(
            [c * 3_000 for c in ("a", " ", "\n", "7", "=", "é", "语", "👍", " \n", "/\n")],
            reference[encoding],
        )

    def test_empty(self, encoding: str) -> None:
        counter = BPETokenCounter(encoding)
        assert counter.count("") == 0
        assert counter.count("a") == 1
        assert counter.name == encoding

    @given(
        st.lists(
            st.text() | st.sampled_from(["", "end.", "/", "'", "a'S", " \n", "\r", "\t ", "7", "é", "语/\n"])
        )
    )
    def test_paragraphs_add_up(self, encoding: str, texts: list[str]) -> None:
        counter = BPETokenCounter(encoding)
        assert counter.paragraphs
        parts = [f"Ann: {text}\n\n" for text in texts]
        for last in (parts, [*parts, "x"], [*parts, "Ann: "]):
            assert sum(map(counter.count, last)) == counter.count("".join(last))

    def test_special_tokens_are_text(self, encoding: str) -> None:
        assert BPETokenCounter(encoding).count("<|endoftext|>") > 1

    def test_lone_surrogate(self, encoding: str) -> None:
        counter = BPETokenCounter(encoding)
        with pytest.raises(ValidationError) as caught:
            counter.count("ab\ud800")
        assert caught.value.field == "text"


def test_nothing_heavy_at_import() -> None:
    tree = ast.parse(Path(sys.modules[BPETokenCounter.__module__].__file__ or "").read_text(encoding="utf-8"))
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {*sys.stdlib_module_names, "acms.runtime.threads", "acms.errors", "collections.abc"}


class TestLookup:
    @pytest.mark.parametrize("name", [*ENCODINGS, "heuristic/4", "estimate/1"])
    def test_known(self, name: str) -> None:
        counter = token_counter(name)
        assert counter.name == name
        assert counter.count("two words") >= 1

    @pytest.mark.parametrize("name", ["", "gpt-4", "heuristic", "O200K_BASE"])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=r"o200k_base.*cl100k_base.*heuristic/4.*estimate/1"):
            token_counter(name)

    def test_unknown_encoding(self) -> None:
        with pytest.raises(ConfigurationError, match="o200k_base, cl100k_base"):
            BPETokenCounter("p50k_base")

    def test_default_is_shared(self) -> None:
        assert default_counter() is default_counter() is token_counter("o200k_base")
        assert default_counter().name == "o200k_base"


@pytest.mark.parametrize("name", [*ENCODINGS, "estimate/1"])
def test_many_texts_at_once_count_as_one_by_one(name: str) -> None:
    rng = random.Random(7)
    texts = ["", *FRAGMENTS, *("".join(rng.choices(FRAGMENTS, k=9)) for _ in range(600))]
    counter = token_counter(name)
    assert list(build_batch_counter(counter)(texts)) == [counter.count(text) for text in texts]
    assert list(build_batch_counter(counter)([])) == []


def test_a_lone_surrogate_among_many_texts_is_refused_with_its_place() -> None:
    with pytest.raises(ValidationError, match="character 1") as refused:
        list(build_batch_counter(default_counter())(["a", "b\ud800"]))
    assert refused.value.field == "text"


def test_heuristic() -> None:
    counter = HeuristicTokenCounter()
    assert [counter.count("x" * n) for n in (0, 1, 3, 4, 7, 8, 400)] == [0, 1, 1, 1, 1, 2, 100]


def estimation_error(texts: list[str]) -> float:
    """Relative error of the estimated total of `texts` against o200k_base."""
    exact = sum(map(default_counter().count, texts))
    return sum(map(EstimatingTokenCounter().count, texts)) / exact - 1


def json_records() -> list[str]:
    rng = random.Random(3)
    names = [path.stem for path in sorted(STDLIB.glob("*.py"))]
    records = [
        {
            "id": rng.randrange(10**6),
            "module": rng.choice(names),
            "score": round(rng.random(), 4),
            "tags": rng.sample(names, 3),
            "created_at": f"2026-{rng.randint(1, 12):02d}-{rng.randint(10, 28)}T09:15:00Z",
            "public": rng.random() < 0.5,
        }
        for _ in range(2_000)
    ]
    return [json.dumps(records[i : i + 10], indent=2 if i % 20 else None) for i in range(0, len(records), 10)]


class TestEstimate:
    def test_code(self) -> None:
        assert abs(estimation_error(stdlib_sources(120))) < 0.08

    def test_json(self) -> None:
        assert abs(estimation_error(json_records())) < 0.10

    def test_conversations(self, data_dir: Path) -> None:
        assert abs(estimation_error(texts_of_files(data_dir))) < 0.05

    def test_languages(self) -> None:
        texts = [
            "今天下午我们去了公园，孩子们在湖边玩得很开心，晚上一起吃了饭，然后坐地铁回家。",
            "昨日は友だちと一緒に新しい図書館へ行って、夕方まで本を読んでいました。",
            "어제 친구와 함께 새로 생긴 도서관에 가서 저녁까지 책을 읽었습니다.",
            "Вчера мы с друзьями ходили в новую библиотеку и читали книги до самого вечера.",
            "Gestern Nachmittag sind wir mit den Kindern an den See gefahren und haben dort gegessen.",
        ]
        for text in texts:
            assert abs(estimation_error([text])) < 0.3, text

    def test_long_runs_are_never_almost_free(self) -> None:
        texts = [
            c * 2_000 for c in ("a", "A", "7", "语", "я", "é", "👍", "\u0301", "ab12", "Ab", "/\n", "-_")
        ]
        for text in texts:
            assert estimation_error([text]) > -0.9, text[:4]

    @given(st.text(alphabet=st.characters()))
    def test_bounds(self, text: str) -> None:
        count = EstimatingTokenCounter().count(text)
        assert (count == 0) == (text == "")
        assert 0 <= count <= 4 * len(text)

    def test_more_text_is_not_fewer_tokens(self) -> None:
        source = "\n".join(stdlib_sources(3))[:40_000]
        counter = EstimatingTokenCounter()
        counts = [counter.count(source[:end]) for end in range(0, len(source), 100)]
        assert counts == sorted(counts)

    def test_any_string(self) -> None:
        assert EstimatingTokenCounter().count("\x00\ud800\udfff") >= 1
