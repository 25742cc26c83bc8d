"""Draws events and boxes, and writes pictures as PNG and videos as MP4, which stands here."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from rvtssm.system.files import atomic_file
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    import av
    from matplotlib.figure import Figure


_BT709 = 1  # the colour matrix of HD video; without it, players guess from the size of the picture
_MOST_PX = 16384  # per side, of H.264
_H264_OPTIONS = {"crf": "20", "preset": "veryfast"}  # this quality keeps changes of single pixels visible


@contextmanager
def open_video(path: Path | str, fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends RGB frames (h, w, 3) uint8, h and w even, to an MP4 in H.264, which browsers play.

    All frames must have the size of the first one. The file appears when the context ends without error.

    Args:
        path: The file.
        fps: Frames per second.

    Raises:
        UserError: If the codec is missing, if frames are too large for it, or if there are no frames.
        OSError: If the file cannot be written completely.
    """
    import av

    with atomic_file(path) as staged, ExitStack() as stack:
        stream: av.VideoStream | None = None
        container: av.container.OutputContainer | None = None

        def write(frame: np.ndarray) -> None:
            nonlocal stream, container
            if stream is None or container is None:
                height, width = frame.shape[:2]
                # The first picture decides the size of the video.
                if max(height, width) > _MOST_PX:
                    found = f"pictures have {width} x {height} pixels, and H.264 allows at most {_MOST_PX} per side"
                    advice = "set a smaller predict.scale"
                    raise UserError("video.form", name=Path(path).name, found=found, advice=advice)
                # The index comes first, so that a browser can play the file while it loads.
                options = {"movflags": "+faststart"}
                container = stack.enter_context(av.open(str(staged), "w", format="mp4", options=options))
                stream = _h264_stream(container, Path(path).name, fps)
                stream.height, stream.width = height, width
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture.reformat(format="yuv420p", dst_colorspace="ITU709")))

        yield write
        if stream is None or container is None:
            raise UserError("video.form", name=path, needed="a video needs at least one frame")
        container.mux(stream.encode())
        stack.close()  # writes the index before the file appears


def _h264_stream(container: av.container.OutputContainer, name: str, fps: float) -> av.VideoStream:
    import av

    if "libx264" not in av.codecs_available:
        found = "this build of PyAV has no H.264 (libx264)"
        raise UserError("video.form", name=name, found=found, advice="leave mp4 out of predict.formats")
    stream = container.add_stream("libx264", Fraction(fps).limit_denominator(1001), options=_H264_OPTIONS)
    stream.pix_fmt = "yuv420p"  # the only pixel format that every browser plays
    context = stream.codec_context
    context.colorspace = context.color_primaries = context.color_trc = _BT709
    return stream


def figure_png(figure: Figure) -> bytes:
    """Return a matplotlib figure as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def to_png(image: np.ndarray) -> bytes:
    """Return the bytes of a PNG file.

    Args:
        image: An RGB picture (h, w, 3) uint8.
    """
    _, data = cv2.imencode(".png", image[..., ::-1])
    return data.tobytes()


def write_png(path: Path | str, image: np.ndarray) -> None:
    """Write a PNG file, which appears when it is complete.

    Args:
        path: The file.
        image: An RGB picture (h, w, 3) uint8.
    """
    with atomic_file(path) as staged:
        staged.write_bytes(to_png(image))
