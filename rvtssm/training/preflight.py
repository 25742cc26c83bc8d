"""Find mistakes of a training before its first step: in its settings, in its recordings, in its labels."""

from contextlib import suppress

import torch

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.prepare_recording import Recipe, is_made_from
from rvtssm.datasets.store import StoredSequence
from rvtssm.datasets.tree import RawRecording, find_recordings
from rvtssm.evaluation.protocol import num_scored, scoring_rules
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import build_detector
from rvtssm.models.parts import head_class
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.system.extras import check_extra
from rvtssm.system.machine import check_memory
from rvtssm.system.remote import absolute_path, is_url
from rvtssm.system.user_error import UserError, errors_about
from rvtssm.training import H2_BAND, TrainSections
from rvtssm.training.optim import h2_term

_FRAME_HW = (32, 32)  # no weight depends on it
_MOST_EARLY = 0.05  # of averaged weights that those of the first step may be


def check(config: TrainSections) -> None:
    """Raise UserError, which names key and value, if sections of the configuration do not fit together."""
    with torch.device("meta"):
        detector = build_detector(
            config.model,
            config.temporal,
            *_FRAME_HW,
            num_classes=1,
            in_channels=config.windows.settings.num_channels,
        )
    if needed := head_class(config.model).needed_to_train:
        check_extra(f"training model.head={config.model.head}", *needed)
    num_parameters = sum(parameter.numel() for parameter in detector.parameters())
    # weights, gradients and the two averages of the optimiser, float32
    check_memory(
        16 * num_parameters, f"training {num_parameters:.4g} parameters; use fewer num_bins or a smaller model"
    )
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
    labels = [sequence.labels for sequence in data.sequences("val")]
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
            recordings = {recording.name: recording for recording in find_recordings(raw_dir, split, data.spec)}
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
