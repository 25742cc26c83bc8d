"""The training loop: what happens to a batch, in this order.

1. Batch: the loader has counted its frames (`rvtssm.datasets.loader`).
2. Forward: `training_step` runs the detector from the stored states and computes the loss.
3. Finite: `training_step` ends the run if the loss is not finite, and logs it.
4. Backward: Lightning.

After every `training.accumulate` batches, a step:

5. Finite, clip: `configure_gradient_clipping` ends the run at gradients that are not finite, logs and clips them.
6. Step, schedule: Lightning calls the optimiser and its one-cycle schedule (`optim.py`).
7. Average: `WeightAveraging` of Lightning, with `training.average`.
8. Log, checkpoint, validate: Lightning and `checkpoints.py`, each at its interval.

A validation runs whole recordings and picks the best weights.
"""

from __future__ import annotations

import shlex
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import torch
from torch import Tensor, nn

from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import WRITTEN_BY, detector_weights, made_by
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.contracts import at_least_one
from rvtssm.models.detector import Detector, parameters_by_room
from rvtssm.models.streams import Streams
from rvtssm.models.transfer import Transferred, TransferSource
from rvtssm.records import DatasetSpec, Detections, Labels, SequenceBatch
from rvtssm.system.machine import on_device
from rvtssm.system.user_error import UserError
from rvtssm.training import H2_BAND, OptimConfig, TrainingConfig
from rvtssm.training.checkpoints import file_names, read_states
from rvtssm.training.optim import build_optimizer, h2_term
from rvtssm.training.resume import is_extension

_MOST_NAMED = 3  # tensors or recordings in a message


@dataclass(frozen=True)
class ModuleSettings:
    """What the module needs besides the detector."""

    spec: DatasetSpec
    trained_stride_us: float
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    batch_size: int = 1  # sequences per optimiser step, over all processes
    memory_chunk: int | None = None  # steps after which streams reset their state; None: never. See `Streams`
    postprocess: PostprocessConfig = field(default_factory=PostprocessConfig)


@dataclass(frozen=True)
class Start:
    """The weights that a run starts from, and which tensors of its detector are from them."""

    path: str
    source: TransferSource
    meta: CheckpointMeta  # of the detector
    report: Sequence[Transferred]


