"""The cause of a bad answer is found with the pages alone: five answers, five causes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from acms.testing import HashEmbedder
from tests.inspector.bad_answers import NAMESPACE, RULES, plant
from tests.inspector.conftest import Watched, aside, inspecting
from tests.inspector.pictures import (
    ALIKE,
    encode_picture,
    find_clipped,
    find_violations,
    measure_difference,
    read_picture,
    save_picture,
)
from tests.server.serving import OPEN, Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

READ_ONLY = replace(OPEN, writes=False, works=False)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The sessions with the bad answers, behind a service that cannot write."""
    url = f"sqlite:///{tmp_path_factory.mktemp('planted') / 'log.db'}"
    aside(lambda: asyncio.run(plant(url)))
    with inspecting(url, READ_ONLY, embedder=HashEmbedder()) as service:
        yield service


@pytest.fixture
def tab(browser: Browser, planted: Service) -> Iterator[Watched]:
    """A tab on the sessions, which may use the clipboard."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(60_000)
    watched = Watched(context, planted)
    yield watched
    watched.clean()
    context.close()


@pytest.fixture
def trip(planted: Service) -> dict[str, Any]:
    """The id of the session with the answers, and its requests by the version they read."""
    contexts = {one["key"]: one["id"] for one in planted.get("/contexts")["data"]}
    renders = planted.get(f"/contexts/{contexts['trip']}/renders")["data"]
    return {"id": contexts["trip"], **{f"v{one['version']}": one["id"] for one in renders}}


def _open_request(tab: Watched, version: int) -> Page:
    """Click from the first page to the request that read a version of the session `trip`."""
    page = tab.go("/")
    page.get_by_role("link", name="trip", exact=True).click()
    page.get_by_role("link", name="what the model saw").click()
    page.get_by_label("Renders, newest first").get_by_text(f"v{version}", exact=True).click()
    return page


def _find_message(page: Page, words: str) -> Locator:
    """Search for a message that was expected in the request, and return the first row found."""
    page.get_by_label("Why not this one?").fill(words)
    page.keyboard.press("Enter")
    return page.get_by_label("Found messages").locator("li").first


def test_a_stale_fact_is_found_in_the_request_and_in_the_facts(tab: Watched) -> None:
    page = _open_request(tab, 8)
    row = _find_message(page, "Vienna")
    assert "profile v1 in the request" in row.inner_text()
    page.get_by_role("link", name="facts").click()
    facts = page.get_by_label("Facts about Ada").locator("tbody tr").all_inner_texts()
    assert any("profile" in fact and "Vienna" in fact and "active" in fact for fact in facts), facts
    assert any("trip" in fact and "Graz" in fact and "active" in fact for fact in facts), facts
    assert sum("another value is active too" in fact for fact in facts) == 2


def test_a_cut_tool_result_is_found_by_words_of_the_missing_line(tab: Watched) -> None:
    page = _open_request(tab, 6)
    result = page.get_by_label("messages[3]").inner_text()
    assert "lines left out" in result
    assert "TP77" not in result
    row = _find_message(page, "TP77")
    assert "trip v4 in the request, cut" in row.inner_text()
    assert "did not fit whole" in row.inner_text()


def test_a_flooded_recall_names_the_session_that_filled_it_and_the_tokens_that_were_missing(
    tab: Watched,
) -> None:
    page = _open_request(tab, 10)
    assert re.search(r"Shows entries of trip \(\d\), work \(\d\)", page.locator(".seen").inner_text())
    row = _find_message(page, "code QX91")
    text = row.inner_text()
    assert "work v31 left out budget" in text
    assert re.search(r"needs \d+ tokens, \d+ are left · \d+ tokens were free in all", text), text
    assert "What would bring it in: a larger share for the recall" in text


def test_a_wrong_scope_is_told_as_the_reason(tab: Watched) -> None:
    page = _open_request(tab, 12)
    page.get_by_label("Why not this one?").fill("passport number L4471")
    page.get_by_role("button", name="Find").click()
    row = page.get_by_label("Found messages").locator("li", has_text="L4471")
    assert "home v1 left out scope" in row.inner_text()
    assert "What would bring it in: a recall with scope namespace" in row.inner_text()
    row.get_by_role("link", name="ask again about it").click()
    assert page.get_by_label("Question").input_value() == "What is my passport number?"
    answer = page.get_by_label("Why not this entry").locator(".answer").inner_text()
    assert "It is shown" in answer
    assert "L4471" in page.get_by_label("First answer").inner_text()


def test_a_broken_cache_has_its_place_and_its_price(tab: Watched, trip: dict[str, Any]) -> None:
    page = tab.go(f"/s/{trip['id']}")
    page.get_by_role("link", name="cost").click()
    page.get_by_label("Cache breaks").get_by_role("link").first.click()
    verdict = page.get_by_role("status").inner_text()
    assert "The cache broke" in verdict
    assert "prompt/system: the text changed" in verdict
    assert re.search(r"[\d,]+ of them because the cache breaks", verdict), verdict
    assert page.locator(".c-added", has_text="Today is Monday").count() == 1
    page.get_by_label("Compare with").select_option(trip["v6"])
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("against another one").wait_for()
    assert page.locator(".c-added", has_text="Anything else?").count() == 1
    assert page.locator(".line-break").count() == 1


def test_a_request_is_copied_byte_for_byte(tab: Watched, trip: dict[str, Any]) -> None:
    page = _open_request(tab, 12)
    sent = tab.service.get(f"/contexts/{trip['id']}/renders/{trip['v12']}")["data"]["payload"]
    assert page.get_by_label("messages[0]").locator("pre").text_content() == RULES
    assert "search_flights" in (page.get_by_label("tools[0]").text_content() or "")
    page.get_by_role("link", name="Copy as JSON").click()
    page.get_by_text("Copied as JSON").wait_for()
    assert json.loads(page.evaluate("navigator.clipboard.readText()")) == sent
    page.get_by_role("link", name="Copy as curl").click()
    page.get_by_text("Copied as curl").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert "https://api.openai.com/v1/chat/completions" in command
    assert "$OPENAI_API_KEY" in command


def test_two_questions_differ_in_scope_filter_and_embedder(tab: Watched, trip: dict[str, Any]) -> None:
    page = tab.go(f"/s/{trip['id']}/ask")
    page.get_by_label("Question").fill("passport")
    page.get_by_label("Scope", exact=True).select_option("namespace")
    page.get_by_text("Filters").click()
    page.get_by_label("Role").select_option("user")
    page.get_by_text("Beside it").click()
    page.get_by_label("rank by", exact=True).select_option("words")
    page.get_by_label("scope", exact=True).select_option("session")
    page.get_by_role("button", name="Ask").click()
    second = page.get_by_label("Second answer")
    second.wait_for()
    first = page.get_by_label("First answer")
    assert "messages have no vector" in first.inner_text()  # the embedder was asked
    assert "messages have no vector" not in second.inner_text()
    assert "home" in first.locator(".session").all_inner_texts()
    assert set(second.locator(".session").all_inner_texts()) <= {"trip", "profile"}
    assert "tool" not in first.locator(".who").all_inner_texts()


def test_a_version_is_read_as_the_pages_write_it_and_an_error_is_shown(
    tab: Watched, trip: dict[str, Any]
) -> None:
    page = tab.go(f"/s/{trip['id']}/ask")
    page.get_by_label("Question").fill("Where does Ada live?")
    page.get_by_label("Version or tag", exact=True).fill("v8")
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("tokens at v8").wait_for()
    page.get_by_label("Scope", exact=True).select_option("namespace")
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("VALIDATION").wait_for()
    assert all("400" in problem for problem in tab.wrong)  # what the console says of the refused request
    tab.wrong.clear()


def test_an_answer_leads_to_the_request_that_it_answers(tab: Watched, trip: dict[str, Any]) -> None:
    page = tab.go(f"/s/{trip['id']}")
    page.locator("#v9").get_by_role("link", name="request").click()
    page.get_by_role("heading", name="prompt at v8").wait_for()


def test_a_namespace_shows_its_facts_and_is_searched(tab: Watched) -> None:
    page = tab.go("/")
    page.get_by_role("link", name=NAMESPACE).first.click()
    facts = page.get_by_label("Facts").locator("tbody tr").all_inner_texts()
    assert [fact.split("\t")[0] for fact in facts] == ["profile", "trip"]
    page.get_by_label("Search messages").fill("passport valid")
    page.get_by_role("button", name="Search").click()
    row = page.get_by_label("Found messages").locator("tbody tr", has_text="L4471")
    assert row.inner_text().startswith("home")


def test_the_views_of_several_sessions_are_accessible_and_look_as_documented(
    tab: Watched, trip: dict[str, Any]
) -> None:
    views = {
        "why": f"/s/{trip['id']}/sent/{trip['v10']}?find=code+QX91",
        "ask": f"/s/{trip['id']}/ask?query=passport&scope=namespace&rank2=words&budget=200",
        "namespace": f"/n/{NAMESPACE}?q=passport+valid",
        "compare": f"/s/{trip['id']}/diff/{trip['v14']}?against={trip['v6']}",
        "": "/n/empty",
    }
    blank = tab.context.new_page()
    apart: dict[str, float] = {}
    for name, path in views.items():
        page = tab.go(path)
        assert find_clipped(tab, 480) == [], path
        page.evaluate(Axe().axe_script)
        assert find_violations(tab) == [], path
        if name:
            save_picture(page, name)
            apart[name] = measure_difference(blank, read_picture(name), encode_picture(page))
        page.emulate_media(color_scheme="dark")
        assert find_violations(tab, {"runOnly": ["color-contrast"]}) == [], path
        page.emulate_media(color_scheme="light")
    assert {name: found for name, found in apart.items() if found > ALIKE} == {}
