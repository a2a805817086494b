"""A service with the pages over the bundled conversation, and one browser for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from acms.inspector import mount_inspector
from acms.server import ServerConfig
from tests.inspector.story import CONFIG, tell
from tests.server.serving import OPEN, Service, serving
from tests.servers.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

T = TypeVar("T")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module: as long as it runs, no test of this thread may have an event loop of its own."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the story."""
    file = tmp_path_factory.mktemp("story") / "story.db"
    aside(lambda: asyncio.run(tell(f"sqlite:///{file}")))
    return file


@pytest.fixture(scope="package")
def inspected(told: Path) -> Iterator[Service]:
    """The story behind a service that needs no key."""
    with inspecting(f"sqlite:///{told}") as running:
        yield running


def inspecting(url: str, config: ServerConfig = OPEN, **given: Any) -> AbstractContextManager[Service]:
    """Serve a store with the pages; see `serving`."""
    return serving(url, config, around=mount_inspector, **{"engine": CONFIG, "embedder": None, **given})


def aside(work: Callable[[], T]) -> T:
    """Do something in another thread: the browser has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


class Watched:
    """A tab whose errors, refused loads and broken policies are noted."""

    def __init__(self, context: BrowserContext, service: Service) -> None:
        self.context = context
        self.service = service
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.page.on(
            "console",
            lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.add_init_script(
            "window.broken = []; addEventListener('securitypolicyviolation', e => broken.push(e.violatedDirective))"
        )

    def go(self, path: str) -> Page:
        self.page.goto(self.service.url + path)
        return self.page

    def clean(self) -> None:
        """Nothing was refused by the policy, and nothing broke."""
        assert self.page.evaluate("window.broken") == []
        assert self.wrong == []


@pytest.fixture
def tab(browser: Browser, inspected: Service) -> Iterator[Watched]:
    """A tab on the story; the test fails when something broke in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(60_000)
    watched = Watched(context, inspected)
    yield watched
    watched.clean()
    context.close()
