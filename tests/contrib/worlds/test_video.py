"""Video to events: light, frames between frames, labels of four formats, and the dataset that training reads."""

import json
import math
import os
import re
import shutil
import struct
import zlib
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.contrib.demo.simulation_config import CAMERAS, CameraConfig
from rvtssm.contrib.worlds.atlas import rough
from rvtssm.contrib.worlds.video import dense_frames, open_video, read_picture
from rvtssm.contrib.worlds.video_labels import read_video_labels
from rvtssm.datasets.custom import read_spec
from rvtssm.events.labels import read_boxes
from rvtssm.readers import open_recording

HEIGHT, WIDTH, FRAMES, FPS, STEP_PX, SIDE = 64, 96, 8, 20.0, 5, 24
QUIET = ["sensor=quiet"]


@pytest.fixture(autouse=True)
def cameras(monkeypatch):
    """Two cameras of our own, as a plugin adds them."""
    quiet = CameraConfig(background_rate_hz=0, hot_pixel_share=0)
    monkeypatch.setitem(CAMERAS, "quiet", quiet)
    monkeypatch.setitem(CAMERAS, "blunt", replace(quiet, threshold=0.3))


def picture(k: float) -> np.ndarray:
    """A textured square that moves to the right over a textured ground, as light."""
    rng = np.random.default_rng(0)
    image = 0.35 + 0.06 * rough(HEIGHT, 128, rng, 4)[:, :WIDTH]
    square = 0.7 + 0.08 * rough(32, 32, rng, 3)[:SIDE, :SIDE]
    moved = cv2.warpAffine(np.pad(square, 1), np.array([[1, 0, 9 + STEP_PX * k], [0, 1, 19.0]]), (WIDTH, HEIGHT))
    cover = cv2.warpAffine(
        np.pad(np.ones_like(square), 1), np.array([[1, 0, 9 + STEP_PX * k], [0, 1, 19.0]]), (WIDTH, HEIGHT)
    )
    return np.clip(image * (1 - cover) + moved, 0, 1)


def encoded(light: np.ndarray) -> np.ndarray:
    """8 bits of sRGB."""
    curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 1e-9) ** (1 / 2.4) - 0.055)
    return np.round(255 * curve).astype(np.uint8)


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clip") / "walk"
    folder.mkdir()
    for k in range(FRAMES):
        cv2.imwrite(str(folder / f"{k:03d}.png"), encoded(picture(k)))
    return folder


def box(k: int) -> tuple[int, int, int, int]:
    return 10 + STEP_PX * k, 20, SIDE, SIDE


def mot(path: Path) -> Path:
    rows = [f"{k + 1},7,{box(k)[0]},20,{SIDE},{SIDE},1,1,1" for k in range(FRAMES)]
    path.write_text("\n".join(rows) + "\n")
    return path


def coco(path: Path, names: list[str], track: int = 7) -> Path:
    images = [{"id": k, "file_name": name} for k, name in enumerate(names)]
    annotations = [{"image_id": k, "category_id": 3, "bbox": box(k), "track_id": track} for k in range(len(names))]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "person"}]}
    path.write_text(json.dumps(content))
    return path


def test_light_does_not_depend_on_how_it_is_stored(clip, tmp_path):
    for k in range(2):
        cv2.imwrite(str(tmp_path / f"{k}.png"), np.round(65535 * picture(k)).astype(np.uint16))
    eight = next(open_video(clip, FPS, None).frames())
    sixteen = next(open_video(tmp_path, FPS, None).frames())
    np.testing.assert_allclose(eight, picture(0), atol=6e-3)
    np.testing.assert_allclose(sixteen, picture(0), atol=2e-5)
    assert abs(next(open_video(clip, FPS, True).frames()) - picture(0)).mean() > 0.1  # the curve is not undone


