"""Boxes of a teacher become tracks, and clips become recordings with labels to train on."""

import hashlib
import os
import shutil
import sys
from contextlib import closing
from dataclasses import replace

import cv2
import numpy as np
import pytest
from user_errors import raises

from rvtssm.cli.main import compose
from rvtssm.contrib.demo.simulation_config import CAMERAS
from rvtssm.contrib.worlds.label_video import __main__ as command
from rvtssm.contrib.worlds.label_video import recordings as recordings_of
from rvtssm.contrib.worlds.label_video import tracks as tracks_of
from rvtssm.contrib.worlds.label_video import views, watching, yolox
from rvtssm.contrib.worlds.label_video.boxes import MOVING
from rvtssm.contrib.worlds.label_video.tracks import boxes_at, link
from rvtssm.contrib.worlds.label_video.watching import watched_file
from rvtssm.contrib.worlds.rules import PERSON, TWO_WHEELER, VEHICLE
from rvtssm.contrib.worlds.video import open_video
from rvtssm.datasets import build_spec
from rvtssm.datasets.tree import find_recordings
from rvtssm.events.labels import find_nothing, read_boxes
from rvtssm.readers import open_recording

FPS, HEIGHT, WIDTH = 16.0, 108, 144


def row(left, top, width, height, class_id=0, score=0.6):
    """A box of the teacher."""
    return [left, top, left + width, top + height, class_id, score]


def frames(*rows):
    """Boxes of consecutive frames, one row or None each."""
    return {k: np.array([each] if each else [], float).reshape(-1, 6) for k, each in enumerate(rows)}


def test_yolox_answers_relative_to_the_places_of_its_grids():
    grid = yolox.places(64)
    assert len(grid) == 64 + 16 + 4
    output, place = np.zeros((84, 85), np.float32), 64 + 4 * 2 + 1  # column 1, row 2 of the grid of stride 16
    assert grid[place].tolist() == [1, 2, 16]
    output[place, :5] = 0.5, -0.5, np.log(2), np.log(0.5), 0.9
    output[place, 5 + 3] = 0.8  # a motorcycle
    output[0, [4, 5 + 9]] = 1.0  # a traffic light
    (found,) = yolox.decode(output, 64)
    np.testing.assert_allclose(found, [8, 20, 40, 28, TWO_WHEELER, 0.72], rtol=1e-6)
    square, factor = yolox.squared(np.full((20, 32, 3), 7, np.uint8), 64)
    assert (square.shape, factor) == ((1, 3, 64, 64), 2.0)
    assert (square[0, :, :40] == 7).all() and (square[0, :, 40:] == yolox.GREY).all()


def test_boxes_belong_together_if_both_directions_of_time_say_so():
    bridged = frames(*[None if k in (4, 5, 6) else row(4 * k, 20, 20, 30) for k in range(12)])
    (track,) = link(bridged, FPS)  # 0.25 s without a box
    np.testing.assert_allclose(track.at(5.0), [20, 20, 40, 50], atol=0.5)
    apart = link(frames(*[None if 4 <= k < 8 else row(4 * k, 20, 20, 30) for k in range(12)]), 13.0)  # 0.38 s
    assert len(apart) == 2
    meet = {0: np.array([row(0, 0, 20, 20), row(8, 0, 20, 20)]), 1: np.array([row(3, 0, 20, 20)])}
    both = set(tracks_of._links(meet, FPS))
    assert both == {((0, 0), (1, 0))}


def test_boxes_of_the_own_vehicle_are_unsure():
    bonnet, near = row(10, 70, 140, 30, VEHICLE), row(30, 10, 90, 88, VEHICLE)
    found = {k: np.array([bonnet, row(4 * k, 20, 12, 30)] if k != 1 else [near]) for k in range(12)}
    changed = watching.without_own_vehicle(found, 100, 160)
    assert [each[0, 4] for each in changed.values()][:2] == [MOVING, VEHICLE]
    assert (changed[0][1] == found[0][1]).all()
    once = {k: np.array([bonnet] if k == 3 else []).reshape(-1, 6) for k in range(12)}
    assert watching.without_own_vehicle(once, 100, 160) is once


