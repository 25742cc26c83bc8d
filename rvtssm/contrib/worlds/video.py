"""Frames of a video or a folder of pictures as linear light, and frames in between, for the simulated camera.

Between two frames, optical flow (Kroeger et al., DIS, ECCV 2016) in both directions moves the pixels of both frames.
Where the two flows contradict each other, a pixel is hidden in one of the frames, and the other frame gets more weight.
"""

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from rvtssm.readers.header import LARGEST_SIDE
from rvtssm.system.files import check_name
from rvtssm.system.user_error import UserError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".ppm", ".webp")
_MOST_BETWEEN = 100  # most frames between two frames of the video; faster motion jumps
_DOUBT_PX = 1.0  # difference of the two flows at which a pixel has half its weight


@dataclass(frozen=True)
class VideoSource:
    """A readable video."""

    path: Path
    fps: float  # mean rate of the frames in Hz
    times_us: tuple[int, ...]  # time of each frame that can be read in microseconds, from 0 for the first one
    stated_frames: int  # number of frames according to the file, which has fewer if it was cut
    height: int
    width: int
    names: tuple[str, ...]  # names of the pictures of a folder, without suffix; empty for a video file
    is_linear: bool | None  # whether pixel values are proportional to light; None: no with 8 bits (sRGB), else yes

    def __post_init__(self) -> None:
        for side in (self.height, self.width):
            # Of fewer pixels, OpenCV computes no optical flow, or crashes; files of events hold no more.
            if not 16 <= side <= LARGEST_SIDE:
                found, needed = f"a side of {side} pixels", f"16 to {LARGEST_SIDE} per side"
                raise UserError("file.content", name=self.path, found=found, needed=needed)

    @property
    def num_frames(self) -> int:
        """The number of frames that can be read."""
        return len(self.times_us)

    def pictures(self) -> Iterator[np.ndarray]:
        """Yield the frames in order, (H, W, 3) blue, green, red, as they are stored.

        Raises:
            UserError: If a picture cannot be read or has another size.
        """
        if self.names:
            for path in picture_files(self.path):
                yield self._checked(path, read_picture(path))
            return
        capture = cv2.VideoCapture(str(self.path))
        try:
            while (answer := capture.read())[0]:
                yield self._checked(self.path, answer[1])
        finally:
            capture.release()

    def frames(self) -> Iterator[np.ndarray]:
        """Yield the frames in order, (H, W) float32 from 0 to 1, proportional to light."""
        return map(self._light, self.pictures())

    def _checked(self, path: Path, frame: np.ndarray) -> np.ndarray:
        if frame.shape[:2] != (self.height, self.width):
            size = f"{frame.shape[1]}x{frame.shape[0]}"
            raise UserError(
                "file.content", name=path, found=f"{size} pixels, and the first frame has {self.width}x{self.height}",
                advice="use one size",
            )  # fmt: skip
        return frame

    def _light(self, frame: np.ndarray) -> np.ndarray:
        if frame.dtype == np.uint8:
            values, is_linear = frame.astype(np.float32) / 255, bool(self.is_linear)
        elif frame.dtype == np.uint16:
            values, is_linear = frame.astype(np.float32) / 65535, self.is_linear is not False
        else:
            values, is_linear = np.clip(frame.astype(np.float32), 0, 1), self.is_linear is not False
        if not is_linear:  # the curve of sRGB, IEC 61966-2-1
            values = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return values @ np.array((0.0722, 0.7152, 0.2126), np.float32)  # blue, green, red: ITU-R BT.709


def decoded(coded: bytes, flags: int) -> np.ndarray | None:
    """Return a picture from the content of a file, with flags of OpenCV; None if it cannot be read to its end."""
    # OpenCV fills a JPEG that ends before its last marker with grey.
    is_cut = coded.startswith(b"\xff\xd8") and coded.rfind(b"\xff\xd9") < coded.rfind(b"\xff\xda")
    if is_cut or not coded:
        return None
    try:
        return cv2.imdecode(np.frombuffer(coded, np.uint8), flags)
    except cv2.error as error:  # a size that is impossible, or no memory
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError(error.err) from None
        return None


