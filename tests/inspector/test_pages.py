"""The pages in a real browser: every view, by mouse and by keyboard, wide and narrow, light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from typer.testing import CliRunner

from acms.cli.commands import app
from acms.inspector.views import format_entry_version
from acms.server import ServerConfig
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
from tests.server.serving import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VIEWS = (
    "?at=40",
    "/sent/{render}",
    "/sent/{render}?as=blocks",
    "/sent/{render}?find=Kafka",
    "/diff/{broke}",
    "/ask?entry={old}",
    "/facts",
    "/jobs",
    "/cost",
    "/forks?other={fork}&merge={fork}",
    "/entry/{old}",
)
SHOTS = {
    VIEWS[0]: "timeline",
    VIEWS[1]: "sent",
    VIEWS[2]: "blocks",
    VIEWS[4]: "diff",
    "/facts": "facts",
    "/jobs": "jobs",
    "/cost": "cost",
    "/forks?other={fork}&merge={fork}": "forks",
}
"""Views that the documentation shows."""
DARK = (VIEWS[0], VIEWS[1], VIEWS[4], "/cost")
"""Views that have every colour between them."""
QUESTION = "How do order events reach the warehouse and billing?"


@pytest.fixture(scope="module")
def ids(inspected: Service) -> dict[str, str]:
    """The ids of the story: the session, its fork, two renders, the decision for Kafka."""
    contexts = {one["key"]: one["id"] for one in inspected.get("/contexts")["data"]}
    listed = inspected.get(f"/contexts/{contexts['demo']}/history", limit=500)["data"]
    old = next(one["id"] for one in listed if "billing through Kafka" in one["preview"])
    sent = inspected.get(f"/contexts/{contexts['demo']}/renders")["data"]
    render = next(one["id"] for one in sent if one["version"] == 74)
    broke = next(one["id"] for one in sent if one["lost"])
    others = {"render": render, "broke": broke, "old": old}
    return {"demo": contexts["demo"], "fork": contexts["what-if-kafka"], **others}


SHORTENED = """() => {
  const kept = ["renderPrompt", "LoggedRender"];
  document.querySelectorAll("section.operation").forEach((one) => kept.includes(one.id) || one.remove());
}"""
"""Leaves two sections of the reference: it has hundreds, all made alike."""


def test_every_view_is_accessible_and_fits(tab: Watched, ids: dict[str, str]) -> None:
    for view in (None, "/docs", *VIEWS):
        path = "/" if view is None else view if view == "/docs" else f"/s/{ids['demo']}{view.format(**ids)}"
        page = tab.go(path)
        assert page.locator("h1").count() == 1
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        page.set_viewport_size({"width": 1280, "height": 860})
        if view == "/docs":
            page.evaluate(SHORTENED)
        else:
            assert find_clipped(tab, 480) == [], path
        page.evaluate(Axe().axe_script)
        assert find_violations(tab) == [], path
        if view in SHOTS:
            save_picture(page, SHOTS[view])
        if view in DARK:
            page.emulate_media(color_scheme="dark")
            assert find_violations(tab, {"runOnly": ["color-contrast"]}) == [], path
            page.emulate_media(color_scheme="light")


def test_the_views_look_as_the_documentation_shows_them(tab: Watched, ids: dict[str, str]) -> None:
    """As a whole: a style sheet that is missing, a column that fell down, colours of the wrong scheme."""
    blank = tab.context.new_page()  # where no policy forbids pictures in addresses
    taken: dict[str, str] = {}
    apart: dict[str, float] = {}
    for view, name in SHOTS.items():
        tab.go(f"/s/{ids['demo']}{view.format(**ids)}")
        taken[name] = encode_picture(tab.page)
        apart[name] = measure_difference(blank, read_picture(name), taken[name])
    assert {name: found for name, found in apart.items() if found > ALIKE} == {}
    tab.page.emulate_media(color_scheme="dark")
    others = [(taken["timeline"], taken["diff"]), (taken["forks"], encode_picture(tab.page))]
    assert all(measure_difference(blank, *pair) > ALIKE for pair in others), (
        "would not tell one view from another"
    )


def _scroll(page: Page, *, rows: int) -> None:
    """Scroll down a log until so many entries of it were loaded."""
    while page.locator("li.row").count() < rows:
        page.mouse.wheel(0, 3000)
        page.wait_for_timeout(20)


# ── what one looks for ──────────────────────────────────────────────────────────────────────────────────────────────


def test_why_was_the_decision_for_kafka_not_shown(tab: Watched) -> None:
    page = tab.go("/")
    page.get_by_role("link", name="demo", exact=True).click()
    page.wait_for_url(re.compile("/s/c_"))
    _scroll(page, rows=100)
    row = page.locator("li.row", has_text="Decision: order events go to the warehouse").last
    row.get_by_role("link", name="why not?").click()
    page.get_by_label("Question").fill(QUESTION)
    page.get_by_role("button", name="Ask").click()
    answer = page.get_by_label("Why not this entry").locator(".answer")
    assert "It is left out" in answer.inner_text()
    assert re.search(r"undone|retracted|v83", answer.inner_text()), answer.inner_text()
    assert "What would bring it in: a version" in answer.inner_text()
    page.get_by_label("Version or tag", exact=True).fill("before-retraction")
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("It is shown").or_(page.get_by_text("It is left out")).wait_for()


def test_which_turn_broke_the_cache(tab: Watched, ids: dict[str, str]) -> None:
    page = tab.go(f"/s/{ids['demo']}")
    page.get_by_role("link", name="cost").click()
    breaks = page.get_by_label("Cache breaks").locator("tbody tr")
    broke = {
        one.locator("td").nth(1).inner_text(): one.locator("td").nth(3).inner_text() for one in breaks.all()
    }
    logged = tab.service.get(f"/contexts/{ids['demo']}/renders")["data"]
    assert broke == {f"v{one['version']}": f"{one['lost']:,}" for one in logged if one["lost"]}
    assert broke
    cited = page.get_by_label("Cited entries").locator("tbody tr")
    assert [row.locator("td").all_inner_texts()[:2] for row in cited.all()] == [
        [format_entry_version(ids["old"]), "1"]
    ]
    breaks.first.get_by_role("link").click()
    verdict = page.get_by_role("status")
    assert "The cache broke" in verdict.inner_text()
    assert next(one["cache"]["reason"] for one in logged if one["lost"]) in verdict.inner_text()
    assert page.locator(".line-break").count() == 1
    assert page.locator(".c-added, .c-moved").count() > 0


def test_what_did_the_agent_know_at_v53(tab: Watched, ids: dict[str, str]) -> None:
    page = tab.go(f"/s/{ids['demo']}?at=53")
    first = page.locator("li.row").first
    assert first.locator(".v").inner_text() == "v53"
    assert "Outbox" in first.inner_text()
    kafka = page.locator("li.row", has_text="Decision: order events go to the warehouse")
    assert "not active" not in kafka.inner_text()
    page.get_by_role("link", name="ask").click()
    page.get_by_label("Question").fill(QUESTION)
    page.get_by_label("Version or tag", exact=True).fill("53")
    page.get_by_text("Beside it").click()
    page.get_by_label("version or tag", exact=True).fill("82")
    page.get_by_role("button", name="Ask").click()
    page.get_by_label("Second answer").wait_for()
    then = page.get_by_label("First answer").locator(".item", has_text="through Kafka, one topic").first
    now = page.get_by_label("Second answer").locator(".item", has_text="no Kafka for now").first
    assert then.is_visible()
    assert "only here" in now.inner_text()


def test_what_the_model_saw(tab: Watched, ids: dict[str, str]) -> None:
    logged = tab.service.get(f"/contexts/{ids['demo']}/renders")["data"]
    page = tab.go(f"/s/{ids['demo']}/sent")
    page.get_by_label("Renders, newest first").get_by_text("v74").click()
    render = next(one for one in logged if one["version"] == 74)
    sent = tab.service.get(f"/contexts/{ids['demo']}/renders/{render['id']}")["data"]["payload"]
    shown = page.locator(".part pre").first
    assert shown.text_content() == sent["messages"][0]["content"]
    assert page.locator(".part").count() == len(sent["messages"])
    page.get_by_role("link", name="Blocks and sources").click()
    assert f"{render['upperBound']:,} of 2,000 tokens" in page.locator(".stats").first.inner_text()
    assert page.locator(".blocks details").count() == render["messages"]
    used = sum(int(one.replace(",", "")) for one in page.locator(".legend b").all_inner_texts())
    assert used == render["tokens"] + render["use"]["free"]
    page.locator(".block.p-recalled summary").first.click()
    assert "score" in page.locator(".block[open]").inner_text()
    assert page.get_by_label("Left out").locator("tbody tr").count() > 1


# ── by keyboard ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_keyboard_alone_will_do(tab: Watched) -> None:
    page = tab.go("/")
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press("/")
    with page.expect_response(re.compile(r"\?q=what")):
        page.keyboard.type("what-if")
    expect(page.locator("#found tbody tr")).to_have_count(1)
    press("Escape")
    press("j")
    press("Enter")
    page.wait_for_url(re.compile("/s/c_"))
    slider = page.get_by_label("version", exact=True)
    slider.focus()
    before = int(slider.input_value()) - 1
    with page.expect_response(re.compile(f"at={before}")):
        press("ArrowLeft")
    assert page.locator("output").inner_text() == f"v{before}"
    page.get_by_role("link", name="back to now").wait_for()
    page.locator("main").focus()
    press("5")
    page.wait_for_url(re.compile("/facts"))
    press("1")
    page.wait_for_url(re.compile(r"/s/c_\w+$"))
    press("j")
    press("Enter")
    assert page.locator("details[open]").count() == 1


# ── nothing in the log is code ──────────────────────────────────────────────────────────────────────────────────────

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>\'"{{7*7}}&lt;b&gt;<svg/onload=hacked=3>'


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose every text wants to be code."""
    with inspecting(f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'log.db'}") as service:
        context = service.create(key=EVIL, name=EVIL, namespace=EVIL, labels=[EVIL], metadata={EVIL: EVIL})
        call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": f'{{"a": "{7}"}}'}}
        messages = [
            {"role": "user", "content": EVIL, "actorId": EVIL, "metadata": {EVIL: EVIL}},
            {"role": "assistant", "content": "", "toolCalls": [call]},
            {"role": "tool", "content": EVIL, "toolCallId": EVIL, "metadata": {"toolName": EVIL}},
            *[{"role": "user", "content": f"{EVIL} {number}"} for number in range(40)],
        ]
        reply = service.client.post(f"/contexts/{context}/messages", json={"messages": messages})
        assert reply.status_code == 201, reply.text
        for path, body in (
            ("facts", {"subject": EVIL, "attribute": EVIL, "value": EVIL}),
            ("prompt", {"budget": 600, "system": EVIL, "recall": {"query": EVIL}, "user": EVIL}),
            ("prompt", {"budget": 700, "recall": {"query": EVIL}, "user": EVIL}),
            ("chat", {"budget": 600, "query": EVIL}),
            ("fork", {"key": f"fork {EVIL}"}),
        ):
            sent = service.client.post(
                f"/contexts/{context}/{path}", json=body, headers={"x-request-id": "req:1"}
            )
            assert sent.status_code < 300, sent.text
        yield service


