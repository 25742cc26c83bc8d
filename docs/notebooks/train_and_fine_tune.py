# %% [markdown]
# # Train and fine-tune
#
# Two short trainings on the same recordings: one from random weights, and one from the weights in the package.
# [Training](../training.md) has the recipes. The recordings are simulated. All of it takes about two minutes on two
# processor cores.

# %%
import csv
from pathlib import Path

import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import rvtssm
from rvtssm.cli import main as cli

data = ["dataset=synthetic", "dataset.height=96", "dataset.width=128", "dataset.raw_dir=outputs/few"]
assert cli.main(["generate", *data, "num_train=8", "num_val=2", "num_test=0", "duration_s=3"]) == 0

# %% [markdown]
# The first training starts from random weights, with the recipe of the demo, but 20 steps instead of 1,200. After so
# few steps, the detector finds nothing yet: its AP is 0.

# %%
short = ["dataset.source=raw", "sampling.batch_size=2", "training.steps=20", "validate_every=20", "log_every=1"]
few = "average=null"  # 20 steps are too few for averaged weights
assert cli.main(["train", "experiment=demo", *data, *short, few, "out=outputs/from_scratch"]) == 0

# %% [markdown]
# Every run notes its settings as words of the command line, so that it can be repeated with a change, here as
# `cli.main(["train", *settings, "temporal=lstm", "out=DIR"])`.

# %%
settings = yaml.safe_load(Path("outputs/from_scratch/overrides.yaml").read_text())
print(len(settings), "settings, such as", settings[:3])

# %% [markdown]
# Fine-tuning starts from weights and takes a lower learning rate. The detector may have another size or other classes:
# what fits is taken, and the run says which tensors were not. The weights know three classes and the recordings have
# two of them. After 20 steps, this detector finds most of the objects. On your own data, start with the command in
# [Training](../training.md#fine-tuning).

# %%
start = ["training.init_from=street-tiny", "optim.learning_rate=3e-4"]
assert cli.main(["train", *data, *short, *start, "out=outputs/fine_tuned"]) == 0

# %% [markdown]
# The loss is in a table with one row per logged step. TensorBoard shows the same, and pictures of the validation.


# %%
def losses(run: str) -> tuple[list[int], list[float]]:
    with open(next(Path(run).glob("csv/version_*/metrics.csv")), newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/total"]]
    return [int(row["step"]) for row in rows], [float(row["train/total"]) for row in rows]


canvas = FigureCanvasAgg(Figure(figsize=(6.4, 3.2), dpi=110, layout="constrained"))
axes = canvas.figure.add_subplot()
axes.plot(*losses("outputs/from_scratch"), label="from random weights")
axes.plot(*losses("outputs/fine_tuned"), label="from street-tiny")
axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
axes.legend(frameon=False)
canvas.draw()
Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())

# %% [markdown]
# The fine-tuned weights are a file like any other.

# %%
rvtssm.load("outputs/fine_tuned/checkpoints/best.ckpt")
