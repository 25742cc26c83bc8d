"""Inspection: the numbers are those of the events and labels, whatever the length, and memory does not grow with it."""

import hashlib
import io
import json
import re
import shutil
import tracemalloc
from dataclasses import replace

import cv2
import h5py
import numpy as np
import pytest
from event_examples import HEIGHT, SPEC, WIDTH, boxes_of, random_events, to_events, write_labelled
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.checks.inspect_dataset import count_labels, inspect_prepared, inspect_raw, is_prepared, tree_figure
from rvtssm.checks.inspect_recording import inspect_recording, recording_figure
from rvtssm.cli.inspect_output import labelled_frames
from rvtssm.cli.main import main
from rvtssm.datasets import DATASETS, PreprocessConfig
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.drawing import figure_png
from rvtssm.drawing.draw import CLASS_COLORS, class_colors
from rvtssm.events.labels import nothing_at, write_boxes
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.records import Events, WindowSettings


def inspected(path, events, **options):
    write_dat(path, events, HEIGHT, WIDTH)
    return inspect_recording(open_recording(path), **options)


def test_numbers_are_those_of_the_events(tmp_path):
    events = random_events(20_000, span_us=700_000, start_us=5_000)
    found = inspected(tmp_path / "a.dat", events, has_checksum=True).to_json()
    columns = (events.t, events.x, events.y, events.p)
    assert found["sha256_of_monotone_t_x_y_p"] == hashlib.sha256(b"".join(c.tobytes() for c in columns)).hexdigest()
    assert (found["num_events"], found["num_on"]) == (20_000, int(events.p.sum()))
    assert (found["t_first_us"], found["t_last_us"]) == (events.t[0], events.t[-1])
    assert (found["sum_x"], found["sum_y"]) == (events.x.sum(), events.y.sum())
    assert found["longest_gap_us"] == np.diff(events.t).max()
    assert events.t[np.argmax(np.diff(events.t))] == found["longest_gap_at_us"]
    assert found["bytes"] == (tmp_path / "a.dat").stat().st_size


@settings(max_examples=20)
@given(span_us=st.sampled_from((1, 999, 2_047_999, 2_048_000, 4_096_001, 4_000_000_000)), seed=st.integers(0, 99))
def test_the_rate_holds_every_event_in_its_bin(scratch, span_us, seed):
    events = random_events(5_000, seed, span_us)
    found = inspected(scratch / "a.dat", events)
    bins = (events.t - events.t[0]) // found.bin_us
    wanted = np.zeros((int(bins[-1]) + 1, 2), np.int64)
    np.add.at(wanted, (bins, events.p), 1)
    np.testing.assert_array_equal(found.rate, wanted)
    assert len(found.rate) <= 2048
    assert found.bin_us == 1000 or len(found.rate) > 1024


def test_hot_pixels_stand_out_from_their_neighbours(tmp_path):
    quiet = random_events(3_000)  # about one event per pixel
    hot = [(5, 7, 150), (0, 0, 400), (WIDTH - 1, HEIGHT - 1, 100)]
    busy_area = [(20 + dx, 20 + dy, 300) for dx in range(4) for dy in range(4)]
    x = np.concatenate([quiet.x, *(np.full(count, x) for x, _, count in hot + busy_area)])
    y = np.concatenate([quiet.y, *(np.full(count, y) for _, y, count in hot + busy_area)])
    found = inspected(tmp_path / "a.dat", to_events(np.arange(len(x)), x, y, np.ones(len(x))))
    assert [tuple(row) for row in found.hot_pixels[:, :2]] == [(0, 0), (5, 7), (WIDTH - 1, HEIGHT - 1)]


