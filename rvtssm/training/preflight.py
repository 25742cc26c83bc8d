"""What is known of a training before its first step: mistakes in settings, recordings and labels, and its memory.

The peak memory of a step is estimated from a probe of two frames. A step holds the weights with their gradients and the
averages of the optimiser, the frames of the batch, and all that autograd keeps for the backward pass, which grows with
the number of frames. The probe runs the detector of the training on two frames of their real size and counts the bytes
that autograd keeps; everything else follows from the sizes.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rvtssm.datasets import SamplingConfig, build_spec
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.prepare_recording import Recipe, is_made_from
from rvtssm.datasets.store import StoredSequence
from rvtssm.datasets.tree import RawRecording, recordings_by_name
from rvtssm.evaluation.protocol import num_scored, scoring_rules
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector, build_detector, head_class, usual_device
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.system.extras import check_extra
from rvtssm.system.machine import check_memory, free_bytes, return_freed_memory
from rvtssm.system.remote import absolute_path, is_url
from rvtssm.system.user_error import UserError, errors_about
from rvtssm.training import H2_BAND, TrainSections
from rvtssm.training.optim import h2_term

_FRAME_HW = (32, 32)  # no weight depends on it
_MOST_EARLY = 0.05  # of averaged weights that those of the first step may be


def check(config: TrainSections) -> None:
    """Raise UserError, which names key and value, if sections of the configuration do not fit together."""
    with torch.device("meta"):
        channels = config.windows.settings.num_channels
        detector = build_detector(config.model, config.temporal, *_FRAME_HW, num_classes=1, in_channels=channels)
    if needed := head_class(config.model).needed_to_train:
        check_extra(f"training model.head={config.model.head}", *needed)
    num_parameters = sum(map(Tensor.numel, detector.parameters()))
    # weights, gradients and the two averages of the optimiser, float32
    what = f"training {num_parameters:.4g} parameters; use fewer num_bins or a smaller model"
    check_memory(16 * num_parameters, what)
    detector.backbone.recompute(config.training.recompute_strides)
    if config.optim.h2_weight:
        layer = build_temporal_layer(config.temporal, min(detector.backbone.channels.values()))
        # The layer may have no such norm, or none may carry a state.
        with errors_about(f"optim.h2_weight={config.optim.h2_weight:g}", "or set it to 0"):
            h2_term([layer] if detector.backbone.memory_strides else [], H2_BAND)


def describe(sections: TrainSections, data: SequenceDataModule) -> CheckpointMeta:
    """Return the description that checkpoints carry. Raise UserError for frames that have other windows."""
    for sequence in (*data.sequences("train"), *data.sequences("val")):
        sequence.check_settings(sections.windows.settings, data.spec.downsample)
    folders = {key: path and absolute_path(path) for key, path in sections.folders.items()}
    return CheckpointMeta(
        data.spec,
        sections.model,
        sections.temporal,
        data.settings,
        window_lengths_us=data.window_lengths_us,
        scored_as=sections.postprocess,
        **folders,
    )


def check_scored(data: SequenceDataModule) -> tuple[int, int]:
    """Return how many labels of the validation are scored, and how many it has. Raise UserError if none is scored."""
    labels = data.labels("val")
    scored = num_scored(labels, data.spec)
    all_labels = sum(map(len, labels))
    if not scored:
        raise UserError(
            "labels.none_scored",
            name="val split",
            found=f"none of its {all_labels} labels is scored ({scoring_rules(data.spec)}), so no weights would be the "
            "best",
            advice="lower min_side_px, min_diagonal_px or skip_us in dataset.yaml, or choose other recordings",
        )
    return scored, all_labels


def early_weights(average: float | None, steps: int) -> str | None:
    """Return a warning if a training is too short for its averaged weights, which then resemble those of its start."""
    if average is None or (share := average**steps) <= _MOST_EARLY:
        return None
    return (
        f"training.average={average:g} is too slow for {steps} steps: {share:.0%} of the average would be the "
        f"weights of the first step; use {_MOST_EARLY ** (1 / steps):.4g} or less, or null"
    )


def outdated_recordings(raw_dir: str | None, data: SequenceDataModule) -> list[str]:
    """Return the prepared recordings that were made from other recordings or labels than those in `raw_dir`.

    This reads the labels and both ends of the recordings, so nothing is compared with an object store.
    """
    if data.source != "prepared" or raw_dir is None or is_url(raw_dir):
        return []
    outdated = []
    for split in ("train", "val"):
        with suppress(UserError):  # there may be no recordings of this split
            recordings = recordings_by_name(raw_dir, split, data.spec)
            recipe = Recipe(data.spec, data.settings, is_train=split == "train")
            for sequence in data.sequences(split):
                stored = sequence.source
                recording = recordings.get(sequence.name)
                assert isinstance(stored, StoredSequence)
                if recording and "source" in stored.meta and not _is_current(recording, stored, recipe):
                    outdated.append(f"{split}/{sequence.name}")
    return outdated


def _is_current(recording: RawRecording, stored: StoredSequence, recipe: Recipe) -> bool:
    try:
        return is_made_from(recording, stored, recipe)
    except UserError:  # the recipe has changed, or the recording is shorter now
        return False


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


def probe_step(
    detector: Detector,
    frame_bytes: int,
    autocast: torch.dtype | None = None,
    recompute_strides: Sequence[int] = (),
) -> StepMemory:
    """Return what a training step of a detector needs.

    Args:
        detector: The detector as it is trained. It stays as it is.
        frame_bytes: Bytes of a frame of a batch.
        autocast: Type of the products in mixed precision; None without.
        recompute_strides: Strides of the stages whose values are computed again in the backward pass.
    """
    probed = copy.deepcopy(detector).train()
    probed.backbone.recompute(recompute_strides)
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
        UserError: It is more than is free.
    """
    sequences = data.sequences("train")
    num_labelled = sum(len(sequence.label_steps) for sequence in sequences)
    labelled_share = num_labelled / max(sum(len(sequence.windows) for sequence in sequences), 1)
    peak = _peak(_probe(detector, sections), sections.sampling, labelled_share)
    free = _free(sections, device)
    if free is None or peak <= max(free, _SMALL):
        return peak
    sampling = sections.sampling
    shape = detector.frame_hw
    raise UserError(
        "memory.too_little",
        found=f"a training step of {sampling.num_chunks} x {sampling.chunk_length} frames of {shape[0]} x {shape[1]} "
        f"takes about {peak / 1e9:.2g} GB of memory, but {free / 1e9:.2g} GB are free",
        advice="set sampling.batch_size=auto, which takes the largest batch that fits, a smaller sampling.chunk_length "
        "or model, or training.recompute_strides=[4,8,16,32]",
    )


