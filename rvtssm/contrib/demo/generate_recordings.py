"""Generates the simulated datasets in parallel: recordings with boxes."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.scene import build_scene
from rvtssm.contrib.demo.simulation_config import CameraConfig, SyntheticConfig
from rvtssm.datasets import DATASETS
from rvtssm.datasets.custom import GENERATED_FILE
from rvtssm.events.labels import BOX_DTYPE, Boxes, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.readers.header import LARGEST_SIDE
from rvtssm.records import DatasetSpec, Events
from rvtssm.records.settings import SPLITS
from rvtssm.system.files import remove_abandoned
from rvtssm.system.output_folder import claim
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import run_all


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulated dataset, and how a recording of it is made."""

    spec: DatasetSpec
    recipe: int  # increased when the same settings give other recordings than before
    # Settings, split, number in the split and size of the sensor, on which the events and the boxes depend alone.
    draw: Callable[[Any, str, int, tuple[int, int]], tuple[Iterable[Events], Boxes]]
    unread: tuple[str, ...] = ()  # settings that do not change the recordings
    facts: Mapping[str, object] = field(default_factory=dict)  # what else the recordings depend on

    def sized(self, height: int, width: int) -> "Simulation":
        """Return the same dataset with another sensor. Raise UserError if a scene or a file cannot have this size."""
        if min(height, width) < 16 or max(height, width) > LARGEST_SIDE:
            raise UserError(
                "setting.out_of_range", name="dataset.height, dataset.width", found=f"{height} x {width}",
                needed=f"16 to {LARGEST_SIDE} pixels per side, for a scene and its file",
            )  # fmt: skip
        return replace(self, spec=replace(self.spec, height=height, width=width))


def generate_dataset(
    config: SyntheticConfig,
    raw_dir: Path | str,
    simulation: Simulation | None = None,
    progress: bool = True,
    only: Collection[str] | None = None,
) -> list[str]:
    """Write `raw_dir/{train,val,test}/<name>_td.dat` and `<name>_bbox.npy`, in parallel over recordings.

    Complete recordings are skipped.

    Args:
        config: What to generate.
        raw_dir: The folder.
        simulation: How a recording is made. None means dataset=synthetic.
        progress: Whether to show the progress.
        only: The recordings to write, as `split/name`; None means all.

    Returns:
        The names of the recordings that were written.

    Raises:
        UserError: The folder holds recordings of other settings, or a worker process was killed.
    """
    config.check()
    raw_dir, simulation = Path(raw_dir), simulation or SYNTHETIC
    _check_folder(raw_dir, config, simulation)
    remove_abandoned(raw_dir)
    written, tasks = [], []
    for split in SPLITS:
        (raw_dir / split).mkdir(exist_ok=True)
        for index in range(config.num_recordings(split)):
            key = f"{split}/{_name(split, index)}"
            is_complete = _boxes_path(raw_dir, split, index, simulation).exists()  # boxes are written last
            if not is_complete and (only is None or key in only):
                tasks.append((key, _write, (config, raw_dir, split, index, simulation)))
    try:
        for done in run_all(tasks, config.workers, "generating" if progress else None):
            if done.error is not None:
                raise done.error
            written.append(done.key)
    finally:
        remove_abandoned(raw_dir)  # files of workers that were killed
    return sorted(written)


def generate(
    raw_dir: str | Path,
    *,
    height: int = DATASETS["synthetic"].height,
    width: int = DATASETS["synthetic"].width,
    **settings: Any,
) -> list[str]:
    """Write simulated recordings with boxes, as `rvtssm generate` does, and return the names of the new ones.

    >>> rvtssm.generate("street", num_train=1, num_val=1, num_test=1, duration_s=1, height=64, width=96, workers=1)
    ['test/test_0000', 'train/train_0000', 'val/val_0000']

    Args:
        raw_dir: The folder.
        height: Height of the sensor in pixels; None: 120.
        width: Width of the sensor in pixels; None: 160.
        **settings: Fields of `SyntheticConfig`, such as sensor="davis346".

    Raises:
        UserError: A setting is out of range, or the folder holds recordings of other settings.
    """
    spec = DATASETS["synthetic"]
    simulation = SYNTHETIC.sized(height or spec.height, width or spec.width)
    return generate_dataset(SyntheticConfig(**settings), raw_dir, simulation, progress=False)