def test_tracks_are_sure_between_high_scores_and_bridge_a_miss():
    rows = [row(4 * k, 20, 12, 30, score=0.3 if k in (0, 1, 5, 11) else 0.7) for k in range(12)]
    rows[7] = None
    found = frames(*rows)
    found[3] = np.array([*found[3], row(90, 5, 20, 10, 1, 0.25)])  # once, with a low score
    tracks = sorted(link(found, FPS), key=lambda track: track.first)
    assert [(track.first, track.end, track.is_sure) for track in tracks] == [
        (0, 2, False),
        (2, 11, True),
        (11, 12, False),
    ]
    np.testing.assert_allclose(tracks[1].at(7.0), [28, 20, 40, 50], atol=0.5)
    np.testing.assert_allclose(tracks[1].at(4.25), [17, 20, 29, 50], atol=0.5)
    assert tracks[1].at(11.0) is None
    for score, wanted in ((0.25, []), (0.35, [False])):
        low = link(frames(*[row(5, 5, 9, 9, score=score)] * 6), FPS)
        assert [track.is_sure for track in low] == wanted
    statue, parked = (link(frames(*[row(5, 5, 9, 9, class_id)] * 30), FPS) for class_id in (0, 1))
    assert [track.is_sure for track in statue + parked] == [False, True]
    waits = link(frames(*[row(5, 5, 20, 20)] * 26, *[row(5 + 4 * k, 5, 20, 20) for k in range(4)]), FPS)
    assert [track.is_sure for track in waits] == [True]


def test_a_rider_is_a_part_of_the_two_wheeler_and_a_passer_by_is_not():
    bicycle, rider = [row(4 * k, 50, 30, 20, 2) for k in range(10)], [row(4 * k + 8, 25, 14, 40) for k in range(10)]
    both = {k: np.array([bicycle[k], rider[k]], float) for k in range(10)}
    (track,) = link(both, FPS)
    assert (track.class_id, track.is_sure) == (TWO_WHEELER, True)
    np.testing.assert_allclose(track.at(5.0), [20, 25, 50, 70], atol=0.5)
    parked = {k: np.array([bicycle[5], row(4 * k, 25, 14, 40)], float) for k in range(10)}
    assert sorted(track.class_id for track in link(parked, FPS)) == [PERSON, TWO_WHEELER]


def test_what_may_be_a_part_or_a_group_is_unsure():
    def sure_at(*rows):
        tracks = link({k: np.array(rows, float) for k in range(8)}, FPS)
        return sorted((track.class_id, is_sure) for _, track, _, is_sure in boxes_at(tracks, 3.5))

    assert sure_at(row(10, 10, 60, 40, 1), row(20, 12, 15, 20, 0)) == [(0, False), (1, True)]  # a driver
    assert sure_at(row(10, 10, 60, 40, 1), row(20, 12, 35, 30, 1)) == [(1, False), (1, False)]
    assert sure_at(row(10, 10, 60, 40, 1), row(12, 12, 60, 40, 0, 0.3)) == [(1, True)]  # the same thing, unsure


def test_what_moves_without_a_box_is_unsure_before_a_static_camera():
    before, after = np.full((2, 90, 160, 3), 60, np.uint8)
    before[30:50, 40:52] = after[30:50, 46:58] = 200
    (found,) = watching.find_motion(before, after)
    np.testing.assert_allclose(found[:4], [40, 30, 58, 50], atol=2)
    assert watching.find_motion(before, np.roll(before, 80, axis=1) + 40).tolist() == []  # everything changes
    tracks = link({k: np.array([found]) for k in range(4)}, FPS)
    assert [is_sure for *_, is_sure in boxes_at(tracks, 2.0)] == [False]
    known = np.array([found, row(46, 28, 14, 24, 1)])  # the box explains it
    ((_, track, _, is_sure),) = boxes_at(link(dict.fromkeys(range(8), known), FPS), 2.0)
    assert (track.class_id, is_sure) == (VEHICLE, True)


