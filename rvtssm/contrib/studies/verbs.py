"""The verbs of this folder: `rvtssm study` and `rvtssm audit`."""

import rvtssm.contrib.demo  # noqa: F401  whose street both use; without that folder they are not there
from rvtssm.cli.verbs import TRAINED, WEIGHTS, Verb

STUDY = Verb(
    "train and evaluate every point of a grid, with tables of means and intervals; key=value,value ... out=DIR",
    "experiment=demo temporal=selective_s5,lstm seed=0,1,2 window=slide,shrink hz=[20,200] out=study",
    "rvtssm.contrib.studies.run_study:run_study",
    check="rvtssm.contrib.studies.study_config:check_study",
    settings="rvtssm.contrib.studies.study_config:StudySettings",
    grid="rvtssm.contrib.studies.grid:compose_study",
    own=("evaluation", "windows", "training"),
    sections=("study", "synthetic", "preprocess", *TRAINED),
    keys=("out", "seed", "precision", "checkpoint"),
    follows_frames=True,
    goes_on="the same command continues the work",
)
AUDIT = Verb(
    "measure memory and time step of a detector; FILE [recording=FILE] out=DIR [--json]",
    "best.ckpt recording=drive.raw out=audit",
    "rvtssm.contrib.studies.audit:audit",
    check="rvtssm.cli.inputs:weights_path",
    settings="rvtssm.contrib.studies.audit_config:AuditSettings",
    own=("audit", "dataset"),
    keys=(*WEIGHTS, "recording", "out", "seed"),
    bare="checkpoint",
    has_json=True,
)
