"""Writes a detector as one file for other programs: its step, with state and step scale as inputs, and a description.

The formats are `onnx` (ONNX) and `openvino` (OpenVINO, with the weights in a second file whose name ends in .bin).
"""

import glob
import json
import logging
import math
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from rvtssm.export import OPSETS, precisions
from rvtssm.export.graphs import DetectorStep, append_suppression, check_suppression
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint, detector_for_frame
from rvtssm.models.detector import Detector
from rvtssm.models.weight_files import DIGEST_KEY, NO_DIGEST_YET, add_digest
from rvtssm.system.extras import check_extra
from rvtssm.system.files import named_if_full, staging_folder
from rvtssm.system.limits import values_of
from rvtssm.system.machine import check_memory
from rvtssm.system.output_folder import check_replaceable, result_set
from rvtssm.system.user_error import UserError

FORMATS = {"onnx": ".onnx", "openvino": ".xml"}
PROGRAM = ".pt2"  # a format of earlier versions: a program, which can run any code when it is read
EXPORT_AGAIN = "export it again with `rvtssm export`"
METADATA_KEY = "rvtssm"  # key of the description in the metadata of a file; its value is JSON
_LOWEST_WRITTEN = 18  # by torch
_NEW_IN_RESIZE = {"keep_aspect_ratio_policy": b"stretch", "antialias": 0}  # since opset 18, with their defaults
_MOST_STREAMS = 4096


def format_of(path: Path | str) -> str:
    """Return the format that the suffix of a file name stands for.

    Args:
        path: The file.

    Raises:
        UserError: If the suffix is unknown. The message lists the known ones.
    """
    suffix = Path(path).suffix
    for kind, ending in FORMATS.items():
        if suffix == ending:
            return kind
    found = "the name does not tell the format"
    if suffix == PROGRAM:
        found = "programs of PyTorch are neither written nor read"
    advice = f"use a name that ends in {' or '.join(FORMATS.values())}"
    raise UserError("file.kind", name=path, found=found, advice=advice)


def check_export(path: Path | str, precision: str) -> str:
    """Return the format of a file that is to be written.

    Args:
        path: The file.
        precision: The precision of its products.

    Raises:
        UserError: If the format is unknown or cannot hold the precision, if a package is missing, or if a file would be
            replaced that no export to this name has written.
    """
    path = Path(path)
    known = precisions()[precision]
    if precision != "float32" and path.suffix not in known.suffixes:
        needed = f"a name that ends in {' or '.join(known.suffixes)}"
        raise UserError("setting.conflict", name="precision", found=f"{precision} out={path}", needed=needed)
    kind = format_of(path)
    check_extra(FORMATS[kind], "export", "onnx", "onnxscript")
    if kind == "openvino":
        check_extra(FORMATS[kind], "openvino", "openvino")
    check_extra(f"precision={precision}", known.extra, *known.packages)
    check_replaceable(path.parent, path.name, _patterns(path))
    return kind


def files_of(path: Path) -> list[Path]:
    """Return the files of an export. OpenVINO writes the weights beside the graph."""
    if path.suffix == FORMATS["openvino"]:
        return [path, path.with_suffix(".bin")]
    return [path]


def _patterns(path: Path) -> list[str]:
    return [glob.escape(file.name) for file in files_of(path)]


def check_own(checkpoint: LoadedCheckpoint) -> None:
    """Raise UserError for an exported file, which has no weights of its own."""
    if not isinstance(checkpoint.detector, Detector):
        found = "this model is an exported file, which cannot be exported again"
        raise UserError("export.unsupported", found=found, advice="give the checkpoint that it was made from")


