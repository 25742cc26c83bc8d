"""Animations play at the speed of their pictures, keep the colours that are drawn and stay below their size."""

import numpy as np
import pytest
from PIL import Image, ImageSequence

from rvtssm.drawing import draw
from rvtssm.drawing.animation import open_animation


def write(path, num_pictures, fps=20.0, most_bytes=1e7, width=64, colors=draw.CLASS_COLORS):
    """Pictures of noise, the left edge of which has the number of the picture, and all colours at the right."""
    rng = np.random.default_rng(0)
    with open_animation(path, fps, most_bytes) as append:
        for i in range(num_pictures):
            picture = rng.integers(0, 256, (48, width, 3), np.uint8)
            picture[:, :8] = i % 256
            for k, color in enumerate(colors):
                picture[6 * k : 6 * k + 6, -16:] = color
            append(picture)
    return path


def pictures_of(path):
    with Image.open(path) as image:
        frames = ((np.asarray(frame.convert("RGB")), frame.info) for frame in ImageSequence.Iterator(image))
        return [(info.get("duration", 0), picture) for picture, info in frames]  # the next frame changes `info`


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
@pytest.mark.parametrize(("fps", "num_pictures"), [(5.0, 6), (20.0, 12), (30.0, 400)])
def test_it_takes_as_long_as_its_pictures(tmp_path, suffix, fps, num_pictures):
    found = pictures_of(write(tmp_path / f"a{suffix}", num_pictures, fps))
    assert len(found) <= 160
    assert sum(duration for duration, _ in found) == pytest.approx(1000 * num_pictures / fps, rel=0.05)
    assert min(duration for duration, _ in found) >= 100


def test_hundredths_of_a_second_are_not_lost(tmp_path):
    """A picture of 83.3 ms takes 80 or 90 ms in a GIF."""
    durations = [duration for duration, _ in pictures_of(write(tmp_path / "a.gif", 12, fps=12.0))]
    assert sum(durations) == 1000 and {*durations} == {80, 90}


def test_the_colours_of_classes_stay(tmp_path):
    ((_, picture),) = pictures_of(write(tmp_path / "a.gif", 1))
    for k, color in enumerate(draw.CLASS_COLORS):
        assert picture[6 * k + 3, -8].tolist() == list(color)


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_pictures_are_left_out_until_it_is_small_enough(tmp_path, suffix):
    whole = write(tmp_path / f"whole{suffix}", 40, fps=10)
    most = whole.stat().st_size // 3
    small = write(tmp_path / f"small{suffix}", 40, fps=10, most_bytes=most)
    assert small.stat().st_size <= most and len(pictures_of(small)) == 10
    assert sum(duration for duration, _ in pictures_of(small)) == 4000


def test_a_picture_lasts_as_long_as_a_gif_can_say_at_most(tmp_path):
    ((duration, _),) = pictures_of(write(tmp_path / "a.gif", 1, fps=0.001))
    assert duration == 655_350


def test_wide_pictures_are_reduced(tmp_path):
    ((_, picture),) = pictures_of(write(tmp_path / "a.gif", 1, width=1280))
    assert picture.shape[:2] == (24, 640)


def test_an_animation_of_nothing_or_without_room_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs at least one picture"):
        write(tmp_path / "a.gif", 0)
    with pytest.raises(ValueError, match=r"a single picture has \d+ bytes; allow more with predict.animation_mb"):
        write(tmp_path / "a.gif", 3, most_bytes=100)
    assert not list(tmp_path.iterdir())
