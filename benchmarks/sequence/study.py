"""One study: train every layer with every seed, keep what is finished, print ours beside the published numbers."""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measuring import write_json
from benchmarks.sequence.model import SequenceModel, count_parameters
from rvtssm.ssm.layer import StepScale
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS

_TEST_BATCH = 100  # sequences


class Split(NamedTuple):
    """One part of the data, time first."""

    inputs: Tensor  # (L, N, ...)
    targets: Tensor  # (L, N, K)
    gaps: Tensor | None  # (L, N), time since the sample before; None where it is always 1


class Data(NamedTuple):
    """The three parts. Choices are made on `validation`; `test` is read once for each trained model."""

    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True)
class Recipe:
    """How a model is made and trained; the values that a study chose."""

    epochs: int
    batch_size: int  # sequences
    lr: float
    ssm_lr: float  # of the system's own parameters
    weight_decay: float
    dim: int
    depth: int
    state_size: int
    num_blocks: int
    dt_min: float
    dt_max: float
    discretization: str = "zoh"
    warmup: float = 0.02  # fraction of the epochs
    validate_every: int = 5  # epochs
    clip: float | None = 1.0  # the largest norm of all gradients together

    def temporal(self, name: str) -> TemporalConfig:
        """Return the configuration of the layer `name`; a layer without modes takes only what applies to it."""
        blocks = self.num_blocks if name in ("s5", "selective_s5") else 1
        return TemporalConfig(
            name=name,
            discretization=self.discretization,
            block="gated",
            bandlimit=0.0,
            dt_min=self.dt_min,
            dt_max=self.dt_max,
            state_size=self.state_size,
            half_state=True,
            num_blocks=blocks,
        )


@dataclass(frozen=True)
class Study:
    """What one command measures."""

    name: str
    recipe: Recipe
    build_data: Callable[[], Data]
    build_model: Callable[[str, Recipe], SequenceModel]
    scores: dict[str, Callable[[float], float]]  # column -> from the mean squared error; the first one is published
    published: dict[str, float]  # model -> the first score


