"""The automotive datasets of Prophesee: Gen1 at 304 x 240, and 1Mpx at 1280 x 720.

Sources: de Tournemire et al., A Large Scale Event-based Detection Dataset for Automotive, 2020; Perot et al., Learning
to Detect Objects with a 1 Megapixel Event Camera, NeurIPS 2020. Of the seven classes of 1Mpx, three are kept, boxes
below 5 px are dropped and frames are halved to 640 x 360, as in RVT (Gehrig and Scaramuzza, CVPR 2023). The other
classes in the files are 3 truck, 4 bus, 5 traffic sign and 6 traffic light.
"""

from rvtssm.records import DatasetSpec

GEN1 = DatasetSpec(
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

ONEMPX = DatasetSpec(
    name="onempx",
    height=720,
    width=1280,
    class_names=("pedestrian", "two-wheeler", "car"),
    class_ids=(0, 1, 2),
    label_interval_us=100_000,  # labels come at 30 or 60 Hz; about 10 per second are used
    min_side_px=20,
    min_diagonal_px=60,
    prepare_min_side_px=5,
    prepare_min_diagonal_px=0,
    downsample=2,
    disk_names=("gen4", "1mpx"),
)
