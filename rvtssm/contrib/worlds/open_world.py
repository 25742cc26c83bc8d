"""open_world: simulated recordings of streets, open places and rooms, made with `rvtssm generate`.

They serve to train weights that work on real recordings. People on two-wheelers belong to their vehicle.
"""

from rvtssm.records import DatasetSpec

SPEC = DatasetSpec(
    name="open_world",
    height=240,
    width=304,
    class_names=("person", "vehicle", "two-wheeler"),
    label_interval_us=50_000,
    min_side_px=6,
    min_diagonal_px=12,
    prepare_min_side_px=3,
    prepare_min_diagonal_px=8,
    skip_us=300_000,
)
