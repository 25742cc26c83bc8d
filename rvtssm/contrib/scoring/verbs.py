"""The verb of this folder: `rvtssm score`."""

from rvtssm.cli.verbs import Verb

SCORE = Verb(
    "score boxes of any detector as evaluate does; DETECTIONS LABELS [compared=[DETECTIONS,...]] [dataset=NAME]",
    "theirs.json labels.json compared=[ours.json] out=scores",
    "rvtssm.contrib.scoring.score:score_files",
    check="rvtssm.contrib.scoring.score_config:check_score",
    settings="rvtssm.contrib.scoring.score_config:ScoreSettings",
    own=("score", "dataset"),
    keys=("out", "seed"),
    bare="score.detections",
    second="score.labels",
)
