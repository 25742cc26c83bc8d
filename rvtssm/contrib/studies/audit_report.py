"""Show an audit: JSON with every number, one page with a plot, one table on the terminal."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rvtssm.contrib.studies.memory_audit import FORGOTTEN, Audit
from rvtssm.drawing import figure_png
from rvtssm.evaluation.render import TerminalTable, render
from rvtssm.evaluation.report import in_hz, rounded_hz
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.system.output_folder import write_files

_TEMPLATES = Path(__file__).with_name("templates")

AUDIT_FILES = ("audit.json", "audit.html")
_SPECTRUM_HEAD = (
    *("stride", "modes", "timescale ms (shortest, median, longest)", "Hz (median, highest)", "masked", "remarks"),
)
_QUANTILES = {"shortest": 0.0, "median": 0.5, "longest": 1.0}
_LEAST_EFFECT = 1e-9  # smaller ones are drawn there, on a logarithmic scale


def to_json(audit: Audit, title: str, source: str) -> dict[str, Any]:
    """Return plain values for json.dump. None means that a memory does not end or does not exist, see `reached_end`."""
    memory_length: dict[str, Any] = {}
    spectra: dict[str, Any] = {}
    for name in audit.outputs:
        memory_length[name] = {
            "ms": _finite(audit.memory_ms[name]),
            "reached_end": audit.memory_ms[name] == math.inf,
            "seen_ms": len(audit.memory_curves[name]) * audit.stride_ms,
            "curve": audit.memory_curves[name],
        }
    for stride, spectrum in audit.spectra.items():
        if isinstance(spectrum, str):
            spectra[str(stride)] = spectrum
        else:
            spectra[str(stride)] = spectrum_numbers(spectrum, audit.stride_ms)
    return {
        "weights": title,
        "input": source,
        "stride_ms": audit.stride_ms,
        "memory": audit.memory,
        "num_windows": audit.num_windows,
        "border_steps": audit.border,
        "carry": audit.carry,
        "memory_length": memory_length,
        "emptied_window": audit.at_window,
        "threshold": FORGOTTEN,
        "spectra": spectra,
        "rescaled": _by_text(audit.rescaled),
        "not_rescaled": _by_text(audit.not_rescaled),
        "cost": _by_text(audit.cost),
    }


def spectrum_numbers(spectrum: Spectrum, stride_ms: float) -> dict[str, Any]:
    """Return time constants in ms, frequencies in Hz, and the share of masked modes."""
    steps, hz = spectrum.timescale_steps, 1000 / stride_ms
    bounds = torch.tensor(list(_QUANTILES.values()), dtype=torch.float64)
    times = torch.quantile(steps[steps.isfinite()], bounds).tolist() if steps.isfinite().any() else [math.inf] * 3
    return {
        "num_modes": len(steps),
        "num_undamped": int((~steps.isfinite()).sum()),
        "timescale_ms": {name: _finite(time * stride_ms) for name, time in zip(_QUANTILES, times, strict=True)},
        "frequency_hz": {
            "median": float(spectrum.cycles_per_step.quantile(0.5)) * hz,  # `median` is the lower of two
            "highest": float(spectrum.cycles_per_step.max()) * hz,
        },
        "masked_from_hz": spectrum.bandlimit / 2 * hz if spectrum.bandlimit else None,
        "share_masked": float(spectrum.is_masked.double().mean()),
        "nyquist_hz": hz / 2,
        "share_above_nyquist": float((spectrum.cycles_per_step > 0.5).double().mean()),
        "note": spectrum.note,
    }


def to_html(audit: Audit, title: str, source: str) -> str:
    """Return one page: what is carried, for how long, by which modes, at which rates, and at what cost."""
    states = [f"state {stride}" for stride in audit.spectra]
    lengths = [_length(audit, name) for name in audit.outputs]
    spectra = [_spectrum_row(audit, stride) for stride in audit.spectra]
    return render(
        _TEMPLATES / "audit.html",
        title=f"Audit of {title}",
        source=source,
        audit=audit,
        forgotten=f"{100 * FORGOTTEN:g}",
        numbers=to_json(audit, title, source),
        curves_png=_plot(audit),
        carry=[["input", "state dropped", *audit.outputs], *_carry_rows(audit)],
        lengths=[["", *audit.outputs], ["ms", *lengths]],
        spectra=[_SPECTRUM_HEAD, *spectra],
        rescaling=[["finer steps", "step scale", *states, "boxes", "scores"], *_rescaling_rows(audit, states)],
        costs=[["Hz", "ms per step (median)", "95 %", "times real time"], *_cost_rows(audit)],
    )


def console_table(audit: Audit, title: str) -> TerminalTable:
    """Return the main numbers for the terminal: what the state contributes, and how long a window is remembered."""
    finest = max(audit.not_rescaled)
    finer, forgotten = f"{finest} finer steps", f"{100 * FORGOTTEN:g} %"
    head = ["output", "state dropped", "dropped, input held", "memory ms", finer, "not rescaled"]
    rows = []
    for name in audit.outputs:
        numbers = [audit.carry[kind]["at the border"][name] for kind in ("traffic", "held")]
        of_finer = [audit.rescaled[finest][name], audit.not_rescaled[finest][name]]
        rows.append([name, *map(_share, numbers), _length(audit, name), *map(_share, of_finer)])
    lines = [
        "Shares are relative differences of an output:",
        f"state dropped: if the state is dropped before step {audit.border}; 0 % means that nothing is remembered",
        "dropped, input held: the same if one window is the input of every step",
        f"memory ms: until the effect of one window's events falls to {forgotten} of its first effect",
        f"{finer}: if every step is cut into {finest} and the time step is rescaled; 0 % means any rate is alike",
        "not rescaled: the same with the time step of the training",
    ]
    for stride, spectrum in audit.spectra.items():
        _, _, times, _, masked, remarks = _spectrum_row(audit, stride)
        about = remarks if isinstance(spectrum, str) else f"timescales {times} ms, masked {masked}; {remarks}"
        lines.append(f"stride {stride}: {about}")
    costs = []
    for hz, ms, _, times in _cost_rows(audit):
        costs.append(f"{hz} Hz {ms} ms ({times} x real time)" if times else f"{hz} Hz {ms}")  # `ms` may say why not
    lines.append(f"cost per step: {', '.join(costs)}")
    return TerminalTable(f"audit of {title}", [head, *rows], lines, "audit.html")


def write_audit(audit: Audit, title: str, source: str, folder: Path) -> None:
    """Write AUDIT_FILES to a folder.

    Args:
        audit: The measurements.
        title: Describes the weights.
        source: Describes the events.
        folder: The folder to write to.
    """
    numbers = json.dumps(to_json(audit, title, source), indent=1) + "\n"
    page = to_html(audit, title, source)
    write_files(folder, {"audit.json": numbers.encode(), "audit.html": page.encode()})


def _carry_rows(audit: Audit) -> list[list[str]]:
    rows = []
    for kind, by_place in audit.carry.items():
        for where, numbers in by_place.items():
            rows.append([kind, where, *(_share(numbers[name]) for name in audit.outputs)])
    return rows


def _spectrum_row(audit: Audit, stride: int) -> list[str]:
    spectrum = audit.spectra[stride]
    if isinstance(spectrum, str):
        return [str(stride), "none", "", "", "", spectrum]
    numbers = spectrum_numbers(spectrum, audit.stride_ms)
    times = ", ".join(map(_time_text, numbers["timescale_ms"].values()))
    limit = numbers["masked_from_hz"]
    remarks = [spectrum.note, f"{numbers['share_above_nyquist']:.0%} above {in_hz(numbers['nyquist_hz'])} (Nyquist)"]
    if numbers["num_undamped"]:
        remarks.append(f"{numbers['num_undamped']} modes do not decay")
    masked = f"{numbers['share_masked']:.0%}" + (f" (from {in_hz(limit)})" if limit else "")
    frequencies = ", ".join(f"{hz:.3g}" for hz in numbers["frequency_hz"].values())
    return [str(stride), str(numbers["num_modes"]), times, frequencies, masked, "; ".join(remarks)]


def _time_text(time_ms: float | None) -> str:
    if time_ms is None:
        return "endless"
    return f"{time_ms:.0f}" if time_ms >= 100 else f"{time_ms:.3g}"


def _rescaling_rows(audit: Audit, states: list[str]) -> list[list[str]]:
    names = [*states, "boxes", "scores"]
    rows = []
    for factor in audit.not_rescaled:
        rows.append([str(factor), f"{1 / factor:g}", *(_share(audit.rescaled[factor][name]) for name in names)])
        if factor > 1:
            rows.append([str(factor), "1", *(_share(audit.not_rescaled[factor][name]) for name in names)])
    return rows


def _cost_rows(audit: Audit) -> list[list[str]]:
    rows = []
    for hz, cost in audit.cost.items():
        if isinstance(cost, str):
            cells = [cost, "", ""]
        else:
            cells = [f"{cost['ms']:.1f}", f"{cost['p95_ms']:.1f}", f"{cost['realtime']:.2f}"]
        rows.append([f"{rounded_hz(hz):g}", *cells])
    return rows


def _length(audit: Audit, name: str) -> str:
    length_ms = audit.memory_ms[name]
    if length_ms is None:
        return "none"
    seen_ms = len(audit.memory_curves[name]) * audit.stride_ms
    return f"> {seen_ms:g}" if length_ms == math.inf else f"{length_ms:g}"


def _share(value: float) -> str:
    percent = 100 * value
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _by_text(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values with their keys as text, as JSON needs them."""
    return {f"{key:g}": value for key, value in values.items()}


def _plot(audit: Audit) -> bytes:
    """Draw the effect of one window over time, and the effect of finer steps, for each output."""
    from matplotlib.figure import Figure  # the import takes seconds and is only needed here

    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in audit.outputs:
        curve = np.maximum(audit.memory_curves[name], _LEAST_EFFECT)
        left.plot(audit.stride_ms * np.arange(len(curve)), curve, label=name, linewidth=1.5)
    left.set(yscale="log", xlabel="ms after the window", ylabel="relative change", title="effect of one window")
    factors = sorted(factor for factor in audit.not_rescaled if factor > 1)  # one step is the reference itself
    for style, label, differences in (("o-", "rescaled", audit.rescaled), ("s--", "not rescaled", audit.not_rescaled)):
        for name, color in (("scores", "#1f4e8c"), ("stride 32", "#c05020")):
            values = np.maximum([differences[factor][name] for factor in factors], _LEAST_EFFECT)
            right.plot(factors, values, style, color=color, label=f"{name}, {label}")
    right.set(yscale="log", xlabel="finer steps for one step", ylabel="relative difference", title="held input")
    right.set_xticks(factors, [str(factor) for factor in factors])
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7)
    return figure_png(figure)
