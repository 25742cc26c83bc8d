"""What the fuzz attacks: a small valid file of every kind that is read, and a function that reads all of it."""

import functools
import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import onnx
import torch
from event_examples import HEIGHT, SPEC, WIDTH, boxes_of, random_events, read_label_file

from rvtssm.datasets import custom
from rvtssm.datasets.store import open_sequence
from rvtssm.events.label_rules import clean_boxes, unusable_boxes
from rvtssm.export.export_detector import METADATA_KEY
from rvtssm.export.exported import read_exported
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.readers import open_recording
from rvtssm.readers.piped import PipedRecording
from rvtssm.records import ReadOptions, WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.system.user_error import UserError
from tests.contrib.ros import bag_writer
from tests.datasets.test_store import example_content, write
from tests.events.test_label_files import TIMED, WRITE
from tests.readers.format_encoders import WRITERS, write_aedat4

EVENTS = random_events(300)
STREAM = "the sender"  # stands for a stream in messages
_NUM_ROWS = 6
_RVT_HISTOGRAMS = "event_representations_v2/stacked_histogram_dt=50_nbins=10"
_RVT_FILES = (  # below the folder of a recording
    f"{_RVT_HISTOGRAMS}/event_representations.h5",
    f"{_RVT_HISTOGRAMS}/timestamps_us.npy",
    "labels_v2/labels.npz",
)
_META = CheckpointMeta(
    SPEC,
    ModelConfig(size="custom", embed_dim=4, head_dim=4, num_blocks=(0, 0, 0, 0), fpn_blocks=0),
    TemporalConfig(name="s4d", state_size=4),
    WindowSettings(50_000, None, "exact", 1, 10),
)


@dataclass(frozen=True)
class Target:
    """A kind of file: its name, how a valid file is written, how all of it is read, and how content becomes a file."""

    file: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    packed: Callable[[bytes], bytes] = bytes  # for what lies inside an archive, whose check sums would tell
    is_in_folder: bool = False  # files of the folder that the file begins with refer to each other

    def named(self, path: Path) -> Path:
        """Return what a message must name: the file, or the folder of files that it belongs to."""
        return path.parents[len(Path(self.file).parts) - 2] if self.is_in_folder else path


def _read_events(path: Path) -> None:
    size = () if "dsec" in path.name else (HEIGHT, WIDTH)  # that sensor has another size
    recording = open_recording(path, *size)
    try:
        for events in recording.iterate(1 << 8):
            assert np.all(np.diff(events.t) >= 0) and np.isin(events.p, (0, 1)).all()
            assert not len(events) or (events.x.max() < recording.width and events.y.max() < recording.height)
        first_us, last_us = recording.time_range_us
        middle_us = (first_us + last_us) // 2
        assert (recording.between(middle_us, middle_us + 100_000).t >= middle_us).all()
    finally:
        recording.close()


def _read_stream(path: Path) -> None:
    piped = PipedRecording(io.BufferedReader(io.BytesIO(path.read_bytes())), STREAM, ReadOptions(HEIGHT, WIDTH))
    for events in piped.blocks():
        assert np.all(np.diff(events.t) >= 0)
    if piped.broke_off:
        raise UserError("source.broke_off", piped.broke_off)


def _write_prepared(path: Path) -> None:
    write(path, example_content())


def _read_prepared(path: Path) -> None:
    sequence = open_sequence(path)
    try:
        sequence.settings  # noqa: B018
        sequence.check_frames()
        sequence.histograms(0, len(sequence.windows))
    finally:
        sequence.close()


def _write_weights(path: Path) -> None:
    torch.manual_seed(0)
    write_checkpoint(path, _META.build(), _META)


def _write_weights_without_digest(path: Path) -> None:
    _write_weights(path)
    path.write_bytes(path.read_bytes().replace(b"sha256:", b"sha255:"))


