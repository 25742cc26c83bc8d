"""Images of a frame camera beside the events, as DSEC has them."""

from pathlib import Path

import cv2
import numpy as np

from rvtssm.system.user_error import UserError

_DSEC_TIMES = "images/timestamps.txt"
_DSEC_IMAGES = "images/left/distorted"  # in the view of the event camera, unlike the rectified images


class Images:
    """Images of a frame camera, in the view of the event camera.

    Args:
        times_us: (N,) int64, times of the images.
        paths: The N files; empty if there are only times.
    """

    def __init__(self, times_us: np.ndarray, paths: list[Path]) -> None:
        self.times_us = times_us  # (N,) int64
        self._paths = paths
        self._shown: tuple[int, np.ndarray] | None = None

    def at(self, t_us: int) -> np.ndarray | None:
        """Return the latest image at or before a time, (h, w, 3) uint8 RGB; None if there is none."""
        i = int(np.searchsorted(self.times_us, t_us, side="right")) - 1
        if i < 0 or not self._paths:
            return None
        if self._shown is None or self._shown[0] != i:
            picture = cv2.imread(str(self._paths[i]), cv2.IMREAD_COLOR)
            if picture is None:
                raise UserError(
                    "pictures.unreadable",
                    f"{self._paths[i]} cannot be read as a picture; copy it again, or move the folder of images away",
                )
            self._shown = i, picture[..., ::-1]
        return self._shown[1]


def dsec_images(sequence: Path) -> Images | None:
    """Return the images with their times. Without images in the view of the events, only times; without times, None."""
    times_path = sequence / _DSEC_TIMES
    if not times_path.is_file():
        return None
    try:
        times_us = np.array(times_path.read_text().split(), np.int64)
    except (ValueError, OverflowError) as error:
        raise UserError(
            "pictures.times_unreadable",
            f"{times_path} is not one time in microseconds per line ({error}); write one per line",
        ) from None
    if np.any(np.diff(times_us) <= 0):
        raise UserError("pictures.times_not_increasing", f"{times_path} has times that do not increase; sort them")
    paths = sorted((sequence / _DSEC_IMAGES).glob("*.png"))
    if paths and len(paths) != len(times_us):
        raise UserError(
            "pictures.number_of_times",
            f"{sequence / _DSEC_IMAGES} holds {len(paths)} images, {times_path} {len(times_us)} times; give each one",
        )
    return Images(times_us, paths)
