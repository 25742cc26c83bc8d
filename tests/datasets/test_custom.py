"""A custom dataset: described by a file, in the ways of labelling people use; the page that explains it is executed."""

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import dsec_examples
import event_examples
import numpy as np
import pytest
import yaml
from dsec_examples import CAR, PEDESTRIAN, TRAIN, boxes_at, image_times, write_sequence
from event_examples import read_label_file
from user_errors import raises

from rvtssm import datasets
from rvtssm.boxes import ltwh_to_xyxy
from rvtssm.cli.inspect import inspect
from rvtssm.cli.main import compose, main
from rvtssm.cli.preprocess import preprocess
from rvtssm.datasets import (
    GENERATED_FILE,
    DataConfig,
    DatasetConfig,
    PreprocessConfig,
    SamplingConfig,
    build_spec,
    custom,
)
from rvtssm.datasets.custom import options_above
from rvtssm.datasets.datamodule import SequenceDataModule, eval_loader
from rvtssm.datasets.prepare_dataset import preprocess as prepare
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sequence import RawSplit, open_prepared_split
from rvtssm.datasets.tree import find_boxes_without_events, find_recordings
from rvtssm.detection.sources import opened_source
from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.evaluation.protocol import image_times_us, num_images_left_out
from rvtssm.evaluation.rates import at_labels, own_steps
from rvtssm.events.label_rules import clean_boxes
from rvtssm.readers import open_recording, open_with
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections, ReadOptions, WindowSettings

DSEC = datasets.DATASETS["dsec"]
PAGE = (Path(__file__).parents[2] / "data_prep/README.md").read_text()
HEIGHT, WIDTH = 60, 80
MINIMAL = {"classes": ["cat", "dog"], "height": HEIGHT, "width": WIDTH}
TIMES_US = (200_000, 300_000, 400_000)
KEY = "dataset.label_offset_us"


def random_events(size_hw=(HEIGHT, WIDTH), start_us=0, duration_us=420_000, seed=0):
    return event_examples.random_events(8_000, seed, duration_us, start_us, size_hw)


def write_coco(path):
    content = {
        "images": [{"id": i, "t_us": t_us} for i, t_us in enumerate(TIMES_US)],
        "annotations": [{"image_id": i, "category_id": 4, "bbox": [8, 6, 40, 30]} for i in range(3)],
        "categories": [{"id": 4, "name": "dog"}],
    }
    path.write_text(json.dumps(content))


