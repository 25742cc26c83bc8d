"""The teacher of a TFLite file: the SSD MobileNetV2 of Open Images (Liu et al., SSD, ECCV 2016), Apache-2.0.

    npm pack @mediapipe/objectron@0.4.1675468480 && tar xf mediapipe-objectron-*.tgz
    pip install ai-edge-litert

The file is package/objectron_solution_packed_assets.data. It sees 300 x 300 pixels.
"""

import itertools
import math
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from rvtssm.boxes import cxcywh_to_xyxy
from rvtssm.contrib.worlds.label_video.boxes import LOW, PERSON, TWO_WHEELER, VEHICLE, Teacher, without_doubles
from rvtssm.system.user_error import UserError

OF_TEACHER = {1: TWO_WHEELER, 4: PERSON, 18: VEHICLE, 23: VEHICLE}  # Bicycle, Person, Vehicle, Car
INPUT_PX = 300
STRIDES = (16, 32, 64, 128, 256, 512)
SCALES = 0.2, 0.95  # of the anchors of the first and of the last stride
RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)


@cache
def anchors() -> np.ndarray:
    """Return the anchors of the teacher (1917, 4): centre, width and height as shares of the picture.

    Liu et al., SSD, ECCV 2016. Each place of the first stride has three anchors, each other one six.
    """
    scales = [*np.linspace(*SCALES, len(STRIDES)), 1.0]
    rows = []
    for level, stride in enumerate(STRIDES):
        shapes = [(scales[level], ratio) for ratio in RATIOS] + [(math.sqrt(scales[level] * scales[level + 1]), 1.0)]
        if level == 0:
            shapes = [(scales[0] / 2, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        side = math.ceil(INPUT_PX / stride)
        for y, x, (scale, ratio) in itertools.product(range(side), range(side), shapes):
            rows.append(((x + 0.5) / side, (y + 0.5) / side, scale * math.sqrt(ratio), scale / math.sqrt(ratio)))
    return np.array(rows)


def decode(encoded: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return boxes as shares of the picture, with class and score: rows (N, 6) of our classes from LOW on.

    Args:
        encoded: (1917, 4), ten times the shift of the centre y, x in sizes of the anchor, and five times the logarithm
            of its growth in height and width.
        logits: (1917, K), class 0 is background.
    """
    own = anchors()
    centre = encoded[:, [1, 0]] / 10 * own[:, 2:] + own[:, :2]
    boxes = cxcywh_to_xyxy(np.concatenate([centre, np.exp(encoded[:, [3, 2]] / 5) * own[:, 2:]], axis=1))
    rows = [np.zeros((0, 6))]
    for theirs, ours in OF_TEACHER.items():
        score = 1 / (1 + np.exp(-logits[:, theirs].astype(np.float64)))
        kept = score >= LOW
        rows.append(np.column_stack([boxes[kept], np.full(kept.sum(), ours), score[kept]]))
    return without_doubles(np.concatenate(rows))


def open_ssd(path: Path) -> Teacher:
    """Return the teacher of a TFLite file, or of a file that holds one after other content.

    Raises:
        UserError: The package that reads it is missing, or the file is no such model.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        raise UserError(
            "extras.missing", "the teacher needs a package that is missing; pip install ai-edge-litert"
        ) from None
    if not path.is_file():
        raise UserError(
            "label_video.no_teacher",
            f"{path} does not exist; give the file of the teacher, which the head of this script names",
        )
    content = path.read_bytes()
    start = content.find(b"TFL3") - 4
    if start < 0:
        raise UserError(
            "label_video.not_tflite",
            f"{path} holds no TFLite model; give objectron_solution_packed_assets.data of the package",
        )
    model = Interpreter(model_content=content[start:], num_threads=1)
    model.allocate_tensors()
    (given,) = model.get_input_details()
    answers = sorted(model.get_output_details(), key=lambda each: each["shape"][-1])
    shapes = [list(each["shape"]) for each in (given, *answers)]
    if len(answers) != 2 or shapes[:2] != [[1, INPUT_PX, INPUT_PX, 3], [1, len(anchors()), 4]]:
        raise UserError(
            "label_video.other_model",
            f"{path} holds a model of {shapes}, not the teacher; give the file that this script names",
        )

    def teacher(picture: np.ndarray) -> np.ndarray:
        small = cv2.resize(picture, (INPUT_PX, INPUT_PX), interpolation=cv2.INTER_AREA)
        model.set_tensor(given["index"], small[None, :, :, ::-1].astype(np.float32) / 127.5 - 1)
        model.invoke()
        rows = decode(*(model.get_tensor(each["index"])[0] for each in answers))
        rows[:, :4] *= np.array(picture.shape)[[1, 0, 1, 0]]
        return rows

    return teacher