def test_hostile_texts_are_inert(browser: Browser, hostile: Service) -> None:
    contexts = hostile.get("/contexts")["data"]
    context = next(one["id"] for one in contexts if one["key"] == EVIL)
    fork = next(one["id"] for one in contexts if one["key"] != EVIL)
    old = hostile.get(f"/contexts/{context}/history", limit=1)["data"][0]["id"]
    tab = Watched(browser.new_context(), hostile)
    tab.page.on("dialog", lambda dialog: tab.wrong.append("dialog"))
    sent = hostile.get(f"/contexts/{context}/renders")["data"]
    names = {"old": old, "fork": fork, "render": sent[0]["id"], "broke": sent[1]["id"]}
    for view in (None, "namespace", *VIEWS):
        path = "/" if view is None else f"/s/{context}{view.format(**names)}"
        if view == "namespace":
            path = f"/n/{quote(EVIL, safe='')}?q=img"
        page = tab.go(path)
        assert page.locator("main img, main script, main svg[onload]").count() == 0
        assert page.evaluate("typeof window.hacked") == "undefined"
        if view in (None, "/facts"):
            assert "{{7*7}}" in page.locator("main").inner_text()
    page.goto(f"{hostile.url}/s/{context}/ask")
    page.get_by_label("Question").fill(EVIL)
    page.get_by_role("button", name="Ask").click()
    page.get_by_label("First answer").wait_for()
    assert page.evaluate("typeof window.hacked") == "undefined"
    tab.clean()
    tab.context.close()