def test_repeated_events_are_counted_and_the_filter_is_named(tmp_path, capsys):
    events = random_events(20_000, span_us=20_000)
    by_pixel = np.lexsort((np.arange(len(events)), events.x, events.y))
    same = (np.diff(events.x[by_pixel]) == 0) & (np.diff(events.y[by_pixel]) == 0)
    assert 0 < inspected(tmp_path / "a.dat", events).num_repeated == np.sum(same & (np.diff(events.t[by_pixel]) <= 5))
    twice = Events(events.t.repeat(2), events.x.repeat(2), events.y.repeat(2), events.p.repeat(2))
    found = inspected(tmp_path / "b.dat", twice)
    assert found.num_repeated >= 20_000
    code, text, _ = run(capsys, tmp_path / "b.dat", f"out={tmp_path / 'out'}")
    (named,) = re.findall(r"filters=\S+\]", re.sub(r"[^\w.:=,{}\[\]]+", "", text.partition("repeated")[2]))
    assert code == 0
    code, text, _ = run(capsys, tmp_path / "b.dat", f"out={tmp_path / 'out'}", named, "--json")
    assert json.loads(text)["repeated_events"] == 0 < json.loads(text)["num_events"] == 40_000 - found.num_repeated


def test_faults_are_told(tmp_path):
    events = random_events(100, span_us=100_000)
    words = np.empty((100, 2), "<u4")
    words[:, 0] = events.t[::-1]
    words[:, 1] = 60 | 47 << 14
    words[3, 1] = WIDTH
    header = b"% Version 2\n% Height 48\n% Width 64\n\x00\x08"
    (tmp_path / "a.dat").write_bytes(header + words.tobytes() + b"123")
    found = inspect_recording(open_recording(tmp_path / "a.dat")).to_json()
    assert (found["backward_steps"], found["out_of_frame"], found["truncated_bytes"]) == (98, 1, 3)


def test_a_recording_whose_events_are_all_filtered_out_is_not_called_empty(tmp_path):
    events = to_events([0, 900_000], [1, WIDTH - 1], [1, HEIGHT - 1], [1, 1])
    with raises("events.none", "filters remove all of its 2 events; leave some of filters= out"):
        inspected(tmp_path / "a.dat", events, filters=["background"])


def test_a_recording_without_events_is_an_error(tmp_path):
    with raises("events.none"):
        inspected(tmp_path / "a.dat", random_events(0))


def test_memory_does_not_grow_with_the_recording(tmp_path):
    peaks = []
    for num_events in (200_000, 2_000_000):
        write_dat(tmp_path / "a.dat", random_events(num_events), HEIGHT, WIDTH)
        recording = open_recording(tmp_path / "a.dat")
        tracemalloc.start()
        inspect_recording(recording)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] + 100_000


def test_boxes_by_class_and_area():
    table = count_labels(np.array([0, 1, 1, 1]), np.array([31.0, 32, 96, 5]), np.array([32.0, 32, 96, 5]), 2)
    assert table.tolist() == [[1, 0, 0], [1, 1, 1]]


@pytest.fixture
def tree(tmp_path):
    """A raw tree with two recordings in train and one in test, and its prepared form."""
    for split, name, seed in (("train", "a", 1), ("train", "b", 2), ("test", "c", 3)):
        rows = [(250_000, 5, 5, 20, 20), (500_000, 5, 5, 40, 40), (500_000, 30, 10, 20, 20)]
        boxes = boxes_of(*rows, class_id=[0, 1, 1])
        write_labelled(tmp_path / "raw" / split, name, random_events(5_000, seed), boxes)
    config = PreprocessConfig(splits=("train", "test"), workers=1)
    preprocess_dataset(SPEC, tmp_path / "raw", tmp_path / "prepared", WindowSettings(), config, progress=False)
    return tmp_path


def test_a_raw_tree_in_numbers(tree):
    found = inspect_raw(tree / "raw", SPEC).to_json()
    assert list(found["splits"]) == ["train", "test"] and not found["errors"]
    train = found["splits"]["train"]
    assert (train["recordings"], train["num_events"], train["num_label_times"]) == (2, 10_000, 4)
    assert train["labels"] == {
        "car": {"small": 2, "medium": 0, "large": 0},
        "pedestrian": {"small": 2, "medium": 2, "large": 0},
    }


