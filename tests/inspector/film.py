"""The film of the documentation: its pictures of the pages one after the other, each under a sentence.

`python -m tests.inspector.film` writes it anew; do so after the pictures changed.
"""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from tests.conftest import ROOT

IMAGES = ROOT / "docs" / "images"
FILM = IMAGES / "inspector.webp"
SENTENCES = {
    "timeline": "The timeline: every entry of a session, at any of its versions.",
    "sent": "What the model saw: the request as the provider received it.",
    "blocks": "The same request as blocks, with the session, the rule and the score behind each.",
    "why": "Why not this one? The rule that left a message out, and what would bring it in.",
    "diff": "Where the cache broke between two requests, and what that cost.",
    "compare": "Any two requests side by side.",
    "ask": "Ask: what a recall finds, by scope, by filters, with and without meaning.",
    "namespace": "A namespace: its sessions, and the facts of each.",
    "facts": "The facts about a subject, with their evidence.",
    "jobs": "Jobs and summaries, and the messages that a summary replaces.",
    "cost": "The cost of each request: cached, paid, and paid because of a break.",
    "forks": "The forks of a session, and how they differ.",
}
"""What the film says under each picture, in its order."""
MILLISECONDS = 3_000
"""How long a picture stays: enough to read its sentence twice."""
SIZE = (960, 645)
"""Pixels of a picture in the film: three quarters of those of the page."""
BAND = 44
"""Pixels of the band under a picture, for its sentence."""


def draw_frame(name: str) -> Image.Image:
    """Return a picture of the documentation with its sentence under it."""
    frame = Image.new("RGB", (SIZE[0], SIZE[1] + BAND), "#1b1f24")
    with Image.open(IMAGES / f"inspector-{name}.png") as picture:
        frame.paste(picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS), (0, 0))
    middle = (SIZE[0] // 2, SIZE[1] + BAND // 2)
    font = ImageFont.load_default(size=20)
    ImageDraw.Draw(frame).text(middle, SENTENCES[name], fill="white", font=font, anchor="mm")
    return frame


def write_film() -> None:
    """Write the film into the folder of the pictures."""
    first, *others = map(draw_frame, SENTENCES)
    first.save(FILM, save_all=True, append_images=others, duration=MILLISECONDS, loop=0, quality=70, method=6)


if __name__ == "__main__":
    write_film()