@functools.cache
def _records() -> dict[str, bytes]:
    """Return the content of a checkpoint by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.ckpt"
        _write_weights(path)
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _is_pickle(name: str) -> bool:
    return name.endswith("/data.pkl")


def _write_pickle(path: Path) -> None:
    path.write_bytes(next(content for name, content in _records().items() if _is_pickle(name)))


def _archive(records: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return file.getvalue()


def _packed_pickle(data: bytes) -> bytes:
    """Return a checkpoint whose check sums are right and whose description is `data`."""
    return _archive({name: data if _is_pickle(name) else content for name, content in _records().items()})


def _packed_npz(data: bytes) -> bytes:
    """Return an archive of events whose check sums are right and whose times are `data`."""
    file = io.BytesIO()
    np.savez(file, x=EVENTS.x, y=EVENTS.y, p=EVENTS.p, height=HEIGHT, width=WIDTH)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("t.npy", data)
    return file.getvalue()


def _write_times(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, EVENTS.t)


def _read_labels(path: Path) -> None:
    boxes = read_label_file(path, TIMED if path.suffix == ".txt" else SPEC, 1_000_000)
    unusable_boxes(boxes, SPEC, is_train=True)
    for convention in ("rvt", "exact"):
        clean_boxes(boxes, SPEC, convention, is_train=True)


def _write_description(path: Path) -> None:
    path.write_text(
        "classes: [cat, dog]\nheight: 60\nwidth: 80\nclass_ids: [3, 1]\nmin_side_px: 2.5\nskip_us: 10\ndownsample: 2\n"
        "event_suffixes: [.raw]\nlabels: .json\nsplit_sources: {val: [train/x*]}\nevents_dir: e\nboxes_dir: b\n"
    )


def _write_onnx(path: Path, description: str | None = None) -> None:
    """Write a model of a few nodes with the inputs and outputs of an exported detector."""
    count, scale, state = (
        onnx.helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("hist", onnx.TensorProto.UINT8, ("B", 2, HEIGHT, WIDTH)),
            ("step_scale", onnx.TensorProto.FLOAT, ("B",)),
            ("state_0", onnx.TensorProto.FLOAT, ("B", 1, 3, 4)),
        )
    )
    rows, after = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("rows", ("B", _NUM_ROWS, 7)), ("after_0", ("B", 1, 3, 4)))
    )
    nodes = [
        onnx.helper.make_node("Cast", ["hist"], ["counts"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("ReduceMean", ["counts"], ["mean"], keepdims=0),
        onnx.helper.make_node("Mul", ["weight", "mean"], ["scaled"]),
        onnx.helper.make_node("Add", ["scaled", "weight"], ["rows"]),
        onnx.helper.make_node("Add", ["state_0", "mean"], ["after_0"]),
    ]
    weight = np.random.default_rng(0).random((1, _NUM_ROWS, 7), np.float32)
    graph = onnx.helper.make_graph(
        nodes, "step", [count, scale, state], [rows, after], [onnx.numpy_helper.from_array(weight, "weight")]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.helper.set_model_props(model, {METADATA_KEY: description or _onnx_description()})
    onnx.save(model, path)


def _onnx_description() -> str:
    description = {
        "checkpoint": _META.to_dict(),
        "frame_hw": [HEIGHT, WIDTH],
        "state": {"state_0": [1, 3, 4]},
        "predictions": {"rows": [_NUM_ROWS, 7]},
    }
    return json.dumps(description)


def _packed_onnx(data: bytes) -> bytes:
    """Return a model whose description is `data`."""
    with tempfile.TemporaryDirectory() as folder:
        _write_onnx(Path(folder) / "a.onnx", data.decode(errors="replace"))
        return (Path(folder) / "a.onnx").read_bytes()


def _read_onnx(path: Path) -> None:
    detector = read_exported(path).detector
    detector(torch.zeros(1, 1, 2, HEIGHT, WIDTH, dtype=torch.uint8))
    detector.empty()


def _write_rvt(path: Path) -> None:
    """Write all files of a recording that RVT prepared; `path` is one of them."""
    times_us = 50_000 * np.arange(1, 5)
    root = next(folder for folder in path.parents if folder.name.startswith("rvt_"))
    frames, times, labels = (root / name for name in _RVT_FILES)
    for file in (frames, labels):
        file.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with h5py.File(frames, "w") as file:
        data = rng.integers(0, 3, (4, 20, HEIGHT, WIDTH), np.uint8) * (rng.random((4, 20, HEIGHT, WIDTH)) < 0.02)
        file.create_dataset("data", data=data, chunks=(1, 20, HEIGHT, WIDTH), **hdf5plugin.Blosc("zstd", 1))
    np.save(times, times_us)
    boxes = boxes_of(*((t_us, 8, 6, 20, 30) for t_us in times_us[1:3]), class_id=1)
    np.savez(labels, labels=boxes, objframe_idx_2_label_idx=np.arange(2))


def _write_rvt_labels(path: Path) -> None:
    """Write what lies in the archive of labels."""
    _write_rvt(path)
    with zipfile.ZipFile(path) as archive:
        path.write_bytes(archive.read("labels.npy"))


def _packed_rvt_labels(data: bytes) -> bytes:
    return _archive({"labels.npy": data})


def _read_rvt(path: Path) -> None:
    root = next(folder for folder in path.parents if folder.name.startswith("rvt_"))
    mutant = path.read_bytes()
    if not all((root / name).exists() for name in _RVT_FILES):
        _write_rvt(path)
        path.write_bytes(mutant)
    sequence = open_sequence(root, SPEC)
    try:
        sequence.settings  # noqa: B018
        sequence.histograms(0, len(sequence.windows))
    finally:
        sequence.close()


def _write_bag(path: Path, container: str, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bag = bag_writer.write_events(Path(folder) / "a", EVENTS, container, kind, "evt3", per_message=100)
        path.write_bytes(bag.read_bytes())


_FILES = {
    **{"dat": "a_td.dat", "evt2": "a.raw", "evt21": "a.raw", "evt3": "a.raw", "ecf": "a.hdf5", "rvt_hdf5": "a.h5"},
    **{"dsec": "dsec.h5", "aedat4": "a.aedat4", "npy": "a.npy", "npz": "a.npz", "csv": "a.csv"},
}
_FORMATS: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{name: (file, partial(WRITERS[name], events=EVENTS)) for name, file in _FILES.items()},
    **{f"aedat4 {code}": ("a.aedat4", partial(write_aedat4, events=EVENTS, compression=code)) for code in (0, 3)},
    **{
        f"{container} {kind.partition('/')[0]}": (
            f"bag.{container}",
            partial(_write_bag, container=container, kind=kind),
        )
        for container in bag_writer.CONTAINERS
        for kind in (bag_writer.DVS, bag_writer.EVENT_PACKET)
    },
}
TARGETS: dict[str, Target] = {
    **{name: Target(file, write, _read_events) for name, (file, write) in _FORMATS.items()},
    "npz member": Target("a.npz", _write_times, _read_events, _packed_npz),
    **{f"stream {name}": Target(*_FORMATS[name], _read_stream) for name in ("dat", "evt2", "evt21", "evt3")},
    "prepared": Target("a.h5", _write_prepared, _read_prepared),
    "ckpt": Target("a.ckpt", _write_weights, read_checkpoint),
    "ckpt member": Target("a.ckpt", _write_pickle, read_checkpoint, _packed_pickle),
    "safetensors": Target("a.safetensors", _write_weights, read_checkpoint),
    "safetensors without digest": Target("a.safetensors", _write_weights_without_digest, read_checkpoint),
    "onnx": Target("a.onnx", _write_onnx, _read_onnx),
    "onnx description": Target("a.onnx", lambda path: path.write_text(_onnx_description()), _read_onnx, _packed_onnx),
    "rvt frames": Target(f"rvt_frames/{_RVT_FILES[0]}", _write_rvt, _read_rvt, is_in_folder=True),
    "rvt times": Target(f"rvt_times/{_RVT_FILES[1]}", _write_rvt, _read_rvt, is_in_folder=True),
    "rvt labels": Target(
        f"rvt_labels/{_RVT_FILES[2]}", _write_rvt_labels, _read_rvt, _packed_rvt_labels, is_in_folder=True
    ),
    **{f"labels {suffix}": Target(f"a{suffix}", write, _read_labels) for suffix, write in WRITE.items()},
    "dataset.yaml": Target(custom.FILE, _write_description, lambda path: custom.read_spec(path.parent)),
}


def valid_file(name: str, folder: Path) -> bytes:
    """Write a valid file of a target into `folder`, and return the bytes that are mutated."""
    path = folder / TARGETS[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    TARGETS[name].write(path)
    return path.read_bytes()