def test_frames_between_follow_the_motion_and_no_pixel_moves_far(clip):
    frames = list(dense_frames(open_video(clip, FPS, None), 1.0))
    times = np.array([t for t, _ in frames])
    assert times[0] == 0 and times[-1] == (FRAMES - 1) * 50_000 and np.diff(times).min() > 0
    assert len(frames) >= (FRAMES - 1) * STEP_PX + 1  # at most one pixel at a time
    errors, blended = [], []
    for t_us, frame in frames:
        k = t_us / 50_000
        low, share = math.floor(k), k - math.floor(k)
        if 0.2 < share < 0.8:
            errors.append(abs(frame - picture(k)).mean())
            blended.append(abs((1 - share) * picture(low) + share * picture(low + 1) - picture(k)).mean())
    assert np.mean(errors) < 0.5 * np.mean(blended)
    again = list(dense_frames(open_video(clip, FPS, None), 1.0))
    assert all(np.array_equal(one, two) for (_, one), (_, two) in zip(frames, again, strict=True))


def test_a_still_video_needs_no_frames_between(tmp_path):
    for k in range(3):
        cv2.imwrite(str(tmp_path / f"{k}.png"), encoded(picture(0)))
    assert [t for t, _ in dense_frames(open_video(tmp_path, 10.0, None), 1.0)] == [0, 100_000, 200_000]


def test_all_label_formats_say_the_same(clip, tmp_path):
    source = open_video(clip, FPS, None)
    coco(tmp_path / "coco.json", [f"{k:03d}.png" for k in range(FRAMES)])
    for kind in ("yolo", "voc"):
        (tmp_path / kind).mkdir()
    for k in range(FRAMES):
        left, top, w, h = box(k)
        middle = f"{(left + w / 2) / WIDTH} {(top + h / 2) / HEIGHT} {w / WIDTH} {h / HEIGHT}"
        (tmp_path / "yolo" / f"{k:03d}.txt").write_text(f"0 {middle} 7\n")
        edges = "".join(
            f"<{e}>{v}</{e}>"
            for e, v in zip(("xmin", "ymin", "xmax", "ymax"), (left, top, left + w, top + h), strict=True)
        )
        (tmp_path / "voc" / f"{k:03d}.xml").write_text(
            f"<annotation><object><name>person</name><track_id>7</track_id><bndbox>{edges}</bndbox></object></annotation>"
        )
    wanted, names = read_video_labels(mot(tmp_path / "gt.txt"), None, source, ["person"])
    assert names == ("person",) and wanted["t"].tolist() == [50_000 * k for k in range(FRAMES)]
    np.testing.assert_allclose(wanted["x"], [box(k)[0] for k in range(FRAMES)])
    for path in ("coco.json", "yolo", "voc"):
        columns = ("class", "cx", "cy", "w", "h", "track") if path == "yolo" else ()
        found, names = read_video_labels(tmp_path / path, None, source, ["person"], columns)
        assert names == ("person",)
        for field in ("t", "x", "y", "w", "h", "class_id", "track_id"):
            np.testing.assert_allclose(found[field], wanted[field], atol=1e-4)


