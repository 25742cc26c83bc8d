# %% [markdown]
# # Own recordings
#
# `rvtssm.open` reads the files of common cameras; [Your own data](../../data_prep/README.md) lists the formats. Events
# from anywhere else are four arrays, which every verb reads as a file of NumPy. The events here are simulated.

# %%
from pathlib import Path

import numpy as np
from PIL import Image

import rvtssm
from rvtssm.cli import main as cli

words = ["experiment=demo", "num_train=0", "num_val=0", "num_test=1", "dataset.raw_dir=outputs/sample"]
assert cli.main(["generate", *words]) == 0

# %%
recording = rvtssm.open("outputs/sample/test/test_0000_td.dat")
events = recording.between(0, 200_000)  # microseconds
print(len(events), events.t.dtype, events.x.dtype, events.y.dtype, events.p.dtype)

# %% [markdown]
# An event is a time, a pixel and whether it got brighter (1) or darker (0). Wrong types and sizes are refused with a
# message that says what is needed.

# %%
own = rvtssm.Events(t=events.t, x=events.x, y=events.y, p=events.p)
try:
    rvtssm.Events(t=events.t / 1e6, x=events.x, y=events.y, p=events.p)
except ValueError as error:
    print(error)

# %% [markdown]
# As a file: an archive of NumPy arrays with the size of the sensor. What a file contains is shown before it is used.

# %%
folder = Path("outputs/own_recordings")
folder.mkdir(parents=True, exist_ok=True)
np.savez(folder / "own.npz", t=own.t, x=own.x, y=own.y, p=own.p, height=recording.height, width=recording.width)
assert cli.main(["inspect", str(folder / "own.npz"), f"out={folder / 'inspected'}"]) == 0

# %%
Image.open(next((folder / "inspected").glob("*.png")))

# %% [markdown]
# Events in memory are predicted without a file. Their sensor has to be named.

# %%
detector = rvtssm.load("street-tiny")
detector.predict(own, height=recording.height, width=recording.width)
