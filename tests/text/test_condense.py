"""Outputs of tools that are cut: the same in every process, and in no time."""

from __future__ import annotations

import os
import subprocess
import sys

from acms.providers.tokens import default_counter
from acms.text.condense import condense_output, end_of_head


def test_a_cut_text_is_the_same_in_every_process() -> None:
    """The order of a set depends on the process, and with it the last bit of a sum."""
    script = (
        "import random; from acms.providers.tokens import default_counter;"
        "from acms.text.condense import condense_output;"
        "rng = random.Random(5); word = lambda: rng.choice('alpha beta gamma delta epsilon zeta eta theta'.split());"
        "text = '\\n'.join(f'host {word()} user {word()} path {word()} zone {word()}' for _ in range(210));"
        "print(condense_output(text, 600, default_counter()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    assert len(outputs) == 1


def test_a_long_word_with_a_number_takes_no_time() -> None:
    """A pattern that tried each beginning of such a word took its third power of steps."""
    text = "\n".join(["a" * 999 + "1"] * 100)
    assert condense_output(text, 60, default_counter())


def test_a_long_chain_of_words_takes_no_time() -> None:
    """A search for a digit behind each of its words took its second power of steps."""
    assert condense_output("abc-" * 50_000, 60, default_counter())


def test_no_number_in_wide_digits_is_cut() -> None:
    text = "合計１２３４５６円"
    assert end_of_head(text, 5) == 2


def test_a_question_in_chinese_finds_its_line() -> None:
    lines = [f"服务 {number} 运行正常，没有任何问题。" for number in range(80)]
    lines[37] = "数据库连接在凌晨两点超时。"
    output = condense_output("\n".join(lines), 80, default_counter(), question="数据库连接为什么超时？")
    assert lines[37] in output
