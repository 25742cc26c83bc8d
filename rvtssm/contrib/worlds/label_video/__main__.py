r"""Turn clips of real streets into recordings with boxes, for the training of the street detectors.

    pip install onnxruntime
    python -m rvtssm.contrib.worlds.label_video CLIPS --teacher yolox_nano.onnx --out DIR/real

CLIPS is a folder of videos and of folders of pictures (for these, give --fps). A detector that was trained on pictures,
the teacher, finds people, bicycles and vehicles eight times per second. `yolox.py` says where its file is found.

Boxes become tracks that end at scene cuts. Two boxes are joined if tracks forwards and backwards in time both do so. A
track is sure from its first to its last high score if it lasts and has several of them; a moment in which the teacher
missed the object is interpolated. Other tracks are unsure if one of their scores is not very low: training ignores what
lies there (a negative `pseudo_score`, as `rvtssm label` writes it). Parts of the camera's own vehicle are unsure, and
so are boxes with a side of less than 6 pixels.
Before a static camera, whatever moves without a box is unsure, too. A person who moves with a bicycle becomes
part of a two-wheeler; one inside a vehicle is unsure, and so is one who never moves.

Each part of a clip of a few seconds becomes several recordings. Each draws a size, a crop of the frame, a mirror image,
a camera (`sensor=any`) and, for half of them, a slow pan of the crop with a shaking hand. As in generated worlds, an
object gets its first box when its events are clearly more than noise, and label times without any box say so.

The recordings, DIR/train/real_*, fit into the tree of the recipe `street_tiny`:

    ln DIR/real/train/real_* DIR/raw/train/
    rvtssm train experiment=street_tiny dataset.raw_dir=DIR/raw out=DIR/tiny

Training draws recordings by their length, so that their share is their share of the seconds; the last line of the
output says how many there are. A clip in place of another one of its name is refused. `footage.md` says which clips may
train weights that are published. Do not give clips that test a detector later.
"""

import argparse
import hashlib
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from rvtssm.cli.console import say, say_error
from rvtssm.contrib.worlds.label_video.boxes import MOVING, Teacher
from rvtssm.contrib.worlds.label_video.recordings import labels, write_recording
from rvtssm.contrib.worlds.label_video.tracks import Track, boxes_at, link
from rvtssm.contrib.worlds.label_video.views import draw_view, parts
from rvtssm.contrib.worlds.label_video.watching import motion, read_frames, watched, watched_file
from rvtssm.contrib.worlds.label_video.yolox import open_yolox
from rvtssm.contrib.worlds.rules import SPEC
from rvtssm.contrib.worlds.simulate import claim_recordings
from rvtssm.contrib.worlds.video import open_video
from rvtssm.drawing import write_png
from rvtssm.events.labels import Boxes, read_boxes
from rvtssm.system.output_folder import claim, result_file
from rvtssm.system.user_error import UserError

VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".ogv")


def draw(frame: np.ndarray, tracks: Sequence[Track], number: int) -> np.ndarray:
    """Return a frame with its boxes: green people, red vehicles, blue two-wheelers; grey ones are not sure."""
    picture = frame.copy()
    for _, track, box, is_sure in boxes_at(tracks, number):
        colours = (0, 255, 0), (0, 0, 255), (255, 128, 0), (160, 160, 160)
        colour = colours[track.class_id if is_sure else MOVING]
        left, top, right, bottom = box.round().astype(int).tolist()
        cv2.rectangle(picture, (left, top), (right, bottom), colour, 2 if is_sure else 1)
    return picture


def clips(folder: Path) -> list[Path]:
    """Return the videos and the folders of pictures in a folder.

    Raises:
        UserError: There are none, or the recordings of two of them would have the same names.
    """
    if not folder.is_dir():
        raise UserError("file.missing", name=folder, found="does not exist", needed="the folder of the clips")
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in VIDEOS or path.is_dir()]
    if not paths:
        raise UserError(
            "file.content", name=folder, found="no video and no folder of pictures",
            needed=f"files that end in {', '.join(VIDEOS)}, or folders",
        )  # fmt: skip
    by_name: dict[str, Path] = {}
    for path in paths:
        if (other := by_name.setdefault(name_of(path), path)) != path:
            raise UserError(
                "file.ambiguous", name=path, found=f"its recordings would have the names of those of {other}",
                advice="rename one of the two",
            )  # fmt: skip
    return paths


def name_of(clip: Path) -> str:
    """Return how the names of the recordings of a clip begin."""
    return f"real_{clip.stem}".replace(".", "_").replace(" ", "_")


