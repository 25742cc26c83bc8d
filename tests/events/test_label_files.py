"""Label files of every kind become the same boxes, and those that are damaged say what is wrong with them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from event_examples import SPEC, boxes_of, read_label_file
from user_errors import raises

from rvtssm.events.label_files import CORNERS, LABEL_SUFFIXES, OVER, LabelFiles
from rvtssm.events.labels import find_nothing, write_boxes

END_US = 200_000
EXPECTED = [(200_000, 8.0, 6.0, 16.0, 12.0, 1), (200_000, 32.0, 24.0, 8.0, 12.0, 0)]  # pedestrian, car
VOC = """<annotation><size><width>{width}</width><height>48</height></size>
<object><name>pedestrian</name><bndbox><xmin>8</xmin><ymin>6</ymin><xmax>24</xmax><ymax>18</ymax></bndbox></object>
<object><name>dog</name><bndbox><xmin>0</xmin><ymin>0</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>
<object><name>car</name><bndbox><xmin>32</xmin><ymin>24</ymin><xmax>40</xmax><ymax>36</ymax></bndbox></object>
</annotation>"""
COCO = {
    "images": [{"id": "b", "t_us": 200_000}, {"id": "a", "t_us": 100_000}],
    "categories": [{"id": 7, "name": "pedestrian"}, {"id": 9, "name": "car"}, {"id": 1, "name": "dog"}],
    "annotations": [
        {"image_id": "b", "category_id": 7, "bbox": [8, 6, 16, 12]},
        {"image_id": "b", "category_id": 9, "bbox": [32, 24, 8, 12]},
        {"image_id": "b", "category_id": 9, "bbox": [0, 0, 64, 48], "iscrowd": 1},
        {"image_id": "b", "category_id": 1, "bbox": [1, 1, 9, 9]},
    ],
}
YOLO = "200000 1 0.25 0.25 0.25 0.25\n\n200000 0 0.5625 0.625 0.125 0.25\n"
TIMED = replace(SPEC, label_columns=("time_us", "class", "cx", "cy", "w", "h"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(COCO)),
        ("a.xml", VOC.format(width=64)),
        ("a.txt", YOLO + "200000 7 .5 .5 .1 .1\n" * 2),
    ],
)
def test_classes_that_a_custom_dataset_does_not_name_are_refused_or_ignored(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    strict = replace(TIMED, ignored_classes=())
    with raises("labels.class"):
        read_label_file(path, strict, end_us=200_000)
    ignored = replace(TIMED, ignored_classes=("dog", "7"))
    assert len(read_label_file(path, ignored, end_us=200_000)) == len(read_label_file(path, TIMED, end_us=200_000)) > 0


def rows(boxes):
    boxes = boxes[~find_nothing(boxes)]
    assert (boxes["still_us"] == -1).all() and (boxes["class_confidence"] == 1).all()
    return [tuple(box[name].item() for name in ("t", "x", "y", "w", "h", "class_id")) for box in boxes]


def write_npy(path):
    columns = (200_000, 8, 6, 16, 12), (200_000, 32, 24, 8, 12)
    write_boxes(path, boxes_of(*columns, class_id=[1, 0], class_confidence=1, still_us=-1))


WRITE = {
    ".npy": write_npy,
    ".json": lambda path: path.write_text(json.dumps(COCO)),
    ".txt": lambda path: path.write_text(YOLO),
    ".xml": lambda path: path.write_text(VOC.format(width=64)),
}


@pytest.mark.parametrize("suffix", LABEL_SUFFIXES)
def test_every_kind_gives_the_same_boxes(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    WRITE[suffix](path)
    assert rows(read_label_file(path, TIMED, END_US)) == EXPECTED


def test_classes_named_in_words_get_the_ids_of_the_spec(tmp_path):
    spec = replace(SPEC, class_ids=(5, 2))
    for suffix in (".json", ".xml"):
        WRITE[suffix](tmp_path / f"a{suffix}")
        assert read_label_file(tmp_path / f"a{suffix}", spec, END_US)["class_id"].tolist()[-2:] == [2, 5]


@pytest.mark.parametrize("suffix", [".json", ".xml"])
def test_a_class_in_other_capitals_is_not_left_out_silently(tmp_path, suffix):
    WRITE[suffix](tmp_path / f"a{suffix}")
    spec = replace(SPEC, class_names=("Car", *SPEC.class_names[1:]))
    with raises("labels.class"):
        read_label_file(tmp_path / f"a{suffix}", spec, END_US)


def test_yolo_lines_without_a_time_are_of_the_end(tmp_path):
    (tmp_path / "a.txt").write_text("0 .5 .5 .1 .1\n1 .25 .25 .25 .25")
    assert read_label_file(tmp_path / "a.txt", SPEC, END_US)["t"].tolist() == [200_000, 200_000]
    with raises("labels.no_time"):
        read_label_file(tmp_path / "a.txt", SPEC)


@pytest.mark.parametrize("suffix", [".json", ".txt", ".xml"])
def test_a_frame_without_objects_says_that_nothing_is_there(tmp_path, suffix):
    empty = {".json": json.dumps({**COCO, "annotations": []}), ".txt": "\n", ".xml": "<annotation/>"}
    (tmp_path / f"a{suffix}").write_text(empty[suffix])
    boxes = read_label_file(tmp_path / f"a{suffix}", SPEC, END_US)
    assert find_nothing(boxes).all() and boxes["t"].tolist() == ([100_000] if suffix == ".json" else []) + [END_US]


def without_times():
    return json.dumps({**COCO, "images": [{"id": "a"}, {"id": "b"}]})


def with_box(box):
    return json.dumps({**COCO, "annotations": [{"image_id": "a", "category_id": 7, "bbox": box}]})


def with_image(**changes):
    first, second = COCO["images"]
    return json.dumps({**COCO, "images": [first, {**second, **changes}]})


def array_header(shape: str) -> bytes:
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + text.ljust(117).encode() + b"\n"


@pytest.mark.parametrize("size", [" {} ", "{}.0", "0"])
def test_a_size_in_xml_may_be_written_in_other_ways(tmp_path, size):
    path = tmp_path / "a.xml"
    path.write_text(VOC.replace("<width>{width}", f"<width>{size.format(64)}"))
    assert rows(read_label_file(path, SPEC, END_US)) == EXPECTED


@pytest.mark.parametrize("suffix", [".json", ".txt", ".xml"])
def test_a_mark_of_the_encoding_may_come_first(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    WRITE[suffix](path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert rows(read_label_file(path, TIMED, END_US)) == EXPECTED


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("a.npy", "", "file.damaged"),
        ("a.csv", "1,2", "file.kind"),
        ("a.json", "{", "labels.form"),
        ("a.json", without_times(), "labels.name"),
        ("a.json", with_box([1, 2, 3]), "labels.form"),
        ("a.json", with_box([1, 2, 3, float("nan")]), "labels.form"),
        (
            "a.json",
            json.dumps({**COCO, "categories": [{"id": i, "name": "cat"} for i in (1, 7, 9)]}),
            "labels.class",
        ),
        ("a.txt", "0 1 2 3", "labels.form"),
        ("a.txt", "0 .5 .5 .1 .1\ncar .5 .5 .1 .1", "labels.form"),
        ("a.txt", "200000 0 .5 .5 .1 .1\n0 .5 .5 .1 .1", "labels.form"),
        ("a.txt", "0 1.2 .5 .1 .1", "labels.outside"),
        ("a.json", with_box([30, 1, 40, 3]), "labels.outside"),
        ("a.json", "[]", "labels.form"),
        ("a.json", json.dumps({**COCO, "categories": [{"id": 1}]}), "labels.form"),
        ("a.json", json.dumps({**COCO, "images": {"id": 1}}), "labels.form"),
        ("a.json", json.dumps({**COCO, "annotations": [{"image_id": 99, "category_id": 7}]}), "labels.form"),
        ("a.txt", "0 40 20 10 10", "labels.form"),
        ("a.txt", b"\xff\xfe\x00", "labels.form"),
        ("a.txt", "0 .5 .5 .1 .1\n0 .5 .5 .1 nan", "labels.form"),
        ("a.txt", "-1 .5 .5 .1 .1", "labels.form"),
        ("a.txt", f"{1 << 80} 0 .5 .5 .1 .1", "labels.form"),
        ("a.json", "[" * 100_000, "labels.form"),
        ("a.xml", VOC.format(width=64).replace("24", "1e400"), "labels.form"),
        ("a.xml", "<annotation>", "labels.form"),
        ("a.xml", "<annotation><object><name>car</name></object></annotation>", "labels.form"),
        ("a.xml", VOC.format(width=640), "labels.size"),
        ("a.xml", '<?xml version="1.0" encoding="nonsense"?>' + VOC.format(width=64), "labels.form"),
        ("a.json", with_image(width=640, height=480), "labels.size"),
        ("a.json", with_image(t_us=0.25), "labels.form"),
        ("a.json", with_image(t_us=float("nan")), "labels.form"),
        ("a.json", with_image(id="b"), "labels.form"),
        ("a.npy", array_header("(1000000000000,)"), "file.damaged"),
        ("a.npy", array_header("(3,)").replace(b"'<i8',", b"'|O', "), "file.kind"),
    ],
)
def test_a_damaged_file_says_what_is_wrong_with_it(tmp_path, name, content, key):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises(key) as error:
        read_label_file(tmp_path / name, SPEC, END_US)
    assert name in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", LABEL_SUFFIXES)
def test_a_file_cut_anywhere_is_read_or_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    WRITE[suffix](path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.unlink()  # because a disk may wait before it replaces a file
        path.write_bytes(whole[:length])
        try:
            boxes = read_label_file(path, TIMED, END_US)
        except ValueError as error:
            assert path.name in str(error)
        else:  # text that ends after a whole line, or within its last number
            assert suffix in (".txt", ".json") and np.isin(boxes["class_id"], (0, 1)).all()


def test_a_folder_is_no_label_file(tmp_path):
    (tmp_path / "a.npy").mkdir()
    with raises("file.kind", "a.npy: it is a folder; put a label file"):
        read_label_file(tmp_path / "a.npy", SPEC, END_US)


@pytest.mark.parametrize(
    "text",
    [
        "<html><body>404</body></html>",
        VOC.format(width=64).replace("<annotation>", "<annotation xmlns='http://example.org'>"),
        VOC.format(width=64).replace("object>", "Object>"),
    ],
)
def test_xml_of_another_tool_is_not_taken_for_voc(tmp_path, text):
    (tmp_path / "a.xml").write_text(text)
    with raises("labels.form", "VOC"):
        read_label_file(tmp_path / "a.xml", SPEC, END_US)


@pytest.mark.parametrize("suffix", [".json", ".xml", ".txt", ".npy"])
def test_a_box_may_reach_past_an_edge_by_a_hundredth(tmp_path, suffix):
    spec = replace(SPEC, name="custom", label_columns=TIMED.label_columns)
    path = tmp_path / f"a{suffix}"
    for over, is_read in ((0.5, True), (2.0, False)):
        left, right = 30, 64 + over
        content = {
            ".json": json.dumps(
                {**COCO, "annotations": [{"image_id": "a", "category_id": 7, "bbox": [30, 1, right - left, 9]}]}
            ),
            ".xml": VOC.format(width=64).replace("<xmin>8", "<xmin>30").replace("<xmax>24", f"<xmax>{right}"),
            ".txt": f"7 1 {(left + right) / 128} .5 {(right - left) / 64} .5",
        }
        if suffix == ".npy":
            write_boxes(path, boxes_of((7, 30, 1, right - left, 9), class_confidence=1))
        else:
            path.write_text(content[suffix])
        if is_read:
            _, notes = LabelFiles("a", (path,)).read(spec, END_US)
            assert notes[OVER] == 1
        else:
            with raises("labels.outside", "a" + suffix):
                read_label_file(path, spec, END_US)


def test_boxes_that_are_all_two_corners_are_noticed(tmp_path):
    corners = [(5 + i, 4 + i, 15 + 2 * i, 12 + 2 * i) for i in range(8)]
    write_boxes(tmp_path / "a.npy", boxes_of(*((7 + i, *box) for i, box in enumerate(corners)), class_confidence=1))
    annotations = [{"image_id": "a", "category_id": 7, "bbox": box} for box in corners]
    (tmp_path / "a.json").write_text(json.dumps({**COCO, "annotations": annotations}))
    lines = [f"0 {x / 64} {y / 48} {right / 64} {bottom / 48}" for x, y, right, bottom in corners if x > 9]
    (tmp_path / "b.txt").write_text("\n".join(lines))
    for name in ("a.npy", "a.json"):
        assert LabelFiles("a", (tmp_path / name,)).read(SPEC, END_US)[1][CORNERS] == 8
    ltwh = replace(SPEC, label_columns=("class", "x1", "y1", "x2", "y2"))
    boxes, notes = LabelFiles("b", (tmp_path / "b.txt",)).read(ltwh, END_US)
    assert len(boxes) == len(lines) and not notes
