"""The rows of the combinations as a page of Markdown: one table, then what each of them is."""

from __future__ import annotations

from typing import Any

from benchmarks.any_rate.study import HZ
from rvtssm.evaluation.frequency import performance_drop

_HEADER = "# Backbones and heads on the demo's data"
_COMMAND = "python -m benchmarks.parts --folder DIR --json benchmarks/parts/rows.json"
_NOTES = {  # by override
    "model.timm_name=regnetx_002": "The weights of the timm model are random at first.",
    "model.head=rtdetr": "The query head has fewer queries, layers and noisy copies than by default, since frames are "
    "small and have few objects.",
}
_COLUMNS = ("combination", "parameters", "AP", "AP50", "slide drop", "ms per live step")


def markdown(result: dict[str, Any]) -> str:
    """Return the page: the command, a table of the rows, and one line per row on its overrides and its machine."""
    settings = result["settings"]
    lines = [
        _HEADER,
        "",
        "    " + " ".join([_COMMAND, *_given(settings)]),
        "",
        f"Each combination is trained once, with one seed, {settings['steps']} steps in {settings['precision']}. "
        f"AP and AP50 are those of the test recordings at {HZ[0]} Hz, in percent. The slide drop is the AP at {HZ[0]} "
        f"Hz minus the mean AP at {', '.join(map(str, HZ[1:]))} Hz with sliding windows, in points. A live step goes "
        "from the events of a window to its boxes, batch 1, on one thread; the number is a median, and all rows were "
        "timed in one run, by turns.",
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|---|" + "--:|" * (len(_COLUMNS) - 1),
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in result["rows"]]
    return "\n".join([*lines, "", *map(_sentence, result["rows"])]) + "\n"


def _given(settings: dict[str, Any]) -> list[str]:
    return [f"--steps {settings['steps']}", *settings["overrides"]]


def _cells(row: dict[str, Any]) -> list[str]:
    drop = performance_drop({float(hz): 100 * ap for hz, ap in row["AP"].items()})
    reference = str(HZ[0])
    return [
        f"`{row['name']}`",
        f"{row['parameters'] / 1e6:.2f} M",
        f"{100 * row['AP'][reference]:.1f}",
        f"{100 * row['AP50'][reference]:.1f}",
        f"{drop:.1f}",
        f"{row['live_ms']:.1f}",
    ]


def _sentence(row: dict[str, Any]) -> str:
    overrides = " ".join(row["overrides"])
    what = f"the demo with `{overrides}`" if overrides else "the demo as it is"
    processor = (
        f"{row['cpu']} ({', '.join(row['cpu_extensions']) or 'no wide instructions known'}, {row['cores']} cores)"
    )
    notes = "".join(f" {note}" for override, note in _NOTES.items() if override in row["overrides"])
    machine = f"{processor} with torch {row['torch']} at commit {row['commit']}"
    return f"- `{row['name']}` is {what}.{notes} It ran on {machine}."
