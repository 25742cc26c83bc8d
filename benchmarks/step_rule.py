"""Which step rule suits which windows: AP of trained weights whose state-space layers take their steps by other rules.

    python -m benchmarks.step_rule NAME=FILE [NAME=FILE ...] --raw DIR --json FILE [--hz 20,80,200] [--recordings 4]

At another rate the decay of a mode always follows the stride. What differs is the gain, by which an input enters:

- held: the input lasts for the step, so a shorter step takes less of it (`zoh` and `bilinear`, what layers do);
- impulse: the input is an impulse, so it enters as in training whatever the step (`async`, for weights of `zoh`);
- as trained: neither follows the stride (`step_scale=1`).

Windows shrink with the stride, or slide with the length of the training. `released` is what the scripts of the release
make: windows of 25, 12, 10 and 5 ms, one in each stride of the training, with the steps of the training. Scores that
the JSON file has already, of the same weights and settings, are not computed again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.measuring import write_json
from benchmarks.scan import machine
from rvtssm.datasets import DataConfig, DatasetConfig
from rvtssm.datasets.datamodule import SequenceDataModule, eval_loader
from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.evaluation.detector_run import stream
from rvtssm.models import PRECISIONS
from rvtssm.models.checkpoint import read_checkpoint, weights_digest
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import set_precision
from rvtssm.records import WindowSettings
from rvtssm.ssm.discretize import DISCRETIZATIONS, Discretization
from rvtssm.system.user_error import UserError

RELEASED_MS = (25, 12, 10, 5)
RULES = ("held", "impulse", "as trained")


def main(arguments: Sequence[str] | None = None) -> None:
    """Score what the file does not have, print the table, and write the file after every score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", nargs="+", help="NAME=FILE, a row of the table and its checkpoint")
    parser.add_argument("--raw", required=True, help="folder of recordings with a test split")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--hz", type=lambda text: [float(hz) for hz in text.split(",")], default=[20.0, 80.0, 200.0])
    parser.add_argument("--recordings", type=int, help="the first so many of the test split, default: all")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.is_file() else {"scores": {}}
    names = []
    for word in options.weights:
        name, _, file = word.partition("=")
        checkpoint = read_checkpoint(file)
        digest = weights_digest(checkpoint.detector.state_dict())
        set_precision(checkpoint.detector, options.precision)
        names.append(name)
        for condition, rule, settings in conditions(checkpoint.windows, options.hz):
            asked = [digest, str(settings), options.recordings, options.precision]
            row = result["scores"].setdefault(name, {}).setdefault(rule, {})
            if row.get(condition, {}).get("asked") != asked:
                ap = score(checkpoint, options.raw, settings, rule, options.recordings)
                row[condition] = {"AP": ap, "asked": asked}
                write_json(options.json, {**machine("cpu"), **result})
    Console(width=200).print(to_table({name: result["scores"][name] for name in names}))


def conditions(trained: WindowSettings, rates_hz: Sequence[float]) -> Iterator[tuple[str, str, WindowSettings]]:
    """Yield the name of each condition, the rule of its steps, and its windows."""
    yield f"{trained.hz:g} Hz", RULES[0], trained
    for window in ("shrink", "slide"):
        for hz in rates_hz:
            for rule in RULES if hz != trained.hz else ():
                yield f"{window}, {hz:g} Hz", rule, trained.at_rate(hz, window)
    for length_ms in RELEASED_MS:
        yield f"released, {length_ms} ms", "as trained", replace(trained, length_us=1000 * length_ms)


def score(
    checkpoint: LoadedCheckpoint, raw: str, settings: WindowSettings, rule: str, num_recordings: int | None
) -> float:
    """Return AP as a fraction on the first recordings of the test split; None means all of them."""
    spec = checkpoint.spec
    where = DatasetConfig(spec.name, raw, height=spec.height, width=spec.width, source="raw")
    loading = DataConfig(workers=0, eval_batch_size=10, eval_chunk_length=10)
    data = SequenceDataModule(where, data=loading)
    sequences = data.eval_sequences("test", settings)[:num_recordings]
    before = set_rule(checkpoint, rule)
    results = stream(
        checkpoint.detector,
        eval_loader(sequences, data.data),
        trained_stride_us=checkpoint.windows.stride_us,
        memory_chunk=checkpoint.model_config.memory_chunk,
        step_scale=1.0 if rule == "as trained" else None,
    )
    for layer, discretization in before:
        layer.discretization = discretization
    scored = [(sequence.name, sequence.labels, results[number]) for number, sequence in enumerate(sequences)]
    return evaluate_detections(scored, spec)["AP"]


def set_rule(checkpoint: LoadedCheckpoint, rule: str) -> list[tuple[Any, str]]:
    """Let all layers step by a rule; return the layers with the discretization that they had."""
    layers = [part for part in checkpoint.detector.backbone.modules() if hasattr(part, "discretization")]
    if not layers and rule == "impulse":
        raise UserError(
            "temporal.no_discretization",
            f"temporal.name={checkpoint.temporal_config.name} has no discretization; give other weights",
        )
    before = [(layer, layer.discretization) for layer in layers]
    for layer, discretization in before if rule == "impulse" else ():
        layer.discretization = f"impulse of {discretization}"
        DISCRETIZATIONS.setdefault(layer.discretization, impulse_of(DISCRETIZATIONS[discretization]))
    return before


def impulse_of(held: Discretization) -> Discretization:
    """Return the rule with the decay of `held` at the step, and its gain at the step of the training."""

    def impulse(lambda_: Tensor, dt: Tensor, step_scale: float | Tensor) -> tuple[Tensor, Tensor]:
        return held(lambda_, dt, step_scale)[0], held(lambda_, dt, 1.0)[1]

    return impulse


def to_table(scores: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> Table:
    """Return AP in percent: a row for each weights and rule, a column for each condition."""
    names = list(dict.fromkeys(condition for rules in scores.values() for row in rules.values() for condition in row))
    table = Table("weights", "step rule", *sorted(names, key=lambda name: (name.partition(",")[0], names.index(name))))
    columns = [str(column.header) for column in table.columns][2:]
    for name, rules in scores.items():
        for rule, row in rules.items():
            cells = (f"{100 * row[column]['AP']:.1f}" if column in row else "" for column in columns)
            table.add_row(name, rule, *cells)
    return table


if __name__ == "__main__":
    main()
