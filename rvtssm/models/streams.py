"""The memory of streams: states that are kept between calls of the detector, with gradients for training only.

Training, validation, evaluation, prediction and live detection all carry their states through `Streams`. It is also the
only place that resets states after a fixed number of steps (`model.memory=chunk`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.models import PostprocessConfig
from rvtssm.models.contracts import concatenate
from rvtssm.models.detector import Detector, PreparedStep
from rvtssm.records import Detections, SequenceBatch
from rvtssm.records.settings import exact_us
from rvtssm.ssm.layer import to_constant
from rvtssm.system.machine import on_device
from rvtssm.system.user_error import UserError

State = Any  # a tensor, or a (nested) tuple of tensors; see rvtssm.ssm


class Streams:
    """Runs a detector on several streams and keeps their states from one `push` to the next.

    Each stream has a slot, an integer. A stream starts from the zero state when it is pushed for the first time or with
    `is_first`; a stream that is missing in a push is forgotten. Slot -1 is for random chunks, each of which starts from
    the zero state and whose state is not kept.

    Args:
        detector: The detector to run.
        trained_stride_us: Stride in training, in microseconds. The step scale of a step is `dt_us / trained_stride_us`,
            where both are freed from rounding by `exact_us`.
        memory_chunk: Number of steps, counted from the start of a stream, after which its state is reset, as for the
            released SSM weights; 1 means no memory at all, None means that the state is carried without end.
        step_scale: A step scale to use for all steps instead.
        with_gradients: True for training: predictions are part of the graph, and states are detached between pushes.
            Otherwise, values that layers prepare for a step scale are kept, so call `clear` when the weights change.
    """

    def __init__(
        self,
        detector: Detector,
        trained_stride_us: float,
        memory_chunk: int | None = None,
        step_scale: float | None = None,
        with_gradients: bool = False,
    ) -> None:
        assert memory_chunk is None or memory_chunk >= 1  # `ModelConfig` refuses others
        self.detector = detector
        self.trained_stride_us = float(exact_us(trained_stride_us))
        self.memory_chunk = memory_chunk
        self.step_scale = step_scale
        self.with_gradients = with_gradients
        self._state: State = None
        self._steps: dict[int, int] = {}  # steps since the start by slot, in the order of the rows of the state
        self._prepared: tuple[float, PreparedStep] | None = None  # for the last step scale that was a number

    def clear(self) -> None:
        """Forget all streams, and the values that were prepared with the current weights."""
        self._state = None
        self._steps = {}
        self._prepared = None

    def push_batch(self, batch: SequenceBatch) -> Any:
        """Run the chunks of a batch, and return the predictions for its labelled frames, in the order of `frame_index`.

        Args:
            batch: The chunks of B streams.
        """
        num_steps = len(batch.hist)
        if not self.with_gradients:  # skip padding, which comes last; training keeps it for a constant shape
            num_steps = max(1, int((~batch.is_pad).any(dim=1).sum()))
        targets = is_pad = None
        if self.with_gradients and self.detector.training:
            targets = (batch.targets, batch.num_targets)
            is_pad = batch.is_pad
        steps = slice(num_steps)
        slots = batch.slot.tolist()
        is_first = batch.is_first.tolist()
        return self.push(batch.hist[steps], batch.dt_us[steps], batch.frame_index, slots, is_first, targets, is_pad)

    def push(
        self,
        hist: Tensor,
        dt_us: Tensor,
        frame_index: Tensor,
        slots: Sequence[int],
        is_first: Sequence[bool],
        targets: tuple[Tensor, Tensor] | None = None,
        is_pad: Tensor | None = None,
    ) -> Any:
        """Run L steps of B streams.

        `dt_us` and `frame_index` must be on the CPU, so that nothing waits for the device of the detector.

        Args:
            hist: Frames (L, B, C, H, W).
            dt_us: Step lengths in microseconds, (L, B).
            frame_index: The frames that need predictions, (M, 2) int64 [step, stream], ordered by step.
            slots: Slot of each stream.
            is_first: Whether each stream starts here.
            targets: Boxes (M, N, 5) and their numbers (M,), for a head that uses them in training.
            is_pad: Which frames (L, B) are padding, on the CPU; in training, they enter no batch statistics.

        Returns:
            The predictions of the head for the M frames.
        """
        with nullcontext() if self.with_gradients else torch.inference_mode():
            hist = hist.to(self.detector.device, non_blocking=True)
            step_scale = torch.from_numpy(exact_us(dt_us.numpy())) / self.trained_stride_us
            if self.step_scale is not None:
                step_scale = torch.full_like(step_scale, self.step_scale)
            # Memory of one step is none: all windows are independent.
            if self.memory_chunk == 1:
                return self._push_without_memory(hist, step_scale, frame_index, targets)
            state, steps = self._gather(slots, is_first)
            predictions = []
            # The chunk in parts, so that memory can be reset between two of them.
            segments = self._segments(steps, len(hist))
            for start, stop in segments:
                frames = frame_index
                boxes = targets
                # The labelled frames of this part, counted from its first window.
                if len(segments) > 1:
                    inside = ((frame_index[:, 0] >= start) & (frame_index[:, 0] < stop)).nonzero()[:, 0]
                    frames = frame_index[inside] - torch.tensor([start, 0])
                    boxes = targets and (targets[0][on_device(inside, targets[0].device)], targets[1][inside])
                if self.memory_chunk is not None:
                    state = self._forgotten(state, [(count + start) % self.memory_chunk != 0 for count in steps])
                step = self._prepare(step_scale[start:stop])
                without_padding = _without_padding(self.detector, is_pad, slice(start, stop))
                with without_padding, _with_statistics(self.detector, len(frames)):
                    of_segment, state = self.detector(hist[start:stop], state, step, frames, boxes)
                predictions.append(of_segment)
            self._keep(slots, state, [count + len(hist) for count in steps])
            return concatenate(predictions)

    def decoded(
        self, predictions: Any, t_us: Sequence[int], config: PostprocessConfig | None = None
    ) -> list[Detections]:
        """Return the detections of M frames, in pixels of the frame; boxes may extend beyond its edges.

        Args:
            predictions: Result of `push` for the M frames.
            t_us: Time of each of the M frames in microseconds.
            config: Which boxes count as detections; None means the defaults.
        """
        config = (config or PostprocessConfig()).with_score(self.detector.score)
        return self.detector.head.decode(predictions, t_us, config)

    def detect_batch(
        self, batch: SequenceBatch, config: PostprocessConfig | None = None
    ) -> list[tuple[int, Detections]]:
        """Run the chunks of a batch, and return the recording and the detections of each labelled frame.

        The boxes are those of `decoded`, like the boxes of labels.

        Args:
            batch: The chunks of B streams.
            config: Which boxes count as detections; None means the defaults.
        """
        predictions = self.push_batch(batch)
        recordings = batch.recording[batch.frame_index[:, 1]].tolist()
        return list(zip(recordings, self.decoded(predictions, batch.t_us.tolist(), config), strict=True))

    def states(self) -> dict[str, Any]:
        """Return the states of all streams, not copied: `steps` by slot, and `state`, whose rows have the same order.

        A later push replaces these tensors but does not write into them.
        """
        if not self._steps:
            return {"steps": {}, "state": None}
        return {"steps": dict(self._steps), "state": self._state}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all streams as plain data and tensors on the CPU."""
        states = self.states()
        if states["state"] is None:
            return states
        return {**states, "state": map_state(lambda leaf: leaf.to("cpu", copy=True), states["state"])}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Continue from a result of `state_dict`.

        Raises:
            UserError: If the states do not fit the detector.
        """
        if not stored["steps"]:
            self._state = None
            self._steps = {}
            return
        stored_shapes = _shapes_of(stored["state"])
        own_shapes = _shapes_of(self.detector.init_state(len(stored["steps"])))
        if stored_shapes != own_shapes:
            found = f"the stored states have the shapes {stored_shapes}, but this detector needs {own_shapes}"
            raise UserError("memory.other_state", found=found)
        self._state = stored["state"]
        self._steps = dict(stored["steps"])

    def _prepare(self, steps: Tensor) -> float | Tensor | PreparedStep:
        """Return steps (L, B) as the detector takes them: a number if they are equal, prepared if weights stay."""
        step_scale = to_constant(steps)
        if isinstance(step_scale, Tensor):
            return on_device(step_scale.float(), self.detector.device)
        if self.with_gradients:
            return step_scale
        if self._prepared is None or self._prepared[0] != step_scale:
            self._prepared = (step_scale, self.detector.prepare(step_scale))
        return self._prepared[1]

    def _push_without_memory(
        self, hist: Tensor, step_scale: Tensor, frame_index: Tensor, targets: tuple[Tensor, Tensor] | None
    ) -> Any:
        """Run only the frames that need predictions, each as a stream of one step."""
        if not len(frame_index):
            return self.detector.empty()
        rows = frame_index[:, 0] * hist.shape[1] + frame_index[:, 1]
        one_step = torch.stack([torch.zeros_like(rows), torch.arange(len(rows))], dim=1)
        frames = hist.flatten(0, 1)[on_device(rows, self.detector.device)][None]
        predictions, _ = self.detector(frames, None, self._prepare(step_scale.flatten()[rows][None]), one_step, targets)
        return predictions

    def _segments(self, steps: Sequence[int], num_steps: int) -> list[tuple[int, int]]:
        """Return the ranges [start, stop) of steps within which no stream is reset."""
        if self.memory_chunk is None:
            return [(0, num_steps)]
        cuts = {0}
        for count in steps:
            cuts.update(range(-count % self.memory_chunk, num_steps, self.memory_chunk))
        return list(pairwise([*sorted(cuts), num_steps]))

    def _gather(self, slots: Sequence[int], is_first: Sequence[bool]) -> tuple[State, list[int]]:
        """Return the state of the batch, zero where a stream starts, and the number of steps of each stream so far."""
        place = {slot: row for row, slot in enumerate(self._steps)}
        # A stream goes on if it is known and no new recording starts.
        goes_on = [False] * len(slots)
        steps = [0] * len(slots)
        for row, (slot, starts) in enumerate(zip(slots, is_first, strict=True)):
            if slot in place and not starts:
                goes_on[row] = True
                steps[row] = self._steps[slot]
        if not any(goes_on):
            return self.detector.init_state(len(slots)), steps
        state = map_state(lambda leaf: leaf.to(self.detector.device), self._state)
        # The same streams in the same order: the state as it is.
        if list(slots) == list(place) and all(goes_on):
            return state, steps
        # Others get the rows of their streams, and zeros where a recording starts.
        rows = on_device(torch.tensor([place.get(slot, 0) for slot in slots]), self.detector.device)
        stored = map_state(lambda leaf: _by_stream(leaf, len(place))[rows].flatten(0, 1), state)
        return self._forgotten(stored, goes_on), steps

    def _forgotten(self, state: State, keep: Sequence[bool]) -> State:
        """Return the state with zeros for the streams that are not to be kept."""
        if all(keep):
            return state
        is_old = on_device(torch.tensor(keep), self.detector.device)

        def mix(old_leaf: Tensor, new_leaf: Tensor) -> Tensor:
            old_leaf = _by_stream(old_leaf, len(keep))
            new_leaf = _by_stream(new_leaf, len(keep))
            return torch.where(is_old.view(-1, *[1] * (old_leaf.ndim - 1)), old_leaf, new_leaf).flatten(0, 1)

        return map_state(mix, state, self.detector.init_state(len(keep)))

    def _keep(self, slots: Sequence[int], state: State, steps: Sequence[int]) -> None:
        """Store the states of all streams with a slot of 0 or more, detached from the graph."""
        carried = [row for row, slot in enumerate(slots) if slot >= 0]
        self._steps = {slots[row]: steps[row] for row in carried}
        if self.with_gradients or len(carried) < len(slots):
            # This must copy: a view would keep the states of all steps and of the random chunks in memory.
            rows = on_device(torch.tensor(carried, dtype=torch.int64), self.detector.device)
            state = map_state(lambda leaf: _by_stream(leaf.detach(), len(slots))[rows].flatten(0, 1), state)
        self._state = state


@contextmanager
def _without_padding(detector: Detector, is_pad: Tensor | None, steps: slice) -> Iterator[None]:
    """Let batch norms of the backbone in training mode see the frames that are data, in the order of steps and streams.

    Padded frames leave such a norm as zeros; nothing reads what becomes of them.
    """
    # Nothing is padded, so batch norm may see every window.
    if is_pad is None or not (is_pad := is_pad[steps]).any():
        yield
        return
    norms = []
    for part in detector.backbone.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            norms.append(part)
    rows = (~is_pad).flatten().nonzero()[:, 0]

    def select(norm: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (given[0][on_device(rows, given[0].device)],)

    def fill(norm: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> Tensor:
        whole = found.new_zeros(is_pad.numel(), *found.shape[1:])
        return whole.index_copy(0, on_device(rows, found.device), found)

    # Only while the block runs: padding goes before each norm and comes back after it.
    hooks = []
    for norm in norms:
        hooks.append(norm.register_forward_pre_hook(select))
        hooks.append(norm.register_forward_hook(fill))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _with_statistics(detector: Detector, num_frames: int) -> Iterator[None]:
    """Let batch norms use their running statistics where a batch has one value per channel, which has no variance.

    This is a batch whose only labelled frame has a single position at the coarsest stride.
    """
    norms = []
    if detector.training and num_frames <= 1:
        for part in detector.modules():
            # A synchronised one sees the frames of all processes.
            is_own = not isinstance(part, nn.SyncBatchNorm)
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training and is_own:
                norms.append(part)
    if norms:
        coarsest = max(detector.neck.strides)
        if any(side > coarsest for side in detector.backbone.padded_hw):
            norms = []
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


def check_causal(detector: Detector) -> None:
    """Raise UserError for a detector whose outputs depend on later windows, because it cannot run step by step."""
    if not detector.is_causal:
        found = "these weights only work on whole chunks and cannot run step by step"
        advice = "score them with `rvtssm evaluate`, or train with temporal.bidirectional=false"
        raise UserError("layer.lacks", name="temporal.bidirectional=true", found=found, advice=advice)


def map_state(function: Callable[..., Tensor], *states: State) -> State:
    """Apply a function to the corresponding tensors of equally nested states.

    Args:
        function: Function of as many tensors as there are states.
        *states: The states.
    """
    if isinstance(states[0], Tensor):
        return function(*states)
    return tuple(map_state(function, *parts) for parts in zip(*states, strict=True))


def _shapes_of(state: State) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a state, in order."""
    if isinstance(state, Tensor):
        return [tuple(state.shape)]
    return list(chain.from_iterable(map(_shapes_of, state)))


def _by_stream(leaf: Tensor, num_streams: int) -> Tensor:
    """Return (B * n, ...) as (B, n, ...), a view, since states are ordered by stream."""
    return leaf.reshape(num_streams, -1, *leaf.shape[1:])
