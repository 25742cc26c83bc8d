"""The verb of this folder: `rvtssm label`."""

from rvtssm.cli.verbs import WEIGHTS, Verb

LABEL = Verb(
    "make labels for recordings or times without; checkpoint=FILE dataset=NAME dataset.raw_dir=DIR out=DIR",
    "checkpoint=best.ckpt dataset=gen1 dataset.raw_dir=data/gen1 out=data/gen1_labelled",
    "rvtssm.contrib.labeling.label:label",
    check="rvtssm.contrib.labeling.label_config:check_label",
    settings="rvtssm.contrib.labeling.label_config:LabelSettings",
    own=("label",),
    sections=("dataset",),
    keys=(*WEIGHTS, "out"),
    writes=("out", "dataset.raw_dir"),
    goes_on="the same command continues the work",
)
