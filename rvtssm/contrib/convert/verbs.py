"""The verb of this folder: `rvtssm convert`."""

from rvtssm.cli.verbs import Verb

CONVERT = Verb(
    "write a recording in another format; IN OUT.raw (or .dat .h5 .aedat4 .npy .csv), or PREPARED_DIR OUT_DIR",
    "drive.raw drive.h5",
    "rvtssm.contrib.convert.convert:convert",
    check="rvtssm.contrib.convert.convert:check_conversion",
    own=("dataset",),
    keys=("recording", "out"),
    bare="recording",
    second="out",
)
