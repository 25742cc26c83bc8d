"""custom: recordings of any kind, described by a file `dataset.yaml` in their folder, without any code.

    classes: [person]      # class names; ids on disk are 0, 1, ... or those in class_ids
    height: 260            # of the sensor, pixels
    width: 346
    labels: .xml           # suffix of label files, or a COCO file of many recordings; see docs/your_files.md

Recordings of any supported format lie in `train/`, `val/` and `test/`, with labels of the same name beside them. Every
other key is a field of DatasetSpec.
"""

import difflib
import json
import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from rvtssm.events.label_files import LABEL_SUFFIXES
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import COLUMNS_EXAMPLE, TIME_UNITS
from rvtssm.system.files import atomic_file, file_errors
from rvtssm.system.remote import is_url, local_path
from rvtssm.system.user_error import UserError, said_of

FILE = "dataset.yaml"
_ULTRALYTICS = "data.yaml"  # beside it; its `names` may stand in for `classes`
_MOST_NAME_BYTES = 50_000  # all class names as JSON; they share an HDF5 attribute of 64 KiB with other metadata
SPEC = DatasetSpec(  # values for keys that the file leaves out
    name="custom",
    height=0,
    width=0,
    class_names=(),
    label_interval_us=50_000,
    min_side_px=10.0,
    min_diagonal_px=0.0,
    prepare_min_side_px=2.0,
    prepare_min_diagonal_px=0.0,
    skip_us=0,
    ignored_classes=(),
    scores_empty_images=True,
    event_suffixes=(),
)
_NAMES = {"classes": "class_names", "labels": "boxes_suffix"}  # keys whose field in the spec has another name
_NEEDED = ("classes", "height", "width")
_NEEDED_TEXT = {"time_unit": f"one of {', '.join(TIME_UNITS)}", "format": "a format, such as evt3 or npy"}
_OWN = ("name", "disk_names", "class_names", "boxes_suffix")  # fields that are not keys
_KEYS = tuple({*_NAMES, *(field.name for field in fields(DatasetSpec))} - set(_OWN))


def read_spec(*folders: Path | str, needed: tuple[str, ...] = _NEEDED) -> DatasetSpec:
    """Return the spec that the first `dataset.yaml` in these folders describes.

    Args:
        folders: Folders or URLs to search, in order.
        needed: Keys that the file must have.

    Raises:
        UserError: There is no such file, or its content is wrong.
    """
    paths = [_description(folder) for folder in folders]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        if gone := [folder for folder in folders if not is_url(str(folder)) and not Path(folder).exists()]:
            raise UserError(
                "dataset.folder_missing",
                f"the folder {gone[0]} does not exist; check dataset.raw_dir and dataset.prepared_dir",
            )
        text = f"{' and '.join(map(str, paths))} does not exist; it must describe the custom dataset, with "
        text += ", ".join(_NEEDED)
        beside = [path.with_name(_ULTRALYTICS) for path in paths]
        if names := next((path for path in beside if path.is_file()), None):
            text += f"; {names} gives the classes"
        raise UserError("dataset.not_described", text)
    content = _loaded(path)
    if not isinstance(content, dict):
        raise UserError("dataset.no_keys", f"{path} holds no keys; it needs {', '.join(_NEEDED)}")
    if unknown := [str(key) for key in content if key not in _KEYS]:
        meant = "".join(f"did you mean {key}? " for key in difflib.get_close_matches(unknown[0], _KEYS, 1))
        raise UserError(
            "dataset.unknown_key",
            f"{path} has the unknown key {unknown[0]}; {meant}choose from {', '.join(sorted(_KEYS))}",
        )
    if "classes" not in content:
        content |= _ultralytics_names(path.with_name(_ULTRALYTICS))
    if missing := [key for key in needed if key not in content]:
        raise UserError(
            "dataset.missing_keys", f"{path} does not give {', '.join(missing)}; it needs {', '.join(_NEEDED)}"
        )
    values: dict[str, Any] = {_NAMES.get(key, str(key)): _checked(path, key, value) for key, value in content.items()}
    spec = replace(SPEC, **values)
    with said_of(path):
        spec.read_options  # noqa: B018  checks its values
    if Path(spec.boxes_suffix).suffix not in LABEL_SUFFIXES and spec.boxes_suffix not in LABEL_SUFFIXES:
        kinds = ", ".join(LABEL_SUFFIXES)
        raise UserError(
            "dataset.labels_suffix", f"{path} has labels: {spec.boxes_suffix}; label files end in one of {kinds}"
        )
    if len(spec.disk_class_ids) != spec.num_classes or len(set(spec.disk_class_ids)) != spec.num_classes:
        raise UserError(
            "dataset.class_ids",
            f"{path} has {spec.num_classes} classes and class_ids {spec.class_ids}; give one id to each",
        )
    return spec


def folder_above(path: Path) -> Path | None:
    """Return the nearest folder above a file whose `dataset.yaml` has a key of ours; None if there is none."""
    for folder in Path(os.path.abspath(path)).parents:
        if (folder / FILE).is_file():
            content = _loaded(folder / FILE)
            if not isinstance(content, dict) or {*_KEYS} & {*content}:  # other programs have such files, too
                return folder
    return None


def _loaded(path: Path) -> Any:
    with file_errors(path, " is not YAML", "write one `key: value` per line"):
        try:
            return yaml.load(path.read_text("utf-8"), _PlainLoader)
        except yaml.YAMLError as error:
            raise UserError("dataset.not_yaml", str(error)) from None


