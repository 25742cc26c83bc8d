"""The rows of the combinations as a page of Markdown: one table, then what each of them is."""

from __future__ import annotations

from typing import Any

from rvtssm.contrib.studies.cells_page import markdown_table
from rvtssm.evaluation.protocol import performance_drop

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
    rows = result["rows"]
    budget, (reference, *others) = rows[0], rows[0]["AP"]
    lines = [
        _HEADER,
        "",
        "    " + " ".join([_COMMAND, *result["overrides"]]),
        "",
        f"Each combination is trained once, with one seed, {budget['steps']} steps in {budget['precision']}. "
        f"AP and AP50 are those of the test recordings at {reference} Hz, in percent. The slide drop is the AP at "
        f"{reference} Hz minus the mean AP at {', '.join(others)} Hz with sliding windows, in points. A live step goes "
        "from the events of a window to its boxes, batch 1, on one thread; the number is a median, and all rows were "
        "timed in one run, by turns.",
        "",
        *markdown_table([_COLUMNS, *map(_cells, rows)]),
        "",
        *map(_sentence, rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    drop = performance_drop({float(hz): 100 * ap for hz, ap in row["AP"].items()})
    reference = next(iter(row["AP"]))
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
