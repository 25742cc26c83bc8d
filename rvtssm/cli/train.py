"""`rvtssm train`: trains a detector on raw or prepared recordings; writes its best and last checkpoint and logs."""

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.table import Table

from rvtssm.cli.config import Config
from rvtssm.cli.console import console, say
from rvtssm.cli.inputs import check_training
from rvtssm.cli.words import DetectorSettings, pasted, run_files, settings_of
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import CLASS_MAP_FORM, NO_CLASS, Transferred, TransferSource
from rvtssm.system.output_folder import result_set
from rvtssm.training import loop
from rvtssm.training.module import DetectionModule, Start

OUTCOMES = {"taken": "taken", "resized": "adapted", "left": "new"}  # as columns of the table


def train(config: Config, callbacks: Sequence[Callback] = ()) -> Path:
    """Train and validate a detector, write `checkpoints/best.ckpt` and `last.ckpt` to `out`; return the best one."""
    check_training(config)
    decided = loop.decided(config)
    assert isinstance(decided, Config)
    return loop.train(decided, [*callbacks, _RunFiles(decided)])


class _RunFiles(L.Callback):
    """Before the first step, reports the start weights, and writes the files that describe the run."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, DetectionModule)
        config = self.config
        start = pl_module.start
        if start is not None:
            say_settings(start.path, start.source, settings_of(config.model, config.temporal, config.windows.settings))
            report_transfer(start, config.run_dir)
        with run_files(config.run_dir, "train", config):
            pass


def say_settings(path: str, source: TransferSource, own: DetectorSettings) -> None:
    """Print which settings of a training are those of its weights, and which were named."""
    theirs = settings_of(source.model, source.temporal, source.windows)
    shared = [word for word in own.words() if word in theirs.words()]
    say(f"settings from {path}: {pasted(shared) or 'the defaults'}")
    if named := own.others(theirs):
        say(f"settings from the command line, its experiment or prepared frames: {pasted(named)}")


def report_transfer(start: Start, out: Path) -> None:
    """Show how many tensors of a detector are from its start weights, and list all in `out`/init_from.csv."""
    # The table: where each tensor comes from.
    path = start.path
    source = start.source
    meta = start.meta
    report = start.report
    console.print(_table(path, report))
    # Advice on classes, time constants and settings that keep tensors from being taken.
    if any(row.reason == NO_CLASS for row in report):
        theirs = ", ".join(source.class_names or ())
        ours = ", ".join(meta.spec.class_names)
        say(
            f"no class of the weights ({theirs}) is one of the data ({ours}); if two mean the same, map them with "
            f"{CLASS_MAP_FORM.format('training')}"
        )
    theirs_ms, ours_ms = (windows.stride_us / 1000 for windows in (source.windows, meta.windows))
    temporal = {row.outcome for row in report if row.part.startswith("temporal")}
    if theirs_ms != ours_ms and "taken" in temporal and "resized" not in temporal:
        say(
            f"temporal.name={meta.temporal_config.name} has no step to rescale from {theirs_ms:g} ms, the stride "
            f"of the weights, to {ours_ms:g} ms: at the start, its memory lasts {ours_ms / theirs_ms:g} times as long"
        )
    if words := _words_of_new(source, meta, report):
        say(f"to take more tensors from the weights, start a new training with {pasted(words)}")
    # The file has a line per tensor.
    with (
        result_set(out, "init_from", ["init_from.csv"]) as staged,
        open(staged / "init_from.csv", "w", newline="") as text,
    ):
        writer = csv.writer(text)
        writer.writerow(("tensor", "part", "outcome", "reason"))
        writer.writerows(map(astuple, report))


def _words_of_new(source: TransferSource, meta: CheckpointMeta, report: Sequence[Transferred]) -> list[str]:
    """Return the settings of the weights, as words, without which tensors are new."""
    new = {row.part.split(" ")[0] for row in report if row.outcome == "left" and row.part != "head classes"}
    sections = {"temporal"} & new
    if new - {"temporal"}:
        sections |= {"model", "windows"}
    own = settings_of(meta.model_config, meta.temporal_config, meta.windows)
    words = settings_of(source.model, source.temporal, source.windows).others(own)
    return [word for word in words if re.split("[.=]", word)[0] in sections]


def _table(path: str, report: Sequence[Transferred]) -> Table:
    """Count tensors by part of the detector and outcome, and give the reasons why some are not from the weights."""
    table = Table(title=f"tensors taken from {path}, adapted from it, or new", title_justify="left")
    table.add_column("part", no_wrap=True)
    for column in OUTCOMES.values():
        table.add_column(column, justify="right")
    table.add_column("why", overflow="fold")
    parts: dict[str, list[Transferred]] = defaultdict(list)
    for row in report:
        parts[row.part].append(row)
    for part, rows in parts.items():
        outcomes = [row.outcome for row in rows]
        counts = [str(outcomes.count(outcome)) for outcome in OUTCOMES]
        reasons = dict.fromkeys(f"{OUTCOMES[row.outcome]}: {row.reason}" for row in rows if row.outcome != "taken")
        table.add_row(part, *counts, "\n".join(reasons))
    return table
