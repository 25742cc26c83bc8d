"""The graphs of exported files: one step of a detector over real tensors, and the suppression of its boxes.

`DetectorStep` takes frames, step scale and state, and gives predictions and the next state. `suppression_graph` gives
the boxes of `rvtssm predict`. It is `rvtssm.models.postprocess`, line by line; `apart` moves boxes of different classes
away from each other, as there. Source of the operators: https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector, head_class
from rvtssm.models.yolox import YoloxHead
from rvtssm.system.user_error import UserError


class DetectorStep(nn.Module):
    """The step that is exported. All tensors are real. B streams run at once, each with its own step scale.

    State tensors are (B, n, ...), where n is the number of pixels of a map. `state_names` lists them in order, and
    `prediction_names` lists the tensors of the predictions.

    Args:
        detector: The detector, which is copied.

    Raises:
        UserError: If a temporal layer has no such step.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.deepcopy(detector).eval()
        self.detector.backbone.to_real_step()
        self.prediction_names = [name for name, field in detector.empty()._asdict().items() if field is not None]
        zero = self.detector.init_state(1)
        strides = detector.backbone.temporal_layers()
        self._layout = [_names(state, f"state_{stride}") for stride, state in zip(strides, zero, strict=True)]
        self._shapes = [tuple(leaf.shape) for leaf in _leaves(zero)]  # for one stream

    @property
    def state_names(self) -> list[str]:
        """The names of the state tensors, in order."""
        return list(chain.from_iterable(self._layout))

    def init_state(self, num_streams: int) -> list[Tensor]:
        """Return zeros for each state tensor, in the order of `state_names`."""
        like = next(self.detector.parameters())
        return [like.new_zeros(num_streams, *shape) for shape in self._shapes]

    def forward(self, hist: Tensor, step_scale: Tensor, state: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Run one step.

        Args:
            hist: Frames (B, C, H, W).
            step_scale: The step relative to training, (B,).
            state: State tensors (B, n, ...), in the order of `state_names`.

        Returns:
            The tensors of the predictions (B, ...), and the next state tensors.
        """
        num_streams = hist.shape[0]
        rest = list(state)
        for tensor in (step_scale, *state):  # so that the exported graph has one symbol for the batch
            torch._check(tensor.shape[0] == num_streams)
        nested = []
        for names in self._layout:
            leaves = [rest.pop(0).flatten(0, 1) for _ in names]
            nested.append(leaves[0] if len(names) == 1 else tuple(leaves))
        # Prepared steps, because a step scale whose value is read would become a constant of the exported graph.
        scales = (step_scale,) * len(nested)
        predictions, after = self.detector(hist[None], tuple(nested), scales)
        fields = [field for field in predictions if field is not None]
        return fields, [leaf.unflatten(0, (num_streams, -1)) for leaf in _leaves(after)]


def _leaves(states: Iterable[Any]) -> list[Tensor]:
    """Return the tensors of the states of all layers, in order."""
    leaves: list[Tensor] = []
    for state in states:
        leaves.extend([state] if isinstance(state, Tensor) else state)
    return leaves


def _names(state: Any, name: str) -> list[str]:
    if isinstance(state, Tensor):
        return [name]
    return [f"{name}_{i}" for i in range(len(state))]


FOUND = "found_"  # begins the names of the outputs: boxes, scores, classes and streams of all N objects
_GRAPH = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
suppression (float[batch, places, columns] rows) => (
    float[found, 4] found_boxes, float[found] found_scores, int64[found] found_classes, int64[found] found_streams
)
<
    int64[4] columns = {{2, 2, 1, {num_classes}}}, int64[2] halves = {{2, 2}}, int64[2] sides = {{1, 1}},
    int64[3] parts = {{1, 1, 1}}, int64[1] one = {{1}}, int64[1] last = {{2}}, int64[1] flat = {{-1}},
    float two = {{2.0}}, float apart_px = {{1.0}}, float zero = {{0.0}}, float none = {{-1.0}},
    float min_score = {{{min_score}}}, float above_none = {{-0.5}}, float nms_iou = {{{nms_iou}}},
    float lowest = {{{lowest}}}, float highest = {{{highest}}},
    int64 most = {{{most}}}, float[4] edges = {{{width}, {height}, {width}, {height}}}
>
{{
    centre, size, objectness_logit, class_logits = Split <axis = 2> (rows, columns)
    half = Div (size, two)
    near = Sub (centre, half)
    far = Add (centre, half)
    xyxy = Concat <axis = 2> (near, far)
    objectness = Sigmoid (objectness_logit)
    class_probabilities = Sigmoid (class_logits)
    probability, class = TopK <axis = 2> (class_probabilities, one)
    product = Mul (objectness, probability)
    is_above = GreaterOrEqual (product, min_score)
    score = Where (is_above, product, none)
    xyxy_or_low = Where (is_above, xyxy, lowest)
    xyxy_or_high = Where (is_above, xyxy, highest)
    all_low = Flatten <axis = 1> (xyxy_or_low)
    all_high = Flatten <axis = 1> (xyxy_or_high)
    largest, place_of_largest = TopK <axis = 1> (all_low, one)
    smallest, place_of_smallest = TopK <axis = 1, largest = 0> (all_high, one)
    extent = Sub (largest, smallest)
    extent_and_more = Add (extent, apart_px)
    step = Unsqueeze (extent_and_more, last)
    class_number = Cast <to = 1> (class)
    apart = Mul (class_number, step)
    moved = Add (xyxy, apart)
    score_row = Transpose <perm = [0, 2, 1]> (score)
    chosen = NonMaxSuppression (moved, score_row, most, nms_iou, above_none)
    stream, only_class, place = Split <axis = 1> (chosen, parts)
    where = Concat <axis = 1> (stream, place)
    chosen_xyxy = GatherND (xyxy, where)
    not_left = Max (chosen_xyxy, zero)
    inside = Min (not_left, edges)
    left_top, right_bottom = Split <axis = 1> (inside, halves)
    has_side = Greater (right_bottom, left_top)
    has_width, has_height = Split <axis = 1> (has_side, sides)
    has_area = And (has_width, has_height)
    is_inside = Reshape (has_area, flat)
    shown_score = GatherND ({score}, where)
    chosen_class = GatherND (class, where)
    flat_score = Reshape (shown_score, flat)
    flat_class = Reshape (chosen_class, flat)
    flat_stream = Reshape (stream, flat)
    found_boxes = Compress <axis = 0> (inside, is_inside)
    found_scores = Compress <axis = 0> (flat_score, is_inside)
    found_classes = Compress <axis = 0> (flat_class, is_inside)
    found_streams = Compress <axis = 0> (flat_stream, is_inside)
}}
"""


def check_suppression(checkpoint: LoadedCheckpoint, config: PostprocessConfig) -> None:
    """Raise UserError if the boxes of weights need no suppression, or if a file cannot select them by these rules."""
    if not issubclass(head_class(checkpoint.model_config), YoloxHead):
        found = f"the head {checkpoint.model_config.head} needs no non-maximum suppression"
        raise UserError("export.unsupported", found=found, advice="leave out nms=true")
    score = config.with_score(str(checkpoint.scored_as.score)).score
    if score == "class_only" and config.max_detections is not None:
        name = "postprocess.max_detections"
        needed = "with score=class_only, a file that suppresses boxes cannot count them"
        advice = "leave it out, or set postprocess.score=objectness_times_class"
        raise UserError("setting.conflict", name=name, found=config.max_detections, needed=needed, advice=advice)


def suppression_graph(
    shape: tuple[int, int], frame_hw: tuple[int, int], config: PostprocessConfig, opset: int, ir_version: int = 10
) -> Any:
    """Return the model from `rows` (B, A, 5 + K) with logits to the objects of all B frames.

    Its outputs are `found_boxes` (N, 4) [left, top, right, bottom px], clipped to the frame; `found_scores` (N,);
    `found_classes` (N,) and `found_streams` (N,), the number of the frame. The objects of a frame come together, those
    with the highest objectness times class probability first.

    Args:
        shape: A, the number of places, and 5 + K.
        frame_hw: Height and width of the frame in pixels.
        config: Which boxes count as detections.
        opset: Version of the operators.
        ir_version: Version of the format.
    """
    import onnx.parser  # an optional package

    num_places, num_columns = shape
    largest = float(np.finfo(np.float32).max)
    height, width = frame_hw
    text = _GRAPH.format(
        ir_version=ir_version,
        opset=opset,
        num_classes=num_columns - 5,
        min_score=_written(config.min_score),
        nms_iou=_written(config.nms_iou),
        lowest=_written(-largest),
        highest=_written(largest),
        most=min(config.max_detections or math.inf, num_places),
        height=_written(height),
        width=_written(width),
        score="probability" if config.score == "class_only" else "product",
    )
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return model


def append_suppression(
    path: Path, shape: tuple[int, int], frame_hw: tuple[int, int], config: PostprocessConfig
) -> None:
    """Add the outputs of `suppression_graph` to an ONNX file of a step; those that it has stay.

    Args:
        path: The file.
        shape: As in `suppression_graph`.
        frame_hw: As in `suppression_graph`.
        config: As in `suppression_graph`.
    """
    import onnx.compose  # an optional package

    step = onnx.load(path)
    graph = suppression_graph(shape, frame_hw, config, step.opset_import[0].version, step.ir_version)
    outputs = [value.name for value in (*step.graph.output, *graph.graph.output)]
    # Names within the graph get a prefix, because those of the step are not known.
    graph = onnx.compose.add_prefix(graph, "suppression_", rename_inputs=False, rename_outputs=False)
    merged = onnx.compose.merge_models(step, graph, io_map=[("rows", "rows")], outputs=outputs)
    onnx.checker.check_model(merged)
    onnx.save(merged, path)


def _written(number: float) -> str:
    """Return a number as the parser of ONNX reads it, with all digits of float32."""
    return f"{np.float32(number):.9e}"
