"""Estimate the peak memory of a training step before the first one, from a probe of two frames.

A step holds the weights with their gradients and the averages of the optimiser, the frames of the batch, and all that
autograd keeps for the backward pass, which grows with the number of frames. The probe runs the detector of the training
on two frames of their real size and counts the bytes that autograd keeps; everything else follows from the sizes.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rvtssm.datasets import build_spec
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.loading_config import SamplingConfig
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector
from rvtssm.system.machine import free_bytes
from rvtssm.system.user_error import UserError
from rvtssm.training.sections import TrainSections

_PROBED = 2  # frames
_OVER_KEPT = 1.15  # peak over kept bytes: gradients of maps, and workspace of products, during the backward pass
_OPTIMIZER_COPIES = 4  # per weight: itself, its gradient and two averages
_FIRST_STEP = 220_000_000  # bytes that libraries load and compile in the first step
_USUAL_BATCH = 8  # chunks per optimiser step of the recipes
_SMALL = 1 << 29  # bytes; whether less is free is not worth a refusal


@dataclass(frozen=True)
class StepMemory:
    """What a training step needs, in bytes: `fixed`, and more for each frame and each labelled frame of a batch."""

    fixed: int
    per_frame: int
    per_labelled_frame: int

    def peak(self, num_frames: int, num_labelled: int) -> int:
        """Return the estimated peak of a step.

        Args:
            num_frames: Steps per chunk times chunks per batch.
            num_labelled: How many of these frames have labels.
        """
        return self.fixed + self.per_frame * num_frames + self.per_labelled_frame * num_labelled


def probe_step(detector: Detector, frame_bytes: int, autocast: torch.dtype | None = None) -> StepMemory:
    """Return what a training step of a detector needs.

    Args:
        detector: The detector as it is trained. It stays as it is.
        frame_bytes: Bytes of a frame of a batch.
        autocast: Type of the products in mixed precision; None without.
    """
    probed = copy.deepcopy(detector).train()
    weights = sum(value.numel() * value.element_size() for value in detector.parameters())
    averages = _OPTIMIZER_COPIES * weights
    without, with_labels = (_kept_bytes(probed, labelled, autocast) / _PROBED for labelled in (False, True))
    # a batch is in use while the next one is counted, and frames are converted to the type of the weights
    per_frame = round(_OVER_KEPT * without) + 2 * frame_bytes
    return StepMemory(averages + _FIRST_STEP, per_frame, round(_OVER_KEPT * max(with_labels - without, 0)))


def check_step_memory(
    sections: TrainSections, data: SequenceDataModule, detector: Detector, device: torch.device
) -> int:
    """Return the estimated peak memory of a training step of one process in bytes.

    Raises:
        UserError: It is more than is free. The message names the batch or the chunk that fits.
    """
    memory = _probe(copy.deepcopy(detector), sections)
    share = _labelled_share(data)
    peak = _peak(memory, sections.sampling, share)
    free = _free(sections, device)
    if free is None or peak <= max(free, _SMALL):
        return peak
    sampling, shape = sections.sampling, detector.frame_hw
    raise UserError(
        "memory.step_too_large",
        f"a training step of {sampling.num_chunks} x {sampling.chunk_length} frames of {shape[0]} x {shape[1]} takes "
        f"about {peak / 1e9:.2g} GB of memory, but {free / 1e9:.2g} GB are free; "
        + _what_fits(memory, sampling, share, free),
    )


def with_fitting_batch(sections: TrainSections) -> TrainSections:
    """Return the settings with the largest batch that fits in memory in place of `auto`.

    An optimiser step has 8 chunks times `training.accumulate`, whatever fits.
    """
    device = torch.device("cuda" if _uses_gpu(sections) else "cpu")
    spec, windows = build_spec(sections.dataset), sections.windows.settings
    with torch.random.fork_rng(devices=[]):
        detector = CheckpointMeta(spec, sections.model, sections.temporal, windows).build()
    memory, free = _probe(detector, sections), _free(sections, device)
    batch_size = _USUAL_BATCH
    while batch_size > sections.sampling.smallest_batch:
        sampling = replace(sections.sampling, batch_size=batch_size)
        if free is None or _peak(memory, sampling, 1.0) <= max(free, _SMALL):
            break
        batch_size //= 2
    accumulate = sections.training.accumulate * _USUAL_BATCH // batch_size
    return replace(
        sections,
        sampling=replace(sections.sampling, batch_size=batch_size),
        training=replace(sections.training, accumulate=accumulate),
    )


def _probe(detector: Detector, sections: TrainSections) -> StepMemory:
    """Return `probe_step` of a detector that may be changed, in the precision of a training."""
    detector.backbone.recompute(sections.training.recompute_strides)
    types = {"bf16": torch.bfloat16, "float16": torch.bfloat16}  # CPUs have no float16 products, of the same size
    frame_bytes = detector.in_channels * math.prod(detector.frame_hw)
    return probe_step(detector, frame_bytes, types.get(sections.training.precision))


def _labelled_share(data: SequenceDataModule) -> float:
    """Return which share of the training steps has labels."""
    sequences = data.sequences("train")
    num_labelled = sum(len(sequence.label_steps) for sequence in sequences)
    return num_labelled / max(sum(len(sequence.windows) for sequence in sequences), 1)


def _peak(memory: StepMemory, sampling: SamplingConfig, labelled_share: float) -> int:
    per_chunk = min(math.ceil(sampling.chunk_length * labelled_share), sampling.chunk_length)
    if sampling.frames_per_chunk is not None:
        per_chunk = min(per_chunk, sampling.frames_per_chunk)
    return memory.peak(sampling.num_chunks * sampling.chunk_length, sampling.num_chunks * max(per_chunk, 1))


def _free(sections: TrainSections, device: torch.device) -> int | None:
    """Return the free memory of one process of this machine in bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = free_bytes() if device.type == "cpu" else None
    return None if free is None else free // sections.training.devices


