"""A dataset is one record in one file: `configs/dataset/NAME.yaml` if it has a name, `dataset.yaml` beside own files.

    classes: [person]      # class names; ids on disk are 0, 1, ... or those in class_ids
    height: 260            # of the sensor, pixels
    width: 346
    labels: .xml           # suffix of label files, or a COCO file of many recordings; see docs/your_files.md

Recordings of any supported format lie in `train/`, `val/` and `test/`, with labels of the same name beside them. Every
other key is a field of DatasetSpec. FORMS says what the value of a key may be, in a file as in a command.
"""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from rvtssm.events.label_files import LABEL_SUFFIXES, is_shared
from rvtssm.events.label_formats import are_columns
from rvtssm.events.label_names import is_form
from rvtssm.records import DatasetSpec, ReadOptions
from rvtssm.records.settings import COLUMNS_EXAMPLE, TIME_UNITS
from rvtssm.system.files import file_errors
from rvtssm.system.limits import check_number, shown, values_of
from rvtssm.system.output_folder import check_replaceable, result_file
from rvtssm.system.remote import is_url, local_path
from rvtssm.system.user_error import UserError

FILE = "dataset.yaml"
GENERATED_FILE = "synthetic.json"  # the settings of generated recordings, in their folder
_ULTRALYTICS = "data.yaml"  # beside it; its `names` may stand in for `classes`
_MOST_NAME_BYTES = 50_000  # all class names as JSON; they share an HDF5 attribute of 64 KiB with other metadata
_LARGEST_SENSOR = 1 << 16  # pixels; no sensor has larger coordinates
_LARGEST = 10**18  # of numbers, which have to fit 64 bits
# The values of keys that a file leaves out.
SPEC = DatasetSpec("custom", 0, 0, (), skip_us=0, ignored_classes=(), scores_empty_images=True, event_suffixes=())
_NEEDED = ("classes", "height", "width")
Check = Callable[[Any], bool]


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, tuple) and bool(value) and all(map(check, value))


def _are_names(value: Any) -> bool:
    """Return whether a value is a list of different printable names that prepared files have room for."""
    if not _list_of(lambda name: isinstance(name, str) and bool(name))(value) or not "".join(value).isprintable():
        return False
    return len(set(value)) == len(value) and len(json.dumps(value)) <= _MOST_NAME_BYTES


def _is_inside(name: Any) -> bool:
    """Return whether a path stays inside the folder that contains it.

    Links inside the folder are still followed: they are not part of the description, and often lead to another disk.
    """
    is_path = isinstance(name, str) and bool(name) and "\0" not in name
    return is_path and not Path(name).is_absolute() and ".." not in Path(name).parts


def _are_suffixes(value: Any) -> bool:
    """Return whether a value is a list of the ends of names, which may begin with folders of a recording."""
    return _are_names(value) and all(_is_inside(suffix.lstrip("/")) for suffix in value)


def _are_labels(value: Any) -> bool:
    """Return whether a value names label files: the end of their names, several, or one file of many recordings."""
    names = value if isinstance(value, tuple) else (value,)
    are_ends = _are_suffixes(names) and all(name.endswith(LABEL_SUFFIXES) for name in names)
    return are_ends and (len(names) == 1 or not any(map(is_shared, names)))


def _is_pattern(pattern: Any) -> bool:
    """Return whether a pattern names recordings in a folder of the dataset: `folder/name`, wildcards only in `name`."""
    if not isinstance(pattern, str):
        return False
    folder, _, name = pattern.partition("/")
    return bool(folder and name) and not set("*?[") & set(folder) and not {"..", "**"} & set(pattern.split("/"))


def _are_split_sources(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(split, str) and "/" not in split and _is_inside(split) and _list_of(_is_pattern)(patterns)
        for split, patterns in value.items()
    )


def _is_format(value: Any) -> bool:
    from rvtssm.readers import readers  # compiled code, which takes a second to import

    return isinstance(value, str) and value in readers()


