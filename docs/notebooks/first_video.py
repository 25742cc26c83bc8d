# %% [markdown]
# # First video
#
# A detector, a recording, and boxes on events. To open a notebook, install Jupyter with
# `.venv/bin/python -m pip install jupyterlab jupytext ipywidgets` (or `uv pip install`), start `jupyter lab` in the
# checkout, and open the file `docs/notebooks/first_video.py` as a notebook (right click, Open With, Notebook).
#
# The first cell simulates a recording of traffic, which takes some seconds. The notebooks write all their files to
# `outputs` in the current folder, which in Jupyter is the folder of the notebook.

# %%
from PIL import Image

import rvtssm
from rvtssm.cli import main as cli

words = ["experiment=demo", "num_train=0", "num_val=0", "num_test=1", "dataset.raw_dir=outputs/sample"]
assert cli.main(["generate", *words]) == 0

# %% [markdown]
# `street-tiny` are the weights that come with the package. For weights of your own, give `load` the path of the
# checkpoint, such as `runs/own/checkpoints/best.ckpt`.

# %%
detector = rvtssm.load("street-tiny")
detector

# %% [markdown]
# A recording is opened without being read. Times are in microseconds.

# %%
file = "outputs/sample/test/test_0000_td.dat"
recording = rvtssm.open(file)
print(recording.format, recording.height, recording.width, recording.time_range_us)

# %% [markdown]
# `predict` reads it in windows and returns the objects of each window, in pixels of the sensor. The weights make
# mistakes: they also take a person who walks for a two-wheeler.

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
# well. In a terminal, the same words follow `rvtssm`. Without `checkpoint=FILE` it also uses `street-tiny`. In the
# pictures below, a box without events is an object that stands still, which the detector remembers, or a mistake.

# %%
assert cli.main(["predict", file, "out=outputs/first_video"]) == 0

# %%
Image.open("outputs/first_video/strip.png")
