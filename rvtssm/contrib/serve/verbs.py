"""The verb of this folder: `rvtssm serve`."""

from rvtssm.cli.verbs import Verb

SERVE = Verb(
    "show a web page on which recordings and cameras play with their boxes; [FILE|FOLDER] [checkpoint=FILE]",
    "data/drives checkpoint=best.ckpt port=8000",
    "rvtssm.contrib.serve.serve:serve",
    check="rvtssm.cli.inputs:check_weights_or_default",
    settings="rvtssm.contrib.serve.serve_config:ServeSettings",
    own=("serve",),
    keys=("checkpoint", "recording"),
    bare="recording",
    computes=True,
)
