"""Gen1, the Prophesee automotive dataset at 304 x 240: cars and pedestrians, labelled at 1 to 4 Hz.

Source: de Tournemire et al., A Large Scale Event-based Detection Dataset for Automotive, 2020.
"""

from rvtssm.records import DatasetSpec

SPEC = DatasetSpec(
    name="gen1",
    height=240,
    width=304,
    class_names=("car", "pedestrian"),
    label_interval_us=250_000,
    min_side_px=10,
    min_diagonal_px=30,
    prepare_min_side_px=10,
    prepare_min_diagonal_px=30,
)
