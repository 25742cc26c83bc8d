"""Boxes from events with an exported file, without this package: NumPy and onnxruntime alone.

    rvtssm export street-tiny out=model.onnx
    python detect.py < events.txt

Each line of events.txt is "t x y p": microseconds, pixels of the sensor, and 1 for brighter. Each line that comes out
is a box: end of the window in microseconds, class, score, left, top, right, bottom. In a program of your own, call
`begin` once, then `detect` for every window, at any rate and with windows of any length.
"""

import json
import os
import sys

import numpy as np
import onnxruntime

HZ, MIN_SCORE = 20, 0.3  # windows per second, lowest score of a box

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", 0))  # 0: one per core
options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait leave the processor
session = onnxruntime.InferenceSession("model.onnx", options)
about = json.loads(session.get_modelmeta().custom_metadata_map["rvtssm"])
windows, (height, width) = about["checkpoint"]["windows"], about["frame_hw"]
length_us = round(windows["length_us"] or windows["stride_us"])  # of a window, as in training
n = 1  # by which factor frames are smaller than the sensor, per side
state: dict[str, np.ndarray] = {}
last_end_us = 0


def begin(first_us):
    """Start a stream at the time of its first event, from a state of zeros."""
    global last_end_us
    state.clear()
    state.update({name: np.zeros((1, *shape), np.float32) for name, shape in about["state"].items()})
    last_end_us = first_us


def histogram(t, x, y, p, start_us, end_us):
    """Return the frame of events whose x and y are pixels of the frame."""
    bins = windows["num_bins"]
    counts = np.zeros((2 * bins, height, width), np.int64)
    np.add.at(counts, (p * bins + (t - start_us) * bins // (end_us - start_us), y, x), 1)
    return np.minimum(counts, windows["count_cutoff"]).astype(np.uint8)[None]


def surfaces(t, x, y, p, start_us, end_us):
    """Return the frame at end_us for weights with representation=surfaces. Earlier calls had the events before."""
    constants_us, octaves = windows["time_constants_us"], np.arange(17)
    sums = state.setdefault("surfaces", np.zeros((2, len(constants_us), height, width)))
    for k, tau in enumerate(constants_us):
        sums[:, k] *= np.exp((start_us - end_us) / tau)
        np.add.at(sums[:, k], (p, y, x), np.exp((t - end_us) / tau))
    levels = np.rint(np.interp(sums, 2.0**octaves - 1, 16 * octaves)).clip(max=255)  # 16 log2(1 + s), nearly
    return levels.astype(np.uint8).reshape(1, -1, height, width)


def detect(t, x, y, p, start_us, end_us):
    """Events with start_us <= t < end_us, int64, p 1 for brighter -> cx, cy, w, h (A, 4), scores (A, classes).

    Events and boxes are in pixels of the sensor.
    """
    global last_end_us
    keep = (x // n < width) & (y // n < height)
    if windows.get("reduce", "nearest") == "nearest":  # one pixel of each square; sum: all of them
        keep &= (x % n == n // 2) & (y % n == n // 2)
    to_frame = {"histogram": histogram, "surfaces": surfaces}[windows["representation"]]
    hist = to_frame(t[keep], x[keep] // n, y[keep] // n, p[keep], start_us, end_us)
    step_scale = np.array([(end_us - last_end_us) / windows["stride_us"]], np.float32)  # windows may overlap
    last_end_us = end_us
    carried = {name: state[name] for name in about["state"]}
    predictions, *after = session.run(None, {"hist": hist, "step_scale": step_scale, **carried})
    state.update(zip(carried, after, strict=False))
    objectness, classes = np.split(1 / (1 + np.exp(-predictions[0, :, 4:])), [1], axis=1)
    return n * predictions[0, :, :4], objectness * classes


def best_boxes(boxes, scores, min_score=MIN_SCORE, nms_iou=0.45):
    """Boxes and scores of `detect` -> left, top, right, bottom (N, 4), scores (N,), classes (N,), best first."""
    classes, scores = scores.argmax(axis=1), scores.max(axis=1)
    order = np.flatnonzero(scores >= min_score)
    order = order[np.argsort(-scores[order], kind="stable")]
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1)
    areas, best = boxes[:, 2] * boxes[:, 3], []
    while len(order):  # non-maximum suppression within each class
        first, order = order[0], order[1:]
        best.append(first)
        sides = np.minimum(corners[order, 2:], corners[first, 2:]) - np.maximum(corners[order, :2], corners[first, :2])
        inside = sides.clip(min=0).prod(axis=1)
        overlap = inside / (areas[order] + areas[first] - inside)
        order = order[(classes[order] != classes[first]) | (overlap <= nms_iou)]
    corners = corners.clip(0, [n * width, n * height] * 2)
    best = [k for k in best if (corners[k, 2:] > corners[k, :2]).all()]  # boxes outside the frame are left out
    return corners[best], scores[best], classes[best]


def main():
    """Detect at HZ windows per second, which overlap above the rate of training, because they are as long as there."""
    t, x, y, p = np.loadtxt(sys.stdin, np.int64, ndmin=2).T
    p = (p == 1).astype(np.int64)  # others, such as -1, are darker
    begin(t[0])
    for k in range(1, (t[-1] - t[0]) * HZ // 1_000_000 + 1):
        end_us = t[0] + k * 1_000_000 // HZ
        start_us = end_us - length_us
        first, last = np.searchsorted(t, (start_us, end_us))
        boxes, scores = detect(t[first:last], x[first:last], y[first:last], p[first:last], start_us, end_us)
        for (left, top, right, bottom), score, class_id in zip(*best_boxes(boxes, scores), strict=True):
            print(f"{end_us} {class_id} {score:.6f} {left:.3f} {top:.3f} {right:.3f} {bottom:.3f}")


if __name__ == "__main__":
    main()
