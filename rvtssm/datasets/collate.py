"""Chunks -> batch: steps first, shorter chunks padded at their end, boxes as [class, cx, cy, w, h]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rvtssm.datasets.chunks import Chunk
from rvtssm.datasets.packed_batch import PackedBatch
from rvtssm.records import SequenceBatch


@dataclass(frozen=True, slots=True)
class Collate:
    """Puts chunks together for a DataLoader, as batches of `num_steps`, or if that is None of the longest chunk.

    `pad_dt_us` is the step of padding: the usual one, so that a constant step stays constant.
    """

    num_steps: int | None
    pad_dt_us: int

    def __call__(self, chunks: list[Chunk]) -> PackedBatch:
        num_steps = self.num_steps or max([1, *(len(chunk.frames) for chunk in chunks)])
        frames = sorted(  # (step, stream, time, boxes) of each labelled frame
            (
                (int(step), stream, chunk, chunk.labels.window_index == step)
                for stream, chunk in enumerate(chunks)
                for step in np.unique(chunk.labels.window_index)
            ),
            key=lambda frame: frame[:2],
        )
        frame_index = torch.tensor([frame[:2] for frame in frames], dtype=torch.int64).reshape(-1, 2)
        num_targets = torch.tensor([int(chosen.sum()) for *_, chosen in frames], dtype=torch.int64)
        targets = torch.zeros(len(frames), max([1, *num_targets.tolist()]), 5)
        t_us = torch.zeros(len(frames), dtype=torch.int64)
        for m, (_, _, chunk, chosen) in enumerate(frames):
            labels = chunk.labels[chosen]
            ltwh = torch.from_numpy(labels.boxes_ltwh)
            t_us[m] = int(labels.t_us[0])
            targets[m, : len(labels), 0] = torch.from_numpy(labels.class_id)
            targets[m, : len(labels), 1:3] = ltwh[:, :2] + ltwh[:, 2:] / 2
            targets[m, : len(labels), 3:] = ltwh[:, 2:]

        dt_us = torch.full((num_steps, len(chunks)), self.pad_dt_us, dtype=torch.int64)
        is_pad = torch.ones(num_steps, len(chunks), dtype=torch.bool)
        for stream, chunk in enumerate(chunks):
            dt_us[: len(chunk.frames), stream] = torch.from_numpy(chunk.dt_us)
            is_pad[: len(chunk.frames), stream] = False
        rest = SequenceBatch(
            hist=torch.empty(0),
            dt_us=dt_us,
            is_first=torch.tensor([chunk.request.is_first for chunk in chunks]),
            is_pad=is_pad,
            frame_index=frame_index,
            targets=targets,
            num_targets=num_targets,
            t_us=t_us,
            slot=torch.tensor([chunk.request.slot for chunk in chunks]),
            recording=torch.tensor([chunk.request.recording for chunk in chunks]),
        )
        return PackedBatch(rest, chunks[0].frames.stack([chunk.frames for chunk in chunks], num_steps))
