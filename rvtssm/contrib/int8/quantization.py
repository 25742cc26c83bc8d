"""Makes an exported ONNX file compute its products in 8 bits. NNCF finds the value ranges on frames of recordings."""

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rvtssm.detection.sources import first_events
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import free_grid
from rvtssm.export.graphs import DetectorStep
from rvtssm.models.checkpoint_meta import fitting_downsample, usual_downsample
from rvtssm.records import DatasetSpec, Events, Windows, WindowSettings
from rvtssm.system.user_error import UserError

_FAST = 10  # the higher rate, in rates of training; its windows overlap and are as long as in training
_LEAST = 20  # fewest windows per recording and rate, since the first ones start from zero and hold few events
_WINDOWS = 200  # of all recordings together; half of them at ten times the rate of training
_MOST_STEPS = 20_000  # far above _WINDOWS
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_LAYOUTS = ("Reshape", "Resize", "Slice", "Transpose")


@dataclass(frozen=True)
class CarriedSteps:
    """The inputs of a file by name, for each step. The state is carried through a sequence of frames (T, C, H, W)."""

    step: DetectorStep
    sequences: Iterable[tuple[np.ndarray, float]]  # frames of each sequence, and their step scale
    show: Callable[[str], object] = lambda text: None  # called with how many windows were seen

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        num_seen = 0
        for frames, scale in self.sequences:
            state = self.step.init_state(1)
            for frame in frames:
                hist = torch.from_numpy(frame[None])
                step_scale = torch.tensor([scale], dtype=torch.float32)
                named = zip(self.step.state_names, state, strict=True)
                yield {"hist": hist.numpy(), "step_scale": step_scale.numpy()} | {n: s.numpy() for n, s in named}
                num_seen += 1
                self.show(f"finding the ranges of values in {num_seen} windows")
                with torch.no_grad():
                    _, state = self.step(hist, step_scale, state)


def quantize_detector(
    path: Path,
    step: DetectorStep,
    frames: Iterable[tuple[np.ndarray, float]],
    show: Callable[[str], object] = lambda text: None,
) -> None:
    """Replace an ONNX file of a step by one in 8 bits, see `quantize`.

    Args:
        path: The file.
        step: The step that it computes.
        frames: Frames (T, C, H, W) of consecutive windows with their step scale.
        show: Called with what is going on.
    """
    quantize(path, CarriedSteps(step, frames, show))


def quantize(path: Path, steps: CarriedSteps) -> None:
    """Replace an ONNX file by one whose products take weights and activations of 8 bits.

    Everything on a path from a state to the same state afterwards stays in float32, as do the last products before the
    predictions, and everything that is not a product. Weights have one scale per output channel and use half of the
    range, because on processors without VNNI, the sum of two products of full 8-bit numbers overflows its 16 bits.

    Args:
        path: The file.
        steps: Steps from which the value ranges are found.
    """
    import onnx  # an optional package

    steps.show("loading NNCF")
    nncf = _without_telemetry()
    model = onnx.load(path)
    # NNCF rounds every product except those that decide states and boxes directly.
    del model.graph.value_info[:]  # its shapes have named dimensions, which NNCF cannot read
    unchanged = _recurrent(model.graph) | _last_products(model.graph)
    exact = [node.name for node in model.graph.node if node.op_type not in _PRODUCTS or node.name in unchanged]
    with contextlib.redirect_stdout(io.StringIO()):  # the progress bars of NNCF cannot be switched off
        quantized = nncf.quantize(
            model,
            nncf.Dataset(steps),
            subset_size=_MOST_STEPS,
            ignored_scope=nncf.IgnoredScope(names=exact),
            advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE),
        )
    steps.show("writing products of 8 bits")
    _without_sign_after_concat(quantized.graph)
    _without_flat_products(quantized.graph)
    path.write_bytes(quantized.SerializeToString())


def _without_sign_after_concat(graph: Any) -> None:
    """Quantise to uint8 with a zero point 128 higher, instead of to int8, where the tensor comes from a concatenation.

    The values are the same. OpenVINO 2026.4 mistakes int8 for uint8 there, which sets all negative values to zero.
    """
    import onnx  # an optional package

    del graph.value_info[:]  # dtypes of intermediate tensors, which follow from the nodes
    makers = {name: node for node in graph.node for name in node.output}
    zero_points = {value.name: value for value in graph.initializer if value.data_type == onnx.TensorProto.INT8}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[2] in zero_points:
            before = makers.get(node.input[0])
            while before is not None and before.op_type in _LAYOUTS:
                before = makers.get(before.input[0])
            if before is not None and before.op_type == "Concat":
                zero_point = zero_points.pop(node.input[2])
                raised = (onnx.numpy_helper.to_array(zero_point).astype(np.int16) + 128).astype(np.uint8)
                zero_point.CopyFrom(onnx.numpy_helper.from_array(raised, zero_point.name))


