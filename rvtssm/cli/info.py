"""`rvtssm info`: counts the parameters of a detector by room, for a configuration or for weights."""

import json

import torch
from rich.table import Table

from rvtssm.cli.config import Config
from rvtssm.cli.console import console, say
from rvtssm.cli.weight_settings import pasted, settings_of
from rvtssm.datasets import build_spec
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.detector import Detector, count_parameters
from rvtssm.models.weights import check_digest, local_weights


def info(config: Config, as_json: bool = False) -> dict[str, int]:
    """Print and return the parameters by room of the detector in `checkpoint`, or else of the configuration."""
    described: CheckpointMeta
    if config.checkpoint:
        from rvtssm.cli.weights import read_weights  # imports what runs exported files

        described = read_weights(config)
    else:
        spec = build_spec(config.dataset)
        described = CheckpointMeta(spec, config.model, config.temporal, config.windows.settings)
    spec, model, temporal = described.spec, described.model_config, described.temporal_config
    with torch.device("meta"):
        detector = described.build()
    words = settings_of(model, temporal, described.windows).words()
    counts, facts = count_parameters(detector), detector.backbone.facts()
    masked = _share_masked(described)
    has_digest = check_digest(local_weights(config.checkpoint)) if config.checkpoint else None
    if as_json:
        values = {
            "model": model.size,
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
            "share_masked": masked,
            "parameters": counts,
            "frame_hw": [spec.frame_height, spec.frame_width],
            "padded_hw": list(detector.backbone.padded_hw),
            "has_digest": has_digest,
            "note": described.note,
            "settings": words,
            **facts,
        }
        say(json.dumps(values))
        return counts
    title = f"{model.size} {temporal.name} on {spec.name}"
    table = Table(title=title, title_justify="left")
    table.add_column("room")
    table.add_column("parameters", justify="right")
    for room, count in counts.items():
        if room == "total":
            table.add_section()
        table.add_row(room, f"{count / 1e6:.6f} M")
    console.print(table)
    say(
        f"frames {spec.frame_width} x {spec.frame_height}, padded to "
        f"{detector.backbone.padded_hw[1]} x {detector.backbone.padded_hw[0]}; "
        f"backbone {model.backbone} ({', '.join(f'{name} {value}' for name, value in facts.items())}), "
        f"neck {model.neck}, head {model.head}; "
        f"a step every {described.windows.stride_us / 1000:g} ms; windows of "
        f"{', '.join(f'{length_us / 1000:g}' for length_us in described.window_lengths_us)} ms in training, which "
        f"{'may' if described.may_shrink_windows else 'should not'} shrink at higher rates; "
        + "".join(
            f"bandlimit {temporal.bandlimit:g} masks {share:.0%} of the modes at stride {stride}; "
            for stride, share in masked.items()
        )
        + f"classes {', '.join(spec.class_names)}"
        + {None: "", True: "; the file agrees with its digest", False: "; the file has no digest"}[has_digest]
        + (f"; {described.note}" if described.note else "")
    )
    say(f"settings: {pasted(words)}")
    return counts


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
    spectra = {stride: layer.spectrum() for stride, layer in detector.backbone.temporal_layers().items()}
    return {
        stride: float(each.is_masked.double().mean()) for stride, each in spectra.items() if not isinstance(each, str)
    }
