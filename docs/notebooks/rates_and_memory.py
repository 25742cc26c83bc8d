# %% [markdown]
# # Rates and memory
#
# One detector at several rates, and what it remembers when no more events arrive.

# %%
from itertools import pairwise

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import rvtssm
from rvtssm.cli import main as cli

words = ["experiment=demo", "num_train=0", "num_val=0", "num_test=1", "dataset.raw_dir=outputs/sample"]
assert cli.main(["generate", *words]) == 0

# %%
detector = rvtssm.load("street-tiny")
recording = rvtssm.open("outputs/sample/test/test_0000_td.dat")
events = recording.between(0, 1_000_000)
sensor = {"height": recording.height, "width": recording.width}

# %% [markdown]
# At 100 Hz the same weights give five times as many answers: the time step is rescaled. Windows keep their length and
# slide, which is the default for these weights, or shrink with the stride. The third call warns that its windows of
# 10 ms are shorter than those of the training, 50 ms. The best scores of this second hardly depend on either;
# [Any rate](../any_rate.md) measures the accuracy.

# %%
for hz, window in ((20, "slide"), (100, "slide"), (100, "shrink")):
    found = detector.predict(events, hz=hz, window=window, min_score=0.01, **sensor)
    best = [frame.score.max(initial=0) for frame in found]
    print(f"{hz:3} Hz, {window}: {len(found)} windows, mean of the best scores {np.mean(best):.2f}")

# %% [markdown]
# The state is carried exactly: packets of any length give the boxes of the whole recording, up to rounding, if both
# have the same `downsample`. The last window is still open.

# %%
whole = detector.predict(events, min_score=0.01, **sensor)
stream = detector.stream(**sensor, downsample=whole.summary.downsample, min_score=0.01)
cuts_us = np.arange(0, 1_030_000, 30_000)
frames = [
    frame for start_us, end_us in pairwise(cuts_us.tolist()) for frame in stream.push(events.between(start_us, end_us))
]
pairs = list(zip(whole, frames, strict=False))
assert all(len(a) == len(b) for a, b in pairs)
for name in ("score", "xyxy"):
    differences = [np.abs(getattr(a, name) - getattr(b, name)).max(initial=0) for a, b in pairs]
    print(f"{len(pairs)} windows, largest difference of {name}: {max(differences):.0e}")

# %% [markdown]
# Now the scene freezes: after half a second no event arrives, until the last 10 ms. From 0.55 s to 0.99 s the windows
# are empty, and a detector without memory would see nothing there. The curve is the best score of each window: it
# falls, but objects are still found, because the state remembers them.

# %%
seen, last = events.between(0, 500_000), events.between(990_000, 1_000_000)
frozen = rvtssm.Events(*(np.concatenate([getattr(part, name) for part in (seen, last)]) for name in "txyp"))
found = detector.predict(frozen, hz=100, min_score=0.01, **sensor)
canvas = FigureCanvasAgg(Figure(figsize=(6.4, 3.2), dpi=110, layout="constrained"))
axes = canvas.figure.add_subplot()
axes.plot([frame.t_us / 1e6 for frame in found], [frame.score.max(initial=0) for frame in found])
axes.axvline(0.5, color="0.6", linestyle="--", label="no events until the last 10 ms")
axes.set(xlabel="time [s]", ylabel="best score", ylim=(0, 1))
axes.legend(frameon=False)
canvas.draw()
Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