def test_a_labelled_clip_becomes_a_dataset_that_trains(clip, tmp_path):
    out = tmp_path / "data"
    for split in ("train", "val"):
        words = [f"video={clip}", f"out={out}", f"labels={mot(tmp_path / 'gt.txt')}", "classes=[person]", "fps=20"]
        assert cli.main(["simulate", *words, f"split={split}", "label_hz=40", *QUIET]) == 0
    assert read_spec(out).class_names == ("person",)
    boxes = read_boxes(out / "train" / "walk_bbox.npy")
    assert boxes["t"].tolist() == [25_000 * k for k in range(2 * FRAMES - 1)] and set(boxes["track_id"]) == {7}
    np.testing.assert_allclose(np.diff(boxes["x"]), STEP_PX / 2)
    recording = open_recording(out / "train" / "walk_td.dat")
    events = recording.read()
    assert len(events) > 500 and recording.faults.backward_steps == 0
    for k in range(1, FRAMES):  # nearly all of them come from the square and its edges
        part = events.between(50_000 * (k - 1), 50_000 * k)
        inside = (part.x >= box(k - 1)[0] - 3) & (part.x < box(k)[0] + SIDE + 3) & (part.y >= 17) & (part.y < 47)
        assert inside.mean() > 0.9
    before = (out / "train" / "walk_td.dat").stat().st_mtime_ns
    assert cli.main(["simulate", *words, "split=train", "label_hz=40", *QUIET]) == 0
    assert (out / "train" / "walk_td.dat").stat().st_mtime_ns == before  # it was complete
    train = ["train", "dataset=custom", f"dataset.raw_dir={out}", f"out={tmp_path / 'run'}", "model=tiny", "steps=1"]
    small = ["model.embed_dim=8", "model.head_dim=8", "model.num_blocks=[1,0,0,0]", "model.fpn_blocks=0"]
    small += ["sampling.batch_size=2", "sampling.chunk_length=2"]
    quick = ["training.accelerator=cpu", "data.workers=0", "training.loggers=[]"]
    assert cli.main([*train, *small, *quick]) == 0
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def test_images_of_coco_without_a_picture_are_left_out(clip, tmp_path):
    source = open_video(clip, FPS, None)
    labels = coco(tmp_path / "coco.json", ["-2.png", "-1.png", *(f"{k:03d}.png" for k in range(4))])
    with pytest.warns(match="labels 2 pictures"):
        boxes, _ = read_video_labels(labels, None, source, None)
    assert boxes["t"].tolist() == [50_000 * k for k in range(4)] and boxes["x"][0] == box(2)[0]
    boxes, _ = read_video_labels(labels, None, replace(source, names=()), None)  # a video file has no names
    assert boxes["t"].tolist() == [50_000 * k for k in range(6)]


def test_numbers_in_names_of_pictures_are_numbers(clip, tmp_path):
    names = [f"walk{k}.png" for k in range(9, 13)]
    for name in names:
        shutil.copy(clip / "000.png", tmp_path / name)
    source = open_video(tmp_path, FPS, None)
    assert list(source.names) == ["walk9", "walk10", "walk11", "walk12"]
    boxes, _ = read_video_labels(coco(tmp_path / "coco.json", names), None, replace(source, names=()), None)
    assert boxes["x"].tolist() == [box(k)[0] for k in range(4)]


def test_a_negative_track_is_none_and_yolo_may_name_its_classes(clip, tmp_path):
    source = open_video(clip, FPS, None)
    boxes, _ = read_video_labels(coco(tmp_path / "coco.json", ["000.png"], -1), None, source, None)
    assert boxes["track_id"].tolist() == [0]
    (tmp_path / "yolo").mkdir()
    (tmp_path / "yolo" / "classes.txt").write_text("person\ntraffic light\n")
    (tmp_path / "yolo" / "001.txt").write_text("1 0.5 0.5 0.2 0.2 -1\n")
    (tmp_path / "yolo" / "002.txt").write_text("1.0 0.5 0.5 0.5 0.25 0\n")
    columns = ("class", "cx", "cy", "w", "h", "track")
    boxes, names = read_video_labels(tmp_path / "yolo", None, source, None, columns)
    assert names == ("person", "traffic light")
    assert boxes["t"].tolist() == [50_000, 100_000] and set(boxes["class_id"]) == {1} and not boxes["track_id"].any()
    (tmp_path / "yolo" / "classes.txt").write_text("person\n\ntraffic light\n")
    with raises("file.content", "classes.txt: line 2"):
        read_video_labels(tmp_path / "yolo", None, source, None, columns)