def simulated_recording(
    config: SyntheticConfig, split: str, index: int, sensor_hw: tuple[int, int] = DATASETS["synthetic"].sensor_hw
) -> tuple[Iterable[Events], Boxes]:
    """Return the events, in blocks, and the boxes of one recording by `Simulation.draw`.

    A box contains the whole object exactly at its time, clipped to the frame. The first label is at 100 ms or just
    after.
    """
    is_moving = config.is_ego_moving(index)
    scene_rng, camera_rng = random_generators(config, split, index)
    scene = build_scene(*sensor_hw, config.duration_us, config.scene, scene_rng, is_moving)
    camera = drawn_camera(config.camera, camera_rng)
    return simulate_events(scene.frames(), camera, camera_rng), boxes_of(scene, config, DATASETS["synthetic"])


SYNTHETIC = Simulation(DATASETS["synthetic"], recipe=1, draw=simulated_recording)


def random_generators(config: SyntheticConfig, split: str, index: int, attempt: int = 0) -> list[np.random.Generator]:
    """Return the generators of the random numbers of a scene and of its camera.

    Args:
        config: What to generate; its seed counts.
        split: `train`, `val` or `test`.
        index: Number of the recording in its split.
        attempt: Number of the scene, if earlier ones of this recording were of no use.
    """
    words = (config.seed, SPLITS.index(split), index, *([attempt] if attempt else []))
    return [np.random.default_rng(sequence) for sequence in np.random.SeedSequence(words).spawn(2)]


class Labelled(Protocol):
    """A scene that knows where its objects are."""

    def boxes(self, t_us: int, min_side_px: float, min_diagonal_px: float) -> Boxes:
        """Return the boxes at a time that are large enough."""


def boxes_of(scene: Labelled, config: SyntheticConfig, spec: DatasetSpec) -> Boxes:
    """Return the boxes of a scene at all label times that are large enough for a dataset."""
    sides = (spec.prepare_min_side_px, spec.prepare_min_diagonal_px)
    drawn = np.concatenate([scene.boxes(t_us, *sides) for t_us in config.label_times_us])
    boxes = np.zeros(len(drawn), BOX_DTYPE)  # zeros also between fields, so that equal boxes give equal files
    for name in BOX_DTYPE.names or ():
        boxes[name] = drawn[name]
    return boxes


def _check_folder(raw_dir: Path, config: SyntheticConfig, simulation: Simulation) -> None:
    """Write the settings into a new folder, or compare them with the settings of an existing folder.

    A setting that an existing folder does not mention is newer than the folder, so it had its default value.
    """
    settings = {"recipe": simulation.recipe, "dataset": simulation.spec.name, **asdict(config)}
    settings |= {"camera": asdict(config.camera), "scene": asdict(config.scene)}
    settings |= {"height": simulation.spec.height, "width": simulation.spec.width, **simulation.facts}
    for unread in ("workers", "sensor", "num_actors", "stopping_share", *simulation.unread):
        del settings[unread]

    def completed(earlier: dict[str, Any]) -> dict[str, Any]:
        usual = {**asdict(type(config)()), "camera": asdict(CameraConfig())}
        nested: dict[str, Any] = {}
        for name in {"camera", "world"} & settings.keys():
            nested[name] = {**usual[name], **earlier.get(name, {})}
        return {"dataset": "synthetic", **earlier, **nested}

    claim(raw_dir / GENERATED_FILE, settings, any((raw_dir / split).exists() for split in SPLITS), completed)


def _write(config: SyntheticConfig, raw_dir: Path, split: str, index: int, simulation: Simulation) -> None:
    sensor_hw = simulation.spec.sensor_hw
    events, boxes = simulation.draw(config, split, index, sensor_hw)
    path = raw_dir / split / f"{_name(split, index)}{simulation.spec.event_suffixes[0]}"
    write_dat(path, events, *sensor_hw)
    write_boxes(_boxes_path(raw_dir, split, index, simulation), boxes)


def _name(split: str, index: int) -> str:
    return f"{split}_{index:04d}"


def _boxes_path(raw_dir: Path, split: str, index: int, simulation: Simulation) -> Path:
    return raw_dir / split / f"{_name(split, index)}{simulation.spec.boxes_suffix}"
