"""`rvtssm predict`: boxes and pictures of recordings, folders of them, DSEC sequences, or a stream of events."""

from pathlib import Path

from rvtssm.cli.chosen_weights import announce_detection, weights_to_detect
from rvtssm.cli.config import Config
from rvtssm.cli.console import say, say_error, say_replaced
from rvtssm.cli.inputs import events_path, out_folder, weights_label
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.sources import Interruption, find_sources
from rvtssm.detection.summary import RunSummary
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError, in_one_line


def predict(config: Config) -> int:
    """Write boxes and pictures of everything that `recording` names.

    Several recordings get a folder each below `out`. Return 2 if one of several recordings cannot be read, or if a
    stream breaks off, and 130 after an interruption. What was found before is written.
    """
    label = weights_label(config.checkpoint)
    where = events_path(config)
    sources = find_sources(where)
    config, checkpoint = weights_to_detect(config)
    name = next(iter(sources)) if len(sources) == 1 else Path(where).resolve().name
    out = out_folder(config, "predict", name, label)
    announce_detection("predict", config, checkpoint, where, out, len(sources))
    return _predict_all(config, checkpoint, sources, out)


def _predict_all(config: Config, checkpoint: LoadedCheckpoint, sources: dict[str, str], out: Path) -> int:
    """Predict all sources and return the exit code."""
    num_failed = 0
    is_cut_off = False
    interruption = Interruption()
    for name, path in sources.items():
        if interruption.is_ended:
            say_error(f"{name} was not begun")
            continue
        # Several recordings get a folder each.
        folder = out
        if len(sources) > 1:
            folder = out / name
        say_replaced(folder, "prediction")
        # One recording that cannot be read does not stop the others.
        try:
            summary = _predict_one(config, checkpoint, path, folder, interruption)
        except (UserError, OSError) as error:
            if len(sources) == 1:
                raise
            num_failed += 1
            say_error(f"{name}: {in_one_line(error)}")
            continue
        # What was found, and whether all was read.
        for sentence in [*summary.lines(), f"in {folder}"]:
            say(sentence)
        if summary.broke_off:
            say_error(f"{summary.broke_off}; what was found before is kept")
            is_cut_off = True
    # The exit code of all recordings together.
    if num_failed == len(sources):
        raise UserError("run.not_all_done", found=f"none of the {num_failed} recordings could be predicted")
    if interruption.is_ended:
        return 130
    if num_failed:
        say(f"{num_failed} of {len(sources)} recordings could not be predicted")
    return 2 if num_failed or is_cut_off else 0


def _predict_one(
    config: Config, checkpoint: LoadedCheckpoint, path: str, out: Path, interruption: Interruption
) -> RunSummary:
    return predict_recording(
        checkpoint,
        path,
        out,
        config.detection,
        config.predict,
        postprocess=config.postprocess,
        options=ReadOptions.of(config.dataset),
        filters=config.filters,
        interruption=interruption,
    )