def mean_squared_error(model: SequenceModel, split: Split) -> float:
    """Return the mean over all sequences, steps and outputs."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for chosen in torch.arange(split.targets.shape[1]).split(_TEST_BATCH):
            inputs, targets, step_scale = _some(split, chosen)
            total += float(F.mse_loss(model(inputs, step_scale), targets, reduction="sum"))
    return total / split.targets.numel()


def _some(split: Split, chosen: Tensor) -> tuple[Tensor, Tensor, StepScale]:
    """Return inputs, targets and step scale of some sequences."""
    return split.inputs[:, chosen], split.targets[:, chosen], 1.0 if split.gaps is None else split.gaps[:, chosen]


def train(model: SequenceModel, data: Data, recipe: Recipe, say: Callable[[str], None]) -> dict[str, Any]:
    """Train in place and keep the epoch with the best validation error; -> the fields of a row."""
    start, cpu_start, split = time.perf_counter(), time.process_time(), data.train
    num_sequences = split.targets.shape[1]
    steps_per_epoch = math.ceil(num_sequences / recipe.batch_size)
    num_steps = steps_per_epoch * recipe.epochs
    num_warmup = max(1, round(num_steps * recipe.warmup))

    def factor(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))

    optimizer = torch.optim.AdamW(model.parameter_groups(recipe.lr, recipe.ssm_lr, recipe.weight_decay))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    best, best_epoch, best_weights = math.inf, 0, copy.deepcopy(model.state_dict())
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        train_loss = 0.0
        for chosen in torch.randperm(num_sequences).split(recipe.batch_size):
            loss = model.loss(*_some(split, chosen))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if recipe.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            scheduler.step()
            train_loss += float(loss.detach()) * len(chosen) / num_sequences
        if epoch % recipe.validate_every == 0 or epoch == recipe.epochs:
            error = mean_squared_error(model, data.validation)
            if error < best:
                best, best_epoch, best_weights = error, epoch, copy.deepcopy(model.state_dict())
            seconds = time.perf_counter() - start
            say(
                f"epoch {epoch}/{recipe.epochs}, loss {train_loss:.3e}, validation error {error:.3e}, "
                f"{seconds:.0f} s, {seconds * (recipe.epochs / epoch - 1):.0f} s to go"
            )
    model.load_state_dict(best_weights)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "parameters": count_parameters(model),
        "epoch": best_epoch,
        "validation_mse": best,
        "test_mse": mean_squared_error(model, data.test),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def read_rows(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finished rows of an earlier run; raise ValueError if the file holds another study."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if found.get("settings") != settings:
        raise ValueError(
            f"{path} holds results of other settings: {found.get('settings')}, this run has {settings}; "
            "give another --json, or delete the file"
        )
    return list(found["rows"])


def run_study(
    study: Study, layers: Sequence[str], num_seeds: int, path: Path, console: Console
) -> list[dict[str, Any]]:
    """Train what `path` does not hold yet, seed by seed, and write it after every model; -> all rows."""
    settings = {"study": study.name, **asdict(study.recipe)}
    rows = read_rows(path, settings)
    done = {(row["layer"], row["seed"]) for row in rows}
    missing = [(layer, seed) for seed in range(num_seeds) for layer in layers if (layer, seed) not in done]
    data = study.build_data() if missing else None
    for layer, seed in missing:
        assert data is not None
        torch.manual_seed(seed)
        model = study.build_model(layer, study.recipe)
        say = _speaker(console, f"{layer} seed {seed}: ")
        row = {"layer": layer, "seed": seed, **train(model, data, study.recipe, say)}
        row.update({name: score(row["test_mse"]) for name, score in study.scores.items()})
        rows.append(row)
        result = {
            "settings": settings,
            "published": study.published,
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
            "rows": rows,
        }
        write_json(path, result)
    return rows


def _speaker(console: Console, prefix: str) -> Callable[[str], None]:
    return lambda text: console.print(prefix + text, highlight=False, soft_wrap=True)


def build_table(study: Study, rows: Sequence[dict[str, Any]]) -> Table:
    """Return a Markdown table of our mean and spread over seeds with the published numbers, which are marked."""
    table = Table(box=box.MARKDOWN)
    for name in ("model", *study.scores, "seeds", "parameters", "CPU minutes per seed"):
        table.add_column(name, justify="left" if name == "model" else "right")
    first = next(iter(study.scores))
    for layer in dict.fromkeys(row["layer"] for row in rows):
        chosen = [row for row in rows if row["layer"] == layer]
        cells = [spread([row[name] for row in chosen]) for name in study.scores]
        minutes = mean(row["cpu_seconds"] for row in chosen) / 60
        table.add_row(f"{layer}, ours", *cells, str(len(chosen)), str(chosen[0]["parameters"]), f"{minutes:.1f}")
    for model, value in study.published.items():
        cells = [f"{value:g}" if name == first else "" for name in study.scores]
        table.add_row(f"{model}, published", *cells, "", "", "")
    return table


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation over seeds as text; a single seed has no spread."""
    return f"{mean(values):.3g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def main(study: Study, arguments: Sequence[str] | None = None) -> int:
    """Run the command line of a study; a user's mistake gives one line and status 2."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.sequence.{study.name}")
    parser.add_argument("--seeds", type=int, default=3, help="models of each layer")
    parser.add_argument("--layers", nargs="+", default=["s5", "selective_s5"], choices=sorted(TEMPORAL_LAYERS))
    parser.add_argument("--epochs", type=int, default=study.recipe.epochs, help="fewer for a trial")
    parser.add_argument("--json", type=Path, required=True, help="results; finished models are not trained again")
    chosen = parser.parse_args(arguments)
    if chosen.seeds < 1 or chosen.epochs < 1:
        parser.error(f"--seeds {chosen.seeds} --epochs {chosen.epochs}: give at least 1 of each")
    console = Console(width=120)  # lines of the table stay whole in a narrow terminal
    study = replace(study, recipe=replace(study.recipe, epochs=chosen.epochs))
    try:
        rows = run_study(study, chosen.layers, chosen.seeds, chosen.json, console)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    console.print(build_table(study, rows))
    return 0
