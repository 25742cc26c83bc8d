"""Labelled footage of real streets, from clones of public repositories, as events with boxes.

`rvtssm simulate` turns it into recordings. Nothing of the footage is part of this repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from rvtssm.cli.main import compose
from rvtssm.contrib.worlds.simulate import simulate
from rvtssm.contrib.worlds.video import picture_files
from rvtssm.drawing import write_png

MOVING = 255  # the value of moving objects in the masks of CDnet; 170 is their blurred edge
FEWEST_PX = 40  # of a component of a mask that is an object
LEAST_FILL = 0.68  # of the box of a component that is one object; most pairs of cars fill less, and no car does
STILL_S = 2.0  # of an empty scene

Box = tuple[float, float, float, float]  # left, top, width, height in pixels


@dataclass(frozen=True)
class Footage:
    """One sequence of pictures with boxes of one class. Pictures are counted from 1."""

    name: str
    clone: str  # the sub-folder of the clone, by default that of `git clone`
    pictures: str  # folder in the clone
    labels: str  # in the clone: a text with one rectangle per picture, a folder with one mask per picture, or `gt.txt`
    class_name: str
    fps: float
    first: int = 1  # picture that is used
    last: int | None = None  # None: the last one there is
    first_labelled: int = 1
    every: int = 1  # one picture of so many has labels
    unlabelled: tuple[Box, ...] = ()  # regions with objects of the class that have no labels, in pixels of the pictures
    labels_clone: str | None = None  # None: the clone of the pictures
    shrink: int = 1  # so many pixels of a picture in each direction become one of the sensor
    held_apart: bool = False  # no choice may look at it: it is scored once, at the end


class Places(NamedTuple):
    """Where the pictures and the labels of a sequence are."""

    pictures: Path
    labels: Path


FOOTAGE = (
    # OTB does not say the rate. A full cycle of the gait of the man in stripes is 20 pictures (legs widest in 4, 24 and
    # 44), and such a cycle takes 1.0 to 1.2 s. He has no labels, and leaves at the left.
    Footage(
        *("crossing", "OpenTracker", "sequences/Crossing/img", "sequences/Crossing/groundtruth_rect.txt", "person"),
        fps=18.0,
        unlabelled=((0, 40, 60, 72),),
    ),
    # CDnet does not say it either. The cars pass 2.8 marks of the lane in 50 pictures. On roads of the USA these are
    # 12.2 m apart, so that 30 Hz, the rate of video cameras there, are 75 km/h. Masks begin with picture 470.
    Footage(
        *("highway", "FrameDifference", "highway/input", "highway/groundtruth", "vehicle"),
        fps=30.0,
        first=440,
        first_labelled=470,
        every=3,
    ),
    # PETS09-S2L1 of the MOT challenge 2015, which says 7 Hz: a camera at rest above a crossing of paths, with up to 8
    # people, 59 to 116 pixels high. Rows that it tells to ignore are not sure. Nobody on the lawn behind has a label.
    Footage(
        *("paths", "rpi-urban-mobility-tracker", "data/images/PETS09-S2L1", "benchmarks/MOT15/PETS09-S2L1/gt/gt.txt"),
        class_name="person",
        fps=7.0,
        last=200,
        unlabelled=((0, 0, 420, 135),),
        labels_clone="MASA-OA",
        shrink=2,
        held_apart=True,
    ),
    # Car4 of OTB: a camera in a car, behind another one, while nothing else is near. OTB does not say the rate. The car
    # passes a mark of the lane every 18 pictures, 12.2 m, so that 30 Hz are 73 km/h; a sign in picture 370 says 45 mph.
    # Cars and a motorcycle far ahead have no labels.
    Footage(
        *("drive", "Lucas-Kanade-Tracker", "Code/Dataset/Car4/img", "Code/Dataset/Car4/groundtruth_rect.txt"),
        class_name="vehicle",
        fps=30.0,
        first=206,
        last=380,
        first_labelled=206,
        every=2,
        unlabelled=((85, 66, 130, 48),),
        held_apart=True,
    ),
    # Person12 of UAV123, at 10 Hz: a camera in the air that turns after a walking man, 80 to 100 pixels high and alone.
    Footage(
        *("flight", "ARCF-tracker", "seq/person12", "seq/person12_1.txt", "person"),
        fps=10.0,
        last=200,
        shrink=4,
        held_apart=True,
    ),
)


@dataclass(frozen=True)
class MotRow:
    """A box of a MOT file. One that is not `is_sure` holds something of the class, but perhaps not one whole object."""

    frame: int  # counted from 1
    track: int  # -1: unknown
    box: Box
    is_sure: bool

    def line(self) -> str:
        return ",".join([str(self.frame), str(self.track), *(f"{side:g}" for side in self.box), str(int(self.is_sure))])


def find_places(folder: Path, footage: Footage) -> Places | None:
    """Return where a sequence is in `folder`, in clones that may also be called OWNER+NAME; None if it is missing."""
    pictures = _in_clone(folder, footage.clone, footage.pictures)
    labels = _in_clone(folder, footage.labels_clone or footage.clone, footage.labels)
    return Places(pictures, labels) if pictures and labels else None


def _in_clone(folder: Path, clone: str, inside: str) -> Path | None:
    paths = (path / inside for path in (folder / clone, *sorted(folder.glob(f"*+{clone}"))))
    return next((path for path in paths if path.exists()), None)


def read_rectangles(path: Path) -> list[Box]:
    """Return the boxes of a text with `left,top,width,height` in every line, separated by commas, tabs or spaces."""
    boxes = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            left, top, width, height = map(float, line.replace(",", " ").split())
        except ValueError:
            raise ValueError(
                f"{path} has `{line}` in line {number}; `left,top,width,height` is needed, clone it again"
            ) from None
        boxes.append((left, top, width, height))
    return boxes


def read_mot(path: Path) -> list[MotRow]:
    """Return the rows of a text of the MOT challenge, `frame,track,left,top,width,height,valid` and more columns."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            frame, track, left, top, width, height, valid = map(float, line.split(",")[:7])
        except ValueError:
            raise ValueError(
                f"{path} has `{line}` in line {number}; `frame,track,left,top,width,height,valid` is needed, clone it "
                "again"
            ) from None
        rows.append(MotRow(int(frame), int(track), (left, top, width, height), is_sure=valid != 0))
    return rows


