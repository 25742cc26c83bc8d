"""Runs an exported detector with the interface of `Detector`, so that everything that streams can use it."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rvtssm.export.export_detector import (
    EXPORT_AGAIN,
    FORMATS,
    METADATA_KEY,
    PROGRAM,
    format_of,
    quiet,
    read_description,
)
from rvtssm.export.graphs import FOUND
from rvtssm.models import PRECISIONS
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint, detector_for_frame
from rvtssm.models.detector import fastest_precision, head_class, set_precision, usual_device
from rvtssm.models.weight_files import check_digest, local_weights
from rvtssm.system.extras import check_extra
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.limits import check_choice
from rvtssm.system.user_error import UserError, in_one_line

_MAKERS = {".onnx": "ONNX", ".xml": "OpenVINO"}

# One step: frames, step scale and state tensors -> tensors of the predictions, then the next state tensors.
Run = Callable[[list[np.ndarray]], list[np.ndarray]]


def largest_difference(
    checkpoint: LoadedCheckpoint,
    exported: LoadedCheckpoint,
    num_steps: int,
    num_streams: int = 2,
    frames: Sequence[Tensor] = (),
) -> tuple[float, float]:
    """Return how far the predictions of two detectors differ over carried steps at changing rates.

    Step scales lie between 0.1 and 2.

    Args:
        checkpoint: The detector that was exported.
        exported: The exported file.
        num_steps: Number of steps.
        num_streams: Number of streams.
        frames: Frames (C, H, W) that all streams see, over and over; if there are none, counts are drawn at random.

    Returns:
        The largest difference of boxes, relative to the largest box coordinate, and the largest difference of scores.
            NaN if one detector returns NaN.
    """
    height, width = exported.detector.frame_hw
    reference = detector_for_frame(checkpoint, height, width).cpu()
    generator = torch.Generator().manual_seed(0)
    states: list[Any] = [None, None]
    differences = []
    for i in range(num_steps):
        size = (1, num_streams, reference.in_channels, height, width)
        # The same real frame for all streams, or counts at random.
        if frames:
            hist = frames[i % len(frames)].expand(size)
        else:
            hist = torch.randint(0, 11, size, generator=generator).to(torch.uint8)
        scale = 0.1 + 1.9 * torch.rand(1, num_streams, generator=generator)
        compared = []
        for k, detector in enumerate((reference, exported.detector)):
            with torch.no_grad():
                predictions, states[k] = detector(hist, states[k], scale)
            compared.append(detector.head.compared(predictions))
        (exact_boxes, exact_scores), (boxes, scores) = compared
        difference = (boxes - exact_boxes).abs().max() / exact_boxes.abs().max()
        differences.append(torch.stack([difference, (scores - exact_scores).abs().max()]))
    largest = torch.stack(differences).amax(dim=0)
    return float(largest[0]), float(largest[1])


def is_exported(path: Path | str) -> bool:
    """Return whether a path has the suffix of an exported file.

    Args:
        path: The file.
    """
    return str(path).endswith((*FORMATS.values(), PROGRAM))


def chosen_precision(path: Path | str, precision: str) -> str:
    """Return the precision in which weights run.

    Args:
        path: The file of the weights.
        precision: One of PRECISIONS, or `auto`: bf16 for a checkpoint if products are faster in it, else float32.
    """
    if precision != "auto":
        return precision
    if is_exported(path):
        return "float32"
    return fastest_precision(usual_device())


def read_weights_file(path: Path | str, precision: str = "float32") -> LoadedCheckpoint:
    """Return the weights in a checkpoint, on the GPU if there is one, or in an exported file, on the CPU.

    Args:
        path: A file, the name of weights in the package, or `hf://OWNER/NAME`; see `models.weight_files.local_weights`.
        precision: One of `rvtssm.models.PRECISIONS`, or `auto`.

    Raises:
        UserError: If the weights cannot be found or read.
    """
    path, precision = local_weights(path), chosen_precision(path, precision)
    if is_exported(path):
        return read_exported(path, precision)
    checkpoint = read_checkpoint(path, usual_device())
    set_precision(checkpoint.detector, precision)
    return checkpoint


def read_exported(path: Path | str, precision: str = "float32") -> LoadedCheckpoint:
    """Read a file of `rvtssm export` as a checkpoint with an `ExportedDetector`. Such a file is data and runs no code.

    Args:
        path: The file.
        precision: `float32` or `bf16`. In bf16, OpenVINO runs ONNX files as well.

    Raises:
        UserError: If the file is missing, damaged or not such a file, or if a package is missing.
    """
    check_choice("precision", precision, PRECISIONS)
    kind = format_of(path)
    if not Path(path).is_file():
        raise UserError("file.missing", name=path, found="there is no such file", advice="export a checkpoint to it")
    check_digest(path)
    with file_errors(path, " cannot be used", EXPORT_AGAIN, CONTENT_ERRORS), quiet():
        if kind == "openvino" or precision == "bf16":
            run, text = _open_in_openvino(Path(path), precision)
        else:
            run, text = _open_onnx(Path(path))
        meta, description = read_description(text, path)
        detector: Any = ExportedDetector(run, meta, description, str(path))
    return meta.with_detector(detector)


class ExportedDetector(nn.Module):
    """An exported file with the interface of `Detector` in evaluation mode, on the CPU.

    Frames and a state go in, predictions and the next state come out. `head` is the class of the head, whose static
    methods decode predictions without weights.

    Args:
        run: The step of the file.
        meta: The description of the checkpoint.
        description: Size of the frames, names and shapes of the tensors, and `measured` for a file in lower precision.
        name: The file, for messages.
    """

    device = torch.device("cpu")
    is_causal = True  # layers that are not causal have no step to export

    def __init__(self, run: Run, meta: CheckpointMeta, description: dict[str, Any], name: str) -> None:
        super().__init__()
        height, width = description["frame_hw"]
        self.frame_hw = height, width
        self.products: str | None = description.get("measured", {}).get("precision")  # a precision below float32
        self.head = head_class(meta.model_config)
        self.score = str(meta.scored_as.score)
        # Files of earlier versions do not say it; of their layers only the LSTM has no step.
        self.has_step_to_rescale: bool = description.get("has_step_to_rescale", meta.temporal_config.name != "lstm")
        self._run = run
        self._name = name
        self._shapes = [*map(tuple, description["state"].values())]
        self._prediction_shapes: dict[str, list[int]] = description["predictions"]

    def init_state(self, num_streams: int) -> tuple[Tensor, ...]:
        """Return zeros (B * n, ...) for each state tensor of the file, ordered by stream."""
        return tuple(torch.zeros(num_streams * shape[0], *shape[1:]) for shape in self._shapes)

    def empty(self) -> Any:
        """Return the predictions of no frame."""
        return self._predictions([torch.zeros(0, *shape) for shape in self._prediction_shapes.values()])

    def prepare(self, step_scale: float) -> float:
        """Return the step scale unchanged, because the file takes it as an input."""
        return step_scale

    def forward(
        self,
        hist: Tensor,
        state: tuple[Tensor, ...] | None = None,
        step_scale: float | Tensor = 1.0,
        frame_index: Tensor | None = None,
        targets: None = None,
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Run L steps, one at a time. See `Detector.forward`."""
        num_steps, num_streams = hist.shape[:2]
        leaves = [leaf.unflatten(0, (num_streams, -1)) for leaf in state or self.init_state(num_streams)]
        scales = torch.as_tensor(step_scale, dtype=torch.float32).expand(num_steps, num_streams)
        steps = []
        for counts, scale in zip(hist, scales, strict=True):
            predictions, leaves = self._step(counts, scale, leaves)
            steps.append(predictions)
        fields = [*map(torch.cat, zip(*steps, strict=True))]
        if frame_index is not None:
            fields = [field[frame_index[:, 0] * num_streams + frame_index[:, 1]] for field in fields]
        return self._predictions(fields), tuple(leaf.flatten(0, 1) for leaf in leaves)

    def _step(self, hist: Tensor, scale: Tensor, leaves: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors of the predictions of one step, and the next state tensors."""
        inputs = [np.ascontiguousarray(tensor.numpy()) for tensor in (hist, scale, *leaves)]
        try:
            arrays = self._run(inputs)
        except Exception as error:  # the errors of the runtimes have no common class
            found = f"it cannot be run ({in_one_line(error)[:300]})"
            raise UserError("file.content", name=self._name, found=found, advice=EXPORT_AGAIN) from None
        tensors = [*map(torch.from_numpy, arrays)]
        num_predictions = len(self._prediction_shapes)
        # What follows are the objects after suppression, if the file has them: whoever reads it here, selects anew.
        return tensors[:num_predictions], tensors[num_predictions : num_predictions + len(leaves)]

    def _predictions(self, fields: list[Tensor]) -> Any:
        named = dict(zip(self._prediction_shapes, fields, strict=True))
        return self.head.record(**{name: named.get(name) for name in self.head.record._fields})


def _open_onnx(path: Path) -> tuple[Run, str]:
    check_extra(str(path), "export", "onnxruntime")
    import onnxruntime  # an optional package

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other programs use the processors, too
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except Exception:  # the errors of onnxruntime have no common class
        raise _incomplete(path) from None
    names = [value.name for value in session.get_inputs()]
    wanted = [value.name for value in session.get_outputs() if not value.name.startswith(FOUND)]

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        return session.run(wanted, dict(zip(names, inputs, strict=True)))

    return run, session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, "")


@functools.cache
def openvino_core() -> Any:
    """Return OpenVINO's runtime, one for the life of the process.

    Each runtime puts a stack of its own in place of the one that signals are handled on, and frees it when it is
    closed. If two are not closed in reverse order, the next signal ends the process, so none is ever closed here.
    """
    import openvino  # an optional package

    return openvino.Core()


def _open_in_openvino(path: Path, precision: str) -> tuple[Run, str]:
    """Open an .onnx or .xml file. In bf16, the operations after the last product stay in float32: states and boxes.

    OpenVINO compiles for a fixed number of streams, so the file is compiled at the first step with each number.
    """
    check_extra(f"{path} in {precision}", "openvino", "openvino")
    core = openvino_core()
    hint = {"float32": "f32", "bf16": "bf16"}[precision]
    options = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    try:
        model = core.read_model(path)
    except Exception:  # the errors of OpenVINO have no common class
        raise _incomplete(path) from None
    shapes = {value.any_name: value.partial_shape for value in model.inputs}

    @functools.cache
    def compiled(num_streams: int) -> Any:
        model.reshape({name: [num_streams, *list(shape)[1:]] for name, shape in shapes.items()})
        return core.compile_model(model, "CPU", options)

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        results = compiled(len(inputs[0]))(dict(zip(shapes, inputs, strict=True)), share_inputs=True)
        return [array.copy() for array in results.values()]

    where = ["framework", METADATA_KEY]
    return run, model.get_rt_info(where).astype(str) if model.has_rt_info(where) else ""


def _incomplete(path: Path) -> UserError:
    found = f"it is not a complete {_MAKERS[path.suffix]} file"
    return UserError("file.damaged", name=path, found=found, advice=EXPORT_AGAIN)
