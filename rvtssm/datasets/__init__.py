"""Turn recordings and prepared sequences of each dataset into batches. A named dataset is a file in configs/dataset.

The settings stand here: of a dataset, of prepared recordings, and of batches. They do not import torch.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rvtssm.datasets import custom
from rvtssm.datasets.custom import GENERATED_FILE
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import SPLITS, filled
from rvtssm.system.files import CONTENT_ERRORS, configs_dir, file_errors
from rvtssm.system.limits import Settings, check_choice, setting, values_of
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError


@dataclass
class PreprocessConfig(Settings, section="preprocess"):
    """Which recordings to prepare, whether to use their labels, and which processes do the work."""

    labels: str = setting("required", choices=("required", "none"))
    """required: a window ends at every label; none: a fixed stride from the first event."""
    splits: tuple[str, ...] = setting(SPLITS, is_filled=True)
    """The splits to prepare."""
    scheduler: str | None = None
    """Address of a dask cluster that sees the same folders, such as tcp://node1:8786; null: none."""
    workers: int | None = setting(None, at_least=1)
    """Number of worker processes; null: one per core."""
    overwrite: bool = False
    """Replace files that were made with other settings."""

    @property
    def is_labelled(self) -> bool:
        return self.labels == "required"


@dataclass
class SamplingConfig(Settings, section="sampling"):
    """The composition of training batches. All numbers except total_batch are per process.

    >>> rvtssm.SamplingConfig(batch_size=8, stream_share=0.25).num_streams
    2
    """

    mode: str = setting("mixed", choices=("mixed", "random", "stream"))
    """mixed, random (BPTT) or stream (TBPTT)."""
    batch_size: int | str = setting(8, at_least=1, choices=("auto",))
    """Chunks per batch; auto: as many as fit in memory, accumulated to total_batch, or without one to 8 per process."""
    total_batch: int | None = setting(None, at_least=1)
    """Chunks per optimiser step over all processes, divided into batches and `training.accumulate`; null: any."""
    chunk_length: int = setting(21, at_least=1)
    """Steps per chunk."""
    stream_share: float = setting(0.5, at_least=0, at_most=1)
    """Share of streams in a mixed batch, which holds at least one chunk of each kind."""
    frames_per_chunk: int | None = setting(None, at_least=1)
    """Labelled frames of a chunk that reach the loss; null: all."""

    @property
    def num_streams(self) -> int:
        """Number of chunks in a batch that continue an earlier chunk."""
        if self.mode == "random":
            return 0
        if self.mode == "stream":
            return self.num_chunks
        return min(max(round(self.num_chunks * self.stream_share), 1), self.num_chunks - 1)

    @property
    def num_chunks(self) -> int:
        """`batch_size` as a number, which it is once a training has chosen in place of `auto`."""
        assert not isinstance(self.batch_size, str), "sampling.batch_size=auto is not decided yet"
        return self.batch_size

    @property
    def smallest_batch(self) -> int:
        """The fewest chunks of a batch."""
        return 2 if self.mode == "mixed" else 1

    def __post_init__(self) -> None:
        super().__post_init__()
        # a mixed batch holds at least one random chunk and one stream
        for key in ("batch_size", "total_batch"):
            size = getattr(self, key)
            if isinstance(size, int) and size < self.smallest_batch:
                needed = "a mixed batch holds a random chunk and a stream; give 2 or more, or another sampling.mode"
                raise UserError("setting.conflict", name=f"sampling.{key}", found=size, needed=needed)
        if self.mode == "mixed" and self.stream_share in (0, 1):
            advice = f"use sampling.mode={'stream' if self.stream_share else 'random'}"
            needed = "a mixed batch holds random chunks and streams"
            found = f"{self.stream_share:g}"
            raise UserError("setting.conflict", name="sampling.stream_share", found=found, needed=needed, advice=advice)


@dataclass
class AugmentConfig(Settings, section="augment"):
    """Augmentation of training chunks. Streams do not zoom in, since a zoom depends on the labels of one chunk.

    With `window_ms` or `hz`, the windows are drawn: `draws` says whether for each random chunk, for each recording in
    the streams of an epoch, or for both. A value that is listed twice is drawn twice as often. This needs raw
    recordings. Chunks have the same number of steps at every rate, so they cover less time at high rates.

    >>> rvtssm.AugmentConfig(window_ms=[5, 20, 50]).stream.zoom_in_share
    0.0
    """

    flip_prob: float = setting(0.5, at_least=0, at_most=1)
    """Probability that a chunk or a stream is mirrored left to right."""
    zoom_prob: float = setting(0.8, at_least=0, at_most=1)
    """Probability that a random chunk is zoomed, in or out."""
    stream_zoom_prob: float = setting(0.5, at_least=0, at_most=1)
    """Probability that a stream is zoomed out."""
    zoom_in_share: float = setting(0.8, at_least=0, at_most=1)
    """Share of the zooms of random chunks that go in; as in RVT, like the largest zooms."""
    max_zoom_in: float = setting(1.5, at_least=1)
    """Largest factor by which objects grow."""
    max_zoom_out: float = setting(1.2, at_least=1)
    """Largest factor by which objects shrink."""
    window_ms: list[float] | None = setting(None, at_least=0.001, is_filled=True)
    """Window lengths to draw, such as [5,10,20,35,50]; null: as in `windows`."""
    stream_window_ms: list[float] | None = setting(None, at_least=0.001, is_filled=True)
    """Window lengths that streams draw; null: those of window_ms."""
    hz: list[float] | None = setting(None, at_least=0.001, is_filled=True)
    """Rates to draw, such as [20,40,100]; null: as in `windows`."""
    draws: str = setting("random", choices=("random", "stream", "all"))
    """Which chunks draw their windows: random, stream or all; the others use `windows`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_window_ms is not None and (self.draws == "random" or self.window_ms is None):
            needed = "set augment.draws=all and augment.window_ms as well"
            lengths = self.stream_window_ms
            raise UserError("setting.needs", name="augment.stream_window_ms", found=lengths, needed=needed)

    @property
    def stream(self) -> "AugmentConfig":
        """The settings for chunks of streams, which these are for random ones."""
        return replace(self, zoom_prob=self.stream_zoom_prob, zoom_in_share=0.0)


@dataclass
class DataConfig(Settings, section="data"):
    """Loading of batches. Numbers are per process.

    >>> rvtssm.DataConfig(workers=0).eval_batch_size
    8
    """

    workers: int = setting(2, at_least=0)
    """Loader processes; 0: load in the main process."""
    eval_batch_size: int = setting(8, at_least=1)
    """Recordings evaluated in parallel."""
    eval_chunk_length: int = setting(21, at_least=1)
    """Steps per evaluation batch."""


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
        said = values_of(self, (*_READ_KEYS, "label_offset_us"))
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
    return filled(config, {"name": spec.name, "label_offset_us": offset, **values_of(spec, _READ_KEYS)})


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
        folders = [*filter(None, (config.raw_dir, config.prepared_dir))]
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
        name = str(settings.get("dataset", "synthetic"))
        return {"name": name, "height": int(settings["height"]), "width": int(settings["width"])}
