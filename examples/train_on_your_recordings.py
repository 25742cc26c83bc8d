# %% [markdown]
# # Train on your own recordings
#
# Events and boxes of your own become files, the files a data set, and the bundled weights a detector for it. Here
# both are simulated.

# %%
import json
from pathlib import Path

import numpy as np
from PIL import Image

import rvtssm
from rvtssm.cli import main as cli

STEPS, SECONDS = 20, 3

words = ["dataset=synthetic", "dataset.height=96", "dataset.width=128", "dataset.raw_dir=outputs/simulated"]
assert cli.main(["generate", *words, "num_train=4", "num_val=1", "num_test=1", f"duration_s={SECONDS}"]) == 0

# %% [markdown]
# An event is a time in microseconds, a pixel, and whether the pixel got brighter (1) or darker (0). As a file, events
# are an archive of NumPy arrays with the size of the sensor. Files of common cameras need no such step: `rvtssm.open`
# reads them.
#
# Boxes are a COCO file beside each recording. `t_us` is on the clock of the events.

# %%
folder = Path("outputs/own")
for dat in sorted(Path("outputs/simulated").glob("*/*_td.dat")):
    name, boxes = dat.stem.removesuffix("_td"), np.load(str(dat).replace("_td.dat", "_bbox.npy"))
    recording = rvtssm.open(dat)
    events = recording.between(0, SECONDS * 1_000_000)
    (folder / dat.parent.name).mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / dat.parent.name / f"{name}.npz",
        t=events.t,
        x=events.x,
        y=events.y,
        p=events.p,
        height=recording.height,
        width=recording.width,
    )
    images = [{"id": int(t_us), "t_us": int(t_us)} for t_us in np.unique(boxes["t"])]
    annotations = [
        {"image_id": int(box["t"]), "category_id": int(box["class_id"]), "bbox": box[["x", "y", "w", "h"]].tolist()}
        for box in boxes
    ]
    categories = [{"id": 0, "name": "vehicle"}, {"id": 1, "name": "person"}]
    coco = {"images": images, "categories": categories, "annotations": annotations}
    (folder / dat.parent.name / f"{name}.json").write_text(json.dumps(coco))
(folder / "dataset.yaml").write_text("classes: [vehicle, person]\nheight: 96\nwidth: 128\nlabels: .json\n")

# %% [markdown]
# Look at the labels before you train. If boxes do not sit on events, times or coordinates are wrong.

# %%
assert cli.main(["inspect", str(folder), "out=outputs/inspected"]) == 0

# %%
Image.open("outputs/inspected/own.labels_train.png")

# %% [markdown]
# Fine-tuning starts from the bundled weights and takes a lower learning rate than a training from nothing. The
# weights know three classes and these recordings have two of them; the run says which tensors it could take.
# [Training](../training.md#fine-tuning) explains the settings.

# %%
words = [
    "dataset=custom",
    f"dataset.raw_dir={folder}",
    "init_from=street-tiny",
    f"steps={STEPS}",
    "optim.learning_rate=3e-4",
    "sampling.batch_size=2",
    "sampling.chunk_length=6",
]
assert cli.main(["train", *words, "out=outputs/tuned"]) == 0

# %% [markdown]
# Average precision at the rate of the training and at a rate ten times as high. With one test recording, the numbers
# only show that everything works.

# %%
report = rvtssm.evaluate("outputs/tuned/checkpoints/best.ckpt", hz=[20, 200], window="slide")
for row in report.rows:
    print(f"{row['hz']:g} Hz: {100 * row['AP']:.1f} AP")
