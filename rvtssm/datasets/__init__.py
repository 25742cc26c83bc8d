"""Turn recordings and prepared sequences of each dataset into batches. Add new datasets to the table here."""

import re
from dataclasses import dataclass, field, replace

from rvtssm.datasets import custom, dsec, gen1, onempx, synthetic
from rvtssm.datasets.described import described
from rvtssm.records import TIME_UNITS, DatasetSpec
from rvtssm.system.extras import installed_parts
from rvtssm.system.limits import check_at_least, check_choice
from rvtssm.system.user_error import UserError

DATASETS: dict[str, DatasetSpec] = {
    "gen1": gen1.SPEC,
    "onempx": onempx.SPEC,
    "dsec": dsec.SPEC,
    "synthetic": synthetic.SPEC,
    "custom": custom.SPEC,
    **installed_parts("rvtssm.simulated"),
}
SOURCES = ("raw", "prepared")
_READ_KEYS = ("repair", "time_unit", "format", "columns")  # of DatasetConfig and DatasetSpec
_LARGEST_SENSOR = 1 << 16  # pixels; no sensor has larger coordinates


@dataclass
class DatasetConfig:
    """Which dataset to use, and where its files are: `<dir>/{train,val,test}/...`."""

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
    repair: bool = False
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
            from rvtssm.readers import READERS  # the readers are compiled code, which takes a second to import

            check_choice("dataset.format", self.format, READERS)
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
    found = described(config.name, config.raw_dir, config.prepared_dir)
    return replace(config, **{key: getattr(config, key) or value for key, value in found.items()})


def with_training(config: DatasetConfig, spec: DatasetSpec) -> DatasetConfig:
    """Return `with_described` of the settings; if nothing names the dataset, what they leave out is that of a training.

    Args:
        config: The settings.
        spec: The dataset of the training.
    """
    config = with_described(config)
    if config.name:
        return config
    offset = config.label_offset_us or ("auto" if spec.label_offset_us is None else str(spec.label_offset_us))
    config = replace(config, label_offset_us=offset)
    keys = ("height", "width", *_READ_KEYS)
    return replace(config, name=spec.name, **{key: getattr(config, key) or getattr(spec, key) for key in keys})


def build_spec(config: DatasetConfig) -> DatasetSpec:
    """Return the spec of the dataset, at the sensor size that the configuration or the folder of the dataset gives.

    Raises:
        UserError: The name is missing and no file in the folder says it, the description of the dataset is missing or
            wrong, or the size is invalid.
    """
    config = with_described(config)
    if not config.name:
        raise UserError("dataset.not_named", f"dataset=NAME is needed; choose from {', '.join(DATASETS)}")
    spec = DATASETS[config.name]
    if not spec.class_names:  # a file beside the recordings describes the dataset
        folders = [folder for folder in (config.raw_dir, config.prepared_dir) if folder]
        if not folders:
            raise UserError(
                "dataset.no_folder_named",
                f"dataset={config.name} needs dataset.raw_dir=DIR or dataset.prepared_dir=DIR",
            )
        spec = custom.read_spec(*folders)
    spec = replace(spec, height=config.height or spec.height, width=config.width or spec.width)
    if (offset := config.label_offset_us) is not None:
        spec = replace(spec, label_offset_us=None if offset == "auto" else int(offset))
    spec = replace(spec, **{key: getattr(config, key) for key in _READ_KEYS})
    spec.read_options  # noqa: B018  checks their values
    if not spec.downsample <= min(spec.height, spec.width) <= max(spec.height, spec.width) <= _LARGEST_SENSOR:
        raise UserError(
            "dataset.frame_size",
            f"{spec.name} has a sensor of {spec.width}x{spec.height} (width x height) and frames {spec.downsample} "
            f"times smaller; a frame needs at least one pixel, and a sensor has at most {_LARGEST_SENSOR} pixels per "
            "side, choose the size that fits",
        )
    return spec
