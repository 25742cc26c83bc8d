"""Turn recordings and prepared sequences of each dataset into batches. Add new datasets to the table here."""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rvtssm.datasets import custom
from rvtssm.datasets.specs import DSEC, GEN1, GENERATED_FILE, ONEMPX, SYNTHETIC
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import TIME_UNITS, filled
from rvtssm.system.extras import installed_parts
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.limits import check_at_least, check_choice
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError

DATASETS: dict[str, DatasetSpec] = {
    "gen1": GEN1,
    "onempx": ONEMPX,
    "dsec": DSEC,
    "synthetic": SYNTHETIC,
    "custom": custom.SPEC,
    **installed_parts("rvtssm.simulated"),
}
SOURCES = ("raw", "prepared")
_GENERATED = (SYNTHETIC.name, *installed_parts("rvtssm.simulated"))
_READ_KEYS = ("height", "width", "repair", "time_unit", "format", "columns")  # of DatasetConfig and DatasetSpec
_LARGEST_SENSOR = 1 << 16  # pixels; no sensor has larger coordinates


@dataclass
class DatasetConfig:
    """Which dataset to use, and where its files are: `<dir>/{train,val,test}/...`.

    >>> rvtssm.DatasetConfig(raw_dir="street").source is None  # raw recordings or prepared frames, whichever are there
    True
    """

    name: str = ""
    """One of DATASETS."""
    raw_dir: str | None = None
    """Recordings and boxes as published: a folder, or s3://BUCKET/FOLDER."""
    prepared_dir: str | None = None
    """Files made by `rvtssm preprocess` or RVT: a folder, or s3://BUCKET/FOLDER."""
    height: int | None = None
    """Height of the sensor in pixels, if it differs from the dataset's."""
    width: int | None = None
    """Width of the sensor in pixels, if it differs from the dataset's."""
    repair: bool | None = None
    """Read recordings even if many events are faulty (docs/your_files.md)."""
    time_unit: str | None = None
    """Unit of the times in recordings that do not say it: us, ns, ms or s."""
    format: str | None = None
    """Format of recordings that do not tell it, such as evt3."""
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of recordings that do not tell them, by name or by number: {t: ts, x: xs, y: ys, p: ps}."""
    label_offset_us: str | None = None
    """Microseconds to add to the times of labels; auto: the time shift that the file of the recording gives."""
    source: str | None = None
    """Raw or prepared training data; null: prepared if there are files, otherwise raw."""

    def __post_init__(self) -> None:
        if self.name:
            check_choice("dataset.name", self.name, DATASETS)
        check_at_least("dataset", self, 1, "height", "width")
        check_choice("dataset.time_unit", self.time_unit, (*TIME_UNITS, None))
        if self.format is not None:
            from rvtssm.readers import readers  # the readers are compiled code, which takes a second to import

            check_choice("dataset.format", self.format, readers())
        offset = self.label_offset_us
        if offset is not None and not re.fullmatch(r"auto|[+-]?\d{1,18}", str(offset)):
            raise UserError(
                "settings.label_offset",
                f"dataset.label_offset_us={offset} must be a whole number of microseconds, or auto",
            )
        check_choice("dataset.source", self.source, (*SOURCES, None))


def with_described(config: DatasetConfig) -> DatasetConfig:
    """Return the settings, with what a file in the folders of the dataset says where they say nothing.

    `dataset.yaml` describes a custom dataset, `synthetic.json` generated recordings and their size.

    Raises:
        UserError: The file cannot be read, or it belongs to another dataset than the settings name.
    """
    if config.name and config.height and config.width:
        return config
    description = described(config.name, config.raw_dir, config.prepared_dir)
    return filled(config, description)


def with_training(config: DatasetConfig, spec: DatasetSpec) -> DatasetConfig:
    """Return `with_described` of the settings; if nothing names the dataset, what they leave out is that of a training.

    Args:
        config: The settings.
        spec: The dataset of the training.
    """
    config = with_described(config)
    if config.name:
        return config
    offset = "auto" if spec.label_offset_us is None else str(spec.label_offset_us)
    read = {key: getattr(spec, key) for key in _READ_KEYS}
    return filled(config, {"name": spec.name, "label_offset_us": offset, **read})


def build_spec(config: DatasetConfig) -> DatasetSpec:
    """Return the spec of the dataset, at the sensor size that the configuration or the folder of the dataset gives.

    Raises:
        UserError: The name is missing and no file in the folder says it, the description of the dataset is missing or
            wrong, or the size is invalid.
    """
    config = with_described(config)
    if not config.name:
        raise UserError(
            "dataset.not_named",
            f"dataset=NAME is needed; choose from {', '.join(DATASETS)}, or describe your own recordings in a "
            f"{custom.FILE} in their folder",
        )
    spec = DATASETS[config.name]
    if not spec.class_names:  # a file beside the recordings describes the dataset
        folders = [folder for folder in (config.raw_dir, config.prepared_dir) if folder]
        if not folders:
            raise UserError(
                "dataset.no_folder_named",
                f"dataset={config.name} needs dataset.raw_dir=DIR or dataset.prepared_dir=DIR",
            )
        spec = custom.read_spec(*folders)
    config = filled(config, {key: getattr(spec, key) for key in _READ_KEYS})
    spec = replace(spec, **{key: getattr(config, key) for key in _READ_KEYS})
    if (offset := config.label_offset_us) is not None:
        spec = replace(spec, label_offset_us=None if offset == "auto" else int(offset))
    spec.read_options  # noqa: B018  checks their values
    if not spec.downsample <= min(spec.height, spec.width) <= max(spec.height, spec.width) <= _LARGEST_SENSOR:
        raise UserError(
            "dataset.frame_size",
            f"{spec.name} has a sensor of {spec.width}x{spec.height} (width x height) and frames {spec.downsample} "
            f"times smaller; a frame needs at least one pixel, and a sensor has at most {_LARGEST_SENSOR} pixels per "
            "side, choose the size that fits",
        )
    return spec


def described(name: str, *folders: str | None) -> dict[str, Any]:
    """Return what the first folder with a description says, as fields of DatasetConfig; nothing without one.

    Args:
        name: The dataset that was asked for. Empty: any. Only generated and custom datasets are described by files.
        folders: Folders or URLs of the dataset, in order. None is left out.

    Returns:
        The name of the dataset. For generated recordings also their height and width.

    Raises:
        UserError: The file of generated recordings cannot be read, or it belongs to another dataset than `name`.
    """
    if name not in ("", custom.SPEC.name, *_GENERATED):
        return {}
    for folder in filter(None, folders):
        if name not in _GENERATED and (local_path(folder, custom.FILE) / custom.FILE).is_file():
            return {"name": custom.SPEC.name}
        if (path := local_path(folder, GENERATED_FILE) / GENERATED_FILE).is_file():
            description = _generated(path)
            if name not in ("", description["name"]):
                raise UserError(
                    "dataset.other_generated",
                    f"{folder} was written by `rvtssm generate` and holds dataset={description['name']} "
                    f"({GENERATED_FILE}), not {name}; leave dataset out, or name that one",
                )
            return description
    return {}


def copy_generated(name: str, raw_dir: str, prepared_dir: str) -> None:
    """Copy the description of the generated dataset `name`, if there is one, to the folder of its prepared files."""
    source = local_path(raw_dir, GENERATED_FILE) / GENERATED_FILE
    if name in _GENERATED and source.is_file():
        custom.write_description(Path(prepared_dir) / GENERATED_FILE, source.read_bytes())


def _generated(path: Path) -> dict[str, Any]:
    fault, advice = " is not a file that `rvtssm generate` writes", "name dataset, dataset.height and dataset.width"
    with file_errors(path, fault, advice, CONTENT_ERRORS):
        settings = json.loads(path.read_text("utf-8"))
        return {
            "name": str(settings.get("dataset", "synthetic")),
            "height": int(settings["height"]),
            "width": int(settings["width"]),
        }
