"""The verbs of this folder: `rvtssm simulate`, and `rvtssm generate` with open worlds."""

from dataclasses import replace

from rvtssm.cli.verbs import Verb
from rvtssm.contrib.demo.verbs import GENERATE as GENERATE_STREETS

SIMULATE = Verb(
    "turn a video into events, its labels into boxes; FILE|FOLDER out=DIR [labels=FILE|FOLDER] [fps=HZ]",
    "street.mp4 labels=gt.txt classes=[person] out=data/street sensor=davis346",
    "rvtssm.contrib.worlds.simulate:simulate",
    check="rvtssm.contrib.worlds.worlds_config:video_path",
    settings="rvtssm.contrib.worlds.worlds_config:WorldsConfig",
    own=("simulate", "synthetic"),
    keys=("out", "seed"),
    bare="simulate.video",
)
GENERATE = replace(
    GENERATE_STREETS,
    meaning="write recordings of a simulated dataset; dataset=synthetic|open_world|rendered_world dataset.raw_dir=DIR",
    work="rvtssm.contrib.worlds.generate:generate",
    settings="rvtssm.contrib.worlds.worlds_config:WorldsConfig",
)
