"""Makes an exported ONNX file compute its products in 8 bits. NNCF finds the value ranges on calibration frames."""

import contextlib
import io
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rvtssm.export.real_detector import DetectorStep

_MOST_STEPS = 20_000  # far above CALIBRATION_WINDOWS
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_LAYOUTS = ("Reshape", "Resize", "Slice", "Transpose")


@dataclass(frozen=True)
class CarriedSteps:
    """The inputs of a file by name, for each step. The state is carried through a sequence of frames (T, C, H, W)."""

    step: DetectorStep
    sequences: Iterable[tuple[np.ndarray, float]]  # frames of each sequence, and their step scale

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for frames, scale in self.sequences:
            state = self.step.init_state(1)
            for frame in frames:
                hist, step_scale = torch.from_numpy(frame[None]), torch.tensor([scale], dtype=torch.float32)
                named = zip(self.step.state_names, state, strict=True)
                yield {"hist": hist.numpy(), "step_scale": step_scale.numpy()} | {n: s.numpy() for n, s in named}
                with torch.no_grad():
                    _, state = self.step(hist, step_scale, state)


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

    nncf = _without_telemetry()
    model = onnx.load(path)
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
    _without_sign_after_concat(quantized.graph)
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
    names, before = set(), {value.name for value in graph.output if not value.name.startswith("next_")}
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
