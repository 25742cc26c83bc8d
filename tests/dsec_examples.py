"""Sequences in the layout of DSEC and DSEC-Det, generated: two boxes that move, their edges as events."""

from pathlib import Path

import cv2
import h5py
import hdf5plugin
import numpy as np

HEIGHT, WIDTH = 480, 640
OFFSET_US = 54_183_000_123
TRACK_DTYPE = np.dtype(
    [
        *[("t", "<u8"), ("x", "<f4"), ("y", "<f4"), ("w", "<f4"), ("h", "<f4"), ("class_id", "u1")],
        *[("class_confidence", "<f4"), ("track_id", "<u4"), ("img_name", "<U10")],
    ]
)
CAR, PEDESTRIAN, TRAIN = 2, 0, 7


def image_times(num_images: int) -> np.ndarray:
    """20 Hz with the jitter of a camera, absolute microseconds; the first is 30 ms into the events."""
    jitter = np.random.default_rng(1).integers(-3, 4, num_images)
    return OFFSET_US + 30_000 + 50_000 * np.arange(num_images) + jitter


def boxes_at(times_us: np.ndarray) -> np.ndarray:
    """(T, 2, 4) left, top, width, height of a car and a pedestrian."""
    seconds = (np.asarray(times_us) - OFFSET_US) / 1e6
    car = np.stack([60 + 150 * seconds, np.full_like(seconds, 200), *np.full((2, len(seconds)), 90.0)], axis=1)
    walker = np.stack([420 - 60 * seconds, 150 + 0 * seconds, 40 + 0 * seconds, 110 + 0 * seconds], axis=1)
    return np.stack([car, walker], axis=1)


def write_sequence(
    folder: Path, num_images: int = 10, *, has_tracks: bool = True, has_images: bool = True, seed: int = 0
) -> Path:
    """Write one sequence; labels at all images but the first, and one of a class that 1Mpx does not have."""
    rng = np.random.default_rng(seed)
    times_us = image_times(num_images)
    t = np.sort(rng.integers(0, times_us[-1] - OFFSET_US + 20_000, 3_000 * num_images))
    found = boxes_at(t + OFFSET_US)[np.arange(len(t)), rng.integers(0, 2, len(t))]
    along, side = rng.random(len(t)), rng.integers(0, 4, len(t))
    x = found[:, 0] + found[:, 2] * np.where(side < 2, side, along)
    y = found[:, 1] + found[:, 3] * np.where(side < 2, along, side - 2)
    folder.mkdir(parents=True)
    (folder / "events/left").mkdir(parents=True)
    packed = dict(chunks=(4096,), **hdf5plugin.Blosc(cname="zstd"))
    with h5py.File(folder / "events/left/events.h5", "w") as file:
        file.create_dataset("events/t", data=t.astype(np.uint32), **packed)
        file.create_dataset("events/x", data=x.astype(np.uint16), **packed)
        file.create_dataset("events/y", data=y.astype(np.uint16), **packed)
        file.create_dataset("events/p", data=(side % 2).astype(np.uint8), **packed)
        file["ms_to_idx"] = np.searchsorted(t, 1000 * np.arange(int(t[-1]) // 1000 + 1)).astype(np.uint64)
        file["t_offset"] = np.int64(OFFSET_US)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    with h5py.File(folder / "events/left/rectify_map.h5", "w") as file:
        file["rectify_map"] = np.stack([1.02 * columns - 6, 1.01 * rows - 3], axis=-1)
    (folder / "images/left").mkdir(parents=True)
    (folder / "images/timestamps.txt").write_text("".join(f"{time}\n" for time in times_us))
    if has_images:
        (folder / "images/left/distorted").mkdir()
        for i, ltwh in enumerate(boxes_at(times_us)):
            picture = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
            for left, top, width, height in ltwh.astype(int):
                cv2.rectangle(picture, (left, top), (left + width, top + height), (200, 200, 200), cv2.FILLED)
            cv2.imwrite(str(folder / f"images/left/distorted/{i:06d}.png"), picture)
    if has_tracks:
        tracks = np.zeros(3 * (num_images - 1), TRACK_DTYPE)
        tracks["t"] = np.repeat(times_us[1:], 3)
        train = np.array([[500.0, 20.0, 100.0, 60.0]])
        ltwh = np.concatenate([np.concatenate([two, train]) for two in boxes_at(times_us[1:])])
        tracks["x"], tracks["y"], tracks["w"], tracks["h"] = ltwh.T
        tracks["class_id"] = np.tile([CAR, PEDESTRIAN, TRAIN], num_images - 1)
        tracks["class_confidence"] = 0.9
        (folder / "object_detections/left").mkdir(parents=True)
        np.save(folder / "object_detections/left/tracks.npy", tracks)
    return folder
