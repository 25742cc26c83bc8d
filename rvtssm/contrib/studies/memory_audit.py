"""Measure the effect of a trained detector's memory and step, on events without labels."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rvtssm.contrib.studies.audit_config import AuditConfig
from rvtssm.contrib.studies.memory_probe import Numbers, carried_and_dropped, memory_curves, memory_steps, rescaling
from rvtssm.detection.engine import StreamDetector
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import free_grid
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, detector_for_frame, downsample_by_size, reduced_hw
from rvtssm.models.detector import Detector
from rvtssm.models.streams import check_causal
from rvtssm.records import Events
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import progress_bar

FORGOTTEN = 0.01  # a window is forgotten when its effect falls below this share of its initial effect
_BORDER = 21  # steps before the state is dropped, for weights without a chunk length
_WARM_UP, _TIMED = 3, 20  # windows per rate that are not timed, and that are timed, fewer if the events end before


@dataclass(frozen=True)
class Audit:
    """The measurements. Differences are relative: norm of the difference divided by norm of the reference."""

    stride_ms: float  # stride of training
    memory: str  # carried, or chunk and its length
    num_windows: int
    border: int  # steps after which the state was dropped
    # By input: the change at the border if the state is dropped there, and the mean change if it is dropped always.
    carry: dict[str, dict[str, Numbers]]
    at_window: int  # the window whose events were removed
    memory_curves: dict[str, list[float]]  # by output: the effect 0, 1, 2, ... steps later
    memory_ms: dict[str, float | None]  # inf: the effect stays above FORGOTTEN; None: no effect at all
    spectra: dict[int, Spectrum | str]  # by stride
    # By number of finer steps: difference of states (`state 8`) and outputs, with and without rescaling.
    rescaled: dict[int, Numbers]
    not_rescaled: dict[int, Numbers]
    cost: dict[float, Numbers | str]  # by rate: median and 95th percentile of ms per step, real-time factor

    @property
    def outputs(self) -> list[str]:
        """The names of the detector's outputs: its maps, `boxes` and `scores`."""
        return list(self.memory_ms)


@torch.inference_mode()
def audit_detector(
    checkpoint: LoadedCheckpoint,
    events: Events,
    sensor_hw: tuple[int, int],
    config: AuditConfig | None = None,
    *,
    downsample: int | None = None,
    progress: bool = True,
) -> Audit:
    """Measure weights on events.

    Args:
        checkpoint: The weights.
        events: Events without labels.
        sensor_hw: Height and width of the sensor, pixels.
        config: Settings of `rvtssm audit`.
        downsample: Frames keep one pixel of each downsample x downsample square, see `StreamDetector`.
        progress: Whether to show a progress bar.

    Raises:
        UserError: The weights are an exported file or do not run step by step, or the events are too short.
    """
    config = config or AuditConfig()
    if not isinstance(checkpoint.detector, Detector):
        found = "an exported file shows neither its layers nor its maps"
        raise UserError("file.kind", found=found, advice="audit the checkpoint it was made from")
    check_causal(checkpoint.detector)
    downsample = downsample or downsample_by_size(checkpoint, *sensor_hw)
    detector = detector_for_frame(checkpoint, *reduced_hw(*sensor_hw, downsample))
    frames = _frames(checkpoint, events, sensor_hw, downsample)
    border = checkpoint.model_config.memory_chunk or _BORDER
    if len(frames) <= border + 1:
        found = f"the events fill {len(frames)} windows, but an audit of these weights needs {border + 2}"
        raise UserError("file.content", found=found, advice="give a longer recording or a larger audit.duration_s")
    with progress_bar("auditing" if progress else None, 4) as advance:
        carry = {
            "traffic": carried_and_dropped(checkpoint, detector, frames[: border + 2], border),
            "held": carried_and_dropped(checkpoint, detector, _held(frames, border + 2), border),
        }
        advance(1)
        # Early in the input, or in the first chunk if the state is reset after chunks, so that most of a memory shows.
        early = max(1, min(len(frames), checkpoint.model_config.memory_chunk or len(frames)) // 5)
        at = int(frames[:early].flatten(1).float().abs().sum(1).argmax())
        curves = memory_curves(checkpoint, detector, frames, at)
        advance(1)
        rescaled, not_rescaled = rescaling(detector, frames[:border], _held(frames, 1), config.finer)
        advance(1)
        cost = cost_per_step(checkpoint, events, sensor_hw, downsample, config)
        advance(1)
    stride_ms = checkpoint.windows.stride_us / 1000
    chunk = checkpoint.model_config.memory_chunk
    memory_ms = {name: memory_steps(curve, FORGOTTEN, stride_ms) for name, curve in curves.items()}
    spectra = {stride: layer.spectrum() for stride, layer in detector.backbone.temporal_layers().items()}
    return Audit(
        stride_ms=stride_ms,
        memory="carried" if chunk is None else f"chunk of {chunk} steps",
        num_windows=len(frames),
        border=border,
        carry=carry,
        at_window=at,
        memory_curves={name: curve.tolist() for name, curve in curves.items()},
        memory_ms=memory_ms,
        spectra=spectra,
        rescaled=rescaled,
        not_rescaled=not_rescaled,
        cost=cost,
    )


def cost_per_step(
    checkpoint: LoadedCheckpoint, events: Events, sensor_hw: tuple[int, int], downsample: int, config: AuditConfig
) -> dict[float, Numbers | str]:
    """Return the time of a live window at each rate, for one camera: counting, detector and post-processing.

    Args:
        checkpoint: The weights.
        events: The events.
        sensor_hw: Height and width of the sensor, pixels.
        downsample: The factor from sensor to frame.
        config: Settings of `rvtssm audit`.

    Returns:
        By rate, numbers in milliseconds and the real-time factor, or the reason why the rate is not possible.
    """
    cost: dict[float, Numbers | str] = {}
    for hz in config.hz:
        windows = checkpoint.windows_at(hz)
        start_us = int(events.t[0])
        live = StreamDetector(checkpoint, *sensor_hw, windows=windows, downsample=downsample, start_us=start_us)
        needed_us = int(start_us + (_WARM_UP + _TIMED) * 1e6 / hz)
        until_us = min(needed_us, int(events.t[-1])) + 1  # windows after the last event would cost less
        results = live.push(events.between(start_us, until_us), until_us)
        if len(results) <= _WARM_UP:
            cost[hz] = f"the events fill {len(results)} windows, and the first {_WARM_UP} are not timed"
            continue
        taken_ms = 1000 * np.array([window.seconds for window in results[_WARM_UP:]])
        middle = float(np.median(taken_ms))
        cost[hz] = {"ms": middle, "p95_ms": float(np.percentile(taken_ms, 95)), "realtime": 1000 / hz / middle}
    return cost


def _frames(checkpoint: LoadedCheckpoint, events: Events, sensor_hw: tuple[int, int], downsample: int) -> Tensor:
    if not len(events):
        raise UserError("file.content", found="there are no events to audit", advice="give a recording that holds some")
    windows = free_grid(int(events.t[0]), int(events.t[-1]), checkpoint.windows)
    return torch.from_numpy(count_windows(events, windows, *sensor_hw, checkpoint.windows, downsample))


def _held(frames: Tensor, num_steps: int) -> Tensor:
    """Return the frame with the most events, repeated for `num_steps` steps."""
    busiest = int(frames.flatten(1).float().abs().sum(1).argmax())
    return frames[busiest : busiest + 1].expand(num_steps, *frames.shape[1:])