def write_voc(path, name="dog", size=(HEIGHT, WIDTH), box=(8, 6, 48, 36)):
    edges = "".join(f"<{edge}>{v}</{edge}>" for edge, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height></size>"
    path.write_text(f"<annotation>{sides}<object><name>{name}</name><bndbox>{edges}</bndbox></object></annotation>")


LABELS = {".json": write_coco, ".xml": write_voc}


def write_tree(root, labels=".json"):
    for seed, split in enumerate(("train", "val", "test")):
        (root / split).mkdir(parents=True)
        write_dat(root / split / "drive.dat", random_events(seed=seed), HEIGHT, WIDTH)
        LABELS[labels](root / split / f"drive{labels}")
    (root / "dataset.yaml").write_text(yaml.safe_dump({**MINIMAL, "labels": labels}))
    return root


@pytest.mark.parametrize("labels", LABELS)
def test_labels_with_and_without_times_lead_to_batches(tmp_path, labels):
    raw = write_tree(tmp_path / "raw", labels)
    config = compose(
        ["dataset=custom", f"dataset.raw_dir={raw}", f"dataset.prepared_dir={tmp_path / 'out'}", "preprocess.workers=1"]
    )
    assert preprocess(config) == 0
    prepared_only = DatasetConfig("custom", None, str(tmp_path / "out"))
    assert build_spec(prepared_only) == build_spec(config.dataset)
    sampling = SamplingConfig(mode="random", batch_size=1, chunk_length=2)
    data = SequenceDataModule(prepared_only, sampling, data=DataConfig(workers=0))
    (sequence,) = data.sequences("train")
    expected = TIMES_US if labels != ".xml" else (int(random_events().t[-1]) + 1,)
    assert sequence.labels.t_us.tolist() == list(expected)
    np.testing.assert_allclose(sequence.labels.boxes_ltwh, [[8, 6, 40, 30]] * len(expected), atol=1e-3)
    batch = next(iter(data.train_dataloader()))
    assert batch.hist.shape == (2, 1, 20, HEIGHT, WIDTH) and batch.hist.any()
    assert batch.targets[0, 0].tolist() == pytest.approx([1, 28, 21, 40, 30], abs=1e-3)
    raw_data = SequenceDataModule(config.dataset, data=DataConfig(workers=0))
    (raw_batch, *_) = eval_loader(raw_data.eval_sequences("val", WindowSettings(), "raw"), raw_data.data)
    assert raw_batch.hist.any()


def test_what_the_description_does_not_say_has_a_default(tmp_path):
    (tmp_path / "dataset.yaml").write_text("classes: [cat, dog]\nheight: 60\nwidth: 80\n")
    spec = build_spec(DatasetConfig("custom", str(tmp_path)))
    assert spec == replace(custom.SPEC, class_names=("cat", "dog"), height=60, width=80)
    assert spec.boxes_suffix == "_bbox.npy"
    assert build_spec(DatasetConfig("custom", str(tmp_path), height=30)).height == 30


def test_every_key_of_the_description_arrives(tmp_path):
    (tmp_path / "dataset.yaml").write_text(
        "classes: [cat, dog]\nheight: 60\nwidth: 80\nclass_ids: [3, 1]\nmin_side_px: 2.5\nskip_us: 10\ndownsample: 2\n"
        "event_suffixes: [.raw]\nlabels: .json\nsplit_sources: {val: [train/x*]}\nevents_dir: e\nboxes_dir: b\n"
    )
    spec = build_spec(DatasetConfig("custom", str(tmp_path)))
    assert spec.disk_class_ids == (3, 1) and spec.min_side_px == 2.5 and spec.skip_us == 10 and spec.frame_width == 40
    assert spec.event_suffixes == (".raw",) and spec.boxes_suffix == ".json"
    assert spec.split_sources == {"val": ("train/x*",)} and (spec.events_dir, spec.boxes_dir) == ("e", "b")


def test_how_recordings_are_read_is_said_by_the_description_or_the_command(tmp_path):
    text = "classes: [cat]\nheight: 60\nwidth: 80\nrepair: true\nformat: csv\ncolumns: {t: 3, x: u, y: v, p: 0}\n"
    (tmp_path / "dataset.yaml").write_text(text + "time_unit: ns\n")
    columns = {"t": "3", "x": "u", "y": "v", "p": "0"}
    said = build_spec(DatasetConfig("custom", str(tmp_path))).read_options
    assert said == ReadOptions(60, 80, True, "ns", "csv", columns)
    assert build_spec(DatasetConfig("custom", str(tmp_path), time_unit="ms")).time_unit == "ms"

    assert build_spec(DatasetConfig("custom", str(tmp_path), repair=False)).repair is False


DESCRIPTION = "classes: [cat]\nheight: 60\nwidth: 80\nrepair: true\ntime_unit: ms\ncolumns: {t: 3, x: 1, y: 2, p: 0}\n"


def described_csv(folder):
    (folder / "dataset.yaml").write_text(DESCRIPTION)
    path = folder / "train" / "a.csv"
    path.parent.mkdir()
    path.write_text("1,2,3,50\n0,4,5,90\n0,90,5,91\n")
    return path


def test_every_verb_that_opens_a_file_follows_the_description_above_it(tmp_path, printed_by):
    path = described_csv(tmp_path)
    with opened_source(str(path)) as opened:  # of `predict`, `live` and `serve`
        assert opened.events.time_range_us == (50_000, 90_000) and len(opened.events.read()) == 2

    assert json.loads(printed_by("inspect", str(path), "--json"))["t_last_us"] == 90_000
    assert main(["convert", str(path), str(tmp_path / "a.dat")]) == 0
    with closing(open_with(tmp_path / "a.dat", ReadOptions())) as written:
        assert written.read().x.tolist() == [2, 4] and (written.height, written.width) == (60, 80)


def test_what_the_command_says_of_a_file_wins(tmp_path, printed_by):
    path = described_csv(tmp_path)
    columns = "columns={t: 3, x: '2', y: 1, p: 0}"
    found = json.loads(printed_by("inspect", str(path), "--json", "time_unit=s", columns, "width=91", "height=91"))
    assert (found["t_last_us"], found["sum_x"], found["width"]) == (91_000_000, 3 + 5 + 5, 91)
    asked = ReadOptions(100, 100, False, "us", "csv", {"t": "3", "x": "2", "y": "1", "p": "0"})
    assert options_above(path, asked) == asked
    columns = {"t": "3", "x": "1", "y": "2", "p": "0"}
    assert options_above(path, ReadOptions(height=90)) == ReadOptions(90, 80, True, "ms", None, columns)


def test_a_key_of_a_folder_holds_for_files_that_do_not_say_it(tmp_path):
    text = "classes: [cat]\nheight: 60\nwidth: 80\nrepair: true\ntime_unit: ms\nformat: csv\n"
    (tmp_path / "dataset.yaml").write_text(f"{text}columns: {{t: 3, x: 1, y: 2, p: 0}}\n")
    write_dat(tmp_path / "a.dat", random_events((30, 40)), 30, 40)
    (tmp_path / "named.csv").write_text("t_us,x,y,p\n5,1,2,1\n")
    (tmp_path / "plain.csv").write_text("1,3,2,5\n")
    found = {}
    for name in ("a.dat", "named.csv", "plain.csv"):
        with closing(open_with(tmp_path / name, options_above(tmp_path / name, ReadOptions()))) as events:
            first = events.read()
            found[name] = (events.height, events.width, int(first.t[-1]), int(first.x[-1]))
    last = random_events((30, 40))
    assert found["a.dat"] == (30, 40, int(last.t[-1]), int(last.x[-1]))
    assert found["named.csv"] == (60, 80, 5, 1) and found["plain.csv"] == (60, 80, 5_000, 3)
    # In a dataset, the size is one for all, and another one is refused.
    (spec_options,) = [build_spec(DatasetConfig("custom", str(tmp_path))).read_options]
    with raises("sensor.contradicts"):
        open_with(tmp_path / "a.dat", spec_options)
    with closing(open_with(tmp_path / "named.csv", spec_options)) as events:
        assert events.read().t.tolist() == [5]


@pytest.mark.parametrize(
    ("text", "said"),
    [("height: 60\nwidth: 80", ReadOptions(60, 80)), ("time_unit: ms", ReadOptions(time_unit="ms"))],
)
def test_a_file_is_read_without_the_classes_of_its_dataset(tmp_path, text, said):
    (tmp_path / "dataset.yaml").write_text(text)
    (tmp_path / "a.csv").write_text("t,x,y,p\n5,1,2,1\n")
    assert options_above(tmp_path / "a.csv", ReadOptions()) == said


def test_a_description_above_is_the_nearest_one_of_ours(tmp_path, monkeypatch):
    path = described_csv(tmp_path)
    (path.parent / "dataset.yaml").write_text("path: images\ntrain: a\nnames: {0: cat}\n")  # of ultralytics
    assert options_above(path, ReadOptions()).time_unit == "ms"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "dataset.yaml").write_text("no: yes\nheight: 3\n")
    monkeypatch.chdir(tmp_path / "other")
    assert options_above("../train/a.csv", ReadOptions()).time_unit == "ms"
    with raises("setting.unknown"):
        options_above("a.csv", ReadOptions())


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (None, "file.missing"),
        ("", "file.content"),
        ("classes: [a\nheight", "file.content"),
        ("classes: [a]\nheight: 60", "setting.missing"),
        ("classes: [a]\nheight: 60\nwidth: 80\nlabel: .xml", "setting.unknown"),
        ("classes: a\nheight: 60\nwidth: 80", "setting.form"),
        ("classes: [a, a]\nheight: 60\nwidth: 80", "setting.form"),
        ('classes: ["\\udcff"]\nheight: 60\nwidth: 80', "setting.form"),
        ("classes: [a]\nheight: 0\nwidth: 80", "setting.out_of_range"),
        ("classes: [a]\nheight: true\nwidth: 80", "setting.out_of_range"),
        ("classes: [a]\nheight: 60\nwidth: 80\nmin_side_px: .inf", "setting.out_of_range"),
        ("classes: [a]\nheight: 60\nwidth: 80\nclass_ids: [4294967296]", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nlabels: .doc", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nclass_ids: [1, 2]", "setting.conflict"),
        ("classes: [a]\nheight: 60\nwidth: 80\ncolumns: [t, x, y, p]", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\ncolumns: {t: 0}", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nformat: {}", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\ntime_unit: 5", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\ntime_unit: hours", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nsplit_sources: val", "setting.form"),
        (
            f"classes: [{', '.join(f'c{number}' for number in range(10_000))}]\nheight: 60\nwidth: 80",
            "setting.form",
        ),
        ("classes: [a]\nheight: 60\nwidth: 80\nevents_dir: 7", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nrepair: 'no'", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nscores_empty_images: 'no'", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nlabel_offset_us: 1152921504606846976", "setting.form"),
        ("classes: [a]\nheight: 60\nwidth: 80\nheight: 61", "file.content"),
        ("classes: [a]\nsplit_sources: {val: [a/b], val: [a/c]}", "file.content"),
        ("a: &a [x, x]\nb: [*a, *a]", "file.content"),
        ("[" * 100_000, "file.damaged"),
        ("classes: [on, off]\nheight: 60\nwidth: 80", "setting.form"),
        *(
            (f"classes: [a]\nheight: 60\nwidth: 80\n{line}", "setting.form")
            for line in (
                *("events_dir: ../x", "boxes_dir: /etc", "labels: /../../x.npy", "event_suffixes: ['/../*']"),
                *("split_sources: {../x: ['train/*']}", "split_sources: {val: ['*']}", "split_sources: {val: [5]}"),
                *("split_sources: {val: [/data/*]}", "split_sources: {val: ['train/**']}"),
            )
        ),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_description_that_cannot_be_used_says_why(tmp_path, content, key):
    if content is not None:
        (tmp_path / "dataset.yaml").write_text(content)
    with raises(key) as error:
        build_spec(DatasetConfig("custom", str(tmp_path)))
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_custom_dataset_needs_a_folder():
    with raises("setting.needs"):
        build_spec(DatasetConfig("custom"))


def blocks(heading: str, language: str) -> list[str]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def pedro(tmp_path):
    """A few windows in the layout of PEDRo, at the times of a clock that started in 1970."""
    for seed, split in enumerate(("train", "val", "test")):
        for folder in ("numpy", "xml"):
            (tmp_path / "pedro" / folder / split).mkdir(parents=True)
        for i in range(2):
            events = random_events((260, 346), 1_672_932_172_785_744 + 10**6 * i, 40_000, seed=seed)
            array = np.stack([getattr(events, name).astype(np.int64) for name in "txyp"], axis=1)
            np.save(tmp_path / "pedro/numpy" / split / f"frame{i:07d}.npy", array)
            write_voc(tmp_path / "pedro/xml" / split / f"frame{i:07d}.xml", "person", (260, 346), (49, 103, 145, 260))
    return tmp_path / "pedro"


def prepared_boxes(spec, config, pedro):
    summary = preprocess_dataset(
        spec, pedro, config.prepared_dir, WindowSettings(40_000), PreprocessConfig(workers=1), progress=False
    )
    assert len(summary.written) == 6 and not summary.failed and not summary.dropped
    sequences = SequenceDataModule(config, data=DataConfig(workers=0)).sequences("test")
    assert [len(sequence.windows) for sequence in sequences] == [1, 1]
    assert all(int(sequence.read(0, 1).sum()) > 7_000 for sequence in sequences)  # all events but those cut off at 10
    return np.concatenate([sequence.labels.boxes_ltwh for sequence in sequences]).tolist()


def test_the_description_in_the_readme_reads_pedro(pedro, tmp_path):
    (description,) = blocks("Your own recordings", "yaml")
    (pedro / "dataset.yaml").write_text(description)
    config = DatasetConfig("custom", str(pedro), str(tmp_path / "prepared"))
    custom.copy_descriptions(pedro, tmp_path / "prepared", custom.SPEC)
    assert prepared_boxes(build_spec(config), config, pedro) == [[49, 103, 96, 156]] * 2


def test_a_description_is_only_replaced_by_a_copy_if_it_is_a_copy(pedro, tmp_path):
    source, copy = pedro / "dataset.yaml", tmp_path / "prepared" / "dataset.yaml"
    (description,) = blocks("Your own recordings", "yaml")
    source.write_text(description)
    copy.parent.mkdir()
    copy.write_text(f"{description}# mine\n")
    with raises("file.exists", f"change {source}"):
        prepare(pedro, copy.parent, workers=1)
    assert [path.name for path in copy.parent.iterdir()] == ["dataset.yaml"]  # nothing was prepared
    assert copy.read_text() == f"{description}# mine\n"
    copy.unlink()
    for content in (description, f"{description}# new\n"):
        source.write_text(content)
        assert not prepare(pedro, copy.parent, workers=1).failed and copy.read_text() == content


def test_the_coco_file_in_the_readme_is_read(tmp_path):
    (tmp_path / "a.json").write_text(*blocks("Your own recordings", "json"))
    boxes = read_label_file(tmp_path / "a.json", replace(custom.SPEC, class_names=("person",), height=260, width=346))
    assert boxes["t"].tolist() == [200_000, 250_000] and boxes["x"].tolist() == [120.5, 122]


def test_folders_below_a_description_and_links_there_are_followed(tmp_path):
    write_tree(tmp_path / "elsewhere")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "dataset.yaml").write_text(yaml.safe_dump({**MINIMAL, "events_dir": "linked"}))
    spec = build_spec(DatasetConfig("custom", str(tmp_path / "data")))
    assert [found.name for found in find_recordings(tmp_path / "data", "val", spec)] == ["drive"]


@pytest.mark.parametrize(
    ("size", "key"), [({"downsample": 61}, "setting.conflict"), ({"height": 100_000}, "setting.out_of_range")]
)
def test_a_frame_has_a_pixel_and_a_sensor_an_end(tmp_path, size, key):
    (tmp_path / "dataset.yaml").write_text(yaml.safe_dump({"classes": ["a"], "height": 60, "width": 80, **size}))
    with raises(key):
        build_spec(DatasetConfig("custom", str(tmp_path)))


def test_a_blank_line_between_the_names_of_classes_is_refused_and_not_those_at_the_end(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\n dog \n\n \n")
    assert custom.listed_names(tmp_path / "classes.txt") == {0: "cat", 1: "dog"}
    for text, number in (("cat\n\ndog\n", 2), ("\ncat\n", 1), ("cat\ndog\n \t\nbird", 3)):
        (tmp_path / "classes.txt").write_text(text)
        with raises("file.content", f"classes.txt: line {number}"):
            custom.listed_names(tmp_path / "classes.txt")


def test_the_names_of_ultralytics_stand_in_for_classes(tmp_path):
    (tmp_path / "dataset.yaml").write_text("height: 60\nwidth: 80\nlabels: .txt\n")
    for names in ("[cat, dog]", "{0: cat, 1: dog}"):
        (tmp_path / "data.yaml").write_text(f"path: ../x\ntrain: images/train\nnames: {names}\n")
        spec = build_spec(DatasetConfig("custom", str(tmp_path)))
        assert spec.class_names == ("cat", "dog") and spec.disk_class_ids == (0, 1)
    for names, key in (("cat", "file.content"), ("{0: cat, x: dog}", "file.content"), ("", "setting.missing")):
        (tmp_path / "data.yaml").write_text(f"names: {names}\n")
        with raises(key):
            build_spec(DatasetConfig("custom", str(tmp_path)))


def test_a_recording_without_labels_is_left_out_everywhere(tmp_path, capsys):
    raw = write_tree(tmp_path / "raw")
    write_dat(raw / "train/bare.dat", random_events(), HEIGHT, WIDTH)
    arguments = [f"dataset.raw_dir={raw}", f"dataset.prepared_dir={tmp_path / 'out'}"]
    config = compose(["dataset=custom", *arguments, "preprocess.workers=1"])
    assert preprocess(config) == 0 and inspect(replace(config, full=True)) == 0
    assert "1 left out, 0 failed" in capsys.readouterr().out
    split = RawSplit(raw, "train", build_spec(config.dataset))
    assert len(split.boxes) == 2 and [each.name for each in split.sequences(WindowSettings())] == ["drive"]
    (raw / "train/drive.json").unlink()
    with raises("labels.missing"):
        RawSplit(raw, "train", build_spec(config.dataset))


def test_images_without_boxes_reach_scoring_from_raw_and_prepared_recordings(tmp_path):
    raw = write_tree(tmp_path / "raw")
    content = json.loads((raw / "val/drive.json").read_text())
    content["annotations"] = content["annotations"][1:2]
    (raw / "val/drive.json").write_text(json.dumps(content))
    config = compose(["dataset=custom", f"dataset.raw_dir={raw}", f"dataset.prepared_dir={tmp_path / 'out'}"])
    preprocess(config)
    spec = build_spec(config.dataset)
    (prepared,) = open_prepared_split(tmp_path / "out", "val", spec)
    for sequence in (prepared, *RawSplit(raw, "val", spec).sequences(WindowSettings())):
        assert sequence.labels.empty_us.tolist() == [TIMES_US[0], TIMES_US[2]]
        assert image_times_us(sequence.labels, spec).tolist() == list(TIMES_US)
        assert sequence.windows.ends_us[sequence.label_steps].tolist() == list(TIMES_US)
        published = replace(spec, scores_empty_images=False)
        assert num_images_left_out([sequence.labels], published) == 2
        label_steps = own_steps(sequence)
        found = zip(((40, 20, 30, 30), (8, 6, 40, 30), ()), (0.9, 0.5, 0), strict=True)  # a false, a true and no box
        outputs = [detections_of(box, score) for box, score in found]
        scored = [("drive", sequence.labels, at_labels(label_steps, label_steps.steps, outputs))]
        for rules, ap50 in ((spec, 0.5), (published, 1)):
            assert evaluate_detections(scored, rules)["AP50"] == pytest.approx(ap50)


def detections_of(box, score):
    ltwh = np.array(box, np.float32).reshape(-1, 4)
    class_id = np.full(len(ltwh), 1, np.int64)
    return Detections(ltwh_to_xyxy(ltwh), np.full(len(ltwh), score, np.float32), class_id, 0)


def test_labels_on_another_clock_are_said_and_moved(tmp_path, capsys):
    raw = write_tree(tmp_path / "raw")
    events = random_events(start_us=250_000, duration_us=800_000)
    write_dat(raw / "train/drive.dat", events, HEIGHT, WIDTH)  # the labels begin at 200,000 us
    arguments = ["dataset=custom", f"dataset.raw_dir={raw}", "preprocess.workers=1"]
    first_us = int(events.t[0])
    said = f"so 1 of 3 label times have no events; if the labels count from the first event, give {KEY}=from_start"
    config = compose([*arguments, f"dataset.prepared_dir={tmp_path / 'out'}"])
    for full, verb in ((False, preprocess), (True, inspect), (False, inspect)):
        config.recording, config.full, config.out = str(raw), full, str(tmp_path / "seen")
        verb(config)
        assert said in capsys.readouterr().out.replace("\n", " ")
    with pytest.warns(UserWarning, match=said):
        RawSplit(raw, "train", build_spec(config.dataset)).sequences(WindowSettings())
    config = compose([*arguments, f"{KEY}={first_us}"])
    (sequence,) = RawSplit(raw, "train", build_spec(config.dataset)).sequences(WindowSettings())
    assert sequence.labels.t_us.tolist() == [first_us + t_us for t_us in TIMES_US]
    config.preprocess.splits = ["train"]
    inspect(replace(config, full=True, out=str(tmp_path / "seen")))
    assert "label times have no events" not in capsys.readouterr().out
    for seconds in (10, 1000):  # far away, nothing can be counted
        write_dat(raw / "train/drive.dat", random_events(start_us=seconds * 1_000_000), HEIGHT, WIDTH)
        with raises("labels.other_times"):
            RawSplit(raw, "train", build_spec(DatasetConfig("custom", str(raw)))).sequences(WindowSettings())


# what a file in the folder says of it


def generated(folder, name="synthetic", **settings):
    folder.mkdir(exist_ok=True)
    content = {"dataset": name, "height": 96, "width": 128, **settings}
    (folder / GENERATED_FILE).write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("asked", ["", "open_world"])
@pytest.mark.parametrize("key", ["raw_dir", "prepared_dir"])
def test_generated_recordings_say_which_dataset_they_are_and_their_size(tmp_path, asked, key):
    folder = generated(tmp_path, "open_world")
    spec = build_spec(DatasetConfig(asked, **{key: folder}))
    assert (spec.name, spec.height, spec.width) == ("open_world", 96, 128)


def test_what_is_set_stays(tmp_path):
    spec = build_spec(DatasetConfig("synthetic", generated(tmp_path), height=48))
    assert (spec.height, spec.width) == (48, 128)


def test_a_description_of_the_user_comes_first(tmp_path):
    generated(tmp_path)
    (tmp_path / "dataset.yaml").write_text("classes: [cat]\nheight: 60\nwidth: 80\n")
    assert build_spec(DatasetConfig(raw_dir=str(tmp_path))).class_names == ("cat",)


@pytest.mark.parametrize("asked", ["custom", "open_world", "gen1"])
def test_another_dataset_than_the_generated_one_is_refused(tmp_path, asked):
    with raises("setting.conflict"):
        build_spec(DatasetConfig(asked, generated(tmp_path)))


@pytest.mark.parametrize("content", ["[]", "{", '{"dataset": "synthetic"}', '{"height": "tall", "width": 3}'])
def test_a_description_that_is_none_names_the_keys(tmp_path, content):
    (tmp_path / GENERATED_FILE).write_text(content)
    with raises("file.damaged", GENERATED_FILE):
        build_spec(DatasetConfig(raw_dir=str(tmp_path)))


# DSEC-Det


# as in dsec-det, config/train_val_test_split.yaml
PUBLISHED = {
    "train": "thun_00_a interlaken_00_c interlaken_00_d interlaken_00_e interlaken_00_f interlaken_00_g "
    "zurich_city_00_a zurich_city_00_b zurich_city_01_a zurich_city_01_b zurich_city_01_c zurich_city_01_d "
    "zurich_city_01_e zurich_city_01_f zurich_city_02_a zurich_city_02_b zurich_city_02_c zurich_city_02_d "
    "zurich_city_02_e zurich_city_03_a zurich_city_04_a zurich_city_04_b zurich_city_04_c zurich_city_04_d "
    "zurich_city_04_e zurich_city_04_f zurich_city_05_a zurich_city_05_b zurich_city_06_a zurich_city_07_a "
    "zurich_city_08_a zurich_city_09_a zurich_city_09_b zurich_city_09_c zurich_city_09_d zurich_city_09_e "
    "zurich_city_10_a zurich_city_10_b zurich_city_11_a zurich_city_11_b zurich_city_11_c",
    "val": "zurich_city_16_a zurich_city_17_a zurich_city_18_a zurich_city_19_a zurich_city_20_a zurich_city_21_a",
    "test": "thun_01_a thun_01_b thun_02_a interlaken_00_a interlaken_00_b interlaken_01_a zurich_city_12_a "
    "zurich_city_13_a zurich_city_13_b zurich_city_14_a zurich_city_14_b zurich_city_14_c zurich_city_15_a",
}


def test_the_splits_are_the_published_ones(tmp_path):
    for split, names in PUBLISHED.items():
        for name in names.split():
            path = tmp_path / ("test" if split == "test" else "train") / name / "events/left/events.h5"
            path.parent.mkdir(parents=True)
            path.touch()
    for split, names in PUBLISHED.items():
        assert [found.name for found in find_recordings(tmp_path, split, DSEC)] == sorted(names.split())


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("dsec") / "raw"
    write_sequence(root / "train/thun_00_a")
    write_sequence(root / "train/zurich_city_16_a", seed=1)
    write_sequence(root / "test/thun_01_a", 7, seed=2)
    write_sequence(root / "test/thun_01_b", 7, has_tracks=False)
    return root


def test_events_and_labels_share_one_clock_and_one_view(tree):
    (found,) = find_recordings(tree, "val", DSEC)
    recording = open_recording(found.events_path, DSEC.height, DSEC.width)
    assert (recording.format, recording.height, recording.width) == ("dsec", dsec_examples.HEIGHT, dsec_examples.WIDTH)
    boxes = clean_boxes(found.read_boxes(DSEC), DSEC, "exact", False)
    times_us = image_times(10)[1:]
    np.testing.assert_array_equal(np.unique(boxes["t"]), times_us)  # the jitter of the camera costs no label
    assert sorted(set(boxes["class_id"])) == [PEDESTRIAN, CAR, TRAIN]
    events = recording.between(int(times_us[3]) - 1_000, int(times_us[3]))
    (car, walker), inside = boxes_at(times_us[3:4])[0], np.zeros(len(events), bool)
    for left, top, width, height in (car, walker):
        inside |= (np.abs(events.x - left - width / 2) < width / 2 + 3) & (
            np.abs(events.y - top - height / 2) < height / 2 + 3
        )
    assert len(events) > 20 and inside.all()
    recording.close()


def test_sequences_without_tracks_are_recordings_without_labels(tree):
    labelled, plain = find_recordings(tree, "test", DSEC)
    assert (labelled.name, plain.name) == ("thun_01_a", "thun_01_b")
    assert labelled.boxes_path == tree / "test/thun_01_a/object_detections/left/tracks.npy"
    assert plain.boxes_path is None
    assert not len(plain.read_boxes(DSEC))
    assert "thun_01_b/events/left/events.h5 has no labels" in plain.why_unlabelled(DSEC)


def test_tracks_whose_events_were_not_copied_are_found(tmp_path):
    write_sequence(tmp_path / "train/thun_00_a", 3)
    (tmp_path / "train/thun_00_a/events/left/events.h5").unlink()
    assert find_recordings(tmp_path, "train", DSEC) == []
    expected = tmp_path / "train/thun_00_a/object_detections/left/tracks.npy"
    assert find_boxes_without_events(tmp_path, "train", DSEC) == [expected]
    with raises("file.missing", "test"):
        find_recordings(tmp_path, "test", DSEC)