def test_a_prepared_tree_in_numbers(tree, printed_by):
    assert is_prepared(tree / "prepared") and not is_prepared(tree / "raw")
    found = inspect_prepared(tree / "prepared", None)
    raw = inspect_raw(tree / "raw", SPEC)
    assert found.to_json()["settings"]["convention"] == "exact"
    for split in ("train", "test"):
        np.testing.assert_array_equal(found.labels(split), raw.labels(split))
        totals = found.totals(split)
        assert totals["num_windows"] == 9 * totals["recordings"]  # a tenth would begin before the first event
        assert totals["num_events"] == sum(
            len(open_recording(path).between(50_000, 500_000)) for path in (tree / "raw" / split).glob("*_td.dat")
        )
    config, sliding = PreprocessConfig(splits=("train",), workers=1), WindowSettings(10_000, 50_000)
    preprocess_dataset(SPEC, tree / "raw", tree / "sliding", sliding, config, progress=False)
    each_once = inspect_prepared(tree / "sliding", None).totals("train")["num_events"]
    assert each_once == pytest.approx(found.totals("train")["num_events"], rel=0.03)  # windows overlap five times
    surfaces = WindowSettings(representation="surfaces")  # of bytes that are no counts
    preprocess_dataset(SPEC, tree / "raw", tree / "surfaces", surfaces, config, progress=False)
    assert inspect_prepared(tree / "surfaces", None).totals("train")["num_events"] == 0
    shown = printed_by("inspect", str(tree / "surfaces"), f"out={tree / 'out'}")
    assert "windows" in shown and "events per second" not in shown
    alone = inspect_prepared(tree / "prepared" / "train" / "a.h5", None)
    assert alone.totals("")["recordings"] == 1


@pytest.mark.parametrize("names", [("car",), ("pedestrian", "car")], ids=["fewer", "another order"])
def test_boxes_of_other_classes_are_not_counted_and_it_is_said(tree, printed_by, names):
    """Beside files of two classes lies one of another preparation."""
    path = tree / "prepared" / "train" / "b.h5"
    spec = replace(SPEC, class_names=names, class_ids=())
    config = PreprocessConfig(splits=("train",), workers=1)
    preprocess_dataset(spec, tree / "raw", tree / "other", WindowSettings(), config, progress=False)
    shutil.copy(tree / "other" / "train" / "b.h5", path)
    found = inspect_prepared(tree / "prepared", None)
    assert found.labels("train").sum() == 3 and found.class_names == SPEC.class_names
    assert any(f"{path} was made with class_names=" in note for note in found.notes)
    shown = " ".join(printed_by("inspect", str(tree / "prepared"), f"out={tree / 'out'}").split())
    assert "of 1 of 3 recordings are not counted, because their classes are not car, pedestrian (train/b)" in shown


def test_what_cannot_be_read_is_named_and_the_rest_described(tree):
    (tree / "raw" / "train" / "a_td.dat").write_bytes(b"% Version 2\n")
    shutil.copy(tree / "raw" / "train" / "b_td.dat", tree / "prepared" / "test" / "c.h5")
    for found, name in (
        (inspect_raw(tree / "raw", SPEC), "train/a"),
        (inspect_prepared(tree / "prepared", None), "test/c"),
    ):
        assert [error[0] for error in found.errors] == [name]
        assert found.totals("train")["recordings"] + found.totals("test")["recordings"] == 2


def write_rvt_sequence(folder):
    """A recording as RVT prepares it, of two windows."""
    frames, labels = folder / "event_representations_v2/stacked_histogram_dt=50_nbins=10", folder / "labels_v2"
    frames.mkdir(parents=True)
    labels.mkdir()
    np.save(frames / "timestamps_us.npy", np.array([600_000, 650_000]))
    with h5py.File(frames / "event_representations.h5", "w") as file:
        file["data"] = np.ones((2, 20, HEIGHT, WIDTH), np.uint8)
    np.savez(labels / "labels.npz", labels=boxes_of((600_000, 5, 5, 20, 20)))


