"""What is computed for the windows of one stream: their events become frames, boxes and results."""

import functools
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rvtssm.detection.packets import KeptEvents
from rvtssm.detection.tiles import TiledDetector, Tiles, tile_size
from rvtssm.detection.track_objects import Tracker
from rvtssm.detection.window_results import WindowResult
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, downsample_by_size, reduced_hw
from rvtssm.records import Detections, Windows, WindowSettings
from rvtssm.system.user_error import UserError

STORED = ("weights", "tracks", "streams", "sensor_hw", "pending", "is_first", "was_silent")  # what a computation holds


class WindowDetector:
    """Counts the events of windows and finds objects in them. `StreamDetector` decides which windows these are.

    Args:
        checkpoint: The weights.
        sensor_hw: Height and width of the sensor, pixels.
        downsample: As in `StreamDetector`.
        tiles: As in `StreamDetector`.
        config: Post-processing.
        tracker: Numbers the objects; None does not.
        keeps_events: Keep the events of the last windows.
        keeps_frames: Give results the frame that the detector saw.
    """

    def __init__(
        self,
        checkpoint: LoadedCheckpoint,
        sensor_hw: tuple[int, int],
        downsample: int | None,
        tiles: str | None,
        config: PostprocessConfig | None,
        tracker: Tracker | None,
        keeps_events: bool,
        keeps_frames: bool,
    ) -> None:
        self.checkpoint = checkpoint
        self.sensor_hw = sensor_hw
        self.downsample = int(downsample or downsample_by_size(checkpoint, *tile_size(sensor_hw, tiles)))
        self.frame_hw = reduced_hw(*sensor_hw, self.downsample)
        self.tiles = tiles
        self.tracker = tracker
        self.keeps_frames = keeps_frames
        self._kept = KeptEvents() if keeps_events else None
        self._network = TiledDetector(checkpoint, Tiles.of(tiles, self.frame_hw), self.downsample, config)

    @property
    def config(self) -> PostprocessConfig:
        """Which boxes count as detections. A new value applies from the next window on."""
        return self._network.config

    @config.setter
    def config(self, config: PostprocessConfig) -> None:
        self._network.config = config

    def _begin(self, windows: WindowSettings) -> None:
        """Forget all events, the state and the tracks, and count windows with these settings from now on."""
        self._network.forget()
        pixels = frame_pixels(*self.sensor_hw, self.downsample, reduce=windows.reduce)
        self._counter = FrameCounter(windows, pixels)
        self._was_silent = False  # whether the last frame was all zero; only looked at for surfaces
        if self._kept is not None:
            self._kept.forget()
        if self.tracker is not None:
            self.tracker.reset()

    def _compute(self, windows: Windows, dt_us: npt.NDArray[Any]) -> Iterator[WindowResult]:
        """Yield the results of consecutive windows, computed in one call."""
        began_s = time.perf_counter()
        num_windows = len(windows)
        frames = self._counter.take(windows.bounds_us)
        if self._counter.settings.warmup_us:
            self._was_silent = not frames[-1].any()
        detections = self._network.detect(frames, dt_us, np.arange(num_windows), windows.ends_us.tolist())
        seconds = (time.perf_counter() - began_s) / num_windows
        starts_us = windows.bounds_us[:, 0].tolist()
        for frame, boxes, start_us, step_us in zip(frames, detections, starts_us, dt_us.tolist(), strict=True):
            yield self._result(boxes, start_us, seconds, step_us, frame)

    def _compute_after_gap(self, num_windows: int, start_us: int, end_us: int, stride_us: float) -> WindowResult:
        """Return the result of the last of empty windows, [start_us, end_us); the state sees zeros for the gap."""
        began_s = time.perf_counter()
        frame = np.zeros(self._counter.frame_shape, np.uint8)
        detections = self._network.detect_after_gap(frame, num_windows, stride_us, end_us)
        return self._result(detections, start_us, time.perf_counter() - began_s, num_windows * stride_us, frame)

    def _result(
        self, detections: Detections, start_us: int, seconds: float, step_us: float, frame: np.ndarray
    ) -> WindowResult:
        read = None
        if self._kept is not None:
            self._kept.note(start_us)
            read = self._kept.between
        if self.tracker is not None:
            detections = self.tracker.update(detections)
        return WindowResult(
            detections,
            start_us,
            self.sensor_hw,
            self.checkpoint.spec,
            self.checkpoint.note,
            read,
            seconds=seconds,
            step_us=step_us,
            frame=frame if self.keeps_frames else None,
        )

    def _state(self) -> dict[str, Any]:
        """Return STORED by name, as plain data and tensors."""
        return {
            "weights": self._weights_digest,
            "tracks": None if self.tracker is None else self.tracker.state_dict(),
            "streams": self._network.streams.state_dict(),
            "sensor_hw": list(self.sensor_hw),
            "pending": [*map(torch.from_numpy, self._counter.state())],
            "is_first": self._network.is_first,
            "was_silent": self._was_silent,
        }

    def _load_state(self, stored: dict[str, Any]) -> None:
        """Continue from STORED. Raise UserError if the sensor, the weights or the detector differs."""
        if stored["weights"] != self._weights_digest:
            found = "the stored state was computed with other weights"
            raise UserError("memory.other_state", found=found, advice="load those, or begin a new stream")
        if (stored["tracks"] is None) != (self.tracker is None):
            found = "the stored state and this detector differ in whether objects are tracked"
            raise UserError("memory.other_state", found=found, advice="give both the same track=")
        if list(stored["sensor_hw"]) != list(self.sensor_hw):
            found = f"the stored state is for a sensor of {in_pixels(stored['sensor_hw'])} pixels"
            needed = f"this detector has {in_pixels(self.sensor_hw)}"
            raise UserError("memory.other_state", found=found, needed=needed, advice="use the same height and width")
        self._network.streams.load_state_dict(stored["streams"])
        self._counter.load_state(tuple(array.numpy() for array in stored["pending"]))
        self._network.is_first = stored["is_first"]
        self._was_silent = stored["was_silent"]
        if self.tracker is not None:
            self.tracker.load_state_dict(stored["tracks"])

    @functools.cached_property
    def _weights_digest(self) -> int:
        """A number that other weights hardly have, and that the same weights have in each precision."""
        digest = zlib.crc32(repr(self.checkpoint.to_dict()).encode())
        for tensor in self.checkpoint.detector.state_dict().values():
            if tensor.is_floating_point():  # rounded as `set_precision` does; NumPy has no bfloat16
                tensor = tensor.to(torch.bfloat16).view(torch.int16)
            digest = zlib.crc32(tensor.detach().cpu().contiguous().numpy(), digest)
        return digest


def in_pixels(size_hw: Sequence[int]) -> str:
    """Return a size as people write it, width before height."""
    height, width = size_hw
    return f"{width}x{height}"