def test_nothing_of_another_video_or_of_other_settings_is_replaced_or_kept(clip, tmp_path, monkeypatch, capsys):
    def simulated(*changes: str) -> int:
        return cli.main(["simulate", "video=.", "fps=20", f"out={tmp_path}", *QUIET, *changes])

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "train").iterdir()}

    monkeypatch.chdir(shutil.copytree(clip, tmp_path / "a" / "walk"))  # a video that is named by a dot has a name
    assert simulated() == 0 and simulated() == 0
    assert "complete; nothing was written" in capsys.readouterr().out
    labels = [f"labels={mot(tmp_path / 'gt.txt')}", "classes=[person]"]
    assert simulated(*labels) == 0
    assert re.search(r"wrote \S+/walk_bbox\.npy$", capsys.readouterr().out.strip())
    description = tmp_path / "dataset.yaml"
    description.write_text(f"{description.read_text()}label_interval_us: 40000\n")  # a key of the user
    assert simulated(*labels) == 0
    description.write_text("classes: [person")
    assert simulated(*labels) == 2 and "dataset.yaml is not YAML" in capsys.readouterr().err
    description.unlink()
    before = files()
    assert set(before) == {"walk_td.dat", "walk_bbox.npy", ".walk.simulate.json", ".rvtssm.files.json"}
    for change in ("seed=1", "fps=10", "linear=true", "sensor=blunt"):
        assert simulated(change, *labels) == 2
        assert "made from another video or other settings" in capsys.readouterr().err
    monkeypatch.chdir(shutil.copytree(clip, tmp_path / "b" / "walk"))
    assert simulated(*labels) == 2 and "(video)" in capsys.readouterr().err
    assert files() == before
    for name in ("walk_td.dat", ".walk.simulate.json"):
        (tmp_path / "train" / name).unlink()
    assert simulated(*labels) == 2 and "walk_bbox.npy: made from another video" in capsys.readouterr().err


def test_labels_of_someone_else_are_not_replaced(clip, tmp_path, capsys):
    words = ["simulate", f"video={clip}", "fps=20", f"out={tmp_path}", *QUIET]
    assert cli.main(words) == 0
    by_hand = tmp_path / "train" / f"{clip.name}_bbox.npy"
    by_hand.write_bytes(b"by hand")
    assert cli.main([*words, f"labels={mot(tmp_path / 'gt.txt')}", "classes=[person]"]) == 2
    assert "written, or changed, by someone else" in capsys.readouterr().err and by_hand.read_bytes() == b"by hand"


def test_videos_of_names_that_are_equally_long_have_cameras_of_their_own(clip, tmp_path):
    cameras = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for k in range(2):
            shutil.copy(clip / "000.png", tmp_path / name / f"{k}.png")
        assert cli.main(["simulate", f"video={tmp_path / name}", "fps=2", f"out={tmp_path}"]) == 0
        cameras.append(open_recording(tmp_path / "train" / f"{name}_td.dat").read().t.tolist())
    assert cameras[0] != cameras[1] and min(map(len, cameras)) > 100  # noise


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_video_that_breaks_off_is_read_to_its_last_whole_frame(clip, tmp_path, capsys):
    video = tmp_path / "cut.avi"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"MJPG"), 20.0, (WIDTH, HEIGHT))
    for k in range(FRAMES):
        writer.write(cv2.imread(str(clip / f"{k:03d}.png")))
    writer.release()
    assert open_video(video, None, None).num_frames == FRAMES
    data = video.read_bytes()
    video.write_bytes(data[: [match.start() for match in re.finditer(b"00dc", data)][4]])  # as each frame begins
    words = [f"video={video}", f"labels={mot(tmp_path / 'gt.txt')}", "classes=[person]", f"out={tmp_path}", *QUIET]
    assert cli.main(["simulate", *words]) == 0
    said = capsys.readouterr().err
    count = int(re.search(rf"ends after frame ([345]) of {FRAMES}", said)[1])
    assert f"{FRAMES - count} labels of later frames are left out" in said
    boxes = read_boxes(tmp_path / "train" / "cut_bbox.npy")
    assert boxes["t"].tolist() == [50_000 * k for k in range(count)]


