"""Trains detectors that differ in their temporal layer alone, and scores each at every rate, in every convention.

Everything is kept below one folder: the recordings, a folder per training, and the rows, written after every
evaluation; what is complete is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rvtssm.atomic_files import atomic_file
from rvtssm.cli import compose
from rvtssm.models.checkpoint import load_file
from rvtssm.models.detector import count_parameters
from rvtssm.run.evaluate import evaluate
from rvtssm.run.generate import generate
from rvtssm.run.preprocess import preprocess
from rvtssm.run.train import train
from rvtssm.run.weights import read_weights
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint

# random strides and windows in training, from raw events; 80 and 200 Hz stay unseen
AT_RATES = ("dataset.source=raw", "augment.rates_hz=[20,40,100]", "augment.rate_window=random")
VARIANTS: dict[str, tuple[str, ...]] = {
    "s5": ("temporal.bandlimit=0",),
    "s5-bandlimit-0.5": ("temporal.bandlimit=0.5",),
    "s5-bandlimit-1": ("temporal.bandlimit=1",),
    "s5-h2": ("temporal.bandlimit=0", "optim.h2_weight=0.1"),
    "s4d": ("temporal=s4d", "temporal.bandlimit=0"),
    "s4d-zoh": ("temporal=s4d", "temporal.bandlimit=0", "temporal.discretization=zoh"),
    "lstm": ("temporal=lstm",),
    "s5-rates": ("temporal.bandlimit=0", *AT_RATES),
    "lstm-rates": ("temporal=lstm", *AT_RATES),
}
HZ = (20, 40, 80, 100, 200)  # the first is that of training
CONDITIONS = (("shrink", True), ("slide", True), ("shrink", False), ("slide", False))  # window, time step rescaled
STEPLESS = ("lstm", "lstm-rates")  # without a time step: scored once for each window, as if it had been rescaled


def conditions_of(variant: str) -> list[tuple[str, bool]]:
    """Return the conditions of the scores; at the rate of training all conditions are equal."""
    return [(window, is_rescaled) for window, is_rescaled in CONDITIONS if is_rescaled or variant not in STEPLESS]


@dataclass(frozen=True)
class Study:
    """One budget for all; `overrides` change the demo's recipe for all of them, `variants` for one."""

    folder: Path
    steps: int = 1600
    overrides: tuple[str, ...] = ()
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: VARIANTS)
    precision: str = "32-true"  # of training; the demo's own depends on the processor

    def words(self, variant: str, seed: int) -> list[str]:
        """Return the arguments of `rvtssm train` and `rvtssm evaluate`."""
        return [
            "experiment=demo",
            f"dataset.raw_dir={self.folder / 'raw'}",
            f"dataset.prepared_dir={self.folder / 'prepared'}",
            f"training.steps={self.steps}",
            f"training.validate_every={max(1, self.steps // 2)}",
            f"training.precision={self.precision}",
            "evaluation.ablate_memory=false",
            *self.overrides,
            *self.variants[variant],
            f"seed={seed}",
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """What rows must share to stand in one table."""
        return {"steps": self.steps, "overrides": list(self.overrides), "precision": self.precision}


def read_result(path: Path, study: Study) -> dict[str, Any]:
    """Return the trainings and rows of an earlier run; raise ValueError if the file holds another study."""
    if not path.exists():
        return {"settings": study.settings, "trainings": [], "rows": []}
    result: dict[str, Any] = json.loads(path.read_text())
    if result.get("settings") != study.settings:
        raise ValueError(
            f"{path} holds a study with {result.get('settings')}, this one has {study.settings}; "
            "give the same ones, or another --json"
        )
    return result


def run(study: Study, variants: Sequence[str], num_seeds: int, path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Do what `path` does not hold yet, seed by seed; returns and keeps the whole result."""
    result = read_result(path, study)
    missing = [
        (variant, seed)
        for seed in range(num_seeds)
        for variant in variants
        if len(_rows_of(result, variant, seed)) < len(conditions_of(variant)) * (len(HZ) - 1) + 1
    ]
    if missing:
        make_data(study)
    for variant, seed in missing:
        out = study.folder / f"{variant}-seed-{seed}"
        words = [*study.words(variant, seed), f"out={out}"]
        if not any((row["variant"], row["seed"]) == (variant, seed) for row in result["trainings"]):
            train(compose([*words, "resume=auto"]))
            result["trainings"].append({"variant": variant, "seed": seed, **training_facts(out, words), **facts})
            write_result(path, result)
        for window, is_rescaled in conditions_of(variant):
            for rows in _evaluated(result, variant, seed, window, is_rescaled, words, out):
                result["rows"] += rows
                write_result(path, result)
    return result


def _evaluated(
    result: dict[str, Any], variant: str, seed: int, window: str, is_rescaled: bool, words: list[str], out: Path
) -> Iterator[list[dict[str, Any]]]:
    """Return the rows of one condition; at the rate of training all conditions are equal."""
    key = {"variant": variant, "seed": seed, "window": window, "is_rescaled": is_rescaled}
    done = {row["hz"] for row in result["rows"] if all(row[name] == value for name, value in key.items())}
    hz = [rate for rate in HZ if rate not in done and (rate != HZ[0] or (window, is_rescaled) == CONDITIONS[0])]
    if hz:
        (report,) = evaluate(
            compose(
                [
                    *words[:-1],
                    f"out={out / 'evaluation' / f'{window}-{is_rescaled}'}",
                    f"checkpoint={best_checkpoint(out)}",
                    f"evaluation.frequencies_hz={hz}",
                    f"evaluation.window={window}",
                    f"evaluation.step_scale={'null' if is_rescaled else 1}",
                ]
            )
        )
        yield [{**key, "hz": row.hz, "AP": row.metrics["AP"], "AP50": row.metrics["AP50"]} for row in report.rows]


def make_data(study: Study) -> None:
    """Generate and prepare the recordings that all trainings share; those that exist stay as they are."""
    data = compose(study.words(next(iter(study.variants)), 0))
    generate(data)
    if preprocess(data):
        raise ValueError(f"some recordings in {study.folder} could not be prepared; see the lines above")


def training_facts(out: Path, words: list[str]) -> dict[str, Any]:
    """Return the number of parameters of the detector that was trained in `out`, and the seconds it took."""
    checkpoint = read_weights(compose([*words, f"checkpoint={best_checkpoint(out)}"]))
    return {
        "parameters": count_parameters(checkpoint.detector)["total"],
        "train_seconds": round(load_file(last_checkpoint(out))["train_seconds"], 1),
    }


def _rows_of(result: dict[str, Any], variant: str, seed: int) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if (row["variant"], row["seed"]) == (variant, seed)]


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write the result as JSON; an interruption leaves the former file."""
    with atomic_file(path) as staged:
        staged.write_text(json.dumps(result, indent=1) + "\n")
