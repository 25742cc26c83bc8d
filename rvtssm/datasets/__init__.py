"""Turn recordings and prepared sequences of each dataset into batches. A named dataset is a file in configs/dataset."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rvtssm.datasets import custom
from rvtssm.datasets.custom import GENERATED_FILE
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import filled
from rvtssm.system.files import CONTENT_ERRORS, configs_dir, file_errors
from rvtssm.system.limits import Settings, check_choice, setting
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError

DATASETS: dict[str, DatasetSpec] = {custom.SPEC.name: custom.SPEC}
for _path in sorted((configs_dir() / "dataset").glob("*.yaml")):
    DATASETS[_path.stem] = custom.read_record(_path, _path.stem)
SOURCES = ("raw", "prepared")
_READ_KEYS = ("height", "width", "repair", "time_unit", "format", "columns", "key")


@dataclass
class DatasetConfig(Settings, section="dataset"):
    """Which dataset to use, where its files are (`<dir>/{train,val,test}/...`), and what it says otherwise.

    >>> rvtssm.DatasetConfig(raw_dir="street").source is None  # raw recordings or prepared frames, whichever are there
    True
    """

    name: str = ""
    """One of DATASETS."""
    raw_dir: str | None = setting(None, is_path=True)
    """Recordings and boxes as published: a folder, or s3://BUCKET/FOLDER."""
    prepared_dir: str | None = setting(None, is_path=True)
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
    key: str | None = None
    """Group or table of the events in HDF5 files that hold several, such as davis/left/events."""
    label_offset_us: Any = None
    """Microseconds to add to the times of labels; auto: the time shift that the file of the recording gives."""
    source: str | None = setting(None, choices=(*SOURCES, None))
    """Raw or prepared training data; null: prepared if there are files, otherwise raw."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name:
            check_choice("dataset.name", self.name, DATASETS)
        custom.check_keys(self.overrides, "dataset.")

    @property
    def overrides(self) -> dict[str, Any]:
        """What the dataset is said to be otherwise, by the keys of its file."""
        said = {key: getattr(self, key) for key in (*_READ_KEYS, "label_offset_us")}
        return {key: value for key, value in said.items() if value not in (None, {})}


def with_described(config: DatasetConfig) -> DatasetConfig:
    """Return the settings, with what a file in the folders of the dataset says where they say nothing.

    `dataset.yaml` describes a custom dataset, `synthetic.json` generated recordings and their size.

    Raises:
        UserError: The file cannot be read, or it belongs to another dataset than the settings name.
    """
    if config.name and config.height and config.width:
        return config
    for folder in filter(None, (config.raw_dir, config.prepared_dir)):
        is_own = (local_path(folder, custom.FILE) / custom.FILE).is_file()
        if is_own and config.name in ("", custom.SPEC.name):
            return filled(config, {"name": custom.SPEC.name})
        if (path := local_path(folder, GENERATED_FILE) / GENERATED_FILE).is_file():
            description = _generated(path)
            if config.name in ("", description["name"]):
                return filled(config, description)
            written = DATASETS.get(description["name"])
            if written is None or DATASETS[config.name].class_names != written.class_names:
                needed = f"{folder} was written by `rvtssm generate` and holds {description['name']}"
                advice = "leave dataset out, or name that one"
                raise UserError("setting.conflict", name="dataset", found=config.name, needed=needed, advice=advice)
    return config


def with_training(config: DatasetConfig, spec: DatasetSpec) -> DatasetConfig:
    """Return `with_described` of the settings; if nothing names the dataset, what they leave out is that of a training.

    Args:
        config: The settings.
        spec: The dataset of the training.
    """
    config = with_described(config)
    if config.name:
        return config
    offset = "auto" if spec.label_offset_us is None else spec.label_offset_us
    read = {key: getattr(spec, key) for key in _READ_KEYS}
    return filled(config, {"name": spec.name, "label_offset_us": offset, **read})


def build_spec(config: DatasetConfig) -> DatasetSpec:
    """Return the spec of the dataset, with what the settings say otherwise.

    Raises:
        UserError: The name is missing and no file in the folder says it, or the description of the dataset is missing
            or wrong.
    """
    config = with_described(config)
    if not config.name:
        advice = f"or describe your own recordings in a {custom.FILE} in their folder"
        raise UserError("setting.missing", name="dataset=NAME is needed", needed=list(DATASETS), advice=advice)
    spec = DATASETS[config.name]
    if not spec.class_names:  # a file beside the recordings describes the dataset
        folders = [folder for folder in (config.raw_dir, config.prepared_dir) if folder]
        if not folders:
            needed = f"a folder with its {custom.FILE}: dataset.raw_dir=DIR or dataset.prepared_dir=DIR"
            raise UserError("setting.needs", name="dataset", found=config.name, needed=needed)
        spec = custom.read_spec(*folders)
    return custom.with_keys(spec, config.overrides, "dataset.")


def _generated(path: Path) -> dict[str, Any]:
    fault = " is not a file that `rvtssm generate` writes"
    advice = "name dataset, dataset.height and dataset.width"
    with file_errors(path, fault, advice, CONTENT_ERRORS):
        settings = json.loads(path.read_text("utf-8"))
        size = {key: int(settings[key]) for key in ("height", "width")}
        return {"name": str(settings.get("dataset", "synthetic")), **size}
