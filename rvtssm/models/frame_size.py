"""One set of weights on sensors of any size: padding and attention windows depend on the size, no weight does."""

import math

from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.low_precision import set_precision
from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError


def usual_downsample(spec: DatasetSpec, height: int, width: int) -> int:
    """Return the largest whole factor that leaves frames as large as those of training; the same sensor has its own.

    On the footage of `benchmarks.transfer` weights have a higher AP in frames that are larger than those of training
    than in smaller ones (docs/weights_street.md). Sides may be 5 % shorter.
    """
    if (height, width) == (spec.height, spec.width):
        return spec.downsample
    times_larger = math.sqrt(height * width / (spec.frame_height * spec.frame_width))
    return max(1, math.floor(times_larger / 0.95))


def reduction_in_words(
    spec: DatasetSpec, sensor_hw: tuple[int, int], downsample: int, step_ms: float | None = None
) -> str:
    """Return what the size of frames means for what can be found, empty for those of the training.

    `step_ms` is the time of the detector per window, from which that of other sizes is estimated.
    """
    (height, width), usual = sensor_hw, usual_downsample(spec, *sensor_hw)
    if max(usual, downsample) == 1 or (sensor_hw == (spec.height, spec.width) and downsample == usual):
        return ""

    def about_ms(other: int) -> str:
        return "" if step_ms is None else f"about {step_ms * (downsample / other) ** 2:.0f} ms per window"

    smallest_px = max(spec.min_side_px, spec.min_diagonal_px / math.sqrt(2)) / spec.downsample  # of a scored square
    said = f"the {width} x {height} sensor is not reduced"
    if downsample > 1:
        said = (
            f"the {width} x {height} sensor is reduced by {downsample} to {width // downsample} x "
            f"{height // downsample}; objects below {smallest_px * downsample:.0f} pixels vanish; downsample=1 finds "
            f"smaller ones{' in ' * bool(about_ms(1))}{about_ms(1)}"
        )
    if downsample < usual:
        takes = f"takes {about_ms(usual)}" if about_ms(usual) else "is faster"
        said += f"; downsample={usual} {takes} and misses objects below {smallest_px * usual:.0f} pixels"
    return said


def detector_for_frame(checkpoint: LoadedCheckpoint, height: int, width: int) -> Detector:
    """Return the weights for frames of height x width pixels, in evaluation mode: the same detector if it fits already.

    ValueError for an exported model of another size.
    """
    trained = checkpoint.detector
    if (height, width) == trained.frame_hw:
        return trained.eval()
    if not isinstance(trained, Detector):
        raise UserError(
            f"this model was exported for frames of {trained.frame_hw[1]} x {trained.frame_hw[0]} pixels, "
            f"needed are {width} x {height}; export it again with export.height={height} export.width={width}"
        )
    detector = checkpoint.build((height, width))
    detector.load_state_dict(trained.state_dict())
    set_precision(detector, "float32" if trained.product_dtype is None else "bf16")
    return detector.to(trained.device).eval()
