"""`rvtssm train`: trains a detector on raw or prepared recordings; writes its best and last checkpoint and logs."""

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from lightning.pytorch.callbacks import Callback
from rich.table import Table

from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, console, say, with_labels
from rvtssm.cli.inputs import check_training
from rvtssm.cli.run_files import run_files
from rvtssm.cli.weights import WeightSettings, pasted, settings_of
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.parts import head_class
from rvtssm.models.transfer import CLASS_MAP_FORM, NO_CLASS, Transferred, TransferSource
from rvtssm.system.output_folder import result_set
from rvtssm.training import loop
from rvtssm.training.reports import AboutToTrain, TrainReports

OUTCOMES = {"taken": "taken", "resized": "adapted", "left": "new"}  # as columns of the table


def train(config: Config, callbacks: Sequence[Callback] = ()) -> Path:
    """Train and validate a detector, write `checkpoints/best.ckpt` and `last.ckpt` to `out`; return the best one."""
    check_training(config)
    return loop.train(config, _OnTerminal(config), callbacks)


class _OnTerminal(TrainReports):
    """Prints what a training does, and writes the files that describe the run."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def say(self, text: str, is_warning: bool = False) -> None:
        say(text, style="yellow" if is_warning else None)

    def start_weights(self, path: str, source: TransferSource) -> None:
        say_settings(path, source, settings_of(self.config.model, self.config.temporal, self.config.windows.settings))

    def transferred(
        self, path: str, source: TransferSource, meta: CheckpointMeta, report: Sequence[Transferred]
    ) -> None:
        report_transfer(path, source, meta, report, self.config.run_dir)

    def about_to_train(self, about: AboutToTrain) -> None:
        run = about.run
        num_train, num_val = (_with_labels(about, split) for split in ("train", "val"))
        scored, num_labels = about.scored_labels
        announce(
            "train",
            source=f"{about.data.source} {about.data.spec.name}",
            stride=f"{about.meta.windows.stride_us / 1000:g} ms",
            recordings=f"{num_train} (validation: {num_val}, {scored / num_labels:.0%} scored)",
            steps=f"{run.sections.training.steps} of {about.batch_in_words}",
            memory=f"about {about.peak_bytes / 1e9:.2g} GB per process",
            resumed_from=run.resume,
            device=run.device_in_words,
            precision=run.sections.training.precision,
            score=head_class(run.sections.model).describe_scores(run.sections.postprocess),
            output=run.out,
        )
        assert isinstance(run.sections, Config)
        with run_files(run.out, "train", run.sections):
            pass


def _with_labels(about: AboutToTrain, split: str) -> str:
    sequences = about.data.sequences(split)
    return with_labels(sequences, about.data.num_without_boxes(split, sequences))


def say_settings(path: str, source: TransferSource, own: WeightSettings) -> None:
    """Print which settings of a training are those of its weights, and which were named."""
    theirs = settings_of(source.model, source.temporal, source.windows)
    shared = [word for word in own.words() if word in theirs.words()]
    say(f"settings from {path}: {pasted(shared) or 'the defaults'}")
    if named := own.others(theirs):
        say(f"settings from the command line, its experiment or prepared frames: {pasted(named)}")


def report_transfer(
    path: str, source: TransferSource, meta: CheckpointMeta, report: Sequence[Transferred], out: Path
) -> None:
    """Show how many tensors of a detector are from the weights in `path`, and list all in `out`/init_from.csv."""
    console.print(_table(path, report))
    if any(row.reason == NO_CLASS for row in report):
        theirs, ours = ", ".join(source.class_names or ()), ", ".join(meta.spec.class_names)
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
    with (
        result_set(out, "init_from", ["init_from.csv"]) as staged,
        open(staged / "init_from.csv", "w", newline="") as text,
    ):
        writer = csv.writer(text)
        writer.writerow(("tensor", "part", "outcome", "reason"))
        writer.writerows(astuple(row) for row in report)


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
