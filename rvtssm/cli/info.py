"""`rvtssm info`: counts the parameters of a detector by room, for a configuration or for weights."""

import json
from collections.abc import Iterator
from typing import Any

import torch

from rvtssm.cli.chosen_weights import read_weights
from rvtssm.cli.config import Config
from rvtssm.cli.console import console, say
from rvtssm.cli.words import pasted, settings_of
from rvtssm.datasets import build_spec
from rvtssm.evaluation.render import TerminalTable
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.detector import Detector, count_parameters
from rvtssm.models.weight_files import check_digest, local_weights


def info(config: Config, as_json: bool = False) -> dict[str, int]:
    """Print and return the parameters by room of the detector in `checkpoint`, or else of the configuration."""
    # Weights describe themselves; otherwise the settings describe what a training would build.
    described: CheckpointMeta
    has_digest = None
    if config.checkpoint:
        described = read_weights(config)
        has_digest = check_digest(local_weights(config.checkpoint))
    else:
        spec = build_spec(config.dataset)
        described = CheckpointMeta(spec, config.model, config.temporal, config.windows.settings)
    # Parameters are counted without memory for them.
    with torch.device("meta"):
        detector = described.build()
    counts = count_parameters(detector)
    if as_json:
        say(json.dumps(_values(described, detector, counts, has_digest)))
        return counts
    console.print(_table(described, counts))
    say("; ".join(_sentences(described, detector, has_digest)))
    say(f"settings: {pasted(_words(described))}")
    return counts


def _words(described: CheckpointMeta) -> list[str]:
    return settings_of(described.model_config, described.temporal_config, described.windows).words()


def _values(
    described: CheckpointMeta, detector: Detector, counts: dict[str, int], has_digest: bool | None
) -> dict[str, Any]:
    """Return what `--json` prints."""
    spec = described.spec
    model = described.model_config
    temporal = described.temporal_config
    return {
        "model": model.preset,
        "backbone": model.backbone,
        "neck": model.neck,
        "head": model.head,
        "temporal": temporal.name,
        "dataset": spec.name,
        "classes": list(spec.class_names),
        "stride_us": described.windows.stride_us,
        "window_lengths_us": list(described.window_lengths_us),
        "may_shrink_windows": described.may_shrink_windows,
        "bandlimit": temporal.bandlimit,
        "share_masked": _share_masked(described),
        "parameters": counts,
        "frame_hw": [spec.frame_height, spec.frame_width],
        "padded_hw": list(detector.backbone.padded_hw),
        "has_digest": has_digest,
        "note": described.note,
        "settings": _words(described),
        **detector.backbone.facts(),
    }


def _table(described: CheckpointMeta, counts: dict[str, int]) -> TerminalTable:
    title = f"{described.model_config.preset} {described.temporal_config.name} on {described.spec.name}"
    rows = [("room", "parameters"), *((room, f"{count / 1e6:.6f} M") for room, count in counts.items())]
    return TerminalTable(title, rows, sections=[len(counts) - 2])  # a line above the total


def _sentences(described: CheckpointMeta, detector: Detector, has_digest: bool | None) -> Iterator[str]:
    """Yield what the table does not say: frames, parts, windows, masked modes, classes, digest and note."""
    spec = described.spec
    model = described.model_config
    temporal = described.temporal_config
    # The shape of the network.
    padded_height, padded_width = detector.backbone.padded_hw
    yield f"frames {spec.frame_width} x {spec.frame_height}, padded to {padded_width} x {padded_height}"
    facts = ", ".join(f"{name} {value}" for name, value in detector.backbone.facts().items())
    yield f"backbone {model.backbone} ({facts}), neck {model.neck}, head {model.head}"
    # What it was trained on.
    yield f"a step every {described.windows.stride_us / 1000:g} ms"
    shrinking = "may" if described.may_shrink_windows else "should not"
    yield f"windows of {described.trained_ms} ms in training, which {shrinking} shrink at higher rates"
    for stride, share in _share_masked(described).items():
        yield f"bandlimit {temporal.bandlimit:g} masks {share:.0%} of the modes at stride {stride}"
    yield f"classes {', '.join(spec.class_names)}"
    if has_digest is not None:
        yield "the file agrees with its digest" if has_digest else "the file has no digest"
    if described.note:
        yield described.note


def _share_masked(described: CheckpointMeta) -> dict[int, float]:
    """Return by stride which share of the modes the bandlimit masks: in weights, or in a detector to be trained.

    These get no gradient. Without a bandlimit, and for exported files, there is nothing to say.
    """
    if not described.temporal_config.bandlimit:
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # initial steps are drawn: the same question gets the same answer
        detector = described.detector if isinstance(described, LoadedCheckpoint) else described.build()
    if not isinstance(detector, Detector):
        return {}
    shares = {}
    for stride, layer in detector.backbone.temporal_layers().items():
        spectrum = layer.spectrum()
        if not isinstance(spectrum, str):
            shares[stride] = float(spectrum.is_masked.double().mean())
    return shares
