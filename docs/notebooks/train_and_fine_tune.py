# %% [markdown]
# # Train and fine-tune
#
# How the demo was trained, and a training that starts from its weights. [Training](../training.md) has the recipes.

# %%
import csv
from pathlib import Path

import yaml
from matplotlib.figure import Figure

import rvtssm
from rvtssm.commands import cli

demo, out = Path("outputs/demo"), Path("outputs/notebooks/train_and_fine_tune")
assert (demo / "checkpoints/best.ckpt").is_file(), "run this first: rvtssm demo out=outputs/demo"

# %% [markdown]
# Every run notes its settings as words of the command line, so that it can be repeated with a change, here as
# `cli.main(["train", *settings, "temporal=lstm", "out=DIR"])`.

# %%
settings = yaml.safe_load((demo / "overrides.yaml").read_text())
print(len(settings), "settings, such as", settings[:3])

# %% [markdown]
# The loss is in a table with one row per logged step. TensorBoard shows the same, and pictures of the validation.


# %%
def losses(run: Path) -> tuple[list[int], list[float]]:
    with open(next(run.glob("csv/version_*/metrics.csv")), newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/total"]]
    return [int(row["step"]) for row in rows], [float(row["train/total"]) for row in rows]


figure = Figure(figsize=(6.4, 3.2), layout="constrained")
axes = figure.add_subplot()
axes.plot(*losses(demo))
axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
figure

# %% [markdown]
# Fine-tuning starts from weights and takes a lower learning rate. The detector may have another size or other classes:
# what fits is taken, and the run says which tensors were not. Two steps show how; real trainings have hundreds or more.
# On your own data, start with the command in [Training](../training.md#fine-tuning); the rate here is lower than there,
# because the weights have seen these data.

# %%
change = ["training.steps=2", "training.validate_every=2", "training.log_every=1", "optim.learning_rate=1e-4"]
start = f"training.init_from={demo / 'checkpoints/best.ckpt'}"
assert cli.main(["train", *settings, *change, start, f"out={out}"]) == 0

# %%
rvtssm.load(out / "checkpoints/best.ckpt")