def boxes_of_mask(mask: np.ndarray) -> tuple[list[Box], list[Box]]:
    """Return the boxes of the connected components of moving pixels in a mask (H, W), and which of them are not sure.

    Components of few pixels are left out. Those that touch the upper edge are not sure, because objects are far away
    there, and several of them are often one component. Nor are those that fill little of their box.
    """
    count, _, facts, _ = cv2.connectedComponentsWithStats((mask == MOVING).astype(np.uint8), connectivity=8)
    sure: list[Box] = []
    unsure: list[Box] = []
    for left, top, width, height, area in facts[1:count].tolist():
        if area >= FEWEST_PX:
            is_sure = top > 0 and area >= LEAST_FILL * width * height
            (sure if is_sure else unsure).append((left, top, width, height))
    return sure, unsure


def mot_rows(footage: Footage, places: Places) -> list[MotRow]:
    """Return the boxes of the pictures that are used, in pixels of the sensor. Raise ValueError without boxes, or with
    fewer labels than pictures.
    """
    labels, last = places.labels, footage.last or len(picture_files(places.pictures))
    numbers = range(footage.first_labelled, last + 1, footage.every)
    rows: list[MotRow] = []
    if labels.is_dir():
        masks = picture_files(labels)
        _check_number(labels, len(masks), last)
        for number in numbers:
            mask = cv2.imread(str(masks[number - 1]), cv2.IMREAD_GRAYSCALE)
            if mask is None:
                raise ValueError(f"{masks[number - 1]} cannot be read as a picture; clone it again")
            sure, unsure = boxes_of_mask(mask)
            rows += [MotRow(number, -1, box, is_sure=True) for box in sure]
            rows += [MotRow(number, -1, box, is_sure=False) for box in unsure]
    elif labels.name == "gt.txt":
        rows = [row for row in read_mot(labels) if row.frame in numbers]
    else:
        boxes = read_rectangles(labels)
        _check_number(labels, len(boxes), last)
        rows = [MotRow(number, 1, boxes[number - 1], is_sure=True) for number in numbers]
    frames = sorted({row.frame for row in rows if row.is_sure})
    if not frames:
        raise ValueError(f"{labels} has no box of a {footage.class_name}; clone it again")
    rows += [MotRow(frame, -1, box, is_sure=False) for frame in frames for box in footage.unlabelled]
    return [replace(row, frame=row.frame - footage.first + 1, box=_shrunk(row.box, footage.shrink)) for row in rows]


