"""The audit sees what is known: state that is not carried, modes that were set, layers without a step."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.contrib.studies.audit_config import AuditConfig
from rvtssm.contrib.studies.audit_report import AUDIT_FILES, spectrum_numbers, to_html, to_json
from rvtssm.contrib.studies.memory_audit import audit_detector, cost_per_step
from rvtssm.contrib.studies.memory_probe import carried_and_dropped, memory_curves, memory_steps, rescaling
from rvtssm.datasets import DATASETS
from rvtssm.models.official import convert_official
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import join_events
from rvtssm.records import Events
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.spectrum import Spectrum

SMALL_AUDIT = AuditConfig(hz=[20.0, 200.0], finer=[1, 5])


def random_frames(num_steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 3, (num_steps, 20, 48, 64), generator=generator, dtype=torch.uint8)


def set_modes(checkpoint, tau_steps):
    """All modes of all stages decay to 1 / e in so many steps and do not oscillate."""
    for stage in checkpoint.detector.backbone.stages:
        ssm = stage.temporal.ssm
        with torch.no_grad():
            ssm.Lambda[:, 0], ssm.Lambda[:, 1] = -1 / tau_steps, 0
            ssm.log_step.zero_()
        ssm.discretization = "zoh"
    return checkpoint


def test_the_official_layout_carries_nothing_over_a_chunk_border(golden_dir):
    arrays = np.load(golden_dir / "model_small.npz")
    weights = {key.removeprefix("sd/"): torch.from_numpy(arrays[key]) for key in arrays.files if key.startswith("sd/")}
    _, _, channels, height, width = arrays["input"].shape
    classes = tuple(f"class {i}" for i in range(len(weights["mdl.yolox_head.cls_preds.0.bias"])))
    spec = replace(DATASETS["gen1"], height=height, width=width, class_names=classes)
    head_dim = len(weights["mdl.backbone.stages.0.downsample_cf2cl.conv.weight"]) // 2
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 3, (7, channels, height, width), generator=generator, dtype=torch.uint8)
    found = {}
    for memory, chunk in (("chunk", 5), ("carried", None)):
        checkpoint = convert_official(weights, spec, head_dim=head_dim, memory=memory, memory_chunk=chunk)
        found[memory] = carried_and_dropped(checkpoint, checkpoint.detector, frames, 5)
    for name in found["chunk"]["at the border"]:
        assert found["chunk"]["at the border"][name] <= 1e-6, name
        assert found["carried"]["at the border"][name] > 1e-5, name
        assert found["chunk"]["at every step"][name] > 1e-5, name  # within a chunk there is memory


@pytest.mark.parametrize("tau_steps", [2.0, 4.0])
def test_known_modes_give_the_known_timescale_and_memory(live_checkpoint, tau_steps):
    checkpoint = set_modes(live_checkpoint("s5"), tau_steps)
    for spectrum in (stage.temporal.spectrum() for stage in checkpoint.detector.backbone.stages):
        numbers = spectrum_numbers(spectrum, 50.0)
        assert list(numbers["timescale_ms"].values()) == pytest.approx([50 * tau_steps] * 3)
        assert numbers["frequency_hz"] == {"median": 0, "highest": 0} and numbers["share_masked"] == 0
    at, later = round(6 * tau_steps), round(8 * tau_steps)
    frames = random_frames(1).expand(at + later, -1, -1, -1)
    curve = memory_curves(checkpoint, checkpoint.detector, frames, at)["stride 4"]
    decay = math.exp(-1 / tau_steps)
    ratios = curve[2:] / curve[1:-1]
    assert ratios == pytest.approx(np.full(len(ratios), decay), rel=0.05)
    wanted = 1 + math.log(0.01 * curve[0] / curve[1]) / math.log(decay)  # steps from the first one that is memory alone
    assert memory_steps(curve, 0.01, 50.0) / 50 == pytest.approx(wanted, abs=1.5)


def test_memory_ends_where_the_effect_does():
    curve = 0.5 ** np.arange(12)
    assert memory_steps(curve, 0.01, 50.0) == 7 * 50  # 1 / 128 is the first below a hundredth
    assert memory_steps(curve, 1e-6, 50.0) == math.inf
    assert memory_steps(np.zeros(4), 0.01, 50.0) is None
    assert memory_steps(np.array([1.0, 0, 0.5, 0]), 0.1, 10.0) == 30  # it comes back


def test_a_chunk_remembers_no_longer_than_itself(live_checkpoint):
    checkpoint = set_modes(live_checkpoint("s5", memory="chunk", memory_chunk=4), 50.0)
    curves = memory_curves(checkpoint, checkpoint.detector, random_frames(10), 1)
    for curve in curves.values():
        assert (curve[:3] > 1e-6).all() and (curve[3:] <= 1e-6).all()


@torch.no_grad()
def test_a_held_input_shows_which_layers_have_a_step(live_checkpoint):
    before, held = random_frames(6), random_frames(1, seed=1)
    s5 = set_modes(live_checkpoint("s5"), 5.0).detector
    rescaled, fixed = rescaling(s5, before, held, [1, 2, 10])
    for name, value in rescaled[1].items():
        assert value == fixed[1][name] <= 1e-6
    for finer in (2, 10):
        assert rescaled[finer]["state 4"] <= 1e-5  # zoh is exact for a held input, which only the first stage gets
        assert fixed[finer]["state 4"] > 0.05
        assert rescaled[finer]["scores"] < 0.5 * fixed[finer]["scores"]
    rescaled, fixed = rescaling(live_checkpoint("lstm").detector, before, held, [1, 10])
    assert rescaled == fixed  # it has no step scale
    assert rescaled[10]["state 4"] > 0.05 and rescaled[10]["scores"] > 1e-4


def test_the_mask_of_a_layer_is_in_its_spectrum():
    config = TemporalConfig(name="s5", bandlimit=0.4, dt_min=0.2, dt_max=1.0)
    layer = S5SSM(16, config)
    spectrum = layer.spectrum()
    assert isinstance(spectrum, Spectrum)
    lambda_, dt = layer.modes()
    cycles = (dt * lambda_.imag.abs() / (2 * math.pi)).tolist()
    assert spectrum.cycles_per_step.tolist() == pytest.approx(cycles)
    assert spectrum.is_masked.tolist() == [value >= 0.2 for value in cycles] and 0 < spectrum.is_masked.sum() < 16
    numbers = spectrum_numbers(spectrum, 50.0)
    assert numbers["masked_from_hz"] == pytest.approx(4.0) and numbers["nyquist_hz"] == 10
    assert numbers["share_masked"] == pytest.approx(np.mean([value >= 0.2 for value in cycles]))
    middle = np.median(cycles) * 20
    assert numbers["frequency_hz"] == {"median": pytest.approx(middle), "highest": pytest.approx(max(cycles) * 20)}
    with torch.no_grad():
        layer.Lambda[3, 0] = 0.1
    layer.clip_real = False
    assert spectrum_numbers(layer.spectrum(), 50.0)["num_undamped"] == 1


@pytest.mark.parametrize("name", ["s5", "lstm"])
def test_an_audit_says_everything_on_one_page(live_checkpoint, draw_events, name):
    checkpoint = live_checkpoint(name)
    events = draw_events(20_000, duration_us=1_300_000)
    audit = audit_detector(checkpoint, events, (48, 64), SMALL_AUDIT, progress=False)
    page, numbers = to_html(audit, "weights", "noise"), to_json(audit, "weights", "noise")
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert list(numbers["memory_length"]) == [*(f"stride {s}" for s in (4, 8, 16, 32)), "boxes", "scores"]
    assert numbers["num_windows"] == 26
    assert numbers["carry"]["traffic"]["at the border"]["scores"] > 0
    assert numbers["cost"]["20"]["ms"] > 0
    assert len(numbers["memory_length"]["boxes"]["curve"]) == 26 - numbers["emptied_window"]
    assert numbers["rescaled"]["5"]["scores"] >= 0
    assert numbers["cost"]["200"]["realtime"] == pytest.approx(5 / numbers["cost"]["200"]["ms"])
    assert ("no eigenvalues" in page) == (name == "lstm")
    assert ("ignore the step scale" in page) == (name == "lstm")
    assert page.count("<h2>") == 5


def test_only_windows_with_events_are_timed(live_checkpoint, draw_events):
    events, config = draw_events(20_000, duration_us=1_300_000), AuditConfig(hz=[2.0, 4.0])
    cost = cost_per_step(live_checkpoint("s5"), events, (48, 64), 1, config)
    assert cost[2.0] == "the events fill 2 windows, and the first 3 are not timed" and cost[4.0]["ms"] > 0


SHORT = ("duration_s=1.3", "hz=[20]", "finer=[2]")


def test_the_command_audits_simulated_traffic(weights, tmp_path, capsys):
    assert cli.main(["audit", f"checkpoint={weights}", f"out={tmp_path / 'out'}", *SHORT]) == 0
    assert "1.3 s of simulated traffic" in (tmp_path / "out/audit.html").read_text()
    out = capsys.readouterr().out
    assert all(f"{head}: " in out for head in ("state dropped", "dropped, input held", "memory ms", "2 finer steps"))
    assert "…" not in out and max(map(len, out[: out.index("stride")].splitlines())) <= 80
    assert {path.name for path in (tmp_path / "out").glob("[!.]*")} == set(AUDIT_FILES)


def test_the_emptied_window_had_events(live_checkpoint, draw_events):
    """A recording may begin with one event and seconds of silence."""
    events = draw_events(20_000, duration_us=1_300_000)
    first = Events(events.t[:1] - 2_000_000, events.x[:1], events.y[:1], events.p[:1])
    audit = audit_detector(live_checkpoint(), join_events([first, events]), (48, 64), SMALL_AUDIT, progress=False)
    assert audit.num_windows == 66 and all(length is not None for length in audit.memory_ms.values())


def test_the_memory_of_a_chunk_is_measured_from_its_start(live_checkpoint, draw_events):
    checkpoint = set_modes(live_checkpoint("s5", memory="chunk", memory_chunk=8), 50.0)
    events = draw_events(5_000, duration_us=2_300_000)
    busy = draw_events(5_000, start_us=int(events.t[0]) + 350_000, duration_us=50_000)  # the last window of a chunk
    order = np.argsort(np.concatenate([events.t, busy.t]), kind="stable")
    columns = (np.concatenate([getattr(e, name) for e in (events, busy)])[order] for name in "txyp")
    audit = audit_detector(checkpoint, Events(*columns), (48, 64), SMALL_AUDIT, progress=False)
    assert audit.at_window == 0 and set(audit.memory_ms.values()) == {8 * 50.0}


@pytest.mark.parametrize("size", [(96, 128), None])
def test_a_recording_of_any_sensor_is_audited(weights, draw_events, tmp_path, printed_by, size):
    """By the size that the file names; where it names none, by that of the weights. It may be one of a dataset."""
    (tmp_path / "raw/test").mkdir(parents=True)
    recording = tmp_path / "raw/test/a_td.dat"
    write_dat(recording, draw_events(20_000, duration_us=3_000_000), *(size or (48, 64)))
    if size is None:
        header, end, rest = recording.read_bytes().partition(b"% Width 64\n")
        recording.write_bytes(header.replace(b"% Height 48\n", b"") + rest)
        assert end
    source = f"recording={recording}" if size else f"dataset.raw_dir={tmp_path / 'raw'}"
    told = json.loads(printed_by("audit", f"checkpoint={weights}", f"out={tmp_path / 'out'}", source, *SHORT, "--json"))
    assert told == json.loads((tmp_path / "out/audit.json").read_text())
    assert told["num_windows"] == 26 and str(recording) in told["input"]  # only the time that was asked for


def test_a_recording_is_read_as_its_dataset_says(weights, draw_events, tmp_path, printed_by):
    (tmp_path / "test").mkdir()
    (tmp_path / "dataset.yaml").write_text("height: 96\nwidth: 128\nclasses: [vehicle]\n")
    events = draw_events(20_000, duration_us=3_000_000)
    columns = {name: getattr(events, name) for name in "txyp"} | {"x": 2 * events.x, "y": 2 * events.y}
    columns["t"] = np.concatenate([events.t[:5_000], events.t[5_000:5_500] - 300_000, events.t[5_500:]])
    np.savez(tmp_path / "test/a.npz", **columns)
    words = [
        f"checkpoint={weights}",
        f"recording={tmp_path}/test/a.npz",
        "dataset.repair=true",
        f"out={tmp_path / 'out'}",
    ]
    assert json.loads(printed_by("audit", *words, *SHORT, "--json"))["num_windows"] == 26


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (["recording=/nowhere.dat"], "/nowhere.dat"),
        (["recording=-"], "name a file or a folder"),
        (["duration_s=0.5"], "but an audit of these weights needs 23; give a longer recording"),
    ],
)
def test_what_cannot_be_audited_is_one_line(weights, tmp_path, refused, change, answer):
    arguments = [f"checkpoint={weights}", f"out={tmp_path / 'out'}", *SHORT, *change]
    keys = {word.partition("=")[0]: word for word in arguments}
    lines = [line for line in refused("audit", *keys.values()).splitlines() if "━" not in line]
    assert len(lines) == 1 and answer in lines[0]
    assert not (tmp_path / "out").exists()


def test_layers_without_steps_are_refused(live_checkpoint, draw_events):
    checkpoint = live_checkpoint("s5", bidirectional=True)
    with raises("layer.lacks"):
        audit_detector(checkpoint, draw_events(), (48, 64), progress=False)