def film(path: Path, times_s: list[float]) -> Path:
    """A video with frames at these times, in each of which a bright square is 2 pixels further to the right."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 9000)
        for k, time_s in enumerate(times_s):
            image = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
            image[20:44, 10 + 2 * k : 34 + 2 * k] = 220
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.time_base, frame.pts = Fraction(1, 9000), round(9000 * time_s)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_the_time_of_a_frame_is_that_of_the_container_unless_a_rate_is_given(tmp_path):
    times_s = [0.0, 0.1, 0.2, 0.24, 0.28, 0.5]  # as a phone slows down in the dark
    video = film(tmp_path / "phone.MP4", times_s)
    wanted = [round(1e6 * time_s) for time_s in times_s]
    source = open_video(video, None, None)
    assert source.times_us == tuple(wanted) and source.fps == pytest.approx(10)
    dense = [t_us for t_us, _ in dense_frames(source, 1.0)]
    assert set(wanted) < set(dense) and dense == sorted(set(dense))
    (tmp_path / "gt.TXT").write_text("".join(f"{k + 1},7,{10 + 2 * k},20,24,24,1,1\n" for k in range(6)))
    boxes, _ = read_video_labels(tmp_path / "gt.TXT", None, source, ["car"])
    assert boxes["t"].tolist() == wanted
    assert open_video(video, 20.0, None).times_us == tuple(range(0, 300_000, 50_000))


def test_a_video_in_portrait_stands_upright(tmp_path):
    video = film(tmp_path / "portrait.mp4", [k / 30 for k in range(4)])
    data = bytearray(video.read_bytes())
    at = data.find(b"tkhd") + 44  # where the matrix begins in version 0
    data[at : at + 36] = struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, HEIGHT << 16, 0, 0x40000000)
    video.write_bytes(data)
    source = open_video(video, None, None)
    assert (source.height, source.width) == (WIDTH, HEIGHT)
    first = next(source.frames())
    assert first[10:34, HEIGHT - 44 : HEIGHT - 20].min() > 2 * first[40:].max()


def test_a_picture_whose_name_is_not_utf_8_is_one_line(clip, tmp_path):
    """OpenCV would end the process."""
    folder = shutil.copytree(clip, tmp_path / "clip")
    first = sorted(folder.iterdir())[0]
    first.rename(os.fsdecode(bytes(folder) + b"/\xff" + first.suffix.encode()))
    with raises("file.name"):
        list(open_video(folder, FPS, None).pictures())


def test_a_picture_that_is_cut_or_of_an_impossible_size_is_one_line(tmp_path):
    """OpenCV fills a cut JPEG with grey, and raises an error of its own for a side above 2^20 pixels."""
    coded = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (64, 96), np.uint8))[1].tobytes()
    header = struct.pack(">4sIIBBBBB", b"IHDR", 1 << 21, 64, 8, 2, 0, 0, 0)
    large = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    for content in (coded[: len(coded) // 2], large, b""):
        (tmp_path / "one.jpg").write_bytes(content)
        with raises("file.damaged", about="one.jpg"):
            read_picture(tmp_path / "one.jpg")
    (tmp_path / "one.jpg").write_bytes(coded)
    assert read_picture(tmp_path / "one.jpg").shape == (64, 96, 3)


def test_files_of_macos_and_paths_of_windows_are_no_hindrance(clip, tmp_path):
    pictures, labels = shutil.copytree(clip, tmp_path / "walk"), tmp_path / "yolo"
    labels.mkdir()
    for k in range(FRAMES):
        (labels / f"{k:03d}.TXT").write_text("0 0.5 0.5 0.2 0.2\n")
    for hidden in (pictures / "._000.png", labels / "._000.TXT"):
        hidden.write_bytes(b"\x00\x05\x16\x07" + b"\xb0" * 40)
    source = open_video(pictures, FPS, None)
    assert source.num_frames == FRAMES and len(list(source.frames())) == FRAMES
    wanted = [50_000 * k for k in range(FRAMES)]
    assert read_video_labels(labels, None, source, None)[0]["t"].tolist() == wanted
    names = [f"images\\1\\{k:03d}.png" if k % 2 else f"{k:03d}.png" for k in range(FRAMES)]
    assert read_video_labels(coco(tmp_path / "mixed.JSON", names), None, source, None)[0]["t"].tolist() == wanted


@pytest.mark.parametrize("first", [0, 1])
def test_the_number_in_a_name_is_the_frame(clip, tmp_path, first):
    source = replace(open_video(clip, FPS, None), names=())
    numbers = [2 * k + first for k in range(4)]
    (tmp_path / "yolo").mkdir()
    for number in numbers:
        (tmp_path / "yolo" / f"clip_{number}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    for labels in (tmp_path / "yolo", coco(tmp_path / "coco.json", [f"frame_{k:06d}.PNG" for k in numbers])):
        with pytest.warns(match="are numbered from 1") if first else nullcontext():
            boxes, _ = read_video_labels(labels, None, source, None)
        assert boxes["t"].tolist() == [100_000 * k for k in range(4)]


@pytest.mark.parametrize(
    ("name", "label_format", "content", "key"),
    [
        ("late.txt", None, "30,7,155,20,24,24", "labels.other_times"),
        ("gt.txt", "coco", "1,7,10,20,24,24", "labels.form"),
        ("other/x9.txt", None, "0 0.5 0.5 0.2 0.2", "labels.other_times"),
        ("short/000.txt", None, "0 0.5 0.5", "labels.form"),
        ("tracks.txt", None, f"1,{(1 << 32) + 1},10,20,24,24", "labels.form"),
        ("classes.txt", None, f"1,7,10,20,24,24,1,{1 << 40}", "labels.class"),
        ("from_zero.txt", None, "0,7,10,20,24,24", "labels.form"),
        ("half.txt", None, "1.5,7,10,20,24,24", "labels.form"),
        ("zero_class.txt", None, "1,7,10,20,24,24,1,0", "labels.form"),
        ("half_class.txt", None, "1,7,10,20,24,24,1,2.5", "labels.form"),
    ],
)
def test_labels_that_cannot_be_those_of_the_video_are_refused(clip, tmp_path, name, label_format, content, key):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with raises(key):
        read_video_labels(tmp_path / name.partition("/")[0], label_format, open_video(clip, FPS, None), ["person"])


@pytest.mark.parametrize(
    "change, answer",
    [
        ({"video": "nowhere.mp4"}, "nowhere.mp4 does not exist; a video file or a folder"),
        ({"video": "gt.txt"}, "gt.txt: not a video that can be read"),
        ({"fps": None}, "fps=HZ: the number of pictures per second"),
        ({"video": "low"}, "low: a side of 15 pixels; 16 to 16384 per side"),
        ({"labels": "words.txt"}, "line 1: `frame,track,left,top,width,height`"),
        ({"video": None}, "video=FILE is needed"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(change, answer, clip, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    mot(tmp_path / "gt.txt")
    (tmp_path / "words.txt").write_text("a,b,c\n")
    (tmp_path / "low").mkdir()
    for number in range(2):
        cv2.imwrite(str(tmp_path / "low" / f"{number}.png"), np.zeros((15, 64, 3), np.uint8))
    values = {"video": str(clip), "fps": "20", "labels": "gt.txt", "out": "data", **change}
    said = refused("simulate", *(f"{key}={value}" for key, value in values.items() if value)).strip()
    assert re.search(answer, said.splitlines()[-1]), said
    assert "Traceback" not in said