def test_the_first_sequence_of_rvt_may_be_the_one_that_cannot_be_read(tmp_path):
    for name in "ab":
        write_rvt_sequence(tmp_path / "test" / name)
    (tmp_path / "test/a/labels_v2/labels.npz").unlink()
    found = inspect_prepared(tmp_path, SPEC)
    assert [name for name, _ in found.errors] == ["test/a"] and found.totals("test")["num_label_times"] == 1
    with pytest.raises(ValueError, match=r"none of the 2 prepared sequences can be read; .*give dataset=NAME"):
        inspect_prepared(tmp_path, None)


def assert_picture(png: bytes) -> None:
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert image.shape[0] > 400 and image.std() > 5


def test_a_single_event_and_a_tree_have_pictures(tree):
    assert_picture(figure_png(recording_figure(inspected(tree / "a.dat", random_events(1, span_us=1)))))
    inspection = inspect_raw(tree / "raw", SPEC)
    assert_picture(figure_png(tree_figure(inspection)))
    odd = "$x^$"  # no mathematics
    renamed = replace(inspection, name=odd, class_names=(odd,) * len(inspection.class_names))
    assert_picture(figure_png(tree_figure(renamed)))
    parts = tuple(replace(part, split=odd) for part in inspection.parts)
    assert_picture(figure_png(tree_figure(replace(inspection, parts=parts))))


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_verb_prints_text_or_json_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dat(tmp_path / "a b=(1).dat", random_events(500), HEIGHT, WIDTH)
    code, text, _ = run(capsys, "a b=(1).dat", "out=pictures")
    assert code == 0 and "64 x 48" in text
    assert_picture((tmp_path / "pictures" / "a b=(1).dat.png").read_bytes())
    code, text, errors = run(capsys, "a b=(1).dat", "--json")
    assert code == 0 and json.loads(text)["num_events"] == 500 and not errors
    assert not (tmp_path / "outputs").exists()


def test_empty_label_times_are_no_boxes_and_uncertain_boxes_are_drawn_apart(tree):
    path = tree / "raw" / "test" / "c_bbox.npy"
    boxes = boxes_of((250_000, 5, 5, 20, 20), (250_000, 30, 10, 20, 20), class_confidence=1, pseudo_score=[0, -0.4])
    write_boxes(path, np.concatenate([boxes, nothing_at(np.array([300_000, 350_000]))]))
    found = inspect_raw(tree / "raw", SPEC)
    assert found.labels("test").tolist() == [[2, 0, 0], [0, 0, 0]] and found.totals("test")["num_label_times"] == 3
    strip = cv2.imdecode(np.frombuffer(labelled_frames(tree / "raw", SPEC, ["test"])["test"], np.uint8), 1)[..., ::-1]
    names = (*SPEC.class_names, "car, uncertain", "pedestrian, uncertain")
    drawn = [(strip == color).all(axis=-1).any(axis=0) for color in class_colors(names)[::2]]  # by column
    assert all(is_drawn[at : at + strip.shape[1] // 4].any() for is_drawn in drawn for at in range(0, 1900, 480))


def test_labelled_frames_of_each_split_are_drawn(tree, capsys):
    (tree / "raw" / "dataset.yaml").write_text("classes: [car, pedestrian]\nheight: 48\nwidth: 64\n")
    (tree / "raw" / "train" / "b_td.dat").write_bytes(b"% Version 2\n")  # the other one is still drawn
    earlier = tree / "out" / "raw.labels_train.png"
    earlier.parent.mkdir()
    earlier.write_bytes(b"of someone else")
    code, _, errors = run(capsys, tree / "raw", f"out={tree / 'out'}")
    assert code == 2 and str(earlier) in errors and earlier.read_bytes() == b"of someone else"
    earlier.unlink()
    for _ in range(2):  # what the first run has written is replaced
        code, text, _ = run(capsys, tree / "raw", f"out={tree / 'out'}")
    assert code == 2 and f"picture: {earlier}" in text
    assert "training and scoring leave out duplicates" in " ".join(text.split())
    for split in ("train", "test"):
        image = cv2.imread(str(tree / "out" / f"raw.labels_{split}.png"))[..., ::-1]
        assert all((image == CLASS_COLORS[i]).all(axis=-1).any() for i in (0, 1)), split


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"", "is empty"), (b"nonsense", "it is text, but"), (b"% Version 2\n", "ends within")],
)
def test_a_file_that_cannot_be_read_takes_one_line(tmp_path, refused, content, message):
    if content is not None:
        (tmp_path / "a.dat2").write_bytes(content)
    assert message in refused("inspect", tmp_path / "a.dat2")


