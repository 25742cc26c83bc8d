"""Whether rendered worlds help on real pixels: equal trainings on rendered, on painted and on mixed recordings.

    python -m benchmarks.worlds gate --folder DIR --assets MODELS --footage FOOTAGE --pedro PEDRO \
        [--drive FILE_td.dat --boxes FILE_bbox.npy] [--clips 64] [--steps 2000] [--start WEIGHTS]

From the weights `--start`, five trainings of `--steps` steps see `--clips` recordings each: painted drives, rendered
scenes, half of each, these halves as cameras with longer refractory times send them, and rendered scenes of people
before a camera that moves. The mean is that of `--start` and of these trainings, the last one counted twice. All are
scored on the known footage and on PEDRo (`benchmarks.transfer`), and on a real drive with boxes. One process runs at a
time. What is complete is not done again, so the same command goes on after an interruption.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rvtssm
from rvtssm.boxes import pairwise_iou
from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.events.labels import Boxes, ltwh_of, read_boxes
from rvtssm.models.weight_files import DEFAULT_WEIGHTS, local_weights
from rvtssm.readers.dat import write_dat
from rvtssm.readers.filters import FilterChain
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.records.settings import SHOWN_SCORE
from rvtssm.system.files import atomic_file

COMMON = ("synthetic.num_test=0", "synthetic.sensor=any_limited", "synthetic.workers=1")
PAINTED = (
    "experiment=street_worlds", "synthetic.ego_motion_share=1", "synthetic.seed=11", "synthetic.duration_s=2.5",
    "synthetic.world.drive_share=1", "synthetic.world.indoor_share=0", "synthetic.world.empty_share=0",
    "synthetic.world.plain_share=0",
)  # fmt: skip
RENDERED = (
    "dataset=rendered_world", "synthetic.ego_motion_share=0.7", "synthetic.seed=21", "synthetic.duration_s=1.6",
    "synthetic.world.max_lines=400", "synthetic.world.dusk_share=0.15", "synthetic.world.empty_share=0.08",
    "synthetic.world.distortion=0.15",
)  # fmt: skip
PEOPLE = (
    *RENDERED, "synthetic.scenes=[above,above,pavement,square,two_wheelers]", "synthetic.ego_motion_share=0.9",
    "synthetic.seed=41",
)  # fmt: skip
TRAINING = (
    "experiment=street_tiny", "optim.learning_rate=4e-4", "sampling.batch_size=2",
    "training.average=0.995", "training.checkpoint_every=50", "resume=auto",
)  # fmt: skip
ARMS = ("painted", "rendered", "mixed", "recovering", "people")
MEAN = ("mixed", "rendered", "recovering", "painted", "people", "people")
RECOVERY_MS = (0, 3, 10)  # within which a pixel of `recovering` sends no second event, by recording in turn
BEFORE = "before"
OVERLAP = 0.5
_APART_US = 5_000  # boxes and labels this near are of one window
LEAD = 1  # track of the car ahead
NUM_VAL = 8
_VEHICLES = DatasetSpec("drive", 240, 304, ("vehicle",), min_side_px=0, skip_us=-1)  # all boxes are scored


@dataclass(frozen=True)
class Gate:
    """Where things are, and how much is done."""

    folder: Path
    assets: str
    footage: Path | None = None
    pedro: Path | None = None
    drive: Path | None = None
    boxes: Path | None = None
    clips: int = 64
    steps: int = 2000
    start: str = DEFAULT_WEIGHTS

    def run(self) -> list[dict[str, Any]]:
        """Do what is missing, and return one row per training."""
        self._generate("painted", *PAINTED)
        for name, words in (("rendered", RENDERED), ("people", PEOPLE)):
            self._generate(name, *words, f"synthetic.assets={self.assets}")
        self._mix()
        self._recover()
        rows = [self._scored(BEFORE, self.start)]
        for arm in ARMS:
            run = self.folder / arm / "run"
            words = (
                "train",
                *TRAINING,
                f"training.init_from={self.start}",
                f"dataset.raw_dir={self.folder / arm / 'raw'}",
                f"training.steps={self.steps}",
            )
            if not (run / f"finished_{self.steps}").exists():
                _run("rvtssm", *words, f"training.validate_every={self.steps}", f"out={run}")
                (run / f"finished_{self.steps}").touch()
            rows.append(self._scored(arm, self._trained(arm)))
        mean = self.folder / "mean.ckpt"
        if not mean.exists():
            sources = (str(local_weights(self.start)), *map(self._trained, MEAN))
            _run("scripts.mean_weights", "--slide", str(mean), *sources)
        return [*rows, self._scored("mean", str(mean))]

    def _trained(self, arm: str) -> str:
        return str(self.folder / arm / "run/checkpoints/last.ckpt")

    def _generate(self, name: str, *words: str) -> None:
        counts = (f"synthetic.num_train={self.clips}", f"synthetic.num_val={NUM_VAL}")
        _run("rvtssm", "generate", *words, *COMMON, *counts, f"dataset.raw_dir={self.folder / name / 'raw'}")

    def _mix(self) -> None:
        """Link the first half of the recordings of both kinds into one folder."""
        target = self.folder / "mixed/raw"
        for name in ("painted", "rendered"):
            source = self.folder / name / "raw"
            for split, count in (("train", self.clips // 2), ("val", NUM_VAL // 2)):
                (target / split).mkdir(parents=True, exist_ok=True)
                for index in range(count):
                    for path in (source / split).glob(f"{split}_{index:04d}_*"):
                        link(path, target / split / f"{name}_{path.name}")
        shutil.copyfile(self.folder / "painted/raw/synthetic.json", target / "synthetic.json")

    def _recover(self) -> None:
        """Write the mixed recordings through `refractory` with RECOVERY_MS in turn; those with 0 are linked."""
        source, target = self.folder / "mixed/raw", self.folder / "recovering/raw"
        for split in ("train", "val"):
            (target / split).mkdir(parents=True, exist_ok=True)
            for boxes in (source / split).glob("*_bbox.npy"):
                link(boxes, target / split / boxes.name)
            for number, path in enumerate(sorted((source / split).glob("*_td.dat"))):
                written = target / split / path.name
                within_ms = RECOVERY_MS[number % len(RECOVERY_MS)]
                if not within_ms:
                    link(path, written)
                elif not written.exists():
                    with closing(rvtssm.open(path)) as recording:
                        size = recording.height, recording.width
                        chain = FilterChain([{"refractory": {"within_ms": within_ms}}], *size)
                        write_dat(written, chain.blocks(recording.blocks()), *size)
        shutil.copyfile(source / "synthetic.json", target / "synthetic.json")

    def _scored(self, name: str, checkpoint: str) -> dict[str, Any]:
        """Return the scores of weights, which are kept in a file."""
        path = self.folder / "scores" / f"{name.replace(' ', '_')}.json"
        given = {"footage": self.footage, "pedro": self.pedro}
        sources = [f"--{option}={value}" for option, value in given.items() if value]
        _run(
            "benchmarks.transfer", "--json", str(path), "--checkpoint", checkpoint, "--only", "footage,pedro",
            "--reductions", "1", "--folder", str(self.folder / "transfer"), *sources,
        )  # fmt: skip
        row: dict[str, Any] = {"recording": name}
        for scores in json.loads(path.read_text())["rows"]:
            row[f"{scores['source']} AP50"] = 100 * scores["AP50"]
        if self.drive is not None and self.boxes is not None:
            row |= self._drive(name, checkpoint)
            filtered = self._drive(f"{name} refractory", checkpoint, "filters=[refractory]")
            row |= {f"{what}, refractory": value for what, value in filtered.items()}
        return row

    def _drive(self, name: str, checkpoint: str, *words: str) -> dict[str, float]:
        """Return the scores of weights on the real drive, which are kept in a file."""
        assert self.boxes is not None
        out = self.folder / "drive" / name.replace(" ", "_")
        if not (out / "scores.json").exists():
            words = f"checkpoint={checkpoint}", "downsample=1", "formats=[npy]", "all_scores=true", *words
            _run("rvtssm", "predict", str(self.drive), *words, f"out={out}")
            found = drive_scores(read_boxes(next(out.glob("*.npy"))), read_boxes(self.boxes))
            with atomic_file(out / "scores.json") as staged:
                staged.write_text(json.dumps(found) + "\n")
        scores: dict[str, float] = json.loads((out / "scores.json").read_text())
        return scores


def link(path: Path, linked: Path) -> None:
    if not linked.exists():
        os.link(path, linked)


def drive_scores(detections: Boxes, boxes: Boxes, class_id: int = 1) -> dict[str, float]:
    """Return AP50 of the vehicles in percent, and two numbers of the boxes with a score from SHOWN_SCORE on.

    These are the number of windows in which the car ahead is found, and false boxes per window.

    Args:
        detections: Boxes with scores in `class_confidence`.
        boxes: Boxes of vehicles; the car ahead is track LEAD.
        class_id: Class of vehicles in the detections.
    """
    times = np.unique(boxes["t"])
    num_found = num_false = 0
    frames = []
    for t_us in times:
        now = detections[np.abs(detections["t"] - t_us) <= _APART_US]
        vehicles = now[now["class_id"] == class_id]
        ids = np.zeros(len(vehicles), np.int64)
        frames.append(Detections(_edges(vehicles), vehicles["class_confidence"], ids, t_us=int(t_us)))
        shown = now[now["class_confidence"] >= SHOWN_SCORE]
        labels = boxes[boxes["t"] == t_us]
        lead = labels[labels["track_id"] == LEAD]
        is_vehicle = shown["class_id"] == class_id
        num_found += bool((_overlaps(shown[is_vehicle], lead) >= OVERLAP).any())
        is_right = is_vehicle & (_overlaps(shown, labels) >= OVERLAP).any(1)
        num_false += int((~is_right).sum())
    truth = Labels(
        ltwh_of(boxes),
        class_id=np.zeros(len(boxes), np.int64),
        t_us=boxes["t"].astype(np.int64),
        window_index=np.searchsorted(times, boxes["t"]),
        still_us=np.full(len(boxes), -1),
    )
    ap50 = 100 * evaluate_detections([("drive", truth, frames)], _VEHICLES)["AP50"]
    return {"AP50": ap50, "car ahead": num_found, "windows": len(times), "false per window": num_false / len(times)}


def _overlaps(one: Boxes, two: Boxes) -> np.ndarray:
    """Return the intersections over unions (N, M) of boxes."""
    return np.asarray(pairwise_iou(_edges(one), _edges(two)))


def _edges(boxes: Boxes) -> np.ndarray:
    return np.stack([boxes["x"], boxes["y"], boxes["x"] + boxes["w"], boxes["y"] + boxes["h"]], axis=1)


def _run(module: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], check=True)
