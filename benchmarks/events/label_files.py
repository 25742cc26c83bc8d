"""Processor time to read the labels of a dataset: one COCO file of all recordings, or a YOLO file per image.

python -m benchmarks.events.label_files
"""

import json
import tempfile
import time
from pathlib import Path

import numpy as np

from rvtssm.datasets.custom import read_spec
from rvtssm.datasets.tree import find_recordings

NUM_IMAGES = 100  # of a recording


def write_tree(root: Path, num_recordings: int, kind: str) -> None:
    """Write recordings of one event, and labels with a box per image."""
    (root / "train").mkdir(parents=True)
    labels = {"coco": "_annotations.coco.json", "yolo": ".txt"}[kind]
    (root / "dataset.yaml").write_text(
        f"classes: [person]\nheight: 260\nwidth: 346\nlabels: {labels}\nlabel_fps: 30\nevent_suffixes: [.npy]\n"
    )
    names = [f"walk{number:04d}" for number in range(num_recordings)]
    images = [f"{name}_{i:04d}" for name in names for i in range(NUM_IMAGES)]
    for name in names:
        np.save(root / "train" / f"{name}.npy", np.zeros(1, [("t", "i8"), ("x", "u2"), ("y", "u2"), ("p", "u1")]))
    if kind == "yolo":
        for image in images:
            (root / "train" / f"{image}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
        return
    described = [{"id": i, "file_name": f"{image}.png"} for i, image in enumerate(images)]
    boxes = [{"image_id": i, "category_id": 0, "bbox": [9, 9, 50, 50]} for i in range(len(images))]
    content = {"images": described, "categories": [{"id": 0, "name": "person"}], "annotations": boxes}
    (root / "train" / labels).write_text(json.dumps(content))


def seconds_to_read(root: Path) -> float:
    """Return the processor time to find the recordings of a split and to read their labels."""
    spec, begin = read_spec(root), time.process_time()
    for recording in find_recordings(root, "train", spec):
        assert len(recording.read_boxes(spec)) == NUM_IMAGES
    return time.process_time() - begin


if __name__ == "__main__":
    for kind in ("coco", "yolo"):
        for num_recordings in (60, 240, 1000):
            with tempfile.TemporaryDirectory() as folder:
                write_tree(Path(folder) / "raw", num_recordings, kind)
                seconds = seconds_to_read(Path(folder) / "raw")
            print(f"| {kind} | {num_recordings} | {seconds:.2f} | {1e6 * seconds / num_recordings / NUM_IMAGES:.0f} |")
