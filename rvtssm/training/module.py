"""The LightningModule. A batch of chunks goes in, losses come out, and stored states are carried on.

A step: the loader has counted the frames of the batch; `training_step` runs the detector from the stored states and
returns the loss; Lightning runs backward. After every `accumulate` batches it clips the gradients and steps optimiser
and schedule, unless `NonFiniteStop` has ended the run at a loss or gradient that is not finite. Callbacks average the
weights and write checkpoints. Between steps, a validation runs whole recordings and picks the best weights.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.models.checkpoint import WRITTEN_BY, detector_weights, made_by
from rvtssm.models.contracts import at_least_one
from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import Streams
from rvtssm.records import DatasetSpec, Detections, Labels, SequenceBatch
from rvtssm.system.machine import on_device
from rvtssm.system.user_error import UserError
from rvtssm.training.checkpoints import file_names, read_states
from rvtssm.training.optim import build_optimizer, h2_term
from rvtssm.training.resume import is_extension
from rvtssm.training.training_config import H2_BAND, OptimConfig, TrainingConfig


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


class DetectionModule(L.LightningModule):
    """Trains a detector on mixed batches and scores it on streams.

    Args:
        detector: The detector.
        settings: All other settings.
        checkpoint_meta: Plain dict with which a checkpoint describes itself (see models/checkpoint.py).
        decisive: Settings that decide the numbers of a run, by key. A resumed run must have the same.
        val_labels: The labels of every validation recording, by recording index.
    """

    def __init__(
        self,
        detector: Detector,
        settings: ModuleSettings,
        checkpoint_meta: dict[str, Any],
        decisive: dict[str, Any],
        val_labels: list[Labels],
    ) -> None:
        super().__init__()
        self.detector = detector
        self.settings = settings
        self.checkpoint_meta = checkpoint_meta
        self.decisive = decisive
        self.val_labels = val_labels
        memory = (settings.trained_stride_us, settings.memory_chunk)
        self.train_streams = Streams(detector, *memory, with_gradients=True)
        self.val_streams = Streams(detector, *memory)
        self.latest_losses: dict[str, Tensor] = {}  # losses of the latest training batch
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
        losses = self.losses_of(batch)
        self.latest_losses = self._over_processes(losses)
        if len(batch.frame_index):
            shown = {f"train/{name}": value for name, value in self.latest_losses.items()}
            self.log_dict(shown, batch_size=len(batch.slot))
        return losses["total"]

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
                "training.weights_of_loss",
                f"the loss of {type(self.detector.head).__name__} accepts no weights, but labels made by a detector "
                "need them; set training.pseudo_weight=0 to leave these labels out",
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
        own = [torch.as_tensor(number, dtype=torch.float64) for number in (num_counted, num_matched)]
        totals = torch.stack([on_device(number, self.device) for number in own])
        torch.distributed.all_reduce(totals)
        return torch.where(totals[0] > 0, totals[0], totals[1]).clamp(min=1) / torch.distributed.get_world_size()

    def _over_processes(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the losses to log: the average over the processes is the loss of the whole batch."""
        if not has_others():
            return {name: value.detach() for name, value in losses.items()}
        values = torch.stack([value.detach() for value in losses.values()])
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
        detections = {key: frame for part in self.of_all_processes(self.detections) for key, frame in part.items()}
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

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None, *_: Any, **__: Any) -> None:
        """Clip gradients by value. Lightning needlessly refuses this in bf16 with a fused optimiser."""
        if gradient_clip_val:
            nn.utils.clip_grad_value_(self.parameters(), gradient_clip_val)

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

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.train_seconds = checkpoint["train_seconds"]
        self.extended_at = list(checkpoint["extended_at"])
        if is_extension(checkpoint, self.decisive):
            self.extended_at.append(checkpoint["global_step"])
            _leave_schedule_to_the_run(checkpoint["lr_schedulers"])
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
        loop, every = self.trainer.fit_loop, int(self.trainer.val_check_batch or 1)
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


def has_others() -> bool:
    """Return whether other processes take part in the training."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
