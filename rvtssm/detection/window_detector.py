"""What is computed for the windows of one stream: their events become frames, boxes and results."""

import functools
import math
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rvtssm.detection.packets import KeptEvents
from rvtssm.detection.tiles import Tiles, tile_size
from rvtssm.detection.track_objects import Tracker
from rvtssm.detection.window_results import WindowResult
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, detector_for_frame, downsample_by_size, reduced_hw
from rvtssm.models.postprocess import to_sensor
from rvtssm.models.streams import Streams
from rvtssm.records import Detections, Windows, WindowSettings
from rvtssm.system.user_error import UserError

STORED = ("weights", "tracks", "streams", "sensor_hw", "pending", "is_first", "was_silent")  # what a computation holds
_STEPS_PER_CALL = 16  # steps of a gap per call of a detector whose layers have no step to rescale


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
            "tiles": self.tiles,
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
        if stored.get("tiles", self.tiles) != self.tiles:  # states of earlier versions do not say it
            found = f"the stored state is of tiles={stored['tiles']}, and this detector has tiles={self.tiles}"
            raise UserError("memory.other_state", found=found, advice="give both the same tiles=")
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


class TiledDetector:
    """A detector with its state, one step or several at a time. Each tile is a stream.

    Args:
        checkpoint: The weights.
        tiles: The tiles of a frame, often a single one.
        downsample: Side of a pixel of the frame in pixels of the sensor.
        config: Post-processing.
    """

    def __init__(
        self, checkpoint: LoadedCheckpoint, tiles: Tiles, downsample: int, config: PostprocessConfig | None
    ) -> None:
        self.tiles = tiles
        self.downsample = downsample
        self.config = config or PostprocessConfig()
        detector = detector_for_frame(checkpoint, *tiles.tile_hw)
        stride_us = checkpoint.windows.stride_us
        self.streams = Streams(detector, stride_us, checkpoint.model_config.memory_chunk)
        self.is_first = True  # whether the next step is the first of a stream

    def forget(self) -> None:
        """Begin a new stream."""
        self.streams.load_state_dict({"steps": {}})
        self.is_first = True

    def detect(
        self, frames: np.ndarray, dt_us: npt.NDArray[Any], indices: npt.NDArray[np.int64], ends_us: list[int]
    ) -> list[Detections]:
        """Run L steps, and return the detections, in pixels of the sensor, of those at `indices`.

        Args:
            frames: The frames (L, C, H, W).
            dt_us: The time of each step (L,), microseconds.
            indices: Steps (M,).
            ends_us: When these M steps end, microseconds.
        """
        # Every tile is a stream: L steps of N streams.
        num = len(self.tiles)
        index = np.stack([np.repeat(indices, num), np.tile(np.arange(num), len(indices))], axis=1)
        predictions = self.streams.push(
            torch.from_numpy(self.tiles.cut(frames)),
            torch.from_numpy(np.repeat(dt_us[:, None], num, axis=1)),
            torch.from_numpy(index),
            range(num),
            [self.is_first] * num,
        )
        self.is_first = False
        decoded = self.streams.decoded(predictions, np.repeat(ends_us, num).tolist(), self.config)
        detections = [to_sensor(tile, *self.tiles.tile_hw, self.downsample) for tile in decoded]
        by_step = (detections[start : start + num] for start in range(0, len(detections), num))
        return [self.tiles.merged(tiles, self.downsample, self.config.max_detections) for tiles in by_step]

    def detect_after_gap(self, frame: np.ndarray, num_windows: int, stride_us: float, end_us: int) -> Detections:
        """Return the detections after empty windows. The state takes steps of 1, 1, 2, 4, ... windows.

        A single long step would turn around the modes of the bilinear rule. Layers without a step to rescale take one
        step per window.

        Args:
            frame: A frame of zeros (C, H, W).
            num_windows: Number of windows.
            stride_us: Time of a window, microseconds.
            end_us: When the last one ends, microseconds.
        """
        # The steps, cut into calls; only the last one needs boxes.
        strides = np.ones(num_windows)
        if self.streams.detector.has_step_to_rescale:
            strides = gap_steps(num_windows)
        *before, last = np.split(strides, range(_STEPS_PER_CALL, len(strides), _STEPS_PER_CALL))
        for steps in before:
            self.detect(np.stack([frame] * len(steps)), steps * stride_us, np.empty(0, np.int64), [])
        frames = np.stack([frame] * len(last))
        index = np.array([len(last) - 1])
        (detections,) = self.detect(frames, last * stride_us, index, [end_us])
        return detections


def gap_steps(num_windows: int) -> npt.NDArray[np.float64]:
    """Return the steps over a gap of empty windows, in windows: 1, 1, 2, 4, ..., and the rest."""
    doubled = [1.0] + [2.0**power for power in range(int(math.log2(num_windows)))]
    rest = num_windows - sum(doubled)
    return np.array(doubled + [rest] * (rest > 0))


def in_pixels(size_hw: Sequence[int]) -> str:
    """Return a size as people write it, width before height."""
    height, width = size_hw
    return f"{width}x{height}"
