"""The detector over consecutive windows of one recording."""

import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.frame_size import detector_for_frame
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import Streams
from rvtssm.records import Detections, Windows


def open_stream(checkpoint: LoadedCheckpoint, frame_hw: tuple[int, int]) -> Streams:
    """Return a detector for one recording with frames of a height and width, in pixels."""
    detector = detector_for_frame(checkpoint, *frame_hw)
    return Streams(detector, checkpoint.windows.stride_us, checkpoint.model_config.memory_chunk)


def detect(
    stream: Streams,
    counted: Iterable[tuple[Windows, np.ndarray]],
    stride_us: float | None,
    config: PostprocessConfig,
    downsample: int = 1,
) -> Iterator[tuple[np.ndarray, Detections, int, float]]:
    """Run the detector over windows in order, and carry its state through all steps.

    Args:
        stream: From `open_stream`. A state that it has is forgotten.
        counted: Windows with their frames (n, C, h, w), in order.
        stride_us: Step of the detector; None uses the windows' own steps, which are rounded to whole microseconds.
        config: Post-processing.
        downsample: The factor from frame pixels to sensor pixels.

    Yields:
        Frame, detections in sensor pixels, start in microseconds, and computing time in seconds, for every window.
    """
    is_first = True
    for windows, hists in counted:
        began = time.perf_counter()
        places = torch.arange(len(windows))
        dt_us = windows.dt_us if stride_us is None else np.full(len(windows), stride_us)
        found = stream.detect(
            torch.from_numpy(hists)[:, None],
            torch.from_numpy(dt_us)[:, None],
            torch.stack([places, torch.zeros_like(places)], dim=1),
            slots=[0],
            is_first=[is_first],
            t_us=windows.ends_us.tolist(),
            config=config,
            downsample=downsample,
        )
        seconds = (time.perf_counter() - began) / len(windows)
        for hist, frame, start_us in zip(hists, found, windows.bounds_us[:, 0].tolist(), strict=True):
            yield hist, frame, start_us, seconds
        is_first = False