def _uses_gpu(sections: TrainSections) -> bool:
    return sections.training.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def _what_fits(memory: StepMemory, sampling: SamplingConfig, share: float, free: int) -> str:
    """Return advice: the largest batch that fits, else the longest chunk of the smallest batch, else less to keep."""
    for batch_size in range(sampling.num_chunks - 1, sampling.smallest_batch - 1, -1):
        if _peak(memory, replace(sampling, batch_size=batch_size), share) <= free:
            return f"sampling.batch_size={batch_size} fits (sampling.batch_size=auto chooses it)"
    for length in range(sampling.chunk_length - 1, 0, -1):
        smaller = replace(sampling, batch_size=sampling.smallest_batch, chunk_length=length)
        if _peak(memory, smaller, share) <= free:
            return f"sampling.batch_size={smaller.batch_size} sampling.chunk_length={length} fits"
    return "use a smaller model or frames, or training.recompute_strides=[4,8,16,32]"


def _kept_bytes(detector: Detector, is_labelled: bool, autocast: torch.dtype | None) -> int:
    """Return the bytes that autograd keeps for the backward pass of two frames, beside the weights."""
    device = detector.device
    hist = torch.zeros(_PROBED, 1, detector.in_channels, *detector.frame_hw, dtype=torch.uint8, device=device)
    steps = torch.arange(_PROBED if is_labelled else 0)
    frame_index = torch.stack([steps, torch.zeros_like(steps)], dim=1)
    targets = (torch.zeros(len(steps), 1, 5, device=device), torch.zeros(len(steps), dtype=torch.int64))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), _counting(detector) as kept:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            outputs = detector(hist, None, 1.0, frame_index, targets if is_labelled else None)
        total = sum(kept.values())
        del outputs
    return total


@contextmanager
def _counting(detector: Detector) -> Iterator[dict[int, int]]:
    """Yield the bytes of each storage that autograd keeps within the block, by its address, except the weights."""
    own = {value.untyped_storage().data_ptr() for value in [*detector.parameters(), *detector.buffers()]}
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        yield kept
