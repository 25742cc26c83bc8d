"""Draw the moving picture of the README: boxes on events in slow motion while the rate goes from 20 to 200 Hz.

    python scripts/rates_picture.py CHECKPOINT RECORDING rates.gif --start-s 3.2

CHECKPOINT is selective S5 with seed 1 of `configs/experiment/drive_study.yaml`, RECORDING is test/test_0018_td.dat of
`experiment=rate_drives`. With the best.ckpt and the recordings of `rvtssm demo`, it draws the street of the demo.
The detector keeps its state when the rate changes. Windows slide: each has the length of those in the training.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import rvtssm
from rvtssm.drawing.draw import draw_frame
from rvtssm.events.frame_counter import count_windows
from rvtssm.records import Windows

RATES_HZ = (20, 50, 100, 200)
PICTURE_US = 5_000  # of the recording, from one picture to the next
PICTURES_PER_RATE = 40
FPS = 10.0  # of the animation
MIN_SCORE = 0.5  # of the boxes that are drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("recording", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--start-s", type=float, default=2.0, help="of the pictures; before, the detector runs at 20 Hz"
    )
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out} exists already; delete it, or choose another name")

    predictor, recording = rvtssm.load(options.checkpoint), rvtssm.open(options.recording)
    height, width = recording.height, recording.width
    trained = f"{predictor.checkpoint.windows.hz:g} Hz"
    detector = predictor.stream(height, width, hz=RATES_HZ[0])
    length_us = detector.windows.nominal_length_us
    first_us, last_us = recording.time_range_us
    time_us = first_us + round(options.start_s * 1e6)
    needed_s = options.start_s + len(RATES_HZ) * PICTURES_PER_RATE * PICTURE_US / 1e6
    before = detector.push(recording.between(first_us, time_us), until_us=time_us)
    if not before or (last_us - first_us) / 1e6 < needed_s:
        raise ValueError(
            f"--start-s={options.start_s:g} needs a recording of {needed_s:g} s and a window before it; "
            f"{options.recording} has {(last_us - first_us) / 1e6:g} s, give another number"
        )
    last = before[-1].detections
    slower = 1e6 / (FPS * PICTURE_US)
    pictures = []
    for hz in RATES_HZ:
        detector.windows = predictor.checkpoint.windows_at(hz, "slide")
        for _ in range(PICTURES_PER_RATE):
            time_us += PICTURE_US
            windows = detector.push(recording.between(time_us - PICTURE_US, time_us), until_us=time_us)
            last = windows[-1].detections if windows else last
            window = Windows(np.array([[time_us - length_us, time_us]]), np.array([PICTURE_US]))
            (hist,) = count_windows(recording.between(time_us - length_us, time_us), window, height, width)
            at_s = (time_us - first_us) / 1e6
            caption = f"{hz} Hz    one model, trained at {trained}    {at_s:.3f} s, {slower:.0f} times slower"
            names = predictor.class_names
            picture = draw_frame(hist, last, None, names, scale=4, min_score=MIN_SCORE, caption=caption)
            pictures.append(Image.fromarray(picture).quantize(64, dither=Image.Dither.NONE))
    pictures[0].save(options.out, save_all=True, append_images=pictures[1:], duration=round(1000 / FPS), loop=0)


if __name__ == "__main__":
    main()
