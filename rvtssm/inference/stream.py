"""Recordings through a detector in constant memory: states are carried from call to call, per stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rvtssm.inference.progress import progress_bar
from rvtssm.models.contracts import concatenate
from rvtssm.models.detector import Detector, PreparedStep
from rvtssm.models.postprocess import PostprocessConfig
from rvtssm.records import Detections, SequenceBatch

State = Any  # a tensor, or a (nested) tuple of tensors; see rvtssm.ssm


@dataclass(frozen=True, slots=True)
class RecordingResult:
    """What was found in one recording."""

    recording: int  # index in its split
    detections: list[Detections]  # one per labelled frame, ordered by time


class Streams:
    """The states of some streams, moved on by `push`; the detector itself remembers nothing.

    Streams are told apart by their slot. A stream starts from the zero state when it is pushed with `is_first` or for
    the first time; one that is left out of a push is forgotten. With `memory_chunk`, every stream forgets after that
    many steps, counted from its start (the memory of the released SSM weights); 1 is no memory at all. The detector
    steps by `dt_us / trained_stride_us`, or by `step_scale` whatever the rate. Its weights must stay as they are.
    """

    def __init__(
        self,
        detector: Detector,
        trained_stride_us: float,
        memory_chunk: int | None = None,
        step_scale: float | None = None,
    ) -> None:
        if memory_chunk is not None and memory_chunk < 1:
            raise ValueError(f"memory_chunk={memory_chunk} steps; use at least 1, or null to carry the state on")
        self.detector = detector
        self.trained_stride_us = trained_stride_us
        self.memory_chunk = memory_chunk
        self.step_scale = step_scale
        self.device = detector.device
        self._state: State = None
        self._steps: dict[int, int] = {}  # slot: steps since its start, in the order of the rows of the state
        self._prepared: tuple[float, PreparedStep] | None = None  # for the last step scale that was a number

    @torch.inference_mode()
    def push(
        self, hist: Tensor, dt_us: Tensor, frame_index: Tensor, slots: Sequence[int], is_first: Sequence[bool]
    ) -> Any:
        """Run L steps of B streams: hist (L, B, C, H, W), dt_us (L, B), frame_index (M, 2) = (step, stream).

        Returns the head's predictions for the M frames in frame_index, which is in order of steps.
        """
        hist, frame_index = hist.to(self.device, non_blocking=True), frame_index.cpu()
        step_scale = dt_us.double() / self.trained_stride_us
        if self.step_scale is not None:
            step_scale = torch.full_like(step_scale, self.step_scale)
        if self.memory_chunk == 1:
            return self._push_without_memory(hist, step_scale, frame_index)
        self._gather(slots, is_first)
        predictions = []
        for start, stop in self._segments(len(hist)):
            self._forget([steps + start for steps in self._steps.values()])
            wanted = frame_index[(frame_index[:, 0] >= start) & (frame_index[:, 0] < stop)]
            found, self._state = self.detector(
                hist[start:stop],
                self._state,
                self._prepare(_number_if_constant(step_scale[start:stop], self.device)),
                (wanted - torch.tensor([start, 0])).to(self.device),
            )
            predictions.append(found)
        self._steps = {slot: steps + len(hist) for slot, steps in self._steps.items()}
        return concatenate(predictions)

    def state_dict(self) -> dict[str, Any]:
        """The states of all streams, as plain data and tensors on the CPU."""
        state = _map(lambda leaf: leaf.to("cpu", copy=True), self._state) if self._steps else None
        return {"steps": dict(self._steps), "state": state}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; ValueError where the states are those of another detector."""
        if not stored["steps"]:
            self._state, self._steps = None, {}
            return
        wanted = self.detector.init_state(len(stored["steps"]))
        shapes = [[leaf.shape for leaf in _leaves(state)] for state in (stored["state"], wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"the stored states have the shapes {[tuple(shape) for shape in shapes[0]]}, this detector needs "
                f"{[tuple(shape) for shape in shapes[1]]}; go on with the weights and the sensor they were made with"
            )
        self._state = _map(lambda leaf: leaf.to(self.device), stored["state"])
        self._steps = dict(stored["steps"])

    def _prepare(self, step_scale: float | Tensor) -> Tensor | PreparedStep:
        if isinstance(step_scale, Tensor):
            return step_scale
        if self._prepared is None or self._prepared[0] != step_scale:
            self._prepared = (step_scale, self.detector.prepare(step_scale))
        return self._prepared[1]

    def _push_without_memory(self, hist: Tensor, step_scale: Tensor, frame_index: Tensor) -> Any:
        """Every frame is a stream of one step, so only the wanted ones need to be run."""
        if not len(frame_index):
            return self.detector.empty()
        rows = frame_index[:, 0] * hist.shape[1] + frame_index[:, 1]
        each = torch.stack([torch.zeros_like(rows), torch.arange(len(rows))], dim=1)
        frames = hist.flatten(0, 1)[rows.to(self.device)][None]
        scale = _number_if_constant(step_scale.flatten()[rows][None], self.device)
        predictions, _ = self.detector(frames, None, scale, each.to(self.device))
        return predictions

    def _segments(self, num_steps: int) -> list[tuple[int, int]]:
        """[start, stop) within which no stream forgets."""
        cuts = {0}
        if self.memory_chunk is not None:
            for steps in self._steps.values():
                cuts.update(range(-steps % self.memory_chunk, num_steps, self.memory_chunk))
        edges = [*sorted(cuts), num_steps]
        return list(pairwise(edges))

    def _gather(self, slots: Sequence[int], is_first: Sequence[bool]) -> None:
        """Bring the rows of the state in the order of `slots`, zero where a stream starts."""
        place = {slot: row for row, slot in enumerate(self._steps)}
        goes_on = [slot in place and not first for slot, first in zip(slots, is_first, strict=True)]
        if not any(goes_on):
            self._state = self.detector.init_state(len(slots))
        elif list(slots) != list(place) or not all(goes_on):
            rows = torch.tensor([place.get(slot, 0) for slot in slots], device=self.device)
            keep = torch.tensor(goes_on, device=self.device)
            self._state = _map(
                lambda old, new: _mixed(keep, _by_stream(old, len(place))[rows], _by_stream(new, len(slots))),
                self._state,
                self.detector.init_state(len(slots)),
            )
        self._steps = {slot: self._steps[slot] if stays else 0 for slot, stays in zip(slots, goes_on, strict=True)}

    def _forget(self, steps: list[int]) -> None:
        """Zero the states of the streams whose number of steps is a multiple of the memory."""
        if self.memory_chunk is None:
            return
        keep = torch.tensor([count % self.memory_chunk != 0 for count in steps], device=self.device)
        if not keep.all():
            self._state = _map(
                lambda old, new: _mixed(keep, _by_stream(old, len(steps)), _by_stream(new, len(steps))),
                self._state,
                self.detector.init_state(len(steps)),
            )


def stream(
    detector: Detector,
    loader: Iterable[SequenceBatch],
    *,
    trained_stride_us: float,
    memory_chunk: int | None = None,
    reset_every_step: bool = False,
    step_scale: float | None = None,
    config: PostprocessConfig | None = None,
    progress: str | None = None,
) -> list[RecordingResult]:
    """The detections at every labelled frame of an evaluation loader, for each recording that has one.

    The detector steps by `dt_us / trained_stride_us`, or by `step_scale`. `reset_every_step` starts every step from the
    zero state: what is lost then is what memory is worth. `progress` names a bar with the time left, None shows none.
    """
    found: dict[int, list[Detections]] = defaultdict(list)
    streams = Streams(detector, trained_stride_us, 1 if reset_every_step else memory_chunk, step_scale)
    was_training = detector.training
    detector.eval()
    try:
        with progress_bar(progress, getattr(loader, "__len__", lambda: None)()) as advance:
            for batch in loader:
                num_steps = int((~batch.is_pad).any(dim=1).sum())  # padding comes last
                if num_steps:
                    predictions = streams.push(
                        batch.hist[:num_steps],
                        batch.dt_us[:num_steps],
                        batch.frame_index,
                        batch.slot.tolist(),
                        batch.is_first.tolist(),
                    )
                    recordings = batch.recording[batch.frame_index[:, 1]].tolist()
                    frames = detector.head.decode(predictions, batch.t_us.tolist(), config)
                    for recording, frame in zip(recordings, frames, strict=True):
                        found[recording].append(frame)
                advance(1)
    finally:
        detector.train(was_training)
    return [
        RecordingResult(recording, sorted(frames, key=lambda frame: frame.t_us))
        for recording, frames in sorted(found.items())
    ]


def check_causal(detector: Detector) -> None:
    """ValueError for a detector whose outputs depend on later windows: fed one at a time, it would see none of them."""
    if not detector.is_causal:
        raise ValueError(
            "these weights see whole chunks only (temporal.bidirectional=true) and cannot go step by step; score them "
            "with `rvtssm evaluate`, or train with temporal.bidirectional=false"
        )


def _map(function: Callable[..., Tensor], *states: State) -> State:
    """`function` over the corresponding tensors of equally nested states."""
    if isinstance(states[0], Tensor):
        return function(*states)
    return tuple(_map(function, *parts) for parts in zip(*states, strict=True))


def _leaves(state: State) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in _leaves(part)]


def _by_stream(leaf: Tensor, num_streams: int) -> Tensor:
    """(B * n, ...) -> (B, n, ...): a view, states are stream-major."""
    return leaf.reshape(num_streams, -1, *leaf.shape[1:])


def _mixed(keep: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Old where keep (B,), else new, as (B * n, ...)."""
    return torch.where(keep.view(-1, *[1] * (old.ndim - 1)), old, new).flatten(0, 1)


def _number_if_constant(step_scale: Tensor, device: torch.device) -> float | Tensor:
    """A number where all steps are alike, found here on the CPU, so that no device has to be waited for."""
    if step_scale.numel() and bool((step_scale == step_scale.flatten()[0]).all()):
        return float(step_scale.flatten()[0])
    return step_scale.to(device, torch.float32)
