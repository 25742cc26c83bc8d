# %% [markdown]
# # First video
#
# A detector, a recording, and boxes on events. Run `rvtssm demo out=outputs/demo` once, which takes about 12 minutes:
# it trains the detector and makes the recordings that all notebooks use. To open a notebook, install Jupyter with
# `.venv/bin/python -m pip install jupyterlab jupytext` (or `uv pip install`), start `jupyter lab` in the checkout, and
# open the file `docs/notebooks/first_video.py` as a notebook (right click, Open With, Notebook).

# %%
from pathlib import Path

from PIL import Image

import rvtssm
from rvtssm.commands import cli

demo = Path("outputs/demo")
assert (demo / "checkpoints/best.ckpt").is_file(), "run this first: rvtssm demo out=outputs/demo"
weights, file = demo / "checkpoints/best.ckpt", sorted((demo / "raw/test").glob("*.dat"))[0]
detector = rvtssm.load(weights)
detector

# %% [markdown]
# A recording is opened without being read. Times are in microseconds.

# %%
recording = rvtssm.open(file)
print(recording.format, recording.height, recording.width, recording.time_range_us)

# %% [markdown]
# `predict` reads it in windows and returns the objects of each window, in pixels of the sensor.

# %%
found = detector.predict(recording)
found

# %%
busiest = max(found, key=len)
busiest

# %%
busiest.draw()

# %% [markdown]
# The verb of the command line also writes files and a video. In a notebook it is a function that returns 0 if all went
# well. In a terminal, the same words follow `rvtssm`.

# %%
assert cli.main(["predict", f"checkpoint={weights}", f"recording={file}", "out=outputs/notebooks/first_video"]) == 0

# %%
Image.open("outputs/notebooks/first_video/strip.png")
