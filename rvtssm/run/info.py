"""`rvtssm info`: how many parameters a detector has, and where."""

from __future__ import annotations

import json

import torch
from rich.table import Table

from rvtssm.config import Config
from rvtssm.datasets import build_spec
from rvtssm.models.detector import build_detector, count_parameters
from rvtssm.run.console import console


def info(config: Config, as_json: bool = False) -> dict[str, int]:
    """Parameters by room of the detector that the configuration describes."""
    spec = build_spec(config.dataset)
    with torch.device("meta"):
        detector = build_detector(
            config.model,
            config.temporal,
            spec.frame_height,
            spec.frame_width,
            spec.num_classes,
            in_channels=config.preprocess.counting.num_channels,
        )
    counts, geometry = count_parameters(detector), detector.geometry
    if as_json:
        described = {
            "model": config.model.size,
            "mixer": config.model.mixer,
            "temporal": config.temporal.name,
            "dataset": spec.name,
            "parameters": counts,
            "frame_hw": [spec.frame_height, spec.frame_width],
            "padded_hw": [geometry.padded_height, geometry.padded_width],
            "partition_hw": list(geometry.partition),
        }
        console.print(json.dumps(described), soft_wrap=True, highlight=False, markup=False)
        return counts
    mixer = "" if config.model.mixer == "attention" else f" {config.model.mixer}"
    title = f"{config.model.size}{mixer} {config.temporal.name} on {spec.name}"
    table = Table(title=title, title_justify="left")
    table.add_column("room")
    table.add_column("parameters", justify="right")
    for room, count in counts.items():
        if room == "total":
            table.add_section()
        table.add_row(room, f"{count / 1e6:.6f} M")
    table.caption = (
        f"frames {spec.frame_width} x {spec.frame_height}, padded to "
        f"{geometry.padded_width} x {geometry.padded_height}, "
        f"attention windows {geometry.partition[1]} x {geometry.partition[0]}"
    )
    console.print(table)
    return counts