class DetectionModule(L.LightningModule):
    """Trains a detector on mixed batches and scores it on streams.

    Args:
        detector: The detector.
        settings: All other settings.
        checkpoint_meta: Plain dict with which a checkpoint describes itself (see models/checkpoint.py).
        decisive: Settings that decide the numbers of a run, by key. A resumed run must have the same.
        val_labels: The labels of every validation recording, by recording index.
        start: The weights that the detector starts from, for callbacks that report them.
    """

    def __init__(
        self,
        detector: Detector,
        settings: ModuleSettings,
        checkpoint_meta: dict[str, Any],
        decisive: dict[str, Any],
        val_labels: list[Labels],
        start: Start | None = None,
    ) -> None:
        super().__init__()
        self.detector = detector
        self.settings = settings
        self.checkpoint_meta = checkpoint_meta
        self.decisive = decisive
        self.val_labels = val_labels
        self.start = start
        memory = (settings.trained_stride_us, settings.memory_chunk)
        self.train_streams = Streams(detector, *memory, with_gradients=True)
        self.val_streams = Streams(detector, *memory)
        self._losses: dict[str, Tensor] = {}  # of the latest batch, over all processes
        self._recordings: list[int] = []  # in the batches of this step
        self.random_state: Tensor | None = None  # random state of the run to resume
        self.extended_at: list[int] = []  # steps at which the run was complete, before it got more of them
        self.train_seconds = 0.0  # over all parts of a resumed run, including validation
        self._since = time.perf_counter()
        self.detections: dict[tuple[int, int], Detections] = {}  # detections of this validation by (recording, time)
        self.train()

    def train(self, mode: bool = True) -> DetectionModule:
        """Switch to training mode. Frozen batch norms stay in evaluation mode."""
        super().train(mode)
        if self.settings.training.freeze_batchnorm:
            for part in self.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.eval()
        return self

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        self._recordings += batch.recording.tolist()
        losses = self.losses_of(batch)
        # The loss of the whole batch is the same in all processes, so either all of them stop here or none does.
        self._losses = self._over_processes(losses)
        if not self._losses["total"].isfinite():
            self._stop(is_cause=not losses["total"].isfinite())
        if len(batch.frame_index):
            shown = {f"train/{name}": value for name, value in self._losses.items()}
            self.log_dict(shown, batch_size=len(batch.slot))
        return losses["total"]

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None, *_: Any, **__: Any) -> None:
        """Check the gradients of a step, log their norms by room if the step is logged, and clip them by value.

        Lightning's own clipping needlessly refuses bf16 with a fused optimiser.
        """
        # With 16-mixed, the scaler skips steps whose gradients are not finite.
        if self.trainer.precision != "16-mixed" and not _are_finite(_gradients(self.detector.parameters())):
            self._stop()
        if (self.trainer.global_step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            norms = {}
            for room, parameters in parameters_by_room(self.detector).items():
                norms[f"grad_norm/{room}"] = nn.utils.get_total_norm(_gradients(parameters))
            self.log_dict(norms, batch_size=1)
        if gradient_clip_val:
            nn.utils.clip_grad_value_(self.parameters(), gradient_clip_val)
        self._recordings = []

    def _stop(self, is_cause: bool = True) -> NoReturn:
        """Raise UserError before a step that is not finite. All processes call this together and say the same.

        Args:
            is_cause: Whether the loss of this process is not finite, or the gradients of all.
        """
        # The recordings in the batches of the processes that have the fault.
        numbers: set[int] = set()
        for is_bad, of_process in self.of_all_processes((is_cause, self._recordings)):
            if is_bad:
                numbers.update(number for number in of_process if number >= 0)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        recordings = sorted(data.sequences("train")[number].name for number in numbers)
        found = "loss " + ", ".join(f"{name} {float(value):g}" for name, value in self._losses.items())
        # What else is not finite.
        bad: dict[str, list[str]] = {"weights": [], "gradients": []}
        for name, weight in self.detector.named_parameters():
            if not weight.isfinite().all():
                bad["weights"].append(name)
            if weight.grad is not None and not weight.grad.isfinite().all():
                bad["gradients"].append(name)
        for kind, names in bad.items():
            if names:
                found += f"; {kind} {_first_of(names)}"
        # What a user can do about it.
        step = self.trainer.global_step
        lower = self.settings.optim.learning_rate / 10
        words = (f"out={self.trainer.default_root_dir}", "resume=auto", f"optim.learning_rate={lower:g}")
        go_on = shlex.join(["rvtssm", "train", *words])
        raise UserError(
            "run.not_finite",
            name=f"training stopped before step {step + 1}, which is not finite",
            found=f"{found}; its batch holds the recordings {_first_of(recordings)}",
            advice=f"look at them with `rvtssm inspect`; `{go_on}` goes on from step {step} with a lower learning rate",
        )

    def losses_of(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the terms of the loss of a training batch and their `total`. The stored states advance."""
        predictions = self.train_streams.push_batch(batch)
        weights = {}
        if batch.pseudo_scores is not None:
            weights["weights"] = self.weights_of(batch, batch.pseudo_scores)
        losses = self.detector.head.loss(
            predictions, batch.targets, batch.num_targets, self.matched_per_process, **weights
        )
        if self.settings.optim.h2_weight:
            losses["h2"] = h2_term(self.detector.backbone.layers_by_memory(remember=True), H2_BAND)
            losses["total"] = losses["total"] + self.settings.optim.h2_weight * losses["h2"]
        # In stages without memory, parameters that only influence the state get no gradient.
        idle = list(nn.ModuleList(self.detector.backbone.layers_by_memory(remember=False)).parameters())
        if not len(batch.frame_index):
            idle = [*(prediction for prediction in predictions if prediction is not None), *self.parameters()]
        if idle:
            # Unused parameters still take part, because distributed training waits for the gradient of every parameter.
            losses["total"] = losses["total"] + 0.0 * sum(value.sum() for value in idle)
        return losses

    def weights_of(self, batch: SequenceBatch, pseudo_scores: Tensor) -> Tensor:
        """Return the weight of each target (M, N): 1 if it is annotated, by its score if a detector made it.

        Raise UserError for the head of a plugin whose loss does not accept weights.
        """
        if "weights" not in signature(self.detector.head.loss).parameters:
            raise UserError(
                "setting.conflict",
                name="training.pseudo_weight",
                found=f"{self.settings.training.pseudo_weight:g}",
                needed=f"the loss of {type(self.detector.head).__name__} accepts no weights",
                advice="set training.pseudo_weight=0 to leave out labels made by a detector",
            )
        by_score = self.settings.training.pseudo_weight * pseudo_scores.clamp(min=0)  # 0 for uncertain objects
        num_targets = on_device(batch.num_targets, pseudo_scores.device)[:, None]
        is_real = torch.arange(pseudo_scores.shape[1], device=pseudo_scores.device) < num_targets
        return torch.where(pseudo_scores == 0, 1.0, by_score) * is_real

    def matched_per_process(self, num_counted: Tensor | int, num_matched: Tensor | int | None = None) -> Tensor | int:
        """Return the divisor of the losses: the matches of all processes, divided by the number of processes.

        Gradients are averaged over the processes, so they equal the gradients of a single process with all the chunks.
        Whether any match counts is decided for all processes together.

        Args:
            num_counted: Number of matches that count in this process.
            num_matched: Number of all matches in this process; None if all count.
        """
        if num_matched is None:
            num_matched = num_counted
        if not has_others():
            return at_least_one(num_counted, num_matched)
        own = torch.as_tensor(num_counted, dtype=torch.float64), torch.as_tensor(num_matched, dtype=torch.float64)
        totals = torch.stack([on_device(number, self.device) for number in own])
        torch.distributed.all_reduce(totals)
        return torch.where(totals[0] > 0, totals[0], totals[1]).clamp(min=1) / torch.distributed.get_world_size()

    def _over_processes(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the losses to log: the average over the processes is the loss of the whole batch."""
        detached = {name: value.detach() for name, value in losses.items()}
        if not has_others():
            return detached
        values = torch.stack([*detached.values()])
        torch.distributed.all_reduce(values)
        return dict(zip(losses, values / torch.distributed.get_world_size(), strict=True))

    def on_fit_start(self) -> None:
        self._since = time.perf_counter()

    def on_fit_end(self) -> None:
        self._count_time()

    def _count_time(self) -> None:
        now = time.perf_counter()
        self.train_seconds += now - self._since
        self._since = now

    def on_validation_epoch_start(self) -> None:
        self.detections.clear()

    def validation_step(self, batch: SequenceBatch, batch_idx: int) -> None:
        # Run eagerly: each of the many chunk shapes would be compiled, until torch reaches its limit.
        with torch.compiler.set_stance("force_eager"):
            frames = self.val_streams.detect_batch(batch, self.settings.postprocess)
        self.detections.update(((recording, frame.t_us), frame) for recording, frame in frames)

    def on_validation_epoch_end(self) -> None:
        self.val_streams.clear()  # every recording starts anew, and the weights will change
        frames: dict[int, list[Detections]] = defaultdict(list)
        # A frame that two processes have seen counts once.
        detections: dict[tuple[int, int], Detections] = {}
        for of_process in self.of_all_processes(self.detections):
            detections.update(of_process)
        for (recording, _), frame in sorted(detections.items(), key=lambda item: item[0]):
            frames[recording].append(frame)
        if not frames:
            return
        recordings = [(str(index), self.val_labels[index], of_recording) for index, of_recording in frames.items()]
        metrics = evaluate_detections(recordings, self.settings.spec)
        # All processes have the same numbers, and need them to agree on the best weights.
        self.log_dict({f"val/{name}": value for name, value in metrics.items()}, sync_dist=True)

    def of_all_processes(self, own: Any) -> list[Any]:
        """Return the value of `own` in each process, by rank."""
        if self.trainer.world_size == 1:
            return [own]
        parts: list[Any] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(parts, own)
        return parts

    def configure_optimizers(self) -> Any:
        # With scaled gradients, a fused optimiser removes the scale itself, which is too late for clipping.
        fused = self.trainer.precision != "16-mixed"
        dtype = torch.bfloat16 if self.trainer.precision == "bf16-mixed" else torch.float32
        optimizer, schedule = build_optimizer(
            self.detector, self.settings.optim, self.settings.training.steps, self.settings.batch_size, fused, dtype
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._count_time()
        checkpoint["rvtssm"] = self.checkpoint_meta
        checkpoint[WRITTEN_BY] = made_by(detector_weights(checkpoint["state_dict"]))
        checkpoint["decisive"] = self.decisive
        checkpoint["train_seconds"] = self.train_seconds
        checkpoint["extended_at"] = self.extended_at
        names = file_names(self.trainer.global_step, self.trainer.world_size)
        checkpoint["processes"] = [self.own_states() if self.trainer.is_global_zero else {}, *names]

    def own_states(self) -> dict[str, Any]:
        """Return what this process needs to resume, apart from what all processes share."""
        return {"streams": self.train_streams.state_dict(), "random": self.random_generator().get_state()}

    def states_of_step(self) -> dict[str, Any]:
        """Return, not copied where nothing writes into it, what a step changes in this process beside its weights."""
        statistics = [value.clone() for value in self._batch_statistics()]
        random = self.random_generator().get_state()
        return {"streams": self.train_streams.states(), "random": random, "statistics": statistics}

    def go_back_to_step(self, states: dict[str, Any]) -> None:
        """Go back to a result of `states_of_step`."""
        self.train_streams.load_state_dict(states["streams"])
        self.random_generator().set_state(states["random"])
        for own, value in zip(self._batch_statistics(), states["statistics"], strict=True):
            own.copy_(value)

    def _batch_statistics(self) -> Iterator[Tensor]:
        for part in self.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                yield from part.buffers()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.train_seconds = checkpoint["train_seconds"]
        self.extended_at = list(checkpoint["extended_at"])
        if is_extension(checkpoint, self.decisive):
            self.extended_at.append(checkpoint["global_step"])
            _leave_schedule_to_the_run(checkpoint["lr_schedulers"])
        # A lower learning rate scales the whole schedule.
        factor = self.decisive["optim.learning_rate"] / checkpoint["decisive"]["optim.learning_rate"]
        for optimizer in checkpoint["optimizer_states"]:
            for group in optimizer["param_groups"]:
                group |= {name: factor * group[name] for name in ("lr", "initial_lr", "max_lr", "min_lr")}
        # Streams and random numbers are those of this process.
        own = read_states(Path(self.trainer.ckpt_path or ""), checkpoint["processes"], self.trainer.global_rank)
        self.train_streams.load_state_dict(own["streams"])
        self.random_state = own["random"]

    def on_train_start(self) -> None:
        if self.extended_at and self.extended_at[-1] == self.trainer.global_step:
            self._begin_extension()
        generator = self.random_generator()
        if self.random_state is not None:
            generator.set_state(self.random_state)
        elif self.global_rank:  # all processes got the same seed, so that they start with the same weights
            generator.manual_seed(generator.initial_seed() + self.global_rank)

    def _begin_extension(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch does not know the steps before the extension
            self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]
        loop = self.trainer.fit_loop
        every = int(self.trainer.val_check_batch or 1)
        if (loop.total_batch_idx + 1) % every:
            # Lightning counts a step for the logs after its validation, also when it resumes there. It does not expect
            # a validation here, which took place because the run was complete.
            loop.epoch_loop._batches_that_stepped += 1

    def random_generator(self) -> torch.Generator:
        """Return the generator of the random numbers in the forward pass (drop path)."""
        if self.on_gpu:
            return torch.cuda.default_generators[self.device.index]
        return torch.default_generator


def _leave_schedule_to_the_run(schedules: list[dict[str, Any]]) -> None:
    """Remove from stored schedules what a longer run has of its own, and go back one step, which is then taken anew."""
    for schedule in schedules:
        for name in ("total_steps", "_schedule_phases"):
            del schedule[name]
        for name in ("last_epoch", "_step_count"):
            schedule[name] -= 1


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _are_finite(gradients: list[Tensor]) -> bool:
    """Return whether all values are finite. This reads from the device once, unless the norm overflows."""
    if not gradients or nn.utils.get_total_norm(gradients).isfinite():
        return True
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def _first_of(names: list[str]) -> str:
    text = ", ".join(names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        text += f" and {len(names) - _MOST_NAMED} more"
    return text


def has_others() -> bool:
    """Return whether other processes take part in the training."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
