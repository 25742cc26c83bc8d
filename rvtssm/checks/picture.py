"""Plot what a dataset contains, as one PNG."""

import io

import numpy as np

from rvtssm.checks.inspect_dataset import SIZES, TreeInspection

# Margins are fixed. An automatic layout draws everything twice, which took half of the time of a picture.
_MARGINS = {"left": 0.07, "right": 0.97, "bottom": 0.08, "top": 0.95, "hspace": 0.3, "wspace": 0.18}
_SIZE_COLOURS = ("#bbccee", "#6699cc", "#225588")


def tree_png(inspection: TreeInspection) -> bytes:
    """Draw the number of boxes by class and size, and the duration and mean rate of every recording, by split."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported here because the import takes a second
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), dpi=110)
    labels, recordings = figure.subplots(2, gridspec_kw=_MARGINS)
    below = np.zeros(len(inspection.splits) * len(inspection.class_names))
    ticks = [f"{name}\n{split}" for split in inspection.splits for name in inspection.class_names]
    tables = (
        np.concatenate([inspection.labels(split) for split in inspection.splits])
        if inspection.splits
        else np.zeros((0, 3))
    )
    for i, size in enumerate(SIZES):
        labels.bar(np.arange(len(ticks)), tables[:, i], bottom=below, label=size, color=_SIZE_COLOURS[i])
        below = below + tables[:, i]
    labels.set_xticks(np.arange(len(ticks)), ticks)
    labels.set(ylabel="boxes", title=f"{inspection.name}: {inspection.kind} {inspection.dataset}")
    labels.legend(title="area (COCO)")
    for split in inspection.splits:
        parts = [part for part in inspection.parts if part.split == split and part.num_events]
        durations = [part.duration_us / 1e6 for part in parts]
        recordings.scatter(
            durations, [part.mean_rate / 1e6 for part in parts], label=split or inspection.name, alpha=0.7
        )
    recordings.set(xlabel="seconds", ylabel="million events per second", title="recordings", xlim=(0, None))
    recordings.set_ylim(bottom=0)
    recordings.legend()
    FigureCanvasAgg(figure)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
