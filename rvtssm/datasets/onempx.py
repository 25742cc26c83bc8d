"""1Mpx, the Prophesee automotive dataset at 1280 x 720: three of its seven classes, frames halved to 640 x 360.

Source: Perot et al., Learning to Detect Objects with a 1 Megapixel Event Camera, NeurIPS 2020. As in RVT (Gehrig and
Scaramuzza, CVPR 2023), three classes are kept, boxes below 5 px are dropped and frames are halved. The other classes in
the files are 3 truck, 4 bus, 5 traffic sign and 6 traffic light.
"""

from rvtssm.records import DatasetSpec

SPEC = DatasetSpec(
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
