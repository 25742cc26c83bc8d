"""The records that pass between the rooms of the package. They check their values.

Names carry units: `_us` is int64 microseconds and `_px` is pixels. Intervals of time are half-open. This room does
not import torch, so that readers and the worker processes of the preparation start fast.
"""

from rvtssm.records.arrays import Detections, Events, Labels, PackedEvents, SequenceBatch, Windows
from rvtssm.records.settings import DatasetSpec, ReadOptions, WindowSettings

__all__ = [
    "DatasetSpec",
    "Detections",
    "Events",
    "Labels",
    "PackedEvents",
    "ReadOptions",
    "SequenceBatch",
    "WindowSettings",
    "Windows",
]
