"""Every cell of a study of given weights on its own line: windows, step scale, memory, score, AP, and published AP.

A paragraph above the table says what was run, so that a paper can cite it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rvtssm.contrib.studies.study_cells import Cell
from rvtssm.contrib.studies.study_report import Score
from rvtssm.evaluation.coco import LEVEL
from rvtssm.evaluation.protocol import scoring_rules
from rvtssm.evaluation.report import NO_VALUE, in_hz, percent, percent_interval
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.system.files import written_by

CELLS_FILE = "cells.md"
PUBLISHED = ", published"  # at the end of the names in `study.beside` that are columns here


@dataclass(frozen=True)
class _Line:
    """The score of weights at one rate in one condition."""

    hz: float
    windows: str  # their length and the distance between their ends
    step_scale: float  # time step of the layers over that of the training
    memory: str
    score: str
    ap: float
    ap_text: str  # in percent, with its interval if there is one

    @property
    def condition(self) -> str:
        return f"{self.windows}, step x {self.step_scale:g}, memory {self.memory}, {self.score}"


def cells_page(
    meta: CheckpointMeta,
    source: str,
    cells: Sequence[Cell],
    beside: Mapping[str, Mapping[float, float]],
) -> str:
    """Return the paragraph and the table of all cells in Markdown, ordered by rate.

    Args:
        meta: The description of the weights.
        source: The file that was given, for the text.
        cells: The cells, all of which are scored.
        beside: Published AP in percent, by name and rate.
    """
    lines: list[_Line] = []
    for cell in cells:
        lines += _lines(meta, cell)
    lines = sorted(dict.fromkeys(lines), key=lambda line: line.hz)  # at the trained rate some conditions are one
    columns = {name: ap for name, ap in beside.items() if name.endswith(PUBLISHED)}
    table = [["rate", "windows", "step", "memory", "score", "AP re-run", *columns]]
    for line in lines:
        published = [_number(ap, line.hz) for ap in columns.values()]
        row = [in_hz(line.hz), line.windows, f"x {line.step_scale:g}", line.memory, line.score, line.ap_text]
        table.append([*row, *published])
    first = next(iter(cells[0].scores.values()))
    text = [_what_was_run(meta, source, first), *_by_rate(lines, columns)]
    return "\n\n".join([" ".join(text), "\n".join(markdown_table(table))]) + "\n"


def _lines(meta: CheckpointMeta, cell: Cell) -> Iterator[_Line]:
    evaluation = cell.config.evaluation
    for window, score in cell.scores.items():
        for hz, resampled in score.rates.items():
            windows = meta.windows_at(hz, window or evaluation.window)
            length_ms, stride_ms = windows.nominal_length_us / 1000, windows.stride_us / 1000
            scale = evaluation.step_scale
            ap = resampled.metrics["AP"]
            yield _Line(
                hz,
                f"{length_ms:g} ms every {stride_ms:g} ms",
                windows.stride_us / meta.windows.stride_us if scale is None else scale,
                evaluation.memory or meta.model_config.memory,
                cell.config.postprocess.score or str(meta.scored_as.score),
                ap,
                percent_interval(resampled.interval("AP")) if resampled.has_intervals else percent(ap),
            )


def _what_was_run(meta: CheckpointMeta, source: str, score: Score) -> str:
    """Say which weights, program, recordings and rules the numbers come from."""
    program, resampled = written_by(), next(iter(score.rates.values()))
    commit = f" (commit {program['commit'][:8]})" if program["commit"] else ""
    chunk = f"; memory `chunk` resets the state after {meta.model_config.memory_chunk} steps"
    intervals = f" Brackets are {LEVEL:.0%} intervals over recordings." if resampled.has_intervals else ""
    return (
        f"We scored the weights {source} (SHA-256 of the tensors {score.weights[:12]}...) with rvtssm "
        f"{program['rvtssm']}{commit} on {len(resampled.recordings)} recordings of {meta.spec.name} with "
        f"{sum(resampled.num_objects)} boxes: {scoring_rules(meta.spec)}. The weights were trained with windows of "
        f"{meta.windows.nominal_length_us / 1000:g} ms every {meta.windows.stride_us / 1000:g} ms. Steps are given "
        f"relative to this stride{chunk if meta.model_config.memory_chunk else ''}; the score `class_only` ranks "
        f"detections by the class alone, as the released programs do.{intervals}"
    )


def _number(ap_by_hz: Mapping[float, float], hz: float) -> str:
    return f"{ap_by_hz[hz]:.2f}" if hz in ap_by_hz else NO_VALUE


def _by_rate(lines: Sequence[_Line], columns: Mapping[str, Mapping[float, float]]) -> Iterator[str]:
    """Yield one sentence per rate: the lowest and the highest AP with their conditions, and the published ones."""
    for hz in dict.fromkeys(line.hz for line in lines):
        at_rate = [line for line in lines if line.hz == hz and not math.isnan(line.ap)]
        if not at_rate:
            yield f"At {in_hz(hz)} no box is scored."
            continue
        low, high = min(at_rate, key=lambda line: line.ap), max(at_rate, key=lambda line: line.ap)
        published = "; ".join(f"{name}: {_number(ap, hz)}" for name, ap in columns.items())
        ap = f"AP is {percent(high.ap)} ({high.condition})"
        if percent(low.ap) != percent(high.ap):
            ap = f"AP lies between {percent(low.ap)} ({low.condition}) and {percent(high.ap)} ({high.condition})"
        yield f"At {in_hz(hz)} {ap}{f' [{published}]' if published else ''}."


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first column is text and whose others are numbers. Bars in cells are escaped.

    Args:
        rows: The cells; the first row is the head.
    """
    lines = []
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return [lines[0], "|---|" + "--:|" * (len(rows[0]) - 1), *lines[1:]]