def test_long_scenes_are_divided_and_short_ones_left_out():
    assert views.parts([0, 8, 40, 230], FPS) == [(8, 40), (40, 135), (135, 230)]


def square(number: int) -> tuple[int, int]:
    """Left and top of the bright square in a picture of the clip, whose scene changes after 24."""
    return (10 + 3 * number, 30) if number < 24 else (100 - 3 * (number - 24), 60)


@pytest.fixture
def clips(tmp_path):
    """A folder with a clip of two scenes as pictures."""
    folder = tmp_path / "clips" / "walk"
    folder.mkdir(parents=True)
    for number in range(48):
        picture = np.full((HEIGHT, WIDTH, 3), 30 if number < 24 else 90, np.uint8)
        left, top = square(number)
        picture[top : top + 24, left : left + 16] = 230
        cv2.imwrite(str(folder / f"{number:03d}.png"), picture)
    return folder.parent


def test_clips_become_recordings_with_labels(clips, tmp_path, monkeypatch, capsys):
    def teacher(picture):
        bright = np.argwhere(picture[:, :, 1] > 200)
        (top, left), (bottom, right) = (bright.min(0), bright.max(0) + 1) if len(bright) else ((0, 0), (0, 0))
        return np.array([[left, top, right, bottom, VEHICLE, 0.8]], float)[: len(bright)]

    monkeypatch.setitem(CAMERAS, "any_unlimited", replace(CAMERAS["any"], max_rate_hz=0.0))
    monkeypatch.setattr(recordings_of, "SENSOR", "any_unlimited")
    out = tmp_path / "real"
    words = [
        str(clips),
        "--teacher=none",
        f"--out={out}",
        f"--fps={FPS:g}",
        "--versions=1",
        "--size",
        "96",
        "128",
        f"--draw={out / 'seen'}",
    ]
    assert command.main(words, teacher) == 0
    assert "2 recordings, 3 s" in (said := capsys.readouterr().out)
    spec = build_spec(compose(["dataset=open_world", "dataset.height=96", "dataset.width=128"]).dataset)
    recordings = find_recordings(out, "train", spec)
    assert [recording.name for recording in recordings] == ["real_walk_00_0", "real_walk_01_0"]
    assert len(list((out / "seen").glob("walk_*.png"))) == 4
    for recording in recordings:
        boxes = read_boxes(recording.boxes_path)
        seen = boxes[~find_nothing(boxes) & (boxes["pseudo_score"] > 0)]
        assert np.unique(boxes["t"]).tolist() == list(range(100_000, 1_437_500, 50_000))
        assert (seen["pseudo_score"] == np.float32(0.8)).all()
        assert (seen["class_id"] == VEHICLE).all()
        assert len(seen) >= 20
        with closing(open_recording(recording.events_path, 96, 128)) as events:
            block = next(iter(events.iterate()))
        at = seen[np.searchsorted(seen["t"], 150_000)]
        recent = (block.t > at["t"] - 30_000) & (block.t <= at["t"])
        inside = np.abs(block.x[recent] - at["x"] - at["w"] / 2) < at["w"] / 2 + 4
        inside &= np.abs(block.y[recent] - at["y"] - at["h"] / 2) < at["h"] / 2 + 4
        assert inside.mean() > 0.3  # of less than a tenth of the frame; the rest is noise
    times = [path.stat().st_mtime_ns for path in sorted((out / "train").iterdir())]
    assert command.main(words, None) == 2  # without the file of the teacher
    capsys.readouterr()
    assert command.main([*words, "--seed=3"], teacher) == 2
    assert "made with seed=0 instead of 3" in capsys.readouterr().err
    assert command.main([*words, "--size", "64", "96"], teacher) == 2
    assert "made with size=[96, 128] instead of [64, 96]" in capsys.readouterr().err
    (tmp_path / "other.onnx").write_bytes(b"another teacher")
    assert command.main([*words, f"--teacher={tmp_path / 'other.onnx'}"], teacher) == 2
    assert "made with teacher=" in capsys.readouterr().err
    assert command.main(words, lambda picture: pytest.fail("the teacher was asked again")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == said.splitlines()[-1]
    assert times == [path.stat().st_mtime_ns for path in sorted((out / "train").iterdir())]


@pytest.mark.parametrize("version", ["this", "earlier", "earlier, which has watched both"])
def test_a_clip_that_was_replaced_by_another_is_refused(clips, tmp_path, capsys, version):
    def teacher(picture):
        return np.zeros((0, 6))

    def recordings():
        return {path.name: path.read_bytes() for path in (out / "train").glob("real_*")}

    out = tmp_path / "real"
    words = [str(clips), "--teacher=none", f"--out={out}", f"--fps={FPS:g}", "--versions=1", "--size", "96", "128"]
    assert command.main(words, teacher) == 0
    noted = out / "train" / ".real_walk.label_video.json"
    if version != "this":
        noted.unlink()
        assert command.main(words, teacher) == 0 and noted.is_file()  # nothing speaks against the clip
        noted.unlink()
    before = recordings()
    os.utime(clips / "walk" / "007.png", ns=(0, 0))
    if "both" in version:
        (seen,) = (out / "teacher").iterdir()
        source = open_video(clips / "walk", FPS, None)
        shutil.copy(seen, watched_file(source, 60, out / "teacher", hashlib.sha256().hexdigest()))
    capsys.readouterr()
    assert command.main(words, teacher) == 2
    assert "real_walk_00_0_bbox.npy: made from another video" in capsys.readouterr().err
    assert len(before) == 4 and recordings() == before


def test_a_teacher_of_the_same_size_is_another_one_and_a_damaged_picture_is_refused(clips, tmp_path, capsys):
    words, asked = [str(clips), f"--fps={FPS:g}", "--versions=0"], []
    teacher = tmp_path / "teacher.onnx"
    for number, content in enumerate((b"one", b"two")):
        teacher.write_bytes(content)
        out = f"--out={tmp_path / str(number)}"
        (tmp_path / str(number)).mkdir()
        if number:
            shutil.copytree(tmp_path / "0" / "teacher", tmp_path / "1" / "teacher")

        def watch(picture, content=content):
            asked.append(content)
            return np.zeros((0, 6))

        assert command.main([*words, f"--teacher={teacher}", out], watch) == 0
    assert set(asked) == {b"one", b"two"}
    (clips / "walk" / "007.png").write_bytes(b"cut")
    capsys.readouterr()
    assert command.main([*words, f"--teacher={teacher}", f"--out={tmp_path / '1'}"], watch) == 2
    assert "007.png" in capsys.readouterr().err


def test_a_missing_package_or_file_is_one_line(clips, tmp_path, monkeypatch, capsys):
    words = [str(clips), "--teacher", str(tmp_path / "teacher.onnx"), "--out", str(tmp_path / "real")]
    assert command.main(words) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "teacher.onnx").touch()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert command.main(words) == 2
    assert "onnxruntime: the teacher needs it" in capsys.readouterr().err
    assert command.main(words, lambda picture: np.zeros((0, 6))) == 2
    assert "fps=HZ: the number" in capsys.readouterr().err


def test_clips_whose_recordings_would_have_the_same_names_are_refused(tmp_path):
    for name in ("a walk.mp4", "b.1", "b.mp4"):
        (tmp_path / name).mkdir()
    with raises("file.ambiguous"):
        command.clips(tmp_path)
    (tmp_path / "b.1").rename(tmp_path / "c.1")
    assert len(command.clips(tmp_path)) == 3
