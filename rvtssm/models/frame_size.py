"""Runs the same weights on sensors of any size. Padding and attention windows depend on the size, weights do not."""

import math

from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.low_precision import set_precision
from rvtssm.records import SMALLEST_SIDE, DatasetSpec
from rvtssm.system.user_error import UserError


def usual_downsample(spec: DatasetSpec, height: int, width: int) -> int:
    """Return the usual downsampling for a sensor: the largest whole factor that keeps frames as large as in training.

    The sides of a frame may be 5 % shorter than in training. The sensor of the training keeps its own factor. On the
    footage of `benchmarks.transfer`, weights have a higher AP in frames larger than in training than in smaller ones
    (docs/weights_street.md).

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
    frame_hw = None if isinstance(checkpoint.detector, Detector) else checkpoint.detector.frame_hw
    fitting = fitting_downsample((height, width), frame_hw) if frame_hw else None
    return fitting or usual_downsample(checkpoint.spec, height, width)


def fitting_downsample(sensor_hw: tuple[int, int], frame_hw: tuple[int, int]) -> int | None:
    """Return the smallest downsampling of a sensor that gives frames of this size; None if there is none."""
    largest = sensor_hw[0] // frame_hw[0]
    return next((n for n in range(1, largest + 1) if (sensor_hw[0] // n, sensor_hw[1] // n) == frame_hw), None)


def reduced_hw(height: int, width: int, downsample: int) -> tuple[int, int]:
    """Return height and width of the frames of a sensor. Raise a UserError if they are too small for a detector."""
    frame_hw = height // downsample, width // downsample
    if min(frame_hw) < SMALLEST_SIDE:
        raise UserError(
            "frames.too_small",
            f"downsample={downsample} leaves {frame_hw[1]} x {frame_hw[0]} of {width} x {height} pixels, and the "
            f"detector needs {SMALLEST_SIDE} x {SMALLEST_SIDE}; choose a smaller one",
        )
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
            "exported.other_size",
            f"this model was exported for frames of {trained.frame_hw[1]} x {trained.frame_hw[0]} pixels, but frames "
            f"of {width} x {height} are needed; export it again with export.height={height} export.width={width}",
        )
    detector = checkpoint.build((height, width))
    detector.load_state_dict(trained.state_dict())
    set_precision(detector, "float32" if trained.product_dtype is None else "bf16")
    return detector.to(trained.device).eval()
