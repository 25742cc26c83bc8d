"""The verbs of this folder: `rvtssm demo` and `rvtssm generate`."""

from rvtssm.cli.verbs import TRAINED, Verb

DEMO = Verb(
    "generate data, train a detector, evaluate it at several rates, draw a video; out=DIR",
    "out=outputs/demo",
    "rvtssm.contrib.demo.demo:demo",
    check="rvtssm.contrib.demo.demo_config:check_demo",
    settings="rvtssm.contrib.demo.demo_config:DemoSettings",
    own=("windows", "training", "evaluation"),
    sections=("synthetic", *TRAINED, "detection", "predict"),
    keys=("out", "seed", "precision"),
    recipe="demo",
    writes=("out", "dataset.raw_dir"),
    follows_frames=True,
    computes=True,
    is_alone=True,
)
GENERATE = Verb(
    "write recordings of a simulated dataset; dataset=synthetic dataset.raw_dir=DIR",
    "dataset=synthetic dataset.raw_dir=data/synthetic num_train=20 duration_s=5",
    "rvtssm.contrib.demo.generate:generate",
    settings="rvtssm.contrib.demo.demo_config:DemoSettings",
    own=("synthetic", "dataset"),
    writes=("out", "dataset.raw_dir"),
)
