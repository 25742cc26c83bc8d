"""`rvtssm audit`: measures what the memory and the time step of a detector do, on simulated traffic or a recording."""

import json
from dataclasses import replace

from rvtssm.cli.chosen_weights import read_weights
from rvtssm.cli.console import console, say, say_replaced, say_written
from rvtssm.cli.inputs import out_folder, weights_label, weights_path, writable
from rvtssm.contrib.demo.generate_recordings import simulated_recording
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.contrib.studies.audit_config import AuditSettings
from rvtssm.contrib.studies.audit_report import AUDIT_FILES, console_table, to_json, write_audit
from rvtssm.contrib.studies.memory_audit import audit_detector
from rvtssm.datasets import build_spec, with_described
from rvtssm.datasets.tree import find_recordings
from rvtssm.detection.sources import find_sources, first_events
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.readers.recording import join_events
from rvtssm.records import Events, ReadOptions
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError


def audit(config: AuditSettings, as_json: bool = False) -> None:
    """Measure, print, and write `audit.json` and `audit.html` to `out`.

    The events come from `recording` (the first one, if it is a folder), else from a test recording in
    `dataset.raw_dir`, else from simulated traffic in the frame size of the weights.
    """
    out = writable(out_folder(config, "audit", weights_label(weights_path(config))))
    if not as_json:
        say_replaced(out, "audit")
    with result_set(out, "audit", AUDIT_FILES) as staged:
        checkpoint = read_weights(config)
        events, sensor_hw, downsample, source = _input(config, checkpoint)
        result = audit_detector(
            checkpoint, events, sensor_hw, config.audit, downsample=downsample, progress=not as_json
        )
        title = f"{config.checkpoint} ({checkpoint.model_config.preset} {checkpoint.temporal_config.name})"
        write_audit(result, title, source, staged)
    if as_json:
        say(json.dumps(to_json(result, title, source)))
        return
    console.print(console_table(result, title))
    say_written(out, AUDIT_FILES)


def _input(config: AuditSettings, checkpoint: LoadedCheckpoint) -> tuple[Events, tuple[int, int], int | None, str]:
    """Return the events, the size of the sensor, the downsampling if it is known, and a description of the events."""
    seconds, dataset = config.audit.duration_s, with_described(config.dataset)
    spec = build_spec(dataset) if dataset.name else checkpoint.spec
    where = config.recording
    if where is None and config.dataset.raw_dir:
        recordings = find_recordings(config.dataset.raw_dir, "test", spec)
        if not recordings:
            found = f"it holds no test recording of {spec.name}"
            raise UserError("file.missing", name=config.dataset.raw_dir, found=found, advice="name a recording=FILE")
        where = str(recordings[0].events_path)
    if where is None:
        size = checkpoint.spec.frame_height, checkpoint.spec.frame_width
        scene = SyntheticConfig(seed=config.seed, duration_s=seconds)
        blocks, _ = simulated_recording(scene, "test", 0, size)
        return join_events(list(blocks)), size, 1, f"{seconds:g} s of simulated traffic, seed {config.seed}"
    path = next(iter(find_sources(where).values()))
    options = ReadOptions.of(spec if dataset.name else dataset)
    options = replace(options, height=config.dataset.height, width=config.dataset.width)
    events, size, name = first_events(path, seconds, (spec.height, spec.width), options)
    return events, size, None, f"the first {seconds:g} s of {name}"
