"""Fills a detector with the weights that `training.init_from` names, and says which tensors were used."""

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from rich.table import Table

from rvtssm.cli.console import console, say
from rvtssm.cli.weight_settings import WeightSettings, pasted, settings_of
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import CLASS_MAP_FORM, NO_CLASS, Transferred, TransferSource
from rvtssm.system.output_folder import result_set

OUTCOMES = {"taken": "taken", "resized": "adapted", "left": "new"}  # as columns of the table


def say_settings(path: str, source: TransferSource, own: WeightSettings) -> None:
    """Print which settings of a training are those of its weights, and which were named."""
    theirs = settings_of(source.model, source.temporal, source.windows)
    kept = [word for word in own.words() if word in theirs.words()]
    say(f"settings from {path}: {pasted(kept) or 'the defaults'}")
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
    if words := _words_of_left(source, meta, report):
        say(f"to take more tensors from the weights, start a new training with {pasted(words)}")
    with (
        result_set(out, "init_from", ["init_from.csv"]) as staged,
        open(staged / "init_from.csv", "w", newline="") as text,
    ):
        writer = csv.writer(text)
        writer.writerow(("tensor", "part", "outcome", "reason"))
        writer.writerows(astuple(row) for row in report)


def _words_of_left(source: TransferSource, meta: CheckpointMeta, report: Sequence[Transferred]) -> list[str]:
    """Return the settings of the weights, as words, without which tensors are new."""
    left = {row.part.split(" ")[0] for row in report if row.outcome == "left" and row.part != "head classes"}
    sections = {"temporal"} & left | ({"model", "windows"} if left - {"temporal"} else set())
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
        counts = [str(sum(row.outcome == outcome for row in rows)) for outcome in OUTCOMES]
        reasons = dict.fromkeys(f"{OUTCOMES[row.outcome]}: {row.reason}" for row in rows if row.outcome != "taken")
        table.add_row(part, *counts, "\n".join(reasons))
    return table
