"""Draw small pictures of sky over sea and land, in which a pixel's colour alone does not determine its label.

    blue|sky white|sky blue|sky
    blue|sea red|boat  green|land

Above the horizon there is sky. Below it, there is sea on one side of a shore, and land on the other. Blue is sky or
sea, green is sea or land, white is anything. Red is a balloon in the sky, a boat in the sea, or a house on land.

Source of the task: Shuai, Zuo, Wang and Wang 2015 (arXiv:1509.00552), which labels the pixels of photographs.
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.picture import Picture
from autobatch.models.data.sentence import Sentence

COLOURS = {
    "sky": ("blue", "blue", "white"),
    "sea": ("blue", "blue", "green", "white"),
    "land": ("green", "green", "brown", "white"),
}
"""Label of a pixel to its equally likely colours."""
THINGS = {"sky": "balloon", "sea": "boat", "land": "house"}
RED = 0.08  # of all pixels


def draw_scenes(n_scenes: int, rng: np.random.Generator, *, min_size: int = 4, max_size: int = 7) -> list[Picture[str]]:
    """Draw pictures with height and width from `min_size` to `max_size` pixels, drawn independently.

    >>> print(draw_scenes(1, np.random.default_rng(5), min_size=2, max_size=4)[0])
    blue|sky red|balloon blue|sky blue|sky
    red|house green|land green|land green|land
    white|land brown|land brown|land brown|land
    green|land green|land brown|land red|house
    """
    return [_draw_scene(rng, min_size, max_size) for _ in range(n_scenes)]


def _draw_scene(rng: np.random.Generator, min_size: int, max_size: int) -> Picture[str]:
    height, width = rng.integers(min_size, max_size, size=2, endpoint=True)
    horizon, shore = rng.integers(1, height), rng.integers(width, endpoint=True)
    sides = rng.permutation(["sea", "land"])
    picture: Picture[str] = Picture([])
    for row in range(height):
        places = ["sky" if row < horizon else str(sides[int(column >= shore)]) for column in range(width)]
        is_red = rng.random(width) < RED
        words = ["red" if red else str(rng.choice(COLOURS[place])) for place, red in zip(places, is_red, strict=True)]
        tags = [THINGS[place] if red else place for place, red in zip(places, is_red, strict=True)]
        picture.rows.append(Sentence(words, tags))
    return picture