def record_clip(
    clip: Path, teacher: Teacher, teacher_name: str, options: argparse.Namespace
) -> Iterator[tuple[str, float, Boxes]]:
    """Write the recordings of a clip, except complete ones, and yield name, seconds and boxes of each.

    Raises:
        UserError: A recording of another clip has one of the names.
    """
    source = open_video(clip, options.fps if clip.is_dir() else None, None)
    seen_path = watched_file(source, options.seconds, options.out / "teacher", teacher_name)
    _claim_clip(clip, seen_path, options.out / "train")
    seen, edges = watched(source, teacher, options.seconds, seen_path)
    moving = motion(source, seen, edges)
    tracks = []
    for start, end in itertools.pairwise(edges):
        scene = {frame: np.concatenate([seen[frame], moving[frame]]) for frame in seen if start <= frame < end}
        tracks += link(scene, source.fps)
    stream = read_frames(source)
    reached = 0
    for k, (first, end) in enumerate(parts(edges, source.fps)):
        frames = list(itertools.islice(stream, first - reached, end - reached))
        reached = end
        mine = [track for track in tracks if track.first < end and track.end > first]
        if options.draw:
            options.draw.mkdir(parents=True, exist_ok=True)
            for number in range(first, end, max(1, round(source.fps))):
                picture = draw(frames[number - first], mine, number)
                with result_file(options.draw / f"{clip.stem}_{number:05d}.png") as staged:
                    write_png(staged, picture[:, :, ::-1])
        for version in range(options.versions):
            name = f"{name_of(clip)}_{k:02d}_{version}"
            rng = np.random.default_rng(np.random.SeedSequence((options.seed, *name.encode())))
            view = draw_view(tuple(options.size), (source.height, source.width), end - first, source.fps, rng)
            path = options.out / "train" / f"{name}_bbox.npy"
            if path.exists():
                boxes = read_boxes(path)
            else:
                boxes = labels(mine, view, first, source.fps, source.width)
                boxes = write_recording(frames, view, boxes, source.fps, options.out, name, options.seed)
            yield name, (end - first) / source.fps, boxes


def _claim_clip(clip: Path, seen_path: Path, folder: Path) -> None:
    """Note of which clip the recordings of a name are, or raise UserError if they are of another one."""
    path = folder / f".{name_of(clip)}.label_video.json"
    seen = {other for other in seen_path.parent.glob("*.npz") if other.name.rpartition("_")[0] == clip.stem}
    files: list[Path] = []
    # An earlier version has not noted it; then no teacher may have seen another clip of this name.
    if path.exists() or seen != {seen_path}:
        name = re.compile(rf"{re.escape(name_of(clip))}_\d+_\d+_(td\.dat|bbox\.npy)")
        files += [file for file in sorted(folder.glob("*")) if name.fullmatch(file.name)]
    claim_recordings(path, {"clip": seen_path.name}, files)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, help="a folder of videos and of folders of pictures")
    parser.add_argument("--teacher", type=Path, required=True, help="the file of the detector of pictures")
    parser.add_argument("--out", type=Path, required=True, help="the tree to write, in its split train")
    parser.add_argument("--fps", type=float, help="frames per second of folders of pictures")
    parser.add_argument("--seconds", type=float, default=60, help="that are used of each clip")
    parser.add_argument("--versions", type=int, default=4, help="recordings of each part")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(240, 304), help="height and width of the sensor in pixels"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=Path, help="a folder for one picture per second with the boxes of the teacher")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, teacher: Teacher | None = None) -> int:
    options = parse(argv)
    options.out = options.out.resolve()
    try:
        seconds, counts, unsure = 0.0, np.zeros(len(SPEC.class_names), int), 0
        content = options.teacher.read_bytes() if options.teacher.is_file() else b""
        teacher_name = hashlib.sha256(content).hexdigest()
        teacher = teacher or open_yolox(options.teacher)
        number, videos = 0, clips(options.clips)
        # All that decides the recordings, beside the clips. A folder of an earlier version does not say all of it.
        decisive = {"seed": options.seed, "size": list(options.size), "fps": options.fps, "seconds": options.seconds}
        decisive["teacher"] = teacher_name
        claim(options.out / "label_video.json", decisive, False, lambda earlier: decisive | earlier)
        for clip in videos:
            for name, length, boxes in record_clip(clip, teacher, teacher_name, options):
                is_sure = boxes["pseudo_score"] > 0
                counts += np.bincount(boxes["class_id"][is_sure], minlength=len(counts))
                unsure += int((boxes["pseudo_score"] < 0).sum())
                seconds, number = seconds + length, number + 1
                say(f"{name}: {is_sure.sum()} boxes")
    except (ValueError, OSError) as error:
        say_error(f"error: {error}")
        return 2
    listed = ", ".join(f"{count} of {name}" for count, name in zip(counts, SPEC.class_names, strict=True))
    say(f"{number} recordings, {seconds:.0f} s, boxes: {listed}, {unsure} unsure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
