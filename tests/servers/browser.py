"""Chromium for tests of pages: Debian's, of the system or unpacked into the cache, driven by Playwright."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import debian

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{fonts}</dir><cachedir>{cache}</cachedir>
<alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser without a window until the block ends; `ServerError` names the package where there is none."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="acms-browser-") as folder, sync_playwright() as playwright:
        program, libraries = debian.find_program("usr/lib/chromium/chromium", Path(folder))
        fonts = Path(folder, "fonts.conf")
        fonts.write_text(_FONTS.format(fonts=program.parents[2] / "share" / "fonts", cache=folder), "utf-8")
        browser = playwright.chromium.launch(
            executable_path=program,
            env={**os.environ, **libraries, "FONTCONFIG_FILE": str(fonts)},
            args=["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"],  # the sandbox refuses root
        )
        try:
            yield browser
        finally:
            browser.close()