@pytest.mark.parametrize(("name", "height", "width"), [("gen1", 240, 304), ("onempx", 720, 1280)])
def test_a_published_dataset_is_recognised_by_its_sensor(tmp_path, printed_by, name, height, width):
    (tmp_path / "val").mkdir()
    write_dat(tmp_path / "val" / "a_td.dat", random_events(100), height, width)
    assert json.loads(printed_by("inspect", tmp_path, "--json"))["dataset"] == name


@pytest.mark.parametrize("name", ["synthetic", "open_world"])
def test_a_generated_dataset_is_recognised_by_its_settings(tmp_path, refused, printed_by, name):
    (tmp_path / "val").mkdir()
    write_dat(tmp_path / "val" / "a_td.dat", random_events(100), HEIGHT, WIDTH)
    described = {"dataset": name, "height": HEIGHT, "width": WIDTH}
    (tmp_path / "synthetic.json").write_text(json.dumps(described))
    assert json.loads(printed_by("inspect", tmp_path, "--json"))["dataset"] == name
    (tmp_path / "synthetic.json").write_text("[]")
    assert "name dataset, dataset.height" in refused("inspect", tmp_path, "--json")


@pytest.mark.filterwarnings("default::UserWarning:rvtssm")
def test_a_warning_is_one_line_without_a_place_in_the_code(tmp_path, capsys):
    t, ones = np.zeros(20_000, np.int64), np.ones(20_000, np.uint8)
    np.savez(tmp_path / "a.npz", t=t, x=ones, y=ones, p=ones, height=HEIGHT, width=WIDTH)
    _, _, errors = run(capsys, tmp_path / "a.npz", "--json")
    assert errors.startswith("warning: a.npz has 20000 events in 0 ms") and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"% Version 2\n", "a_td.dat ends within its header"), (b"nonsense", "a_td.dat, which does not say the size")],
)
def test_a_first_file_that_is_damaged_or_has_no_header_is_told(tmp_path, refused, content, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a_td.dat").write_bytes(content)
    assert message in refused("inspect", tmp_path)


def test_a_folder_needs_to_be_a_dataset(tmp_path, refused, capsys):
    line = refused("inspect", tmp_path)
    assert "but nothing; give a recording" in line
    assert "holds no recordings of gen1" in refused("inspect", tmp_path, "dataset=gen1")
    for place, found in (
        (tmp_path, "no train/, val/ or test/, but recordings"),
        (tmp_path / "train", "64 x 48 pixels"),
    ):
        place.mkdir(exist_ok=True)
        write_dat(place / "a_td.dat", random_events(100), HEIGHT, WIDTH)
        code, _, errors = run(capsys, tmp_path)
        assert code == 2 and found in errors and f"`rvtssm inspect {tmp_path}" in errors
    assert f"dataset=NAME` with one of {', '.join(sorted(DATASETS))}" in errors
    assert "PATH is needed" in refused("inspect")


def test_npy_needs_a_size_and_gets_it(tmp_path, printed_by, capsys):
    file = io.BytesIO()
    np.save(file, np.array([[1, 2, 3, 1]]))
    (tmp_path / "a.npy").write_bytes(file.getvalue())
    assert run(capsys, tmp_path / "a.npy", "--json")[0] == 2
    text = printed_by("inspect", tmp_path / "a.npy", "dataset.height=48", "dataset.width=64", "--json")
    assert json.loads(text)["width"] == 64
    (tmp_path / "dataset.yaml").write_text("classes: [car]\nheight: 48\nwidth: 63\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "a.npy").rename(tmp_path / "train" / "a.npy")
    assert json.loads(printed_by("inspect", tmp_path / "train" / "a.npy", "--json"))["width"] == 63
