"""Pictures of the pages: written for the documentation with ACMS_SCREENSHOTS=docs/images, and compared with it."""

from __future__ import annotations

import os
from base64 import b64encode
from typing import TYPE_CHECKING

from tests.conftest import ROOT
from tests.inspector.conftest import Watched

if TYPE_CHECKING:
    from playwright.sync_api import Page

ALIKE = 3.0
"""How much brightness two pictures may differ by, of 255, over cells of 40 pixels: times of the day and fonts do."""
APART = """async (pictures) => {
  const cells = await Promise.all(pictures.map(async (picture) => {
    const image = new Image();
    image.src = "data:image/png;base64," + picture;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [32, 21];
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, 32, 21);
    return context.getImageData(0, 0, 32, 21).data;
  }));
  return cells[0].reduce((sum, value, at) => sum + Math.abs(value - cells[1][at]), 0) / (cells[0].length * 3 / 4);
}"""


def save_picture(page: Page, name: str) -> None:
    """Write the picture of a page if the environment names a folder for it."""
    folder = os.environ.get("ACMS_SCREENSHOTS")
    if folder:
        page.screenshot(path=ROOT / folder / f"inspector-{name}.png")


def encode_picture(page: Page) -> str:
    """Return the picture of a page in base64."""
    return b64encode(page.screenshot()).decode()


def read_picture(name: str) -> str:
    """Return a picture of the documentation in base64."""
    return b64encode((ROOT / "docs" / "images" / f"inspector-{name}.png").read_bytes()).decode()


def measure_difference(blank: Page, first: str, second: str) -> float:
    """Return how much brightness two pictures differ by; `blank` is a page without a policy against pictures."""
    return float(blank.evaluate(APART, [first, second]))


def find_violations(tab: Watched, options: dict[str, object] | None = None) -> list[str]:
    """Return what axe finds on the page of a tab."""
    run = "(options) => axe.run(document, options).then((found) => found.violations)"
    found = tab.page.evaluate(run, {"resultTypes": ["violations"], **(options or {})})
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in found]


CLIPPED = """() => [...document.querySelectorAll("main *, .tabs a")].filter((one) => {
  const box = one.getBoundingClientRect();
  if (!box.width || one.closest("svg, .hidden")) return false;
  return box.right > innerWidth + 1 && !one.closest("pre");
}).slice(0, 3).map((one) => one.outerHTML.slice(0, 120))"""


def find_clipped(tab: Watched, width: int) -> list[str]:
    """Return elements that reach beyond the right edge of a narrow window."""
    size = tab.page.viewport_size
    assert size is not None
    tab.page.set_viewport_size({"width": width, "height": 900})
    clipped = tab.page.evaluate(CLIPPED)
    tab.page.set_viewport_size(size)
    return list(clipped)