def export_detector(
    checkpoint: LoadedCheckpoint,
    path: Path | str,
    height: int | None = None,
    width: int | None = None,
    precision: str = "float32",
    calibration: Iterable[tuple[np.ndarray, float]] = (),
    opset: int = OPSETS[-1],
    suppression: PostprocessConfig | None = None,
    show: Callable[[str], object] = lambda text: None,
) -> dict[str, Any]:
    """Write the step of a detector for frames of one size.

    The inputs are hist (B, C, H, W) in the dtype of training frames (uint8 for histograms), step_scale (B,) float32,
    and the state tensors (B, n, ...). The outputs are the tensors of the predictions (B, ...) and the next state
    tensors.

    Args:
        checkpoint: The detector and its description.
        path: The file; its suffix selects the format.
        height: Height of the frames in pixels; None means as in training.
        width: Width of the frames in pixels; None means as in training.
        precision: A key of `precisions`.
        calibration: Frames (T, C, H, W) of consecutive windows with their step scale, for precisions that need them.
        opset: Version of the operators of ONNX, one of OPSETS.
        suppression: Which boxes count as detections. The file then has them as further outputs, see
            `rvtssm.export.graphs`. None: it has the predictions only.
        show: Called with what is going on.

    Returns:
        The description that is stored in the file.

    Raises:
        UserError: If the weights reset their state by the chunk, if a layer has no such step (see
            `TemporalLayer.real_step`), if the model is an exported file itself, if its head needs no suppression, or as
            in `check_export`.
    """
    kind = check_export(path, precision)
    check_own(checkpoint)
    # Refuse what a step cannot express, before the work.
    if checkpoint.model_config.memory_chunk is not None:
        steps = checkpoint.model_config.memory_chunk
        found = f"these weights reset their state every {steps} steps (memory=chunk), which an exported step cannot"
        advice = "convert them with --memory carried, or train with model.memory=carried"
        raise UserError("export.unsupported", found=found, advice=advice)
    if suppression is not None:
        check_suppression(checkpoint, suppression)
    spec = checkpoint.spec
    # The step, its description, and an example whose batch stands for any number of streams.
    detector = detector_for_frame(checkpoint, height or spec.frame_height, width or spec.frame_width)
    step = DetectorStep(detector).cpu().float()
    description = _describe(checkpoint, step)
    streams = torch.export.Dim("batch", min=1, max=_MOST_STREAMS)
    state = step.init_state(2)
    hist = torch.zeros(2, step.detector.in_channels, *step.detector.frame_hw, dtype=torch.uint8)
    example = (hist, torch.ones(2), state)
    shapes = {"hist": {0: streams}, "step_scale": {0: streams}, "state": [{0: streams}] * len(state)}
    # Translate, lower the precision, add the selection of boxes, convert, describe: in this order, on one file.
    with torch.no_grad(), quiet(), named_if_full(path), staging_folder(Path(path).parent, "step") as folder:
        staged = folder / Path(path).with_suffix(FORMATS["onnx"]).name
        _write_onnx(step, example, shapes, staged, opset)
        if lower := precisions()[precision].lower:
            pkgutil.resolve_name(lower)(staged, step, calibration, show)
        if suppression is not None:
            suppression = suppression.with_score(str(checkpoint.scored_as.score))
            append_suppression(staged, step.detector.empty().rows.shape[1:], step.detector.frame_hw, suppression)
            description["suppression"] = asdict(suppression)
        if kind == "openvino":
            staged = to_openvino(staged)
        describe(staged, description)
        move_file(staged, Path(path))
    return description


def read_description(text: str, path: Path | str) -> tuple[CheckpointMeta, dict[str, Any]]:
    """Read the description that `export_detector` stored.

    Args:
        text: The description as JSON.
        path: The file, for messages.

    Returns:
        The description of the checkpoint; and a dict with the size of the frames, and names and shapes of the tensors.

    Raises:
        UserError: If the description is missing or damaged, or describes tensors that do not fit into memory.
    """
    try:
        description = json.loads(text)
        meta = CheckpointMeta.from_dict(description["checkpoint"])
        if missing := {"frame_hw", "state", "predictions"} - description.keys():
            raise KeyError(*missing)
        # A damaged or hostile description must not ask for more memory than there is.
        for shape in (description["frame_hw"], *description["state"].values(), *description["predictions"].values()):
            if not all(isinstance(side, int) and 0 < side < 1 << 31 for side in shape):
                found = f"it describes tensors of the shape {shape}"
                raise UserError("file.damaged", name=path, found=found, advice=EXPORT_AGAIN)
            check_memory(4 * math.prod(shape), f"{path} describes tensors of the shape {shape}")
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        found = "it has no description of its model"
        raise UserError("file.content", name=path, found=found, advice=EXPORT_AGAIN) from error
    return meta, description


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    """Return the shapes of tensors for one frame or stream."""
    return {name: list(tensor.shape[1:]) for name, tensor in tensors.items()}