# ── long logs, and what changes them ────────────────────────────────────────────────────────────────────────────────


def test_a_long_log_is_loaded_as_it_is_scrolled_and_a_summary_can_be_undone(
    browser: Browser, tmp_path: Path
) -> None:
    with inspecting(f"sqlite:///{tmp_path / 'long.db'}") as service:
        context = service.create(key="long")
        for _ in range(2):
            service.say(context, *[f"Message about the kettle number {number}." for number in range(150)])
        tab = Watched(browser.new_context(), service)
        page = tab.go(f"/s/{context}")
        assert page.locator("li.row").count() == 80
        _scroll(page, rows=300)
        expect(page.locator("li.older")).to_have_count(0)
        assert page.locator("li.row .v").last.text_content() == "v1"
        service.client.post(
            f"/contexts/{context}/compact", json={"preserveRecentCount": 10}, headers={"prefer": "wait=20"}
        )
        page = tab.go(f"/s/{context}/jobs")
        page.get_by_role("button", name=re.compile("Undo")).click()
        page.get_by_text("undone").wait_for()
        assert service.get(f"/contexts/{context}/stats")["data"]["activeMessages"] == 300
        tab.clean()
        tab.context.close()


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────

READ = "context:read,memory:read"


def _key(db: str, tenant: str, *scopes: str) -> str:
    given = ["keys", "create", "--tenant", tenant, "--db", db, "--json", *scopes]
    made = aside(lambda: CliRunner().invoke(app, given))
    return str(json.loads(made.stdout)["secret"])


