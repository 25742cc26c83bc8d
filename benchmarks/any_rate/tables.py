"""The rows of a study as Markdown and as a plot: AP over rates, and how much of it is lost."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.any_rate.study import CONDITIONS, HZ, STEPLESS
from rvtssm.atomic_files import atomic_file
from rvtssm.evaluation.frequency import performance_drop

Curve = dict[float, list[float]]  # AP in percent of every seed, by rate


def curves(result: dict[str, Any], window: str, is_rescaled: bool) -> dict[str, Curve]:
    """Return by variant the seeds that have all rates, including the rate of training, which all conditions share.

    What has no time step is the same whether that is rescaled or not.
    """
    found: dict[str, Curve] = {}
    for variant in dict.fromkeys(row["variant"] for row in result["rows"]):
        by_seed: dict[int, dict[float, float]] = {}
        for row in result["rows"]:
            if row["variant"] != variant:
                continue
            counts = is_rescaled or variant in STEPLESS
            if row["hz"] == HZ[0] or (row["window"], row["is_rescaled"]) == (window, counts):
                by_seed.setdefault(row["seed"], {})[row["hz"]] = 100 * row["AP"]
        whole = [by_hz for by_hz in by_seed.values() if len(by_hz) == len(HZ)]
        if whole:
            found[variant] = {hz: [by_hz[hz] for by_hz in whole] for hz in HZ}
    return found


def markdown(result: dict[str, Any]) -> str:
    """Return one table per condition: AP in percent, mean and standard deviation over seeds."""
    lines = []
    for window, is_rescaled in CONDITIONS:
        found = curves(result, window, is_rescaled)
        if not found:
            continue
        lines += [
            f"Window `{window}`, time step {'rescaled' if is_rescaled else 'left as in training'}:",
            "",
            "| model | seeds | " + " | ".join(f"{hz} Hz" for hz in HZ) + " | drop |",
            "|---|--:|" + "--:|" * (len(HZ) + 1),
        ]
        for variant, curve in found.items():
            num_seeds = len(curve[HZ[0]])
            drops = [performance_drop({hz: values[i] for hz, values in curve.items()}) for i in range(num_seeds)]
            cells = [spread(curve[hz]) for hz in HZ] + [spread(drops)]
            lines.append(f"| {variant} | {num_seeds} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Return mean and standard deviation as text; a single value has no standard deviation."""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def write_plot(result: dict[str, Any], path: Path) -> None:
    """Write a PNG with one panel per condition and one line per variant."""
    figure = Figure(figsize=(11, 7), dpi=120, layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, (window, is_rescaled) in zip(panels.flat, CONDITIONS, strict=True):
        for variant, curve in curves(result, window, is_rescaled).items():
            axes.errorbar(
                HZ,
                [mean(curve[hz]) for hz in HZ],
                [stdev(curve[hz]) if len(curve[hz]) > 1 else 0.0 for hz in HZ],
                marker="o",
                capsize=3,
                label=variant,
            )
        axes.set_title(f"window {window}, time step {'rescaled' if is_rescaled else 'as in training'}")
        axes.set_xscale("log")
        axes.set_xticks(HZ, [str(hz) for hz in HZ])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.supxlabel("inference rate [Hz]")
    figure.supylabel("average precision [%]")
    with atomic_file(path) as staged, open(staged, "wb") as file:
        FigureCanvasAgg(figure).print_png(file)
