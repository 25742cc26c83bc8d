"""What labels of a detector are worth where few are annotated: AP before, after, and with the same steps without them.

    python -m benchmarks.pseudo_labels --folder DIR --json FILE [--shares 2,10] [--steps N] [--recordings N] [key=value]

On the demo's data, every recording keeps a share of its label times. Three trainings follow: on those labels
(`annotated`), then from these weights on the labels that they make (`pseudo`), and from them on the same few labels
again (`again`). Everything is kept below one folder; what is complete is not done again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import write_json
from benchmarks.scan import machine
from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.cli.evaluate import evaluate
from rvtssm.cli.generate import generate
from rvtssm.cli.main import compose
from rvtssm.cli.train import train
from rvtssm.contrib.labeling.label import label
from rvtssm.datasets.synthetic import SPEC
from rvtssm.evaluation.result import markdown_table, percent
from rvtssm.events.labels import Boxes, annotated, read_boxes, write_boxes
from rvtssm.training.checkpoints import best_checkpoint

RECIPE = (
    "experiment=demo",
    "temporal=s5",
    "dataset.source=raw",
    "synthetic.num_val=1",
    "evaluation.hz=[20]",
    "evaluation.ablate_memory=false",
    "optim.name=adamw",
    "optim.learning_rate=1.5e-3",
    "training.average=null",
    "augment.window_ms=null",
    "augment.stream_window_ms=null",
    "sampling.frames_per_chunk=3",
    "sampling.stream_share=0.25",  # random chunks end at labels, which are rare
)
LABEL = ("label.min_score=0.3",)
STAGES = ("annotated", "pseudo", "again")
MIN_IOU = 0.5  # of a correct pseudo-label


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the file does not hold yet, stage by stage, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for recordings and weights")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--shares", default="2,10", help="of the label times that stay, in percent, such as 50, 25, 20")
    parser.add_argument("--steps", type=int, default=1600, help="of each training")
    parser.add_argument("--recordings", type=int, default=40, help="for training")
    parser.add_argument("overrides", nargs="*", help="changes of the demo's recipe")
    options = parser.parse_args(arguments)
    folder, shares = options.folder.resolve(), [float(share) for share in options.shares.split(",")]
    if uneven := [share for share in shares if share <= 0 or 100 % share]:
        parser.error(f"--shares: every n-th label time stays, and 100 is no multiple of {uneven[0]:g}")
    words = [*RECIPE, f"synthetic.num_train={options.recordings}", *options.overrides]
    settings = {"steps": options.steps, "words": words}
    result: dict[str, Any] = {"settings": settings, **machine("cpu"), "rows": []}
    if options.json.exists():
        result = json.loads(options.json.read_text())
        if result["settings"] != settings:
            raise SystemExit(f"{options.json} holds {result['settings']}, not {settings}; name another file")
    generate(compose([*words, f"dataset.raw_dir={folder / 'raw'}"]))
    words = [*words, f"training.steps={options.steps}", f"training.validate_every={options.steps}"]
    for stage in STAGES:
        for share in shares:
            if not any((row["share"], row["stage"]) == (share, stage) for row in result["rows"]):
                result["rows"].append(run_stage(folder, share, stage, words))
                write_json(options.json, result)
    print("\n".join(table(result["rows"])))


def run_stage(folder: Path, share: float, stage: str, words: Sequence[str]) -> dict[str, Any]:
    """Train and evaluate one stage; return its row. The stage `annotated` must be complete for the others."""
    own = folder / f"{share:g}"
    tree, row = own / "few", {"share": share, "stage": stage}
    thin_labels(folder / "raw", tree, share)
    start = [] if stage == "annotated" else [f"training.init_from={best_checkpoint(own / 'annotated')}"]
    if stage == "pseudo":
        labelled = own / "labelled"
        where = f"checkpoint={best_checkpoint(own / 'annotated')}", f"dataset.raw_dir={tree}", f"out={labelled}"
        assert label(compose([*LABEL, *words, *where], "label")) == 0
        tree, row = labelled, row | quality(folder / "raw", labelled)
    out = own / stage
    weights = train(compose([*words, *start, f"dataset.raw_dir={tree}", f"out={out}", "resume=auto"]))
    test = f"checkpoint={weights}", f"dataset.raw_dir={folder / 'raw'}", f"out={out / 'evaluation'}"
    (report,) = evaluate(compose([*words, *test]))
    metrics = report.rows[0].metrics
    return row | {"AP": metrics["AP"], "AP50": metrics["AP50"], "interval": report.rows[0].intervals["AP"][1:]}


def thin_labels(raw: Path, tree: Path, share: float) -> None:
    """Fill `tree` with links to the recordings, and with few labels: every n-th label time of each training recording.

    The first one differs from recording to recording. Validation keeps all labels.
    """
    every = round(100 / share)
    for split in ("train", "val"):
        (tree / split).mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(sorted((raw / split).glob(f"*{SPEC.boxes_suffix}"))):
            events = path.name.replace(SPEC.boxes_suffix, SPEC.event_suffixes[0])
            if not (tree / split / events).exists():
                (tree / split / events).symlink_to(raw / split / events)
            boxes = read_boxes(path)
            times_us = np.unique(boxes["t"])
            first = (7 * number + every // 2) % every
            kept = boxes if split == "val" else boxes[np.isin(boxes["t"], times_us[first::every])]
            write_boxes(tree / split / path.name, kept)


def quality(raw: Path, labelled: Path) -> dict[str, float]:
    """Return precision and recall of the trusted pseudo-labels against all annotated boxes, at the label times.

    A label time without an object, which no file names, counts as well. Those that stayed annotated do not.
    """
    num_made = num_true = num_right = num_found = 0
    for path in sorted((labelled / "train").glob(f"*{SPEC.boxes_suffix}")):
        boxes, truth = read_boxes(path), read_boxes(raw / "train" / path.name)
        made = boxes[boxes["pseudo_score"] > 0]
        ours_at, theirs_at, kept_at = (label_index(each) for each in (made, truth, annotated(boxes)))
        for at in ({*ours_at.tolist()} | {*theirs_at.tolist()}) - {*kept_at.tolist()}:
            ours, theirs = made[ours_at == at], truth[theirs_at == at]
            is_same = pairwise_iou(edges(ours), edges(theirs)) >= MIN_IOU
            is_same &= ours["class_id"][:, None] == theirs["class_id"]
            num_made, num_true = num_made + len(ours), num_true + len(theirs)
            num_right, num_found = num_right + is_same.any(1).sum(), num_found + is_same.any(0).sum()
    return {"made": num_made, "precision": num_right / max(num_made, 1), "recall": num_found / max(num_true, 1)}


def label_index(boxes: Boxes) -> np.ndarray:
    """Return the number of the label time that is nearest each box (N,)."""
    return np.rint(boxes["t"] / SPEC.label_interval_us).astype(np.int64)


def edges(boxes: Boxes) -> np.ndarray:
    return ltwh_to_xyxy(np.stack([boxes[name] for name in "xywh"], axis=1))


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table with one row per share of labels."""
    head = ["labels", *(f"AP, {stage}" for stage in STAGES), "AP50", "pseudo-labels", "precision", "recall"]
    lines = []
    for share in dict.fromkeys(row["share"] for row in rows):
        by_stage = {row["stage"]: row for row in rows if row["share"] == share}
        made = by_stage.get("pseudo", {})
        found = [
            f"{percent(row['AP'])} [{percent(row['interval'][0])}, {percent(row['interval'][1])}]" if row else "–"
            for row in (by_stage.get(stage) for stage in STAGES)
        ]
        ap50 = ", ".join(percent(by_stage[stage]["AP50"]) for stage in STAGES if stage in by_stage)
        right = [percent(made[name]) if made else "–" for name in ("precision", "recall")]
        lines.append([f"{share:g} %", *found, ap50, str(made.get("made", "–")), *right])
    return markdown_table([head, *lines], "|--:|")


if __name__ == "__main__":
    main()
