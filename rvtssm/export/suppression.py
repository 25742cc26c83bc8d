"""Score, threshold and non-maximum suppression as a graph of ONNX, which gives the boxes of `rvtssm predict`.

The graph is that of `rvtssm.models.postprocess`, line by line; `apart` moves boxes of different classes away from each
other, as there. Source of the operators: https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.parts import head_class
from rvtssm.models.yolox import YoloxHead
from rvtssm.system.user_error import UserError

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
        raise UserError(
            "export.unsupported",
            found=f"the head {checkpoint.model_config.head} needs no non-maximum suppression",
            advice="leave out nms=true",
        )
    score = config.with_score(str(checkpoint.scored_as.score)).score
    if score == "class_only" and config.max_detections is not None:
        raise UserError(
            "setting.conflict",
            name="postprocess.max_detections",
            found=config.max_detections,
            needed="with score=class_only, a file that suppresses boxes cannot count them",
            advice="leave it out, or set postprocess.score=objectness_times_class",
        )


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
