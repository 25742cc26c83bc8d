"""What a checkpoint says about itself, which is enough to build its detector, also for sensors of another size.

Padding and attention windows depend on the size of a frame, weights do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rvtssm.models import CUSTOM, PRESETS, ModelConfig, PostprocessConfig
from rvtssm.models.detector import Detector, build_detector, set_precision
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.records.settings import SMALLEST_SIDE, check_window
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.temporal_layers import with_layer_defaults
from rvtssm.system.limits import check_note, check_number, field_names, values_of
from rvtssm.system.user_error import UserError

_EARLIER = "rtdetr_"  # how keys of files began that are `head_options` now
FORMAT_VERSION = 1
_FEWEST_PER_TRAINED = 4  # with fewer windows per second than a quarter of those in training, boxes were wrong


@dataclass
class CheckpointMeta:
    """The description in a checkpoint. `to_dict` gives its plain form, which is stored under the key `rvtssm`."""

    spec: DatasetSpec
    model_config: ModelConfig
    temporal_config: TemporalConfig
    windows: WindowSettings
    raw_dir: str | None = None  # folder of raw recordings in training; the default of an evaluation
    prepared_dir: str | None = None  # folder of prepared sequences in training; the default of an evaluation
    note: str | None = None  # shown with the boxes of these weights, such as "trained on simulation only"
    window_lengths_us: tuple[int, ...] = ()  # lengths of training windows, ascending; (): the length in `windows`
    scored_as: PostprocessConfig = field(default_factory=PostprocessConfig)  # how detections were scored after training

    def __post_init__(self) -> None:
        self.scored_as = self.scored_as.with_score(None)
        self.temporal_config = with_layer_defaults(self.temporal_config)
        self.window_lengths_us = tuple(sorted(set(self.window_lengths_us))) or (self.windows.nominal_length_us,)
        if self.window_lengths_us[0] < 1:
            found = list(self.window_lengths_us)
            raise UserError("setting.out_of_range", name="window_lengths_us", found=found, needed="each is at least 1")

    @property
    def may_shrink_windows(self) -> bool:
        """Whether windows may be as short as the stride when these weights run at a higher rate.

        This is True if training used windows of a fifth of their usual length or shorter. It is also True for surfaces,
        which depend only on the end of a window.
        """
        return self.windows.warmup_us > 0 or 5 * self.window_lengths_us[0] <= self.windows.nominal_length_us

    def windows_at(
        self, hz: float | None = None, window: str | None = None, reduce: str | None = None
    ) -> WindowSettings:
        """Return how events become frames at a rate. At the rate of the training, this is the same as in training.

        Args:
            hz: The rate in Hz; None means the rate of the training.
            window: Length of the windows at another rate: `slide` keeps the length of the training, `shrink` takes the
                stride. None takes `shrink` if these weights may shrink their windows and training had windows as short
                as the stride, otherwise `slide`.
            reduce: How a square of the sensor becomes a pixel, one of REDUCTIONS; None means as in training.

        Raises:
            UserError: If an argument is out of range.
        """
        check_window("window", window)
        windows = self.windows
        if reduce is not None:
            windows = replace(windows, reduce=reduce)
        if hz is not None:
            check_number("hz", hz, 1e-3, 1e6)
        if hz is None or math.isclose(hz, self.windows.hz):
            return windows
        shrunk = windows.at_rate(hz, "shrink")
        if window is None and self.may_shrink_windows and self._has_trained(shrunk):
            window = "shrink"
        if window == "shrink":
            return shrunk
        return windows.at_rate(hz, window or "slide")

    def _has_trained(self, settings: WindowSettings) -> bool:
        """Return whether the length of the windows lies within the lengths used in training."""
        shortest_us = self.window_lengths_us[0]
        longest_us = self.window_lengths_us[-1]
        return settings.warmup_us > 0 or shortest_us <= settings.nominal_length_us <= longest_us

    def warn_of_windows(self, settings: WindowSettings) -> str | None:
        """Return a warning if windows are shorter, longer or much rarer than in training, which costs accuracy.

        Args:
            settings: How events become frames.
        """
        if settings.hz < self.windows.hz / _FEWEST_PER_TRAINED:
            return (
                f"{settings.hz:g} Hz is less than a quarter of the rate of training, {self.windows.hz:g} Hz: the "
                "detector misses what happens between two windows, and even noise may give boxes"
            )
        if self._has_trained(settings):
            return None
        return (
            f"windows of {settings.nominal_length_us / 1000:g} ms, but these weights were trained with windows of "
            f"{self.trained_ms} ms and are less accurate with others; window=slide keeps their length"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain data, without `scan`, which depends on the machine."""
        temporal = asdict(self.temporal_config)
        del temporal["scan"]
        return {
            "format_version": FORMAT_VERSION,
            "spec": asdict(self.spec),
            "model": asdict(self.model_config),
            "temporal": temporal,
            "windows": asdict(self.windows),
            "raw_dir": self.raw_dir,
            "prepared_dir": self.prepared_dir,
            "note": self.note,
            "window_lengths_us": list(self.window_lengths_us),
            "scored_as": asdict(self.scored_as),
        }

    @classmethod
    def from_dict(cls, meta: Mapping[str, Any]) -> CheckpointMeta:
        """Return the description from the plain data that `to_dict` made.

        Raises:
            UserError: If the data has another format version, or a setting is invalid.
        """
        if meta["format_version"] != FORMAT_VERSION:
            raise UserError(
                "weights.version",
                found=f"the checkpoint has format version {meta['format_version']}, but this rvtssm reads "
                f"{FORMAT_VERSION}",
            )
        note = meta["note"]
        check_note("note", note)  # it is printed on a terminal, and the file may come from anyone
        return cls(
            DatasetSpec(**{name: _tuples(value) for name, value in meta["spec"].items()}),
            ModelConfig(**_with_options(meta["model"])),
            TemporalConfig(**meta["temporal"]),
            WindowSettings(**meta["windows"]),
            meta["raw_dir"],
            meta["prepared_dir"],
            note,
            tuple(map(int, meta["window_lengths_us"])),
            PostprocessConfig(**meta.get("scored_as", {})),
        )

    def build(self, frame_hw: tuple[int, int] | None = None) -> Detector:
        """Build the detector of this description, with new weights.

        Args:
            frame_hw: Height and width of the frames in pixels; None means as in training.
        """
        size = frame_hw or (self.spec.frame_height, self.spec.frame_width)
        counts = self.spec.num_classes, self.windows.num_channels
        detector = build_detector(self.model_config, self.temporal_config, *size, *counts)
        detector.score = str(self.scored_as.score)
        return detector

    def without_folders(self) -> CheckpointMeta:
        """Return the description without the folders of this machine, for files that go to other machines."""
        return replace(self, raw_dir=None, prepared_dir=None)

    @property
    def trained_ms(self) -> str:
        """The window lengths of the training in milliseconds, as text."""
        return ", ".join(f"{us / 1000:g}" for us in self.window_lengths_us)

    def with_detector(self, detector: Detector) -> LoadedCheckpoint:
        """Return a checkpoint in memory: this description with a detector."""
        return LoadedCheckpoint(**values_of(self, field_names(CheckpointMeta)), detector=detector)


