"""Runs the same weights on sensors of any size. Padding and attention windows depend on the size, weights do not."""

import math

from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.low_precision import set_precision
from rvtssm.records import SMALLEST_SIDE, DatasetSpec
from rvtssm.system.busy_machine import hz_to_set, sustained_in_words
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
            f"downsample={downsample} leaves {frame_hw[1]} x {frame_hw[0]} of {width} x {height} pixels, and the "
            f"detector needs {SMALLEST_SIDE} x {SMALLEST_SIDE}; choose a smaller one"
        )
    return frame_hw


def reduction_in_words(
    checkpoint: LoadedCheckpoint, sensor_hw: tuple[int, int], downsample: int, step_ms: float | None = None
) -> str:
    """Return in words how the downsampling limits what can be found, or nothing if frames are as in training.

    Args:
        checkpoint: The weights. An exported file has frames of one size, so another downsampling needs another file.
        sensor_hw: Height and width of the sensor in pixels.
        downsample: The downsampling in use.
        step_ms: Time of the detector per window in milliseconds, from which times for other sizes are estimated. None:
            there is no estimate.
    """
    spec = checkpoint.spec
    (height, width), usual = sensor_hw, downsample_by_size(checkpoint, *sensor_hw)
    if max(usual, downsample) == 1 or (sensor_hw == (spec.height, spec.width) and downsample == usual):
        return ""

    def about_ms(other: int) -> str:
        return "" if step_ms is None else f"about {step_ms * (downsample / other) ** 2:.0f} ms per window"

    # side of the smallest square that is scored, in pixels of the frame
    smallest_px = max(spec.min_side_px, spec.min_diagonal_px / math.sqrt(2)) / spec.downsample
    limit = f"; training scored no objects below {smallest_px * downsample:.0f} pixels" if smallest_px else ""
    said = f"the {width} x {height} sensor is not reduced{limit}"
    if downsample > 1:
        said = (
            f"the {width} x {height} sensor is reduced by {downsample} to {width // downsample} x "
            f"{height // downsample}{limit}; "
        )
        if not isinstance(checkpoint.detector, Detector):
            return f"{said}a file exported with export.height={height} export.width={width} finds smaller ones"
        said += f"downsample=1 finds smaller ones{' in ' * bool(about_ms(1))}{about_ms(1)}"
    if not isinstance(checkpoint.detector, Detector):
        return said
    if downsample < usual:
        takes = f"takes {about_ms(usual)}" if about_ms(usual) else "is faster"
        said += f"; downsample={usual} {takes}"
        said += f", with a limit of {smallest_px * usual:.0f} pixels" if smallest_px else ""
    return said


def faster_downsample(downsample: int, usual: int, sustained_hz: float, hz: float) -> tuple[int, float]:
    """Return a larger downsampling that keeps up, and the rate that it sustains if time is proportional to pixels.

    Args:
        downsample: The downsampling in use.
        usual: The largest one to consider; it is returned if none keeps up.
        sustained_hz: The rate that the downsampling in use sustains.
        hz: The rate to keep up with.
    """

    def sustained(other: int) -> float:
        return sustained_hz * (other / downsample) ** 2

    faster = next((other for other in range(downsample + 1, usual) if sustained(other) >= hz), usual)
    return faster, sustained(faster)


def advice_for_cameras(
    checkpoint: LoadedCheckpoint, sensor_hw: tuple[int, int], downsample: int, step_ms: float, hz: float
) -> str:
    """Return in words which rate a camera or a stream gets, and with which downsampling.

    It is empty if the machine keeps up and cameras take the downsampling in use anyway.

    Args:
        checkpoint: The weights.
        sensor_hw: Height and width of the sensor in pixels.
        downsample: The downsampling in use. Cameras and streams take the usual one.
        step_ms: Time of the detector for a single window in milliseconds.
        hz: The rate that is asked for.
    """
    usual, sustained_hz = downsample_by_size(checkpoint, *sensor_hw), 1000 / step_ms
    is_late, said = sustained_hz < hz, []
    singly = "one window per call, as live detection computes them"
    if downsample != usual:
        said.append(f"a camera or a stream takes downsample={usual} unless you give {downsample}")
    if is_late:
        key = "" if downsample == usual else f"downsample={downsample} "
        remedy = what_to_set(checkpoint, sustained_hz, key)
        said.append(f"{sustained_in_words(sustained_hz)} with {singly}, not {hz:g} Hz: {remedy}")
    elif said:
        said.append(f"{sustained_in_words(sustained_hz)} with {downsample} and {singly}")
    if is_late and downsample < usual and isinstance(checkpoint.detector, Detector):
        faster, faster_hz = faster_downsample(downsample, usual, sustained_hz, hz)
        at_rate = "" if faster_hz >= hz else f" hz={hz_to_set(faster_hz)}"
        if not checkpoint.is_too_rare(min(hz, float(hz_to_set(faster_hz)))):
            said.append(f"downsample={faster}{at_rate} is faster and finds less")
    return "; ".join(said)


def what_to_set(checkpoint: LoadedCheckpoint, sustained_hz: float, keys: str = "") -> str:
    """Return in words the rate to set, unless it is so low that the weights give wrong boxes.

    Args:
        checkpoint: The weights.
        sustained_hz: The rate that the machine sustains.
        keys: Other keys to set with it, each followed by a space.
    """
    hz = hz_to_set(sustained_hz)
    if checkpoint.is_too_rare(float(hz)):
        return f"too slow for weights trained at {checkpoint.windows.hz:g} Hz, and a larger downsample is faster"
    return f"set {keys}hz={hz}"


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
            f"this model was exported for frames of {trained.frame_hw[1]} x {trained.frame_hw[0]} pixels, but frames "
            f"of {width} x {height} are needed; export it again with export.height={height} export.width={width}"
        )
    detector = checkpoint.build((height, width))
    detector.load_state_dict(trained.state_dict())
    set_precision(detector, "float32" if trained.product_dtype is None else "bf16")
    return detector.to(trained.device).eval()
