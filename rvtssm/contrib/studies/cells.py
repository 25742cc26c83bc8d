"""Every cell of a study of given weights on its own line: windows, step scale, memory, score, AP, and published AP.

A paragraph above the table says what was run, so that a paper can cite it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rvtssm.contrib.studies.study_config import StudySettings
from rvtssm.contrib.studies.study_report import Score
from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.protocol import scoring_rules
from rvtssm.evaluation.result import NO_VALUE, percent, percent_interval
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.system.provenance import written_by

CELLS_FILE = "cells.md"
PUBLISHED = ", published"  # at the end of the names in `study.beside` that are columns here


@dataclass(frozen=True)
class Cell:
    """Weights at one rate in one condition."""

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
    scored: Sequence[tuple[StudySettings, Mapping[str, Score]]],
    beside: Mapping[str, Mapping[float, float]],
) -> str:
    """Return the paragraph and the table of all cells in Markdown, ordered by rate.

    Args:
        meta: The description of the weights.
        source: The file that was given, for the text.
        scored: The settings of each evaluation, and its scores by kind of windows; empty if there is one kind.
        beside: Published AP in percent, by name and rate.
    """
    cells: list[Cell] = []
    for settings, scores in scored:
        cells += _cells(meta, settings, scores)
    cells.sort(key=lambda cell: cell.hz)
    rates = sorted({cell.hz for cell in cells})
    columns = {name: ap for name, ap in beside.items() if name.endswith(PUBLISHED)}
    table = [["rate", "windows", "step", "memory", "score", "AP re-run", *columns]]
    for cell in cells:
        published = [_number(ap, cell.hz) for ap in columns.values()]
        row = [f"{cell.hz:g} Hz", cell.windows, f"x {cell.step_scale:g}", cell.memory, cell.score, cell.ap_text]
        table.append([*row, *published])
    _, scores = scored[0]
    first = next(iter(scores.values()))
    text = [_what_was_run(meta, source, first), *_by_rate(cells, rates, columns)]
    return "\n\n".join([" ".join(text), "\n".join(markdown_table(table))]) + "\n"


def _cells(meta: CheckpointMeta, settings: StudySettings, scores: Mapping[str, Score]) -> Iterator[Cell]:
    evaluation = settings.evaluation
    for window, score in scores.items():
        for hz, resampled in score.rates.items():
            windows = meta.windows_at(hz, window or evaluation.window)
            length_ms, stride_ms = windows.nominal_length_us / 1000, windows.stride_us / 1000
            scale = evaluation.step_scale
            ap = resampled.metrics["AP"]
            yield Cell(
                hz,
                f"{length_ms:g} ms every {stride_ms:g} ms",
                windows.stride_us / meta.windows.stride_us if scale is None else scale,
                evaluation.memory or meta.model_config.memory,
                settings.postprocess.score or str(meta.scored_as.score),
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


def _by_rate(
    cells: Sequence[Cell], rates: Sequence[float], columns: Mapping[str, Mapping[float, float]]
) -> Iterator[str]:
    """Yield one sentence per rate: the lowest and the highest AP with their conditions, and the published ones."""
    for hz in rates:
        at_rate = [cell for cell in cells if cell.hz == hz and not math.isnan(cell.ap)]
        if not at_rate:
            yield f"At {hz:g} Hz no box is scored."
            continue
        low, high = (choose(at_rate, key=lambda cell: cell.ap) for choose in (min, max))
        published = "; ".join(f"{name}: {_number(ap, hz)}" for name, ap in columns.items())
        ap = f"AP is {percent(high.ap)} ({high.condition})"
        if percent(low.ap) != percent(high.ap):
            ap = f"AP lies between {percent(low.ap)} ({low.condition}) and {percent(high.ap)} ({high.condition})"
        yield f"At {hz:g} Hz {ap}{f' [{published}]' if published else ''}."


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
