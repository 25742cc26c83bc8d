"""The teacher of an ONNX file: YOLOX (Ge et al., 2021), trained on COCO, such as yolox_nano.onnx.

The file comes from the repository Kazuhito00/YOLOX-ONNX-TFLite-Sample (`model/yolox_nano.onnx`, Apache-2.0) and runs in
onnxruntime (extra `export`). It sees the whole frame at the upper left of a grey square. A row of its output is a place
of a grid: the shift of the centre and the logarithm of the size, both in strides, objectness, and 80 scores of classes.
"""

from pathlib import Path

import cv2
import numpy as np

from rvtssm.boxes import cxcywh_to_xyxy
from rvtssm.contrib.worlds.label_video.boxes import LOW, Teacher, without_doubles
from rvtssm.contrib.worlds.rules import PERSON, TWO_WHEELER, VEHICLE
from rvtssm.system.user_error import UserError

# person; bicycle, motorcycle; car, bus, truck
OF_COCO = {0: PERSON, 1: TWO_WHEELER, 3: TWO_WHEELER, 2: VEHICLE, 5: VEHICLE, 7: VEHICLE}
STRIDES = (8, 16, 32)
GREY = 114


def places(side_px: int) -> np.ndarray:
    """Return x, y and stride of the rows of the output for a square of this side, (N, 3)."""
    rows = []
    for stride in STRIDES:
        y, x = np.mgrid[: side_px // stride, : side_px // stride]
        rows.append(np.column_stack([x.ravel(), y.ravel(), np.full(x.size, stride)]))
    return np.concatenate(rows).astype(np.float64)


def squared(picture: np.ndarray, side_px: int) -> tuple[np.ndarray, float]:
    """Return a picture (H, W, 3) at the upper left of a square (1, 3, S, S) float32, and by how much it is scaled."""
    factor = side_px / max(picture.shape[:2])
    size = [min(round(side * factor), side_px) for side in picture.shape[1::-1]]
    square = np.full((side_px, side_px, 3), GREY, np.float32)
    square[: size[1], : size[0]] = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    return square.transpose(2, 0, 1)[None], factor


def decode(output: np.ndarray, side_px: int) -> np.ndarray:
    """Return the boxes of an output (N, 85) from LOW on, rows (N, 6) in pixels of the square."""
    answers, grid = output.astype(np.float64), places(side_px)
    stride = grid[:, 2:]
    centre, size = (answers[:, :2] + grid[:, :2]) * stride, np.exp(answers[:, 2:4]) * stride
    boxes = cxcywh_to_xyxy(np.concatenate([centre, size], axis=1))
    rows = [np.zeros((0, 6))]
    for theirs, ours in OF_COCO.items():
        score = answers[:, 4] * answers[:, 5 + theirs]
        is_likely = score >= LOW
        rows.append(np.column_stack([boxes[is_likely], np.full(is_likely.sum(), ours), score[is_likely]]))
    return without_doubles(np.concatenate(rows))


def open_yolox(path: Path) -> Teacher:
    """Return the teacher of an ONNX file; raise UserError if onnxruntime is missing or the file is no such model."""
    if not path.is_file():
        raise UserError("file.missing", name=path, found="does not exist", needed="the ONNX file of the teacher")
    try:
        import onnxruntime
    except ImportError:
        raise UserError(
            "install.extra", name="onnxruntime", needed="the teacher needs it", advice='pip install "rvtssm[export]"'
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has errors of its own
        raise UserError(
            "file.damaged", name=path, found=f"not an ONNX file ({error})", advice="download it again"
        ) from None
    given, answer = session.get_inputs()[0], session.get_outputs()[0]
    side_px = given.shape[-1]
    if not isinstance(side_px, int) or list(answer.shape) != [1, len(places(side_px)), 85]:
        raise UserError(
            "file.content", name=path, found=f"a model from {given.shape} to {answer.shape}", needed="a YOLOX of COCO"
        )

    def teacher(picture: np.ndarray) -> np.ndarray:
        square, factor = squared(picture, side_px)
        rows = decode(session.run(None, {given.name: square})[0][0], side_px)
        rows[:, :4] = np.clip(rows[:, :4] / factor, 0, np.array(picture.shape)[[1, 0, 1, 0]])
        return rows

    return teacher