def read_picture(path: Path, flags: int = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR) -> np.ndarray:
    """Return a picture (H, W, 3), by default with the bits that it has; raise UserError if it cannot be read."""
    check_name(path.name)
    picture = decoded(path.read_bytes(), flags)
    if picture is None:
        raise UserError("file.damaged", name=path, found="not a picture", advice="copy it again or remove it")
    return picture


def files_in(folder: Path, *suffixes: str) -> list[Path]:
    """Return the files with one of the suffixes, in any case, in the order of their names, see `by_number`.

    `._NAME` is left out: macOS keeps the properties of NAME in such a file.
    """
    paths = (path for path in folder.iterdir() if path.suffix.lower() in suffixes and not path.name.startswith("._"))
    return sorted(paths, key=lambda path: (by_number(path.name), path.name))


def picture_files(folder: Path) -> list[Path]:
    """Return the pictures in a folder, in the order of their names."""
    return files_in(folder, *PICTURES)


def by_number(name: str) -> list[str | int]:
    """Return a key that sorts names by the numbers in them: `frame2` comes before `frame10`."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name))]


def open_video(path: Path | str, fps: float | None, is_linear: bool | None) -> VideoSource:
    """Return a video file or a folder of pictures as a source.

    Args:
        path: The file or folder.
        fps: Frames per second; None means the rate in the video file.
        is_linear: Whether pixel values are proportional to light; None means no with 8 bits (sRGB), else yes.

    Raises:
        UserError: If no frame can be read, or if the rate is not known or impossible.
    """
    path = Path(path)
    if fps is not None and not 0 < fps < 1e6:
        raise UserError(
            "setting.out_of_range", name="simulate.fps", found=f"{fps:g}",
            needed="frames per second, above 0 and below 1000000",
        )  # fmt: skip
    if path.is_dir():
        return _open_folder(path, fps, is_linear)
    if not path.is_file():
        raise UserError(
            "file.missing", name=path, found="does not exist", needed="a video file or a folder of pictures"
        )
    source = _open_file(path, fps, is_linear)
    if source.num_frames < source.stated_frames:
        warnings.warn(
            f"{path} ends after frame {source.num_frames} of {source.stated_frames}; only these can be read",
            stacklevel=2,
        )
    return source


def _open_folder(path: Path, fps: float | None, is_linear: bool | None) -> VideoSource:
    files = picture_files(path)
    if len(files) < 2:
        raise UserError(
            "file.content", name=path, found=f"{len(files)} pictures",
            needed=f"at least two files that end in {', '.join(PICTURES)}",
        )  # fmt: skip
    if fps is None:
        raise UserError(
            "setting.missing", name="fps=HZ", needed=f"the number of pictures per second; {path} does not say it"
        )
    height, width = read_picture(files[0]).shape[:2]
    names = tuple(file.stem for file in files)
    return VideoSource(path, fps, _even_times(len(files), fps), len(files), height, width, names, is_linear)


def _open_file(path: Path, fps: float | None, is_linear: bool | None) -> VideoSource:
    """Read a video once for the times of its frames. A rate that is given replaces these times."""
    times_ms: list[float] = []
    capture = cv2.VideoCapture(str(path))
    try:
        is_read, first = capture.read()
        if not is_read or first is None:
            raise UserError(
                "file.unreadable", name=path, found="not a video that can be read, or without a frame",
                advice="convert it, for example to MP4",
            )  # fmt: skip
        while is_read:
            times_ms.append(capture.get(cv2.CAP_PROP_POS_MSEC))
            is_read = capture.grab()
        stated_hz, stated = capture.get(cv2.CAP_PROP_FPS), int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    finally:
        capture.release()
    if len(times_ms) < 2:
        raise UserError("file.content", name=path, found="a single frame that can be read", needed="two or more")
    times_us = tuple(round(1e3 * (time_ms - times_ms[0])) for time_ms in times_ms)
    if fps or min(np.diff(times_us)) <= 0:  # the file has no times, or wrong ones
        rate = fps or stated_hz
        if not 0 < rate < 1e6:
            raise UserError(
                "setting.missing", name="fps=HZ", needed=f"the number of pictures per second; {path} does not say it"
            )
        times_us = _even_times(len(times_ms), rate)
    mean_hz = fps or 1e6 * (len(times_us) - 1) / times_us[-1]
    height, width = first.shape[:2]
    return VideoSource(path, mean_hz, times_us, max(stated, 0), height, width, (), is_linear)


def _even_times(count: int, fps: float) -> tuple[int, ...]:
    return tuple(round(1e6 * index / fps) for index in range(count))


def dense_frames(source: VideoSource, max_motion_px: float) -> Iterator[tuple[int, np.ndarray]]:
    """Yield times in microseconds and light (H, W): the frames of a video, and as many in between as its motion needs.

    Only two frames of the video are in memory at a time.

    Args:
        source: The video.
        max_motion_px: Largest motion from one frame to the next in pixels. Motion that would need more than
            _MOST_BETWEEN frames in between is faster.
    """
    flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    before: np.ndarray | None = None
    for index, after in enumerate(source.frames()):
        t_us = source.times_us[index]
        if before is not None:
            start_us = source.times_us[index - 1]
            for share, frame in between(before, after, max_motion_px, flow, t_us - start_us - 1):
                yield round(start_us + share * (t_us - start_us)), frame
        yield t_us, after
        before = after


def between(
    before: np.ndarray, after: np.ndarray, max_motion_px: float, flow: cv2.DISOpticalFlow, most: int
) -> Iterator[tuple[float, np.ndarray]]:
    """Yield the frames between two frames, each with its time as a share of the step.

    Args:
        before: Light (H, W) of the first frame.
        after: Light (H, W) of the second frame.
        max_motion_px: Largest motion from one frame to the next in pixels.
        flow: Computes optical flow.
        most: Largest number of frames in between.
    """
    if np.array_equal(before, after):
        return
    one, two = _for_flow(before), _for_flow(after)
    empty = np.zeros((*before.shape, 2), np.float32)
    forth, back = np.asarray(flow.calc(one, two, empty.copy())), np.asarray(flow.calc(two, one, empty))
    fastest = max(float(np.abs(f).max()) for f in (forth, back))
    count = min(math.ceil(fastest / max_motion_px), _MOST_BETWEEN, most + 1)
    if count < 2:
        return
    y, x = np.mgrid[: before.shape[0], : before.shape[1]].astype(np.float32)
    doubts = _doubt(forth, back, x, y), _doubt(back, forth, x, y)
    for k in range(1, count):
        a = k / count
        # Flow from the time in between to both frames: Jiang et al., Super SloMo, CVPR 2018, eq. 4.
        to_before, to_after = a * a * back - a * (1 - a) * forth, (1 - a) ** 2 * forth - a * (1 - a) * back
        parts, weights = [], []
        for frame, doubt, move, share in ((before, doubts[0], to_before, 1 - a), (after, doubts[1], to_after, a)):
            at = x + move[..., 0], y + move[..., 1]
            parts.append(cv2.remap(frame, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
            trust = 1 / (
                1 + (cv2.remap(doubt, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE) / _DOUBT_PX) ** 4
            )
            weights.append(share * (trust + 1e-3))
        yield a, (parts[0] * weights[0] + parts[1] * weights[1]) / (weights[0] + weights[1])


def _for_flow(light: np.ndarray) -> np.ndarray:
    """Return an 8-bit picture in which contrasts in dark and in bright areas count alike."""
    return (255 * np.sqrt(np.clip(light, 0, 1))).astype(np.uint8)


def _doubt(flow: np.ndarray, back: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return how far from its place a pixel ends after it has followed the flow and the flow back, (H, W) float32."""
    at = x + flow[..., 0], y + flow[..., 1]
    returned = flow + cv2.remap(back, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.hypot(returned[..., 0], returned[..., 1])
