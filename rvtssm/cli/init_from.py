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
from rvtssm.models.detector import Detector
from rvtssm.models.transfer import NO_CLASS, Transferred, TransferSource, read_source, transfer
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError

CLASS_MAP_FORM = "'{}.class_map={{NAME_IN_WEIGHTS: NAME_IN_DATA}}'"  # quoted, for a shell; with a section
OUTCOMES = {"taken": "taken", "resized": "adapted", "left": "new"}  # as columns of the table


def read_start(path: str) -> TransferSource:
    """Return the weights in `path`; raise UserError if there are none."""
    try:
        return read_source(path)
    except UserError as error:
        raise UserError(f"training.init_from: {error}") from None


def mapped_classes(key: str, class_map: dict[str, str], names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of weights (`names`) by the names of the data: `class_map`, the value of `key`, has these.

    Raise UserError for a class that the weights or the data (`known`) do not have, and for two that become one.
    """
    for name, what, all_names in [
        *((name, "the weights have", names) for name in class_map),
        *((name, "the data have", known) for name in class_map.values()),
    ]:
        if name not in all_names:
            raise UserError(f"{key}: {what} no class {name!r}; choose from {', '.join(all_names) or 'none'}")
    mapped = tuple(class_map.get(name, name) for name in names)
    if len(set(mapped)) < len(mapped):
        raise UserError(f"{key}={class_map} makes two classes of the weights one; map one of them")
    return mapped


def say_settings(path: str, source: TransferSource, own: WeightSettings) -> None:
    """Print which settings of a training are those of its weights, and which were named."""
    theirs = settings_of(source.model, source.temporal, source.windows)
    kept = [word for word in own.words() if word in theirs.words()]
    say(f"settings from {path}: {pasted(kept) or 'the defaults'}")
    if named := own.others(theirs):
        say(f"settings from the command line, its experiment or prepared frames: {pasted(named)}")


def fill_from(path: str, source: TransferSource, detector: Detector, meta: CheckpointMeta, out: Path | None) -> None:
    """Fill the detector with the weights read from `path`, show a table, and list all tensors in `out`/init_from.csv.

    With `out` None nothing is shown or written. Raise ValueError if none of the weights fits.
    """
    try:
        report = transfer(source, detector, meta)
    except UserError as error:
        raise UserError(f"training.init_from={path}: {error}") from None
    if out is None:
        return
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
