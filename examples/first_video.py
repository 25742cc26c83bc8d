# %% [markdown]
# # First video
#
# A detector, a recording, and boxes on events, at two rates. Run this file with `python examples/first_video.py`, or
# open it as a notebook: Jupyter (with jupytext) and most editors do. All examples write their files to `outputs` in
# the current folder.
#
# The first cell simulates a recording of traffic, which takes some seconds.

# %%
import rvtssm
from rvtssm.cli import main as cli

words = ["experiment=demo", "num_train=0", "num_val=0", "num_test=1", "dataset.raw_dir=outputs/sample"]
assert cli.main(["generate", *words]) == 0

# %% [markdown]
# `street-tiny` are the bundled weights. Give `load` the path of your own, such as `runs/own/checkpoints/best.ckpt`. A
# recording is opened without being read. Times are in microseconds.

# %%
detector = rvtssm.load("street-tiny")
recording = rvtssm.open("outputs/sample/test/test_0000_td.dat")
print(detector.class_names, recording.format, recording.height, recording.width, recording.time_range_us)

# %% [markdown]
# `predict` returns the objects of each window, in pixels of the sensor. The bundled weights make mistakes: they also
# take a walking person for a two-wheeler. A box without events is an object that stands still, which the detector
# remembers, or a mistake.

# %%
windows = detector.predict(recording, min_score=0.3)
windows.save("outputs/first_video.mp4")
windows

# %%
busiest = max(windows, key=len)
busiest

# %%
busiest.draw()

# %% [markdown]
# At 100 Hz the same weights give five times as many answers, because the time step is rescaled.

# %%
for hz in (20, 100):
    windows = detector.predict(recording, hz=hz)
    print(f"{hz:3} Hz: {len(windows)} windows, {windows.count('person')} times a person")