def _describe(checkpoint: LoadedCheckpoint, step: DetectorStep) -> dict[str, Any]:
    states = dict(zip(step.state_names, step.init_state(1), strict=True))
    predictions = values_of(step.detector.empty(), step.prediction_names)
    return {
        "checkpoint": checkpoint.without_folders().to_dict(),  # the file is made for other machines
        "frame_hw": list(step.detector.frame_hw),
        "state": _shapes(states),
        "predictions": _shapes(predictions),
        "has_step_to_rescale": checkpoint.detector.has_step_to_rescale,
    }


def _write_onnx(step: DetectorStep, example: tuple[Any, ...], shapes: dict[str, Any], path: Path, opset: int) -> None:
    program = torch.onnx.export(
        step,
        example,
        dynamo=True,
        dynamic_shapes=shapes,
        opset_version=max(opset, _LOWEST_WRITTEN),
        input_names=["hist", "step_scale", *step.state_names],
        output_names=[*step.prediction_names, *(f"next_{name}" for name in step.state_names)],
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=False)
    if opset < _LOWEST_WRITTEN:
        _lower_opset(path, opset)


def _lower_opset(path: Path, opset: int) -> None:
    """Label a file with an earlier opset, without the attributes that are newer and have their default value anyway.

    The checker of ONNX refuses the file if anything else in it is newer.
    """
    import onnx  # an optional package

    model = onnx.load(path)
    for node in model.graph.node:
        values = {given.name: onnx.helper.get_attribute_value(given) for given in node.attribute}
        for given in list(node.attribute):
            is_usual = node.op_type == "Resize" and values[given.name] == _NEW_IN_RESIZE.get(given.name)
            if is_usual or (node.op_type == "Split" and given.name == "num_outputs"):  # the outputs tell it
                node.attribute.remove(given)
    model.opset_import[0].version = opset
    onnx.checker.check_model(model)
    onnx.save(model, path)


def to_openvino(path: Path) -> Path:
    """Convert an ONNX file to OpenVINO's format, and return the path of the new .xml file beside it.

    Args:
        path: The ONNX file.
    """
    import openvino  # an optional package

    xml_path = path.with_suffix(FORMATS["openvino"])
    model = openvino.Core().read_model(path)
    model.set_rt_info("", ["framework", METADATA_KEY])  # `describe` fills it in
    model.set_rt_info("", ["framework", DIGEST_KEY])
    openvino.save_model(model, xml_path, compress_to_fp16=False)
    return xml_path


def describe(path: Path, description: dict[str, Any]) -> None:
    """Replace the description and the digest in an .onnx or .xml file.

    Args:
        path: The file.
        description: The description, which JSON can hold.
    """
    texts = {METADATA_KEY: json.dumps(description), DIGEST_KEY: NO_DIGEST_YET}
    if path.suffix == FORMATS["onnx"]:
        import onnx  # an optional package

        model = onnx.load(path)
        onnx.helper.set_model_props(model, texts)
        path.write_bytes(model.SerializeToString())
    else:
        tree = ElementTree.parse(path)
        for key, text in texts.items():
            element = tree.find(f"./rt_info/framework/{key}")
            assert element is not None
            element.set("value", text)
        tree.write(path)
    add_digest(path)


def move_file(source: Path, path: Path) -> None:
    """Move an exported file to `path`, so that an .xml file never stands beside the weights of another one.

    Args:
        source: The file; an .xml file has its .bin file beside it.
        path: The new place.

    Raises:
        UserError: A file is there that no export to this name has written.
    """
    patterns = _patterns(path)
    # Two files go before the next two come.
    if len(patterns) > 1:
        with result_set(path.parent, path.name, patterns):
            pass
    with result_set(path.parent, path.name, patterns) as staged:
        for file in files_of(source):
            file.rename(staged / file.name)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence messages that exporters print for their own developers."""
    loggers = [*map(logging.getLogger, ("torch.onnx", "torch.export", "onnxscript", "onnx_ir"))]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