def _shrunk(box: Box, shrink: int) -> Box:
    left, top, width, height = box
    return left / shrink, top / shrink, width / shrink, height / shrink


def _check_number(labels: Path, found: int, needed: int) -> None:
    if found < needed:
        raise ValueError(f"{labels} has labels of {found} pictures, and there are {needed}; clone it again")


def write_mot(path: Path, rows: Sequence[MotRow]) -> None:
    """Write rows as a MOT file, in the order of their frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row.line()}\n" for row in sorted(rows, key=lambda row: row.frame)))


def unsure_boxes(rows: Sequence[MotRow], fps: float) -> dict[int, np.ndarray]:
    """Return the boxes (N, 4) float32 ltwh that are not sure by the time of their frame in microseconds."""
    by_time: dict[int, list[Box]] = {}
    for row in rows:
        if not row.is_sure:
            by_time.setdefault(round(1e6 * (row.frame - 1) / fps), []).append(row.box)
    return {t_us: np.array(boxes, np.float32) for t_us, boxes in by_time.items()}


def simulate_footage(footage: Footage, places: Places, folder: Path, sensor: str) -> tuple[Path, dict[int, np.ndarray]]:
    """Return the dataset that `rvtssm simulate` writes below `folder`, its split `test`, and its `unsure_boxes`.

    What is complete is not simulated again.
    """
    pictures, mot = folder / "pictures" / footage.name, folder / "labels" / f"{footage.name}.txt"
    link_pictures(picture_files(places.pictures)[footage.first - 1 : footage.last], pictures, footage.shrink)
    rows = mot_rows(footage, places)
    write_mot(mot, rows)
    tree = folder / f"{footage.name}_{sensor}"
    _simulate(pictures, footage.fps, sensor, tree, f"labels={mot}", f"classes=[{footage.class_name}]")
    return tree, unsure_boxes(rows, footage.fps)


def simulate_still(folder: Path, sensor: str, fps: float = 20.0) -> Path:
    """Return a recording of a camera at rest before a scene in which nothing moves."""
    pictures = folder / "pictures" / "still"
    pictures.mkdir(parents=True, exist_ok=True)
    first = folder / "pictures" / "still.png"
    if not first.exists():
        noise = np.random.default_rng(0).random((260, 346)).astype(np.float32)
        scene = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 6), None, 20, 235, cv2.NORM_MINMAX)  # type: ignore[call-overload]
        write_png(first, np.repeat(scene.astype(np.uint8)[..., None], 3, axis=2))
    link_pictures([first] * round(STILL_S * fps), pictures)
    _simulate(pictures, fps, sensor, folder / f"still_{sensor}")
    return folder / f"still_{sensor}" / "test" / "still_td.dat"


def link_pictures(files: Sequence[Path], folder: Path, shrink: int = 1) -> None:
    """Fill `folder` with links to pictures, or to smaller copies, numbered in their order, and with no others."""
    folder.mkdir(parents=True, exist_ok=True)
    if shrink > 1:
        files = [_smaller(file, folder.with_name(f"{folder.name}_{shrink}"), shrink) for file in files]
    targets = {folder / f"{number:06d}{file.suffix}": file.resolve() for number, file in enumerate(files, start=1)}
    for link in folder.iterdir():
        if link.is_symlink() and link.readlink() != targets.get(link):
            link.unlink()
    for link, file in targets.items():
        if not link.is_symlink():
            link.symlink_to(file)


def _smaller(file: Path, folder: Path, shrink: int) -> Path:
    """Return a copy of a picture in which shrink x shrink pixels are one. It is made once."""
    copy = folder / f"{file.stem}.png"
    if not copy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        picture = cv2.imread(str(file))
        if picture is None:
            raise ValueError(f"{file} cannot be read as a picture; clone it again")
        size = picture.shape[1] // shrink, picture.shape[0] // shrink
        write_png(copy, cv2.resize(picture, size, interpolation=cv2.INTER_AREA)[..., ::-1])
    return copy


def _simulate(pictures: Path, fps: float, sensor: str, tree: Path, *words: str) -> None:
    where = f"simulate.video={pictures}", f"out={tree}"
    own = [f"simulate.{word}" for word in (f"fps={fps:g}", "split=test", *words)]
    simulate(compose([*where, *own, f"synthetic.sensor={sensor}"], "simulate"))
