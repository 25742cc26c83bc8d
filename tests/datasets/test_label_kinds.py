"""Labels as tools write them: where they lie, which recording and time they belong to, and what counts as no track."""

import json
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from event_examples import SPEC, boxes_of, random_events, read_label_file
from user_errors import raises

from rvtssm.checks.inspect_dataset import inspect_raw
from rvtssm.datasets.agreement import raw_lines
from rvtssm.datasets.tree import find_boxes_without_events, find_recordings
from rvtssm.events.label_files import SAME_TIME, LabelFiles
from rvtssm.events.label_formats import CROWD, EXCHANGED, NO_BOX
from rvtssm.events.labels import BOX_DTYPE, find_nothing, read_boxes, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.system.user_error import UserError
from tests.readers.format_encoders import write_dsec

CUSTOM = replace(SPEC, name="custom", ignored_classes=(), class_names=("car", "pedestrian"), label_fps=30.0)
NUMBERS = (0, 5, 20)
TIMES_US = [0, 166_667, 666_667]  # of these frames at 30 Hz
YOLO = "1 0.25 0.25 0.25 0.25\n"
VOC = (
    "<annotation><object><name>pedestrian</name><bndbox><xmin>8</xmin><ymin>6</ymin><xmax>24</xmax><ymax>18</ymax>"
    "</bndbox></object></annotation>"
)


def coco(names, **image):
    annotation = {"category_id": 7, "bbox": [8, 6, 16, 12]}
    return json.dumps(
        {
            "images": [{"id": i, "file_name": name, **image} for i, name in enumerate(names)],
            "annotations": [{"id": i, "image_id": i, **annotation} for i in range(len(names))],
            "categories": [{"id": 7, "name": "pedestrian"}],
        }
    )


def write_events(root, *names, split="train"):
    for name in names:
        (root / split / name).parent.mkdir(parents=True, exist_ok=True)
        write_dat(root / split / f"{name}_td.dat", random_events(100), SPEC.height, SPEC.width)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def in_own_files(root, suffix, text, pattern):
    for number in NUMBERS:
        write(root / f"{pattern.format('walk', number)}{suffix}", text)
        write(root / f"{pattern.format('walk_2', number + 30)}{suffix}", text)


def in_one_file(root, path, pattern, first=0):
    names = [pattern.format(name, n + shift) for name, shift in (("walk", first), ("walk_2", 30)) for n in NUMBERS]
    write(root / path, coco(names))


