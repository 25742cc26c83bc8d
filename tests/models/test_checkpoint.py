"""A checkpoint gives back the detector it was written from, and says clearly when it cannot."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file as save_safetensors
from user_errors import raises

from rvtssm.datasets import DATASETS
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import load_file, read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.weight_files import check_digest
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.init import without_values
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer

ROOT = Path(__file__).parents[2]
SPEC = replace(DATASETS["gen1"], name="two", height=80, width=144, downsample=2)


def describe(name: str = "s5", **changes: object) -> CheckpointMeta:
    model = ModelConfig(size="custom", embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0, **changes)
    windows = WindowSettings(stride_us=50_000, length_us=None, convention="exact", num_bins=10, count_cutoff=10)
    return CheckpointMeta(SPEC, model, TemporalConfig(name=name, discretization="zoh"), windows)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path, meta = tmp_path_factory.mktemp("written") / "model.ckpt", describe()
    detector = meta.build().eval()
    write_checkpoint(path, detector, meta)
    return path, detector, meta


@pytest.mark.parametrize(("name", "suffix"), [*((name, ".safetensors") for name in TEMPORAL_LAYERS), ("s5", ".ckpt")])
@torch.no_grad()
def test_what_is_read_is_what_was_written(tmp_path, name, suffix):
    meta = describe(name, memory="chunk", memory_chunk=7)
    detector = meta.build().eval()
    write_checkpoint(tmp_path / f"model{suffix}", detector, meta)
    assert check_digest(tmp_path / f"model{suffix}")
    loaded = read_checkpoint(tmp_path / f"model{suffix}")
    assert (loaded.spec, loaded.model_config, loaded.temporal_config, loaded.windows) == (
        meta.spec,
        meta.model_config,
        meta.temporal_config,
        meta.windows,
    )
    hist = torch.randint(0, 11, (2, 1, 20, SPEC.frame_height, SPEC.frame_width), dtype=torch.uint8)
    assert torch.equal(loaded.detector(hist)[0].rows, detector(hist)[0].rows)
    assert not loaded.detector.training


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    weights = {"weight": torch.arange(64.0).reshape(8, 8), "bias": torch.zeros(3)}

    class Small:
        state_dict = staticmethod(lambda: weights)

    write_checkpoint(path, Small, describe())
    whole, wanted = path.read_bytes(), load_file(path)
    num_found, positions = 0, range(0, len(whole), 11)
    for position in positions:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            found = load_file(path)
        except ValueError as error:
            assert str(path) in str(error)
            num_found += 1
            continue
        assert found["rvtssm"] == wanted["rvtssm"], position
        assert all(torch.equal(found["state_dict"][name], weight) for name, weight in weights.items()), position
    assert num_found > len(positions) / 2


def test_weights_that_a_flipped_bit_makes_a_folder_are_refused(tmp_path, written):
    """For a folder in the archive, torch returns whatever the memory holds, without an error."""
    path, whole = tmp_path / "model.ckpt", written[0].read_bytes()
    entries = [found.start() for found in re.finditer(re.escape(b"PK\x01\x02"), whole)]
    assert len(entries) > 3
    for entry in entries:
        flipped = bytearray(whole)
        flipped[entry + 38] ^= 0x10  # APPNOTE.TXT 4.3.12: external file attributes
        path.write_bytes(flipped)
        with raises("weights.not_a_checkpoint"):
            load_file(path)


def test_weights_without_a_digest_are_read(tmp_path, written):
    path, detector, meta = written
    content = load_file(path)
    torch.save(content, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    metadata = {"rvtssm": json.dumps(meta.to_dict())}
    save_safetensors(content["state_dict"], tmp_path / "foreign.safetensors", metadata)
    for name in ("old.ckpt", "foreign.safetensors"):
        assert not check_digest(tmp_path / name)
        found = read_checkpoint(tmp_path / name).detector.state_dict()
        assert all(torch.equal(found[key], value) for key, value in detector.state_dict().items())
    save_safetensors(content["state_dict"], tmp_path / "plain.safetensors")
    with raises("weights.not_a_checkpoint"):
        read_checkpoint(tmp_path / "plain.safetensors")
    (tmp_path / "text.safetensors").write_text("not weights")
    with raises("weights.not_a_checkpoint"):
        read_checkpoint(tmp_path / "text.safetensors")


@pytest.mark.parametrize("path", ["rvtssm/weights/street-tiny.safetensors", "weights/street-small.safetensors"])
def test_the_weights_that_come_with_the_package_say_what_they_are(path):
    temporal = read_checkpoint(ROOT / path).temporal_config
    assert (temporal.name, temporal.discretization, temporal.block) == ("selective_s5", "bilinear", "gated")


def test_a_checkpoint_of_training_is_read_by_its_prefix(tmp_path):
    meta = describe()
    detector = meta.build()
    weights = {f"detector.{key}": value for key, value in detector.state_dict().items()}
    torch.save(
        {
            "state_dict": {**weights, "loss.weight": torch.ones(1)},
            "rvtssm": meta.to_dict(),
            "optimizer_states": [{"step": 3}],
            "epoch": 1,
        },
        tmp_path / "last.ckpt",
    )
    loaded = read_checkpoint(tmp_path / "last.ckpt")
    for key, value in detector.state_dict().items():
        assert torch.equal(loaded.detector.state_dict()[key], value)


def test_how_the_recurrence_ran_is_not_kept():
    stored = replace(describe(), temporal_config=TemporalConfig(scan="loop")).to_dict()
    assert CheckpointMeta.from_dict(stored).temporal_config.scan == "auto"


def test_it_holds_plain_data_only(written):
    content = torch.load(written[0], weights_only=True)
    assert content["rvtssm"]["spec"]["class_names"] == SPEC.class_names
    assert CheckpointMeta.from_dict(content["rvtssm"]) == written[2]


def test_weights_know_the_lengths_of_their_training_windows():
    meta = replace(describe(), window_lengths_us=(50_000, 5_000, 20_000, 5_000))
    assert meta.window_lengths_us == (5_000, 20_000, 50_000)
    loaded = CheckpointMeta.from_dict(json.loads(json.dumps(meta.to_dict())))
    assert (loaded.window_lengths_us, loaded.may_shrink_windows) == (meta.window_lengths_us, True)
    with raises("setting.out_of_range"):
        CheckpointMeta.from_dict({**meta.to_dict(), "window_lengths_us": [50_000, 0]})


@pytest.mark.parametrize(
    ("windows", "lengths_us", "may_shrink"),
    [
        ({}, (), False),
        ({}, (10_000, 50_000), True),
        ({}, (10_001, 50_000), False),
        ({"length_us": 100_000}, (25_000, 100_000), False),
        ({"representation": "surfaces"}, (), True),  # their windows have no length
    ],
)
def test_windows_may_shrink_if_training_reached_a_fifth_of_their_length(windows, lengths_us, may_shrink):
    meta = replace(describe(), windows=WindowSettings(**windows), window_lengths_us=lengths_us)
    assert meta.may_shrink_windows is may_shrink


@pytest.mark.parametrize(
    ("windows", "lengths_us", "hz", "window", "length_us"),
    [
        ({}, (), 200, None, 50_000),
        ({}, (), 200, "shrink", None),
        ({"length_us": 80_000}, (), 40, None, 80_000),
        ({}, (5_000, 50_000), 200, None, None),
        ({}, (5_000, 50_000), 200, "slide", 50_000),
        ({}, (5_000, 50_000), 500, None, 50_000),  # training had no windows of 2 ms
        ({}, (40_000, 50_000), 25, None, 50_000),  # may not shrink
        ({"representation": "surfaces"}, (), 200, None, None),
    ],
)
def test_windows_at_another_rate_keep_their_length_unless_the_weights_may_shrink_them(
    windows, lengths_us, hz, window, length_us
):
    meta = replace(describe(), windows=WindowSettings(**windows), window_lengths_us=lengths_us)
    assert meta.windows_at(hz, window) == replace(meta.windows, stride_us=1e6 / hz, length_us=length_us)
    for same in (None, meta.windows.hz):  # the rate of training has the windows of training
        assert all(meta.windows_at(same, each) is meta.windows for each in (None, "slide", "shrink"))
    assert meta.windows_at(hz, window, "nearest") == meta.windows_at(hz, window)
    if meta.windows.representation == "histogram":
        assert all(meta.windows_at(at_hz, window, "sum").reduce == "sum" for at_hz in (None, hz))
    if window is None:  # the default is never one to warn of
        assert meta.warn_of_windows(meta.windows_at(hz)) is None
    assert meta.warn_of_windows(meta.windows_at(1.6))  # a rate far below that of the training


def test_windows_that_the_training_did_not_have_are_told():
    meta = describe()
    assert "trained with windows of 50 ms" in str(meta.warn_of_windows(meta.windows_at(200, "shrink")))
    meta = replace(meta, window_lengths_us=(5_000, 50_000))
    assert meta.warn_of_windows(meta.windows_at(200, "shrink")) is None
    assert "trained with windows of 5, 50 ms" in str(meta.warn_of_windows(meta.windows_at(500, "shrink")))


def test_files_that_are_no_checkpoint_are_named(tmp_path, written):
    with raises("weights.missing"):
        read_checkpoint(tmp_path / "missing.ckpt")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "best.ckpt").touch()
    for of_run in (tmp_path / "run", tmp_path / "run" / "best.ckpt"):
        with raises("weights.missing"):
            read_checkpoint(of_run)
    for content in (written[0].read_bytes()[:1000], b"weights", b""):
        (tmp_path / "a.ckpt").write_bytes(content)
        with raises("weights.not_a_checkpoint"):
            read_checkpoint(tmp_path / "a.ckpt")


META = describe().to_dict()
WEIGHTS = describe().build().state_dict()
MISFITS = {
    **{name: value for name, value in WEIGHTS.items() if name != "head.levels.0.box_out.bias"},
    "extra": torch.zeros(4),
    "head.levels.1.box_out.bias": torch.zeros(5),
}


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ([1, 2], "weights.not_a_checkpoint"),
        ({"state_dict": {"weight": torch.ones(1)}}, "weights.not_a_checkpoint"),
        ({"state_dict": {"mdl.backbone.x": torch.ones(1)}}, "weights.official"),
        ({"rvtssm": META, "state_dict": MISFITS}, "weights.do_not_fit"),
        ({"rvtssm": {**META, "format_version": 99}, "state_dict": WEIGHTS}, "weights.version"),
        (
            {"rvtssm": META, "state_dict": {name: torch.zeros(()).expand(w.shape) for name, w in WEIGHTS.items()}},
            "weights.do_not_fit",
        ),
        *(
            ({"rvtssm": {}, "state_dict": weights}, "weights.not_a_checkpoint")
            for weights in (None, [1], {"a": 1}, {("detector", "a"): torch.zeros(1)}, {3: torch.zeros(1)})
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_contents_that_are_no_weights_of_a_detector_are_refused(tmp_path, content, key):
    torch.save(content, tmp_path / "a.ckpt")
    with raises(key):
        read_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("model", {"embed_dim": 200_000}),
        ("model", {"num_blocks": (1, 1, 1, 1_000_000)}),
        ("model", {"embed_dim": 1000, "dim_multiplier": (1, 2, 4, 1000)}),
        ("model", {"embed_dim": float("inf")}),
        ("model", {"embed_dim": "wide"}),
        ("model", {"fpn_blocks": 100}),
        ("model", {"backbone": ["rvt"]}),
        ("temporal", {"state_size": 1000}),
        ("windows", {"num_bins": 10**9}),
        ("spec", {"height": 10**9}),
        ("spec", {"class_names": 5}),
    ],
    ids=str,
)
def test_a_description_far_beyond_the_weights_is_refused_before_it_is_built(tmp_path, section, changes):
    described = {**META, section: {**META[section], **changes}}
    torch.save({"rvtssm": described, "state_dict": WEIGHTS}, tmp_path / "a.ckpt")
    began = time.process_time()
    with pytest.raises(ValueError, match=r"a\.ckpt (cannot be used|does not say which model)") as raised:
        read_checkpoint(tmp_path / "a.ckpt")
    assert time.process_time() - began < 10 and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_on_the_meta_device_a_layer_has_its_shapes_at_once(name):
    wanted = {key: value.shape for key, value in describe(name).build().state_dict().items()}
    has_modes = isinstance(TEMPORAL_LAYERS[name](8).spectrum(), Spectrum)
    with torch.device("meta"):
        assert {key: value.shape for key, value in describe(name).build().state_dict().items()} == wanted
        if has_modes:
            config = replace(describe(name), temporal_config=TemporalConfig(name, state_size=10_000))
            assert any(10_000 in value.shape or 5_000 in value.shape for value in config.build().state_dict().values())


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_loading_computes_no_initial_values(tmp_path, monkeypatch, name):
    """The eigenvalues of a large state would take hours."""
    meta = describe(name)
    wanted = meta.build()
    write_checkpoint(tmp_path / "a.ckpt", wanted, meta)
    monkeypatch.setattr(numpy.linalg, "eigh", None)
    found = read_checkpoint(tmp_path / "a.ckpt").detector
    for (key, parameter), (_, other) in zip(found.named_parameters(), wanted.named_parameters(), strict=True):
        assert torch.equal(parameter, other) and parameter.requires_grad == other.requires_grad, key
        assert parameter.dtype == other.dtype and parameter.stride() == other.stride(), key
    assert all(torch.equal(*pair) for pair in zip(found.buffers(), wanted.buffers(), strict=True))


class Counted(TemporalLayer):
    """A layer of a plugin with tensors that are not stored."""

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(dim))
        self.register_buffer("numbers", torch.arange(dim), persistent=config.half_state)
        if config.half_state:
            self.powers = 2 ** torch.arange(dim)

    def init_state(self, num_sequences: int) -> torch.Tensor:
        return torch.zeros(num_sequences, 1)

    def forward(self, x, state, step_scale=1.0):
        return x, state


@pytest.mark.parametrize("half_state", [False, True])
def test_tensors_of_a_layer_that_are_not_stored_have_their_values(monkeypatch, half_state):
    monkeypatch.setitem(TEMPORAL_LAYERS, "counted", Counted)
    with without_values():
        layer = build_temporal_layer(TemporalConfig("counted", half_state=half_state), 5)
    assert layer.numbers.tolist() == [0, 1, 2, 3, 4]
    assert not half_state or layer.powers.tolist() == [1, 2, 4, 8, 16]


def test_any_number_of_steps_may_pass_before_a_memory_forgets(tmp_path):
    meta = describe()
    meta = replace(meta, model_config=replace(meta.model_config, memory="chunk", memory_chunk=100_000))
    write_checkpoint(tmp_path / "a.ckpt", meta.build(), meta)
    assert read_checkpoint(tmp_path / "a.ckpt").model_config.memory_chunk == 100_000
