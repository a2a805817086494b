"""The film of the documentation shows its pictures as they are now."""

from __future__ import annotations

from PIL import Image, ImageChops, ImageSequence, ImageStat

from tests.inspector.film import FILM, IMAGES, SENTENCES, draw_frame

ALIKE = 3.0
"""How much brightness a frame and its picture may differ by, of 255: the film is compressed with a loss."""


def test_every_picture_is_in_the_film_in_its_present_form() -> None:
    names = {file.stem.removeprefix("inspector-") for file in IMAGES.glob("inspector-*.png")}
    assert names == set(SENTENCES)
    with Image.open(FILM) as film:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(film)]
    assert len(frames) == len(SENTENCES)
    for frame, name in zip(frames, SENTENCES, strict=True):
        difference = ImageStat.Stat(ImageChops.difference(frame, draw_frame(name)).convert("L"))
        assert difference.mean[0] <= ALIKE, f"{name}: write the film anew with python -m tests.inspector.film"