def _ultralytics_names(path: Path) -> dict[str, Any]:
    """Return the classes of a `data.yaml` of ultralytics and their numbers; nothing without such a file."""
    content = _loaded(path) if path.is_file() else {}
    if not isinstance(content, dict) or "names" not in content:
        return {}
    names = content["names"]
    if isinstance(names, dict):
        return {"classes": list(names.values()), "class_ids": list(names)}
    return {"classes": names}


class _PlainLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, since one would be ignored, and aliases, which can unfold without an end."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(problem="aliases (*name) are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [str(key.value) for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(problem=f"the key {twice} stands there twice")
        return super().construct_mapping(node, deep)


def copy_description(raw_dir: Path | str, folder: Path | str, labels: str | None = None) -> None:
    """Copy the description of a dataset to another folder, such as the folder of the prepared files.

    Args:
        raw_dir: Folder or URL that may hold `dataset.yaml`. Without this file, nothing is copied.
        folder: Folder to copy to.
        labels: New value of the key `labels`; None keeps the old one.
    """
    source = _description(raw_dir)
    if not source.is_file():
        return
    content = source.read_bytes()
    if labels is not None:
        keys = {**yaml.load(content.decode("utf-8"), _PlainLoader), "labels": labels}
        content = yaml.safe_dump(keys, sort_keys=False).encode()
    write_description(Path(folder) / FILE, content)


def write_description(path: Path, content: bytes) -> None:
    """Write the file that describes a dataset, unless it has this content already."""
    if path.is_file() and path.read_bytes() == content:
        return
    with atomic_file(path) as staged:
        staged.write_bytes(content)


def _description(folder: Path | str) -> Path:
    return local_path(folder, FILE) / FILE


def _checked(path: Path, key: str, value: Any) -> Any:
    """Return a value of the file in the form that the spec uses. Raise UserError if it has the wrong type or range."""
    kind = type(getattr(SPEC, _NAMES.get(key, key)))
    if key == "classes" and isinstance(value, list) and any(isinstance(name, bool) for name in value):
        raise UserError(
            "dataset.classes_true_or_false",
            f"{path} has classes: {value}; YAML reads on, off, yes and no as true and false: quote them",
        )
    if key == "label_offset_us":
        needed = "a whole number of microseconds, or auto"
        if value == "auto" or (type(value) is int and abs(value) < 1 << 60):
            return None if value == "auto" else value
    elif kind is bool:
        needed = "true or false"
        if isinstance(value, bool):
            return value
    elif key in ("classes", "event_suffixes"):
        needed = "a list of different names, such as [car, person]"
        are_names = isinstance(value, list) and value and all(isinstance(name, str) and name for name in value)
        are_names = are_names and "".join(value).isprintable()
        are_suffixes = key == "classes" or (are_names and all(map(_is_name, value)))
        if are_names and are_suffixes and len(set(value)) == len(value):
            if (num_bytes := len(json.dumps(value))) > _MOST_NAME_BYTES:
                raise UserError(
                    "dataset.names_too_long",
                    f"{path} has {len(value)} {key}, whose names take {num_bytes} bytes, but prepared files have room "
                    f"for {_MOST_NAME_BYTES}; give fewer or shorter names",
                )
            return tuple(value)
    elif key == "ignored_classes":
        needed = "a list of names or numbers, such as [rider, 7]"
        if isinstance(value, list) and all(type(name) in (str, int) for name in value):
            return tuple(map(str, value))
    elif key == "class_ids":
        needed = "a list of numbers, such as [0, 2]"
        if isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 32 for number in value):
            return tuple(value)
    elif key == "split_sources":
        needed = "patterns by split, such as {train: [all/day1*], val: [all/day2*]}"
        value = value if isinstance(value, dict) else {"": None}
        lists = list(value.values())
        are_lists = all(isinstance(patterns, list) and patterns for patterns in lists)
        if are_lists and all(all(map(_is_pattern, patterns)) for patterns in lists) and all(map(_is_name, value)):
            return {str(split): tuple(patterns) for split, patterns in value.items()}
    elif key == "columns":
        needed = f"the names or numbers of four columns, such as {COLUMNS_EXAMPLE}"
        if isinstance(value, dict) and all(type(name) in (str, int) for name in value.values()):
            return {str(field): str(name) for field, name in value.items()}
    elif kind in (int, float):
        lowest = 1 if key in ("height", "width", "downsample", "label_interval_us") else 0
        needed = f"a {'whole number' if kind is int else 'number'} of at least {lowest}"
        is_number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
        if is_number and lowest <= value < math.inf:
            return value
    else:
        is_folder = key in ("events_dir", "boxes_dir", "labels")
        needed = "a path inside the folder of this file" if is_folder else _NEEDED_TEXT[key]
        if isinstance(value, str) and value and (_is_inside(value) if is_folder else _is_name(value)):
            return value
    raise UserError("dataset.value", f"{path} has {key}: {value!r}; write {needed}")


def _is_inside(name: str) -> bool:
    """Return whether a path stays inside the folder that contains it.

    Links inside the folder are still followed: they are not part of the description, and often lead to another disk.
    """
    return not Path(name).is_absolute() and ".." not in Path(name).parts and "\0" not in name


def _is_name(name: object) -> bool:
    return "/" not in str(name) and _is_inside(str(name))


def _is_pattern(pattern: object) -> bool:
    """Return whether a pattern names recordings in a folder of the dataset: `folder/name`, wildcards only in `name`."""
    if not isinstance(pattern, str):
        return False
    folder, _, name = pattern.partition("/")
    return bool(folder and name) and not set("*?[") & set(folder) and not {"..", "**"} & set(pattern.split("/"))
