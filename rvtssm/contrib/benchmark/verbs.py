"""The verb of this folder: `rvtssm benchmark`."""

from rvtssm.cli.verbs import WEIGHTS, Verb

BENCHMARK = Verb(
    "measure which rates this machine sustains; a FILE or a camera, whose sensor counts [downsample=N] [--json]",
    "drive.raw checkpoint=best.ckpt out=rates",
    "rvtssm.contrib.benchmark.benchmark:benchmark",
    check="rvtssm.cli.inputs:check_weights_or_default",
    own=("detection", "dataset"),
    sections=("postprocess",),
    keys=(*WEIGHTS, "recording", "out"),
    bare="recording",
    has_json=True,
    computes=True,
)
