"""Animations for web pages, GIF and WebP, of limited size: few colours, few pictures per second, few pixels."""

import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from rvtssm.drawing import draw
from rvtssm.system.atomic_files import atomic_file
from rvtssm.system.user_error import UserError

_MOST_PICTURES = 160  # most pictures in memory; of a longer recording, every second picture is kept, or fewer
_MOST_WIDTH = 640  # pixels
_MOST_FPS = 10.0
_LONGEST_MS = 655_350  # of one picture; GIF has 16 bits for hundredths of a second
_WEBP_QUALITY = 70
_EVENT_LEVELS, _LINE_LEVELS = 10, 3  # colours between the background and the colours of events and of boxes


@contextmanager
def open_animation(path: Path, fps: float, most_bytes: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends RGB pictures (h, w, 3) uint8 to an animation, which plays at their speed.

    Pictures are left out, evenly, until the file is small enough. The file appears when the context ends without error.

    Args:
        path: The file, `.gif` or `.webp`.
        fps: Pictures per second.
        most_bytes: Largest size of the file in bytes.

    Raises:
        UserError: If there are no pictures, or if not even one picture fits.
    """
    is_gif = path.suffix == ".gif"
    period = max(1, round(fps / _MOST_FPS))  # one of this many pictures is kept
    kept: list[Image.Image] = []
    num_seen = 0

    def write(picture: np.ndarray) -> None:
        nonlocal num_seen, period, kept
        if num_seen % period == 0:
            kept.append(_reduced(picture, is_gif))
            if len(kept) > _MOST_PICTURES:
                kept, period = kept[::2], 2 * period
        num_seen += 1

    yield write
    if not kept:
        raise UserError(f"{path}: an animation needs at least one picture")
    while len(data := _encoded(kept, is_gif, 1000 * period / fps)) > most_bytes:
        if len(kept) == 1:
            raise UserError(
                f"{path}: a single picture has {len(data)} bytes; allow more with predict.animation_mb, or draw "
                "smaller pictures with predict.scale"
            )
        kept, period = kept[::2], 2 * period
    with atomic_file(path) as staged:
        staged.write_bytes(data)


def _reduced(picture: np.ndarray, is_gif: bool) -> Image.Image:
    if picture.shape[1] > _MOST_WIDTH:
        height = round(picture.shape[0] * _MOST_WIDTH / picture.shape[1])
        picture = cv2.resize(picture, (_MOST_WIDTH, height), interpolation=cv2.INTER_AREA)
    image = Image.fromarray(np.ascontiguousarray(picture))
    return image.quantize(palette=_PALETTE, dither=Image.Dither.NONE) if is_gif else image


def _encoded(pictures: list[Image.Image], is_gif: bool, duration_ms: float) -> bytes:
    file, unit_ms = io.BytesIO(), 10 if is_gif else 1
    ends_ms = [round(i * duration_ms / unit_ms) * unit_ms for i in range(len(pictures) + 1)]
    shown_ms = [min(end - start, _LONGEST_MS) for start, end in itertools.pairwise(ends_ms)]
    options: dict[str, Any] = {"optimize": False} if is_gif else {"quality": _WEBP_QUALITY}
    options |= {"save_all": True, "append_images": pictures[1:], "duration": shown_ms, "loop": 0}
    pictures[0].save(file, "GIF" if is_gif else "WEBP", **options)
    return file.getvalue()


def _palette() -> Image.Image:
    """Return an image with the palette of all animations: the colours that are drawn, their blends, and a coarse cube.

    All pictures share one palette, so that areas that do not change stay identical and take no bytes.
    """
    exact = (draw.BACKGROUND, draw.BAR, draw.TEXT, draw.GROUND_TRUTH)
    mixed = (np.array(draw.BRIGHTER) + draw.DARKER) / 2
    numbers = {_EVENT_LEVELS: (draw.BRIGHTER, draw.DARKER, mixed), _LINE_LEVELS: draw.CLASS_COLORS}
    blends = [
        np.array(draw.BACKGROUND) * (1 - level / num_levels) + np.array(end) * level / num_levels
        for num_levels, ends in numbers.items()
        for end in ends
        for level in range(1, num_levels + 1)
    ]
    cube = list(itertools.product((0, 85, 170, 255), repeat=3))
    colors = np.concatenate([np.array(exact), blends, np.array(cube)]).round().astype(np.uint8)
    image = Image.new("P", (1, 1))
    image.putpalette(colors.tobytes())
    return image


_PALETTE = _palette()