KINDS = {
    "YOLO beside": (".txt", lambda root: in_own_files(root, ".txt", YOLO, "train/{}_{:06d}")),
    "YOLO in folders": (".txt", lambda root: in_own_files(root, ".txt", YOLO, "train/{}/{}")),
    "VOC beside": (".xml", lambda root: in_own_files(root, ".xml", VOC, "train/{}_{}")),
    "COCO of the dataset": ("all.json", lambda root: in_one_file(root, "all.json", "{}/frame_{:06d}.PNG")),
    "COCO per split": ("{split}.json", lambda root: in_one_file(root, "train.json", "images\\1\\{}_{}.png")),
    "COCO of Roboflow": ("_a.coco.json", lambda root: in_one_file(root, "train/_a.coco.json", "{}_{}_png.rf.0f3A.jpg")),
    "COCO from one": ("a.json", lambda root: in_one_file(root, "a.json", "{}_{}.png", first=1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_images_belong_to_the_recording_and_the_frame_in_their_names(tmp_path, kind):
    suffix, write_labels = KINDS[kind]
    write_events(tmp_path, "walk", "bare")
    write_events(tmp_path, "walk_3", split="val")
    write_events(tmp_path, "walk_2")
    write_labels(tmp_path)
    spec = replace(CUSTOM, boxes_suffix=suffix)
    found = {each.name: each.read_labels(spec) for each in find_recordings(tmp_path, "train", spec)}
    boxes, notes = found["walk"]
    is_from_one = kind == "COCO from one"
    first_us = 966_667 if is_from_one else 1_000_000  # the first frame has one number in all recordings
    assert boxes["t"].tolist() == TIMES_US and found["walk_2"][0]["t"][0] == first_us and not len(found["bare"][0])
    assert boxes[["x", "y", "w", "h", "class_id"]].tolist() == [(8, 6, 16, 12, 1)] * 3
    assert bool(notes) == is_from_one


def test_files_of_frames_from_one_are_said(tmp_path):
    write_events(tmp_path, "clip")
    for number in (1, 2, 11):
        write(tmp_path / f"train/clip_{number}.txt", YOLO if number < 11 else "")
    spec = replace(CUSTOM, boxes_suffix=".txt")
    boxes, notes = find_recordings(tmp_path, "train", spec)[0].read_labels(spec)
    assert boxes["t"].tolist() == [0, 33_333, 333_333] and find_nothing(boxes).tolist() == [False, False, True]
    assert notes.total() == 3
    spec = replace(spec, label_fps=0.0)
    with raises("labels.no_time"):
        find_recordings(tmp_path, "train", spec)[0].read_labels(spec)


def test_numbers_in_names_are_microseconds_without_a_rate(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(coco(["a_0000000.png", "a_0050000.png"]))
    assert read_label_file(path, replace(CUSTOM, label_fps=0.0))["t"].tolist() == [0, 50_000]
    path.write_text(coco(["a_0000000.png", "a_0050000.png"], t_us=7))
    assert read_label_file(path, CUSTOM)["t"].tolist() == [7, 7]
    assert read_label_file(path, replace(CUSTOM, label_offset_us=-9))["t"].tolist() == [-2, -2]


def test_a_shared_file_of_other_recordings_is_refused(tmp_path):
    write_events(tmp_path, "walk")
    write(tmp_path / "all.json", coco(["drive_0.png"]))
    spec = replace(CUSTOM, boxes_suffix="all.json")
    with raises("labels.name"):
        find_recordings(tmp_path, "train", spec)[0].read_labels(spec)


def test_names_may_be_written_in_two_forms_of_unicode(tmp_path):
    write_events(tmp_path, unicodedata.normalize("NFD", "grün"))
    np.save(tmp_path / "train" / (unicodedata.normalize("NFC", "grün") + "_bbox.npy"), np.zeros(1, BOX_DTYPE))
    assert find_recordings(tmp_path, "train", SPEC)[0].labels is not None


@pytest.mark.parametrize("missing", [-1, 2**32 - 1, float("nan")])
def test_no_track_is_written_in_many_ways(tmp_path, missing):
    dtype = "<f8" if missing != missing else "<i8"
    boxes = np.zeros(
        3, [(name, dtype if name == "track_id" else "<i8") for name in ("t", *"xywh", "class_id", "track_id")]
    )
    boxes["track_id"] = [missing, missing, 3]
    np.save(tmp_path / "a_bbox.npy", boxes)
    assert read_boxes(tmp_path / "a_bbox.npy")["track_id"].tolist() == [0, 0, 3]
    content = json.loads(coco(["a_0.png", "a_1.png", "a_2.png"]))
    for annotation, track in zip(content["annotations"], (missing, None, 3), strict=True):
        annotation["track_id"] = track
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert read_label_file(tmp_path / "a.json", CUSTOM)["track_id"].tolist() == [0, 0, 3]


CONFIDENCE, TRACK = ("class", "cx", "cy", "w", "h", "confidence"), ("class", "cx", "cy", "w", "h", "track")


@pytest.mark.parametrize(
    ("columns", "text", "wanted"),
    [
        (("class", "polygon"), "0 0.1 0.2 0.6 0.2 0.6 0.8 0.1 0.8", (6.4, 9.6, 32, 28.8, 0, 0)),
        (("class", "polygon"), "0 0.1 0.2 0.6 0.2 1 0.8 0.1 0.8", (6.4, 9.6, 57.6, 28.8, 0, 0)),
        (CONFIDENCE, "0 0.3 0.3 0.4 0.4 0.91", (6.4, 4.8, 25.6, 19.2, 0, 0)),
        (TRACK, "0 0.3 0.3 0.4 0.4 12", (6.4, 4.8, 25.6, 19.2, 0, 12)),
        ((*CONFIDENCE, "track"), "0 0.3 0.3 0.4 0.4 0.91 12", (6.4, 4.8, 25.6, 19.2, 0, 12)),
        (("class", "x1", "y1", "x2", "y2"), "0 0.1 0.1 0.5 0.5", (6.4, 4.8, 25.6, 19.2, 0, 0)),
        ((*TRACK[:5], "points"), "0 0.3 0.3 0.4 0.4 0.3 0.2 1 0.1 0.3 2", (6.4, 4.8, 25.6, 19.2, 0, 0)),
        ((), "1.000000e+00 3.000000e-01 3.000000e-01 4.000000e-01 4.000000e-01", (6.4, 4.8, 25.6, 19.2, 1, 0)),
        ((), "0 1 0.3 0.4 0.4 1", "label_columns"),
        ((), "0 0.1 0.2 0.6 0.2 0.6 0.8 0.1 0.8", "label_columns"),
        (CONFIDENCE, "0 0.3 0.3 0.4 0.4", "5 numbers"),
    ],
)
def test_the_columns_of_yolo(tmp_path, columns, text, wanted):
    (tmp_path / "a.txt").write_text(text)
    spec = replace(CUSTOM, label_columns=columns)
    if isinstance(wanted, str):
        with raises("labels.form", wanted):
            read_label_file(tmp_path / "a.txt", spec, 7)
    else:
        (box,) = read_label_file(tmp_path / "a.txt", spec, 7)
        assert [box[name] for name in (*"xywh", "class_id", "track_id")] == pytest.approx(wanted, abs=1e-4)


FORMS = {
    "{recording}_{time_s}": [f"walk_{25.402991 + k / 30:.6f}" for k in range(3)],
    "{recording}_*_{time_s}": [f"walk_12_10_{25.402991 + k / 30:.6f}" for k in range(3)],
    "left_{time_s}.{time_ns}": [f"left_25.{round((0.402991 + k / 30) * 1e9)}" for k in range(3)],
    "*-{recording}_{time_us}": [f"0a{k}f-walk_{round((25.402991 + k / 30) * 1e6)}" for k in range(3)],
    "{recording}/{time_ns}": [f"walk/{round((25.402991 + k / 30) * 1e9)}" for k in range(3)],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_clock_in_a_name_is_read_as_its_form_says(tmp_path, form):
    write_events(tmp_path, "walk")
    write(tmp_path / "train/walk.json", coco([f"{name}.png" for name in FORMS[form]]))
    spec = replace(CUSTOM, boxes_suffix=".json", label_names=form)
    boxes, notes = find_recordings(tmp_path, "train", spec)[0].read_labels(spec)
    np.testing.assert_allclose(boxes["t"], [25_402_991, 25_436_324, 25_469_658], atol=1)
    assert not notes
    if form == "{recording}/{time_ns}":
        return  # without the form, these are numbers of frames
    with raises("labels.name") as error:
        find_recordings(tmp_path, "train", spec)[0].read_labels(replace(spec, label_names=""))
    assert "label_names: '" in str(error.value) and "delete" not in str(error.value)


def test_a_name_of_no_form_is_refused_and_that_of_a_missing_recording_is_no_one_elses(tmp_path):
    write_events(tmp_path, "walk")
    spec = replace(CUSTOM, boxes_suffix=".txt")
    for name in ("walk_0001", "walk_2_0003", "classes", "README"):
        write(tmp_path / f"train/{name}.txt", YOLO)
    (recording,) = find_recordings(tmp_path, "train", spec)
    assert len(recording.read_boxes(spec)) == 1
    assert find_boxes_without_events(tmp_path, "train", spec) == [tmp_path / "train/walk_2_0003.txt"]
    write(tmp_path / "train/walk_12_10_25.402991.txt", YOLO)
    with raises("labels.name", "{recording}_*_{time_s}"):
        find_recordings(tmp_path, "train", spec)


def test_images_at_one_time_are_noticed(tmp_path):
    (tmp_path / "a.json").write_text(coco(["a_1.png", "a_0001.png", "a_2.png"]))
    assert LabelFiles("a", (tmp_path / "a.json",)).read(CUSTOM)[1][SAME_TIME] == 1


def test_the_file_whose_pictures_have_another_size_is_named(tmp_path):
    write_events(tmp_path, "walk")
    for number in range(4):
        size = (640, 480) if number == 2 else (SPEC.width, SPEC.height)
        sides = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
        write(tmp_path / f"train/walk_{number}.xml", VOC.replace("<annotation>", f"<annotation>{sides}"))
    spec = replace(CUSTOM, boxes_suffix=".xml")
    with raises("labels.size", "walk_2.xml"):
        find_recordings(tmp_path, "train", spec)[0].read_labels(spec)


@pytest.mark.parametrize(("offset", "first_us"), [("from_start", 5_000_007), ({"walk": -7, "run": 9}, 0), (3, 10)])
def test_the_offset_of_labels_may_be_that_of_the_recording(tmp_path, offset, first_us):
    (tmp_path / "train").mkdir()
    events = random_events(100, start_us=5_000_000, fills_span=True)
    write_dat(tmp_path / "train/walk_td.dat", events, SPEC.height, SPEC.width)
    write(tmp_path / "train/walk.json", coco(["walk_1.png"], t_us=7))
    spec = replace(CUSTOM, boxes_suffix=".json", label_offset_us=offset)
    assert find_recordings(tmp_path, "train", spec)[0].read_boxes(spec)["t"].tolist() == [first_us]
    with raises("setting.missing", "walk"):
        spec = replace(spec, label_offset_us={"run": 9})
        find_recordings(tmp_path, "train", spec)[0].read_boxes(spec)


@pytest.mark.parametrize(
    ("change", "num_boxes", "note"),
    [
        ({"bbox": None, "segmentation": [[8, 6, 24, 6, 24, 18, 8, 18]]}, 2, None),
        ({"bbox": [], "segmentation": []}, 1, NO_BOX),
        ({"iscrowd": 1, "segmentation": {"counts": [0, 10]}}, 1, CROWD),
        ({"image_id": "1"}, 2, None),
        ({"bbox": ["8", "6.0", "16", "12"]}, 2, None),
        ({"bbox": {"x": 8, "y": 6, "w": 16, "h": 12}}, "annotation 1: the bbox is {'x'", None),
    ],
)
def test_annotations_of_coco(tmp_path, change, num_boxes, note):
    content = json.loads(coco(["a_0.png", "a_1.png"]))
    content["annotations"][1] |= change
    write(tmp_path / "train/a.json", json.dumps(content))
    write_events(tmp_path, "a")
    spec = replace(CUSTOM, boxes_suffix=".json")
    recording = find_recordings(tmp_path, "train", spec)[0]
    if isinstance(num_boxes, str):
        with pytest.raises(UserError, match=num_boxes):
            recording.read_labels(spec)
        return
    boxes, notes = recording.read_labels(spec)
    assert len(boxes) == num_boxes  # a box that is left out does not make an image empty
    assert boxes[["x", "y", "w", "h"]].tolist() == [(8, 6, 16, 12)] * num_boxes
    assert dict(notes) == ({note: 1} if note else {})


def test_corners_of_voc_may_be_exchanged(tmp_path):
    write(tmp_path / "train/a.xml", VOC.replace("<xmin>8<", "<xmin>24<").replace("<xmax>24<", "<xmax>8<"))
    write_events(tmp_path, "a")
    spec = replace(CUSTOM, boxes_suffix=".xml")
    boxes, notes = find_recordings(tmp_path, "train", spec)[0].read_labels(spec)
    assert boxes[["x", "y", "w", "h"]].tolist() == [(8, 6, 16, 12)] and dict(notes) == {EXCHANGED: 1}


HEAD = "% camera_integrator_name X\n% evt {}.0\n% format {};height=48;width=64\n% end\n"
WORDS = {  # one event 1 us after a time step
    "EVT2": ("<u4", [0x8 << 28 | 100_544, 0x1 << 28 | 1 << 22 | 10 << 11 | 6], 64 * 100_544),
    "EVT21": ("<u8", [0x8 << 60 | 100_544 << 32, 0x1 << 60 | 1 << 54 | 6 << 32 | 1], 64 * 100_544),
    "EVT3": ("<u2", [0x8000 | 1571, 0x6001, 0x0006, 0x280A], 4096 * 1570),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_offset_of_labels_may_be_the_time_shift_of_a_raw_file(tmp_path, name):
    dtype, words, shift_us = WORDS[name]
    head = HEAD.format({"EVT2": 2, "EVT21": 2.1, "EVT3": 3}[name], name)
    write(tmp_path / "train/a_bbox.npy", "")
    (tmp_path / "train/a.raw").write_bytes(head.replace("1.0", "1").encode() + np.array(words, dtype).tobytes())
    np.save(tmp_path / "train/a_bbox.npy", np.zeros(1, BOX_DTYPE))
    spec = replace(SPEC, label_offset_us=None, height=48, width=64)
    assert find_recordings(tmp_path, "train", spec)[0].read_boxes(spec)["t"].tolist() == [shift_us]
    write_events(tmp_path, "b")
    np.save(tmp_path / "train/b_bbox.npy", np.zeros(1, BOX_DTYPE))
    with raises("labels.no_time"):
        find_recordings(tmp_path, "train", spec)[1].read_boxes(spec)


def test_images_of_no_recording_in_a_shared_file_are_counted_once(tmp_path):
    write_events(tmp_path, "walk", "walk_2")
    names = ["walk_0000.png", "walk_2_0000.png", "other_0000.png", "other_0005.png"]
    write(tmp_path / "annotations/train.json", coco(names, width=SPEC.width, height=SPEC.height))
    spec = replace(CUSTOM, boxes_suffix="annotations/{split}.json")
    notes = [recording.read_labels(spec)[1] for recording in find_recordings(tmp_path, "train", spec)]
    text = "images, such as other_0000.png, belong to a recording that is not there, and were left out"
    assert [dict(counts) for counts in notes] == [{text: 2}, {}]


def test_the_offset_of_labels_may_be_that_of_dsec(tmp_path):
    (tmp_path / "train").mkdir()
    write_dsec(tmp_path / "train/a.h5", random_events(100, start_us=7_000_000), offset_us=6_000_000)
    np.save(tmp_path / "train/a_bbox.npy", np.zeros(1, BOX_DTYPE))
    spec = replace(SPEC, label_offset_us=None, event_suffixes=(".h5",), height=480, width=640)
    assert find_recordings(tmp_path, "train", spec)[0].read_boxes(spec)["t"].tolist() == [6_000_000]


# files of recordings


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def found(root, split, spec):
    return {recording.name: recording for recording in find_recordings(root, split, spec)}


def test_a_file_belongs_to_one_recording_and_others_of_its_name_are_named(tmp_path):
    touch(tmp_path, "val/a_td.raw", "val/b_td.dat", "val/b_td.dat.h5", "val/c.raw", "val/.d_td.dat", "val/b_bbox.npy")
    with pytest.warns(UserWarning, match=r"1 event files .*val/b_td\.dat\.h5, because b_td\.dat is"):
        recordings = found(tmp_path, "val", SPEC)
    assert {name: recording.events_path.name for name, recording in recordings.items()} == {
        "a": "a_td.raw",
        "b": "b_td.dat",
        "c": "c.raw",
    }
    assert recordings["b"].boxes_path == tmp_path / "val/b_bbox.npy" and recordings["a"].boxes_path is None


def test_labels_are_no_recordings(tmp_path):
    spec = replace(SPEC, event_suffixes=(".npy",))
    touch(tmp_path, "val/a.npy", "val/a_bbox.npy", "val/b_bbox.npy")
    assert list(found(tmp_path, "val", spec)) == ["a"]
    assert find_boxes_without_events(tmp_path, "val", spec) == [tmp_path / "val/b_bbox.npy"]


def test_events_and_labels_may_lie_in_trees_of_their_own(tmp_path):
    spec = replace(SPEC, event_suffixes=(".npy",), boxes_suffix=".xml", events_dir="numpy", boxes_dir="xml")
    touch(tmp_path, "numpy/val/a.npy", "xml/val/a.xml", "xml/val/b.xml")
    assert found(tmp_path, "val", spec)["a"].boxes_path == tmp_path / "xml/val/a.xml"
    assert find_boxes_without_events(tmp_path, "val", spec) == [tmp_path / "xml/val/b.xml"]


def test_a_split_may_be_part_of_a_folder(tmp_path):
    touch(tmp_path, "train/day1_td.dat", "train/day2_td.dat", "train/night_td.dat", "train/day2_bbox.npy")
    spec = replace(SPEC, split_sources={"train": ("train/day1*", "train/night*"), "val": ("train/day2*",)})
    assert list(found(tmp_path, "train", spec)) == ["day1", "night"]
    assert list(found(tmp_path, "val", spec)) == ["day2"]
    assert find_boxes_without_events(tmp_path, "train", spec) == []
    (line,) = raw_lines(tmp_path, replace(spec, split_sources={"val": ("train/day2*",)}))
    assert "in two splits" in line
    touch(tmp_path, "more/night_td.raw")
    spec = replace(spec, split_sources={"train": ("train/*", "more/*")})
    with raises("file.ambiguous"):
        inspect_raw(tmp_path, spec)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with raises("file.missing", "val"):
        find_recordings(tmp_path, "val", SPEC)
    with raises("file.missing", "split_sources"):
        find_recordings(tmp_path, "val", replace(SPEC, name="custom"))
    with raises("file.missing"):
        find_recordings(tmp_path / "ownn", "val", SPEC)


def test_labels_without_a_time_are_of_the_moment_after_the_last_event(tmp_path):
    (tmp_path / "val").mkdir()
    events = random_events(100, start_us=5_000)
    write_dat(tmp_path / "val/a_td.dat", events, SPEC.height, SPEC.width)
    (tmp_path / "val/a.txt").write_text("0 .5 .5 .2 .2")
    spec = replace(SPEC, boxes_suffix=".txt")
    assert found(tmp_path, "val", spec)["a"].read_boxes(spec)["t"].tolist() == [events.t[-1] + 1]
    write_boxes(tmp_path / "val/a_bbox.npy", boxes_of((7, 1, 1, 2, 2)))
    assert found(tmp_path, "val", SPEC)["a"].read_boxes(SPEC)["t"].tolist() == [7]


def test_labels_of_another_format_beside_the_recording_are_named(tmp_path):
    spec = replace(SPEC, name="custom", event_suffixes=(".dat", ".npy"))
    touch(tmp_path, "val/a.dat", "val/a.txt", "val/b.npy")
    a, b = find_recordings(tmp_path, "val", spec)
    assert a.why_unlabelled(spec).endswith("there is a.txt, so set `labels: .txt` in dataset.yaml")
    assert b.why_unlabelled(spec).endswith("no labels (b_bbox.npy)") and not len(b.read_boxes(spec))


def test_the_same_labels_in_two_kinds_are_the_same_boxes(tmp_path):
    write_events(tmp_path, "walk", "run")
    spec = replace(CUSTOM, boxes_suffix=".json", more_suffixes=(".txt", ".xml", "_bbox.npy"))
    for name in ("walk", "run"):
        write(tmp_path / f"train/{name}.json", coco([f"{name}_{number}.png" for number in NUMBERS]))
    first = [recording.read_boxes(spec) for recording in find_recordings(tmp_path, "train", spec)]
    (tmp_path / "train/walk.json").unlink()
    for number in NUMBERS:
        write(tmp_path / f"train/walk_{number}.txt", YOLO)
    run = next(each for each in find_recordings(tmp_path, "train", spec) if each.name == "run")
    write_boxes(tmp_path / "train/run_bbox.npy", run.read_boxes(spec))
    with raises("file.ambiguous", "run.json"):
        find_recordings(tmp_path, "train", spec)
    (tmp_path / "train/run.json").unlink()
    for recording, boxes in zip(find_recordings(tmp_path, "train", spec), first, strict=True):
        np.testing.assert_array_equal(recording.read_boxes(spec), boxes)


def test_labels_of_which_none_belongs_to_a_recording_are_refused_with_their_form(tmp_path):
    write_events(tmp_path, "walk", "run")
    write(tmp_path / "train/image_0001.txt", YOLO)
    spec = replace(CUSTOM, boxes_suffix=".txt")
    with raises("labels.name", "rename"):
        find_recordings(tmp_path, "train", spec)
    (tmp_path / "train/run_td.dat").unlink()
    with raises("labels.name", "label_names: '*_{frame}'"):
        find_recordings(tmp_path, "train", spec)
    (recording,) = find_recordings(tmp_path, "train", replace(spec, label_names="*_{frame}"))
    assert len(recording.read_boxes(spec)) == 1


OTHER_TOOLS = {
    "MOT.txt": "1,1,912,484,97,109,0,7,1",
    "KITTI.txt": "Car 0.00 0 -1.57 614.24 181.78 727.31 284.77 1.57 1.73 4.15 1.00 1.75 13.22 -1.62",
    "DOTA.txt": "12.0 4.0 30.0 4.0 30.0 20.0 12.0 20.0 small-vehicle 0",
    "LabelMe.json": '{"version": "5.0", "shapes": [], "imagePath": "a.png"}',
    "VIA.json": '{"_via_settings": {}, "_via_img_metadata": {}}',
    "Supervisely.json": '{"description": "", "objects": []}',
    "Label Studio.json": '[{"id": 1, "annotations": [], "predictions": [], "data": {}}]',
    "results of a detector.json": '[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]',
    "CreateML.json": '[{"image": "a.png", "annotations": []}]',
    "BDD100K.json": '[{"name": "a.png", "labels": []}]',
    "CVAT.xml": "<annotations><track/></annotations>",
    "dlib.xml": "<dataset><images/></dataset>",
}


@pytest.mark.parametrize("name", OTHER_TOOLS)
def test_files_of_other_tools_are_named(tmp_path, name):
    (tmp_path / name).write_text(OTHER_TOOLS[name])
    with raises("labels.other_tool", f"the form of {name.partition('.')[0]}".replace("results", "COCO, but results")):
        read_label_file(tmp_path / name, CUSTOM, 7)