def test_a_key_is_entered_once_and_shows_what_it_may(browser: Browser, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'log.db'}"
    writer, reader, other = _key(db, "acme"), _key(db, "acme", "--scopes", READ), _key(db, "rival")
    headers = {"authorization": f"Bearer {writer}"}
    with inspecting(db, ServerConfig(auth="required"), headers=headers) as service:
        context = service.talk("The kettle whistles.", key="ours")
        fact = {"subject": "kettle", "attribute": "colour", "value": "magenta"}
        assert service.client.post(f"/contexts/{context}/facts", json=fact).status_code == 200
        tab = Watched(browser.new_context(), service)
        page = tab.go(f"/s/{context}")
        assert page.url.endswith("/sign-in")
        page.get_by_label("Key").fill("acms_nobody_0")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").wait_for()
        tab.wrong.clear()  # the browser notes that the sign-in was refused
        page.get_by_label("Key").fill(reader)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="ours").wait_for()
        (cookie,) = tab.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
        assert reader not in cookie["value"] + page.content()
        page = tab.go(f"/s/{context}/facts")
        page.get_by_role("button", name="Withdraw colour of kettle").click()
        page.get_by_text("the key lacks the scope").wait_for()
        tab.wrong.clear()
        tab.go("/").get_by_role("button", name="Sign out").click()
        page.get_by_label("Key").fill(other)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("no session yet").wait_for()
        assert page.goto(f"{service.url}/s/{context}").status == 404  # type: ignore[union-attr]
        tab.wrong.clear()
        tab.clean()
        tab.context.close()
