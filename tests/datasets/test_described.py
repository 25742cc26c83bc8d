"""What a file in the folder of a dataset says of it, and which settings it does not change."""

import json

import pytest
from user_errors import raises

from rvtssm.datasets import DatasetConfig, build_spec
from rvtssm.datasets.specs import GENERATED_FILE


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
    # published datasets may have the same files; neither their size nor their name is taken from there
    assert build_spec(DatasetConfig("gen1", str(tmp_path))).width == 304


def test_a_description_of_the_user_comes_first(tmp_path):
    generated(tmp_path)
    (tmp_path / "dataset.yaml").write_text("classes: [cat]\nheight: 60\nwidth: 80\n")
    assert build_spec(DatasetConfig(raw_dir=str(tmp_path))).class_names == ("cat",)


@pytest.mark.parametrize("asked", ["custom", "open_world"])
def test_another_dataset_than_the_generated_one_is_refused(tmp_path, asked):
    with raises("dataset.other_generated"):
        build_spec(DatasetConfig(asked, generated(tmp_path)))


@pytest.mark.parametrize("content", ["[]", "{", '{"dataset": "synthetic"}', '{"height": "tall", "width": 3}'])
def test_a_description_that_is_none_names_the_keys(tmp_path, content):
    (tmp_path / GENERATED_FILE).write_text(content)
    with raises("files.content", GENERATED_FILE):
        build_spec(DatasetConfig(raw_dir=str(tmp_path)))
