"""Rendered beside real: numbers of recordings with known events, and scores of known boxes."""

import json
from pathlib import Path

import numpy as np
import pytest

import rvtssm
from benchmarks.worlds import gate
from benchmarks.worlds.gate import ARMS, BEFORE, Gate, drive_scores
from benchmarks.worlds.statistics import statistics
from rvtssm.events.labels import BOX_DTYPE
from rvtssm.readers.dat import write_dat
from rvtssm.records import Events


def events(*rows: tuple[int, int, int, int]) -> Events:
    t, x, y, p = np.array(rows).T
    return Events(t.astype(np.int64), x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8))


def boxes(*rows: tuple[int, float, int, int, float]) -> np.ndarray:
    """Boxes of 10 x 10 pixels from a time, x, class, track and score."""
    made = np.zeros(len(rows), BOX_DTYPE)
    names = ("t", "x", "class_id", "track_id", "class_confidence")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        made[name] = column
    made["w"] = made["h"] = 10
    return made


def test_statistics_count_what_a_recording_holds():
    # A pixel with three events, two of them at once; one that is alone; and neighbours at one time.
    repeated = (0, 1, 1, 1), (3, 1, 1, 0), (40_000, 1, 1, 1)
    found = statistics(events(*repeated, (70_000, 6, 6, 0), (100_000, 3, 3, 1), (100_000, 4, 3, 1)), 8, 8)
    assert found["seconds"] == pytest.approx(0.1)
    assert found["events_per_px_s"] == pytest.approx(6 / 64 / 0.1)
    assert found["on_share"] == pytest.approx(4 / 6)
    assert found["per_active_px"] == pytest.approx(6 / 4)
    assert found["isolated_per_px_s"] == pytest.approx(2 / 64 / 0.1)
    assert found["repeated_share"] == pytest.approx(1 / 6)
    assert found["merged_per_active_px"] == pytest.approx(5 / 4)
    with pytest.raises(ValueError, match="no events"):
        statistics(events((0, 1, 1, 1)).between(5, 9), 8, 8)


def test_a_drive_is_scored_window_by_window():
    labels = boxes((0, 20, 0, 1, 1), (0, 60, 0, 2, 1), (50_000, 20, 0, 1, 1))
    detections = boxes(
        (0, 21, 1, 0, 0.9),  # the car ahead
        (0, 61, 1, 0, 0.2),  # not shown
        (0, 90, 1, 0, 0.8),  # nothing is there
        (0, 20, 0, 0, 0.7),  # a person in place of a car
        (50_000, 28, 1, 0, 0.9),  # too far beside
    )
    # Precision is 1 up to a recall of 1/3, and 1/2 up to 2/3.
    wanted = {"AP50": pytest.approx(50.0), "car ahead": 1, "windows": 2, "false per window": 3 / 2}
    assert drive_scores(detections, labels) == wanted
    assert drive_scores(detections[:0], labels)["car ahead"] == 0


def test_the_gate_mixes_halves_and_does_nothing_twice(tmp_path, monkeypatch):
    done: list[tuple[str, ...]] = []

    def run(module: str, *words: str) -> None:
        values = dict(word.split("=", 1) for word in words if "=" in word)
        done.append((module, *words))
        if "generate" in words:
            raw = Path(values["dataset.raw_dir"])
            for split, count in (("train", 4), ("val", 8)):
                (raw / split).mkdir(parents=True, exist_ok=True)
                for index in range(count):
                    write_dat(
                        raw / split / f"{split}_{index:04d}_td.dat",
                        [events((1_000, index, 1, 1), (3_000, index, 1, 1))],
                        8,
                        8,
                    )
            (raw / "synthetic.json").touch()
        elif "train" in words:
            Path(values["out"]).mkdir(parents=True)
        elif "mean_weights" in module:
            Path(words[1]).touch()
        else:
            path = Path(words[words.index("--json") + 1])
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"rows": [{"source": "crossing", "AP50": 0.5}]}))

    monkeypatch.setattr(gate, "_run", run)
    rows = Gate(tmp_path, "models", clips=4).run()
    assert [row["recording"] for row in rows] == [BEFORE, *ARMS, "mean"]
    assert rows[0]["crossing AP50"] == 50
    mixed = sorted(path.name for path in (tmp_path / "mixed/raw/train").iterdir())
    assert mixed == [f"{kind}_train_000{index}_td.dat" for kind in ("painted", "rendered") for index in (0, 1)]
    seen = [rvtssm.open(path).num_events for path in sorted((tmp_path / "recovering/raw/train").iterdir())]
    assert seen == [2, 1, 1, 2]  # the second event of a pixel, 2 ms after the first, is not sent within 3 or 10 ms
    (mean,) = (words for words in done if words[0] == "scripts.mean_weights")
    assert [Path(word).suffix for word in mean[2:]] == [".ckpt", ".safetensors"] + [".ckpt"] * (len(ARMS) + 1)
    trainings = [words for words in done if "train" in words]
    assert len(trainings) == len(ARMS) and all("resume=auto" in words for words in trainings)
    Gate(tmp_path, "models", clips=4).run()
    assert len([words for words in done if "train" in words]) == len(ARMS)