def _are_columns(value: Any) -> bool:
    return (
        isinstance(value, dict) and set(value) == set("txyp") and all(type(at) in (str, int) for at in value.values())
    )


def _is_time(value: Any) -> bool:
    return type(value) is int and abs(value) < _LARGEST


def _is_offset(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(isinstance(name, str) and _is_time(us) for name, us in value.items())
    return value in ("auto", "from_start") or _is_time(value)


def _is_id(value: Any) -> bool:
    return _is_time(value) and 0 <= value < 1 << 32


_FOLDER = (_is_inside, "a path inside the folder of the dataset")
_TRUTH = (lambda value: isinstance(value, bool), "true or false")
# By key that is not a number: whether a value fits, and what is needed.
FORMS: dict[str, tuple[Check, str]] = {
    "classes": (
        _are_names,
        "a list of different names, such as [car, person], of at most 50,000 bytes; names that YAML reads as true or "
        "false (on, off, yes, no) need quotes",
    ),
    "class_ids": (_list_of(_is_id), "a list of numbers, such as [0, 2]"),
    "ignored_classes": (
        lambda value: value in (None, ()) or _list_of(lambda name: type(name) in (str, int))(value),
        "a list of names or numbers, such as [rider, 7], or null for all that are not in classes",
    ),
    "scores_empty_images": _TRUTH,
    "repair": _TRUTH,
    "time_unit": (lambda value: value in TIME_UNITS, f"one of {', '.join(TIME_UNITS)}"),
    "format": (_is_format, "a format that is read, such as evt3 or npy"),
    "columns": (_are_columns, f"the names or numbers of four columns, such as {COLUMNS_EXAMPLE}"),
    "key": (_is_inside, "the group or the table of the events in HDF5 files, such as davis/left/events"),
    "disk_names": (_are_names, "a list of different names"),
    "event_suffixes": (_are_suffixes, "a list of the ends of names, such as [.raw, _td.dat]"),
    "labels": (
        _are_labels,
        f"a path inside the folder of the dataset that ends in {', '.join(LABEL_SUFFIXES)}, or a list of ends of names",
    ),
    "label_offset_us": (
        _is_offset,
        "a whole number of microseconds, auto, from_start, or numbers by recording, such as {walk: 5000, run: 0}",
    ),
    "label_names": (is_form, "a name with {frame} or a clock, such as '{recording}_{time_s}' (docs/your_files.md)"),
    "label_columns": (are_columns, "the columns of YOLO text, such as [class, cx, cy, w, h, confidence]"),
    "events_dir": _FOLDER,
    "boxes_dir": _FOLDER,
    "split_sources": (_are_split_sources, "patterns by split, such as {train: [all/day1*], val: [all/day2*]}"),
}
# The other keys are the numbers of a spec, which are whole as they are in SPEC. These are at least 1, the others 0.
_COUNTS = ("height", "width", "downsample", "label_interval_us")
_NUMBERS = {key: type(value) for key, value in asdict(SPEC).items() if type(value) in (int, float) and key not in FORMS}
KEYS = sorted({*FORMS, *_NUMBERS})


def read_spec(*folders: Path | str) -> DatasetSpec:
    """Return the spec that the first `dataset.yaml` in these folders describes.

    Args:
        folders: Folders or URLs to search, in order.

    Raises:
        UserError: There is no such file, or its content is wrong.
    """
    paths = [local_path(folder, FILE) / FILE for folder in folders]
    for path in paths:
        if path.is_file():
            return read_record(path, SPEC.name)
    for folder in folders:
        if not is_url(str(folder)) and not Path(folder).exists():
            advice = "check dataset.raw_dir and dataset.prepared_dir"
            raise UserError("file.missing", name=folder, found="the folder does not exist", advice=advice)
    beside = [path.with_name(_ULTRALYTICS) for path in paths if path.with_name(_ULTRALYTICS).is_file()]
    advice = f"{beside[0]} gives the classes" if beside else ""
    what = f"it must describe the custom dataset, with {', '.join(_NEEDED)}"
    name = " and ".join(map(str, paths))
    raise UserError("file.missing", name=name, found="does not exist", needed=what, advice=advice)


def read_record(path: Path, name: str, needed: tuple[str, ...] = _NEEDED) -> DatasetSpec:
    """Return the dataset that a file describes.

    Args:
        path: The file.
        name: The name of the dataset.
        needed: Keys that the file must have.

    Raises:
        UserError: The content is wrong.
    """
    content = yaml_of(path)
    if not isinstance(content, dict):
        raise UserError("file.content", name=path, found="holds no keys", needed=f"it needs {', '.join(_NEEDED)}")
    for key in content:
        if key not in KEYS:
            meant = difflib.get_close_matches(str(key), KEYS, 1)
            advice = f"did you mean {meant[0]}?" if meant else ""
            raise UserError("setting.unknown", name=f"{path}: {key}", needed=KEYS, advice=advice)
    if "classes" not in content:
        names = listed_names(path.with_name(_ULTRALYTICS))
        content |= {"classes": tuple(names.values()), "class_ids": tuple(names)} if names else {}
    if missing := [key for key in needed if key not in content]:
        raise UserError("setting.missing", name=path, found=f"does not give {', '.join(missing)}")
    return with_keys(replace(SPEC, name=name), content, f"{path}: ")


def with_keys(spec: DatasetSpec, keys: Mapping[str, Any], where: str) -> DatasetSpec:
    """Return a dataset with the values of some of KEYS.

    Args:
        spec: The dataset.
        keys: Values as a file or a command gives them.
        where: What stands before a key in messages.

    Raises:
        UserError: A value does not have the form that its key needs, or two values exclude each other.
    """
    check_keys(keys, where)
    values = dict(keys)
    # Where a spec has another name or another form than a file.
    if "classes" in values:
        values["class_names"] = values.pop("classes")
    if "labels" in values:
        names = values.pop("labels")
        values["boxes_suffix"], *more = (names,) if isinstance(names, str) else names
        values["more_suffixes"] = tuple(more)
    if values.get("ignored_classes"):
        values["ignored_classes"] = tuple(map(str, values["ignored_classes"]))
    if "columns" in values:
        values["columns"] = {name: str(place) for name, place in values["columns"].items()}
    if values.get("label_offset_us") == "auto":
        values["label_offset_us"] = None
    spec = replace(spec, **values)
    # What single keys cannot say: whether they fit each other.
    if len(spec.disk_class_ids) != spec.num_classes or len(set(spec.disk_class_ids)) != spec.num_classes:
        needed = f"one id for each of the {spec.num_classes} classes"
        raise UserError("setting.conflict", name=f"{where}class_ids", found=spec.class_ids, needed=needed)
    if spec.height and spec.width and spec.downsample > min(spec.height, spec.width):
        needed = f"frames of at least one pixel; the sensor has {spec.width}x{spec.height} (width x height)"
        raise UserError("setting.conflict", name=f"{where}downsample", found=spec.downsample, needed=needed)
    return spec


def check_keys(keys: Mapping[str, Any], where: str) -> None:
    """Raise UserError for the first value that is not what its key needs; `where` stands before the key."""
    for key, value in keys.items():
        if key in _NUMBERS:
            highest = _LARGEST_SENSOR if key in ("height", "width") else _LARGEST
            check_number(f"{where}{key}", value, int(key in _COUNTS), highest, is_whole=_NUMBERS[key] is int)
            continue
        fits, needed = FORMS[key]
        if not fits(value):
            raise UserError("setting.form", name=f"{where}{key}", found=shown(value), needed=needed)


def options_above(where: Path | str, options: ReadOptions) -> ReadOptions:
    """Return the options, with what the nearest `dataset.yaml` above a recording says where they say nothing.

    What the file says holds only for a recording that does not say it itself.

    Args:
        where: The recording, as `open_with` takes it.
        options: What the caller says about it.

    Raises:
        UserError: The content of `dataset.yaml` is wrong.
    """
    from rvtssm.readers import split_part  # compiled code, which takes a second to import

    path, _ = split_part(local_path(where))
    for folder in Path(os.path.abspath(path)).parents:
        content = yaml_of(folder / FILE) if (folder / FILE).is_file() else {}
        if isinstance(content, dict) and not {*KEYS} & {*content}:  # other programs have such files, too
            continue
        said = read_record(folder / FILE, SPEC.name, needed=()).read_options
        unsaid = [name for name, value in asdict(options).items() if value in (None, {}) and getattr(said, name)]
        return replace(options, yields=tuple(unsaid), **values_of(said, unsaid))
    return options


def yaml_of(path: Path) -> Any:
    """Return the content of a YAML file. Raise UserError if it is not YAML."""
    with file_errors(path, " is not YAML", "write one `key: value` per line"):
        try:
            return yaml.load(path.read_text("utf-8"), _PlainLoader)
        except yaml.YAMLError as error:
            raise UserError("file.content", found=error) from None


def listed_names(path: Path) -> dict[Any, Any]:
    """Return the names of classes by their numbers as a label tool lists them; none without such a file.

    Args:
        path: A `data.yaml` of ultralytics, which has them in `names`, or text with one in each line.

    Raises:
        UserError: A line of the text before the last name is blank, or the file has no names in one of these forms.
    """
    if not path.is_file():
        return {}
    if path.suffix not in (".yaml", ".yml"):
        lines = path.read_text("utf-8-sig", errors="replace").rstrip().splitlines()
        listed = dict(enumerate(map(str.strip, lines)))
        for number, name in listed.items():
            if not name:
                advice = "remove the line, or write the name of this class there"
                found = f"it is blank, so that class {number} has no name"
                raise UserError("file.content", name=f"{path}: line {number + 1}", found=found, advice=advice)
        return listed
    content = yaml_of(path)
    names = content.get("names") or {} if isinstance(content, dict) else {}
    if isinstance(names, tuple):
        return dict(enumerate(names))
    if not isinstance(names, dict) or not {*map(type, names)} <= {int}:
        needed = "a list of the names of classes, or the names by number"
        raise UserError("file.content", name=f"{path}: names", found=shown(names), needed=needed)
    return names


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

    def construct_tuple(self, node: yaml.SequenceNode) -> tuple[Any, ...]:
        return tuple(self.construct_sequence(node, deep=True))


_PlainLoader.add_constructor("tag:yaml.org,2002:seq", _PlainLoader.construct_tuple)


def copy_descriptions(
    raw_dir: Path | str, folder: Path | str, spec: DatasetSpec, labels: str | None = None, replaces: bool = True
) -> None:
    """Copy what describes a dataset to another folder, such as the folder of the prepared files.

    Args:
        raw_dir: Folder or URL that may hold `dataset.yaml`, if the dataset has no name, or `synthetic.json`.
        folder: Folder to copy to. A file that has the same content is not written.
        spec: The dataset.
        labels: New value of the key `labels` in `dataset.yaml`; None keeps the old one.
        replaces: Whether an earlier copy is replaced.

    Raises:
        UserError: The folder has a file of this name with another content that is no copy.
    """
    names = [FILE, GENERATED_FILE] if spec.name == SPEC.name else [GENERATED_FILE]
    for name in names:
        source = local_path(raw_dir, name) / name
        target = Path(folder) / name
        if not source.is_file():
            continue
        content = source.read_bytes()
        if labels is not None and name == FILE:
            content = yaml.safe_dump({**yaml_of(source), "labels": labels}, sort_keys=False).encode()
        if target.is_file() and target.read_bytes() == content:
            continue
        advice = f"change {source}, of which a copy is put here, and delete this one; or choose another folder"
        check_replaceable(target.parent, name, [name], advice)
        if replaces or not target.exists():
            with result_file(target) as staged:
                staged.write_bytes(content)