def _without_flat_products(graph: Any) -> None:
    """Compute products of flat rows in the shape that they get afterwards: Gemm, Reshape become Reshape, MatMul.

    The numbers are the same. OpenVINO 2026.4 cannot compile a product of 8 bits, with a scale for each column, before
    a Reshape from (B n, D) to (B, n, D), unless it knows the number of streams B.
    """
    import onnx  # an optional package

    makers = {name: node for node in graph.node for name in node.output}
    stored = {value.name: value for value in graph.initializer}
    readers = dict[str, list[Any]]()
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for gemm in graph.node:
        after = readers.get(gemm.output[0], [])
        is_flat = gemm.op_type == "Gemm" and [node.op_type for node in after] == ["Reshape"]
        if not is_flat or len(gemm.input) == 3:  # with a bias it compiles
            continue
        weight = makers[gemm.input[1]]
        shape = onnx.numpy_helper.to_array(stored[after[0].input[1]]).copy()
        if weight.op_type != "DequantizeLinear" or stored[weight.input[0]].dims[0] != shape[-1]:
            continue
        # The weight (D, C) of Gemm has a scale for each row, that of MatMul (C, D) one for each column.
        transposed = onnx.numpy_helper.to_array(stored[weight.input[0]]).T.copy()
        stored[weight.input[0]].CopyFrom(onnx.numpy_helper.from_array(transposed, weight.input[0]))
        weight.attribute[0].i = 1
        shape[-1] = len(transposed)
        graph.initializer.append(onnx.numpy_helper.from_array(shape, f"{gemm.name}_shape"))
        rows = onnx.helper.make_node("Reshape", [gemm.input[0], f"{gemm.name}_shape"], [f"{gemm.name}_rows"])
        product = onnx.helper.make_node("MatMul", [*rows.output, gemm.input[1]], after[0].output, gemm.name)
        gemm.CopyFrom(rows)
        after[0].CopyFrom(product)


def _recurrent(graph: Any) -> set[str]:
    """Return the names of the nodes on a path from a state to the same state afterwards.

    The tensors of one layer share a name up to their number: `state_4_0` and `state_4_1`.
    """
    names = set()
    layers = {"_".join(value.name.split("_")[:2]) for value in graph.input if value.name.startswith("state_")}
    for layer in layers:
        after_state = {value.name for value in graph.input if _is_of(value.name, layer)}
        before_next = {value.name for value in graph.output if _is_of(value.name, f"next_{layer}")}
        later = []
        for node in graph.node:  # nodes are in the order of computation
            if after_state.intersection(node.input):
                after_state.update(node.output)
                later.append(node)
        for node in reversed(later):
            if before_next.intersection(node.output):
                before_next.update(node.input)
                names.add(node.name)
    return names


def _last_products(graph: Any) -> set[str]:
    """Return the names of the products with no other product between them and the predictions, boxes or scores."""
    names = set()
    before = {value.name for value in graph.output if not value.name.startswith("next_")}
    for node in reversed(graph.node):
        if before.intersection(node.output):
            if node.op_type in _PRODUCTS:
                names.add(node.name)
            else:
                before.update(node.input)
    return names


def _is_of(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}_")


def _without_telemetry() -> Any:
    """Import NNCF so that it does not report its use over the network."""
    os.environ.setdefault("NNCF_CI", "1")
    import nncf  # an optional package

    nncf.set_log_level(logging.ERROR)
    return nncf


@dataclass(frozen=True)
class CalibrationFrames:
    """The first windows of recordings, at the rate of training and at ten times that rate.

    If there are more recordings than can give 20 windows each at both rates, some of them are chosen, evenly spread
    over the list. Each iteration reads the recordings again, so that the frames of only one recording are in memory.
    """

    paths: tuple[str, ...]
    spec: DatasetSpec
    windows: WindowSettings  # how events became frames in training
    frame_hw: tuple[int, int]  # height and width of the frames of the file, in pixels
    num_windows: int = _WINDOWS  # number of windows in all recordings and rates together, rounded up

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield frames (T, C, H, W) of consecutive windows with their step scale."""
        num_each, opened = self._recordings()
        for events, sensor_hw, downsample in opened:
            for speed, settings, grid in self._grids(events, num_each):
                yield count_windows(events, grid, *sensor_hw, settings, downsample), 1 / speed

    def check(self) -> list[int]:
        """Read each chosen recording once, and return its number of windows.

        Raises:
            UserError: If a recording has frames of another size than the file.
        """
        num_windows, opened = self._recordings()
        counts = []
        for events, *_ in opened:
            counts.append(sum(len(grid) for *_, grid in self._grids(events, num_windows)))
        return counts

    def _grids(self, events: Events, num_windows: int) -> Iterator[tuple[int, WindowSettings, Windows]]:
        """Yield both rates, in rates of training, with their settings and the first windows of a recording."""
        for speed in (1, _FAST):
            settings = self.windows if speed == 1 else self.windows.at_rate(speed * self.windows.hz, "slide")
            yield speed, settings, free_grid(int(events.t[0]), int(events.t[-1]), settings)[:num_windows]

    def _recordings(self) -> tuple[int, Iterator[tuple[Events, tuple[int, int], int]]]:
        """Return the number of windows per recording and rate, and each recording.

        A recording is its events, the height and width of its sensor in pixels, and its downsampling.
        """
        count = min(len(self.paths), max(1, self.num_windows // (2 * _LEAST)))
        num_each = -(-self.num_windows // (2 * count))
        chosen = [self.paths[i * len(self.paths) // count] for i in range(count)]
        return num_each, (self._opened(path, num_each * self.windows.stride_us / 1e6) for path in chosen)

    def _opened(self, path: str, seconds: float) -> tuple[Events, tuple[int, int], int]:
        events, sensor_hw, _ = first_events(path, seconds, (self.spec.height, self.spec.width))
        downsample = fitting_downsample(sensor_hw, self.frame_hw) or usual_downsample(self.spec, *sensor_hw)
        height, width = (side // downsample for side in sensor_hw)
        if (height, width) != self.frame_hw:
            needed = (
                f"it has frames of {width} x {height} pixels, but the file is for "
                f"{self.frame_hw[1]} x {self.frame_hw[0]}"
            )
            advice = f"give other recordings, or export.height={height} export.width={width}"
            raise UserError("setting.conflict", name="export.calibrate", found=path, needed=needed, advice=advice)
        return events, sensor_hw, downsample

    def first(self, num_frames: int) -> list[np.ndarray]:
        """Return the first frames (C, H, W), at most `num_frames` of them."""
        return list(islice((frame for frames, _ in self for frame in frames), num_frames))