def with_divided_batch(sections: TrainSections) -> TrainSections:
    """Return the settings with the batch of a process and `training.accumulate` that make up the total batch.

    `sampling.batch_size=auto` becomes the largest batch that fits in memory. Without `sampling.total_batch`, any other
    batch stays as it is, and `auto` keeps 8 chunks per process times `training.accumulate`.

    Raises:
        UserError: The total batch cannot be divided over the processes, or over batches of this size.
    """
    sampling = sections.sampling
    if sampling.batch_size == "auto":
        return _with_batch(sections, _fitting_batch(sections, _chunks_of_process(sections)))
    if sampling.total_batch is None:
        return sections
    # The batch of a process must divide what it contributes to a step.
    share = _chunks_of_process(sections)
    batch_size = min(sampling.num_chunks, share)
    if share % batch_size:
        needed = (
            f"sampling.total_batch={sampling.total_batch} gives each process {share} chunks, which are no "
            "multiple of it"
        )
        advice = f"set sampling.batch_size to {_in_words(_batches(sampling, share))}"
        raise UserError("setting.conflict", name="sampling.batch_size", found=batch_size, needed=needed, advice=advice)
    return _with_batch(sections, batch_size)


def _chunks_of_process(sections: TrainSections) -> int:
    """Return the chunks that a process contributes to an optimiser step, divided by the given `training.accumulate`."""
    sampling = sections.sampling
    training = sections.training
    if sampling.total_batch is None:
        return _USUAL_BATCH
    # Each part must be whole and hold what a batch needs.
    num_parts = training.devices * training.num_nodes * training.accumulate
    share, rest = divmod(sampling.total_batch, num_parts)
    if rest or share < sampling.smallest_batch:
        parts = [sampling.total_batch // batch for batch in _batches(sampling, sampling.total_batch)]
        needs = "a random chunk and a stream" if sampling.smallest_batch == 2 else "a chunk"
        raise UserError(
            "setting.conflict",
            name="sampling.total_batch",
            found=sampling.total_batch,
            needed=f"it cannot be divided over training.devices={training.devices} x training.num_nodes="
            f"{training.num_nodes} x training.accumulate={training.accumulate} = {num_parts} parts, each with {needs}",
            advice=f"use {_in_words(parts)} parts, or another total batch, which is another recipe",
        )
    return share


def _batches(sampling: SamplingConfig, share: int) -> list[int]:
    """Return the batches into which the chunks of a process can be divided, the largest first."""
    return [size for size in range(share, sampling.smallest_batch - 1, -1) if share % size == 0]


def _in_words(numbers: list[int]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def _with_batch(sections: TrainSections, batch_size: int) -> TrainSections:
    """Return the settings with a batch, and with as many batches per optimiser step as the total batch needs."""
    accumulate = sections.training.accumulate * _chunks_of_process(sections) // batch_size
    return replace(
        sections,
        sampling=replace(sections.sampling, batch_size=batch_size),
        training=replace(sections.training, accumulate=accumulate),
    )


def _fitting_batch(sections: TrainSections, share: int) -> int:
    """Return the largest batch that divides the chunks of a process and fits in memory, otherwise the smallest."""
    # The detector, its probe, and the memory that is there.
    device = torch.device("cpu")
    if sections.training.accelerator in ("auto", "gpu", "cuda"):
        device = torch.device(usual_device())
    spec = build_spec(sections.dataset)
    windows = sections.windows.settings
    with torch.random.fork_rng(devices=[]):
        detector = CheckpointMeta(spec, sections.model, sections.temporal, windows).build()
    memory = _probe(detector, sections)
    free = _free(sections, device)
    batches = _batches(sections.sampling, share)
    for batch_size in batches:
        sampling = replace(sections.sampling, batch_size=batch_size)
        if free is None or _peak(memory, sampling, 1.0) <= max(free, _SMALL):
            return batch_size
    return batches[-1]


def _probe(detector: Detector, sections: TrainSections) -> StepMemory:
    """Return `probe_step` of a detector in the precision of a training."""
    types = {"bf16": torch.bfloat16, "float16": torch.bfloat16}  # CPUs have no float16 products, of the same size
    frame_bytes = detector.in_channels * math.prod(detector.frame_hw)
    training = sections.training
    memory = probe_step(detector, frame_bytes, types.get(training.precision), training.recompute_strides)
    return_freed_memory()  # so that what the probe has freed counts as free
    return memory


def _peak(memory: StepMemory, sampling: SamplingConfig, labelled_share: float) -> int:
    per_chunk = min(math.ceil(sampling.chunk_length * labelled_share), sampling.chunk_length)
    if sampling.frames_per_chunk is not None:
        per_chunk = min(per_chunk, sampling.frames_per_chunk)
    return memory.peak(sampling.num_chunks * sampling.chunk_length, sampling.num_chunks * max(per_chunk, 1))


def _free(sections: TrainSections, device: torch.device) -> int | None:
    """Return the free memory of one process of this machine in bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu" or (free := free_bytes()) is None:
        return None
    return free // sections.training.devices


def _kept_bytes(detector: Detector, is_labelled: bool, autocast: torch.dtype | None) -> int:
    """Return the bytes that autograd keeps for the backward pass of two frames, beside the weights."""
    device = detector.device
    # Two frames, of which all or none are labelled.
    hist = torch.zeros(_PROBED, 1, detector.in_channels, *detector.frame_hw, dtype=torch.uint8, device=device)
    steps = torch.arange(_PROBED * is_labelled)
    frame_index = torch.stack([steps, torch.zeros_like(steps)], dim=1)
    targets = None
    if is_labelled:
        targets = (torch.zeros(_PROBED, 1, 5, device=device), torch.zeros(_PROBED, dtype=torch.int64))
    with torch.random.fork_rng(devices=[device] * (device.type == "cuda")), _counting(detector) as stored:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            outputs = detector(hist, None, 1.0, frame_index, targets)
        total = sum(stored.values())
        del outputs
    return total


@contextmanager
def _counting(detector: Detector) -> Iterator[dict[int, int]]:
    """Yield the bytes of each storage that autograd keeps within the block, by its address, except the weights."""
    own = {value.untyped_storage().data_ptr() for value in [*detector.parameters(), *detector.buffers()]}
    stored: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            stored[storage.data_ptr()] = storage.nbytes()
        return value.detach()  # an output that its own node keeps would never be freed

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        yield stored