@dataclass(kw_only=True)
class LoadedCheckpoint(CheckpointMeta):
    """A checkpoint in memory: its description and the detector, in evaluation mode."""

    detector: Detector


def _with_options(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a detector with those that were keys of their own in earlier versions as options.

    Weights with another head had these keys as well, without any meaning.
    """
    settings = {}
    options = dict(model.get("head_options", {}))
    for name, value in model.items():
        if not name.startswith(_EARLIER):
            settings[name] = value
        elif model["head"] == _EARLIER.rstrip("_"):
            options[name.removeprefix(_EARLIER)] = value
    if settings["size"] not in PRESETS:  # earlier versions had any name there
        settings["size"] = CUSTOM
    return {**settings, "head_options": options}


def _tuples(value: Any) -> Any:
    """Convert the lists of JSON to the tuples of records."""
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in value.items()}
    if isinstance(value, list):
        return tuple(value)
    return value


def usual_downsample(spec: DatasetSpec, height: int, width: int) -> int:
    """Return the usual downsampling for a sensor: the largest whole factor that keeps frames as large as in training.

    The sides of a frame may be 5 % shorter than in training. The sensor of the training keeps its own factor. On the
    footage of `benchmarks.transfer`, weights have a higher AP in frames larger than in training than in smaller ones
    (the table of sources in rvtssm/contrib/worlds/weights_log.md).

    Args:
        spec: The dataset of the training.
        height: Height of the sensor in pixels.
        width: Width of the sensor in pixels.
    """
    if (height, width) == (spec.height, spec.width):
        return spec.downsample
    times_larger = math.sqrt(height * width / (spec.frame_height * spec.frame_width))
    return max(1, math.floor(times_larger / 0.95))


def downsample_by_size(checkpoint: LoadedCheckpoint, height: int, width: int) -> int:
    """Return the downsampling for a sensor of this size, if nothing else is known about its events.

    It is the one that gives the frames of an exported file, if there is one, and otherwise `usual_downsample`.
    """
    usual = usual_downsample(checkpoint.spec, height, width)
    if isinstance(checkpoint.detector, Detector):
        return usual
    return fitting_downsample((height, width), checkpoint.detector.frame_hw) or usual


def fitting_downsample(sensor_hw: tuple[int, int], frame_hw: tuple[int, int]) -> int | None:
    """Return the smallest downsampling of a sensor that gives frames of this size; None if there is none."""
    largest = sensor_hw[0] // frame_hw[0]
    return next((n for n in range(1, largest + 1) if (sensor_hw[0] // n, sensor_hw[1] // n) == frame_hw), None)


def reduced_hw(height: int, width: int, downsample: int) -> tuple[int, int]:
    """Return height and width of the frames of a sensor. Raise a UserError if they are too small for a detector."""
    frame_hw = height // downsample, width // downsample
    if min(frame_hw) < SMALLEST_SIDE:
        needed = (
            f"it leaves {frame_hw[1]} x {frame_hw[0]} of {width} x {height} pixels, and the detector needs "
            f"{SMALLEST_SIDE} x {SMALLEST_SIDE}"
        )
        advice = "choose a smaller one"
        raise UserError("setting.out_of_range", name="downsample", found=downsample, needed=needed, advice=advice)
    return frame_hw


def detector_for_frame(checkpoint: LoadedCheckpoint, height: int, width: int) -> Detector:
    """Return a detector for frames of one size, in evaluation mode. If the given one fits, it is returned itself.

    Args:
        checkpoint: The detector and its description.
        height: Height of the frames in pixels.
        width: Width of the frames in pixels.

    Raises:
        UserError: If the detector is an exported file for frames of another size.
    """
    trained = checkpoint.detector
    if (height, width) == trained.frame_hw:
        return trained.eval()
    if not isinstance(trained, Detector):
        raise UserError(
            "frames.other_size",
            found=f"this model was exported for frames of {trained.frame_hw[1]} x {trained.frame_hw[0]} pixels, but "
            f"frames of {width} x {height} are needed",
            advice=f"export it again with export.height={height} export.width={width}",
        )
    # The same weights in a detector for the other size.
    detector = checkpoint.build((height, width))
    detector.load_state_dict(trained.state_dict())
    if trained.product_dtype is not None:
        set_precision(detector, "bf16")
    return detector.to(trained.device).eval()
