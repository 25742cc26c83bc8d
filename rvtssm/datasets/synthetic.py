"""synthetic: recordings of procedural traffic in the raw layout of Gen1, made with `rvtssm generate`.

The labels also say how long each object has stood still, which no published dataset provides.
"""

from rvtssm.records import DatasetSpec

GENERATED_FILE = "synthetic.json"  # the settings of generated recordings, in their folder
SPEC = DatasetSpec(
    name="synthetic",
    height=120,
    width=160,
    class_names=("vehicle", "person"),  # as the weights in the package and `open_world` call them
    label_interval_us=50_000,
    min_side_px=6,
    min_diagonal_px=12,
    prepare_min_side_px=6,
    prepare_min_diagonal_px=12,
)
