"""Every YAML composes, says what the code says, and can be chosen; what is mistyped is refused by name."""

import functools
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from config_examples import leaves
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from user_errors import raises

from rvtssm.cli.composition import full_words, to_config
from rvtssm.cli.config import Config
from rvtssm.cli.help import keys_of
from rvtssm.cli.main import compose
from rvtssm.cli.verbs import verbs
from rvtssm.cli.words import settings_of, with_settings_files
from rvtssm.contrib.demo.simulation_config import CAMERAS
from rvtssm.datasets import DATASETS, build_spec
from rvtssm.events.windows import WindowsConfig
from rvtssm.models import MODEL_SIZES
from rvtssm.models.detector import build_detector
from rvtssm.models.rvt import SPATIAL_MIXERS
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS
from rvtssm.training.preflight import check

CONFIGS = Path(__file__).parents[2] / "configs"
GROUPS = sorted(path.name for path in CONFIGS.iterdir() if path.is_dir() and path.name != "dataset")
FILES = [(group, path.stem) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
# a table of the code and the group of files that names its entries
TABLES = {"mixer": SPATIAL_MIXERS, "temporal": TEMPORAL_LAYERS}
composed = functools.cache(lambda *words, verb="": compose([*words], verb))  # for tests that only read it


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda value: value)
def test_every_file_composes_and_can_be_chosen(group, name):
    content = yaml.safe_load((CONFIGS / group / f"{name}.yaml").read_text())
    is_global = "# @package _global_" in (CONFIGS / group / f"{name}.yaml").read_text()
    content.pop("defaults", None)
    config = composed(f"{group}={name}", verb=reader(content))
    assert_holds(plain(config), content if is_global else {group: content})


def reader(content: dict) -> str:
    """The verb that reads the sections of an experiment; empty if they are those of the core."""
    readers = {"study": "study", "synthetic": "generate"}
    return next((verb for section, verb in readers.items() if section in content), "")


def plain(config: Config) -> dict:
    return OmegaConf.to_container(OmegaConf.structured(config))


def assert_holds(found, wanted) -> None:
    """`found` has every value of the nested dict `wanted`."""
    for key, value in wanted.items():
        if isinstance(value, dict):
            assert_holds(found[key], value)
        else:
            assert found[key] == value, key


@pytest.mark.parametrize("group", TABLES)
def test_the_files_of_a_group_are_the_entries_of_its_table(group):
    assert {name for of, name in FILES if of == group} == set(TABLES[group])


@pytest.mark.parametrize("name", ["demo", "gen1_lstm_base", "gen1_s5_timm_resnet18"])
def test_the_settings_of_weights_are_words_that_compose_them(name):
    config = replace(composed(f"experiment={name}"), windows=WindowsConfig(stride_ms=12.5, window_ms=50, num_bins=4))
    words = settings_of(config.model, config.temporal, config.windows.settings).words()
    again = compose(words)
    assert (again.model, again.temporal, again.windows) == (config.model, config.temporal, config.windows)


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_a_model_is_the_size_of_that_name(size):
    assert composed(f"model={size}").model == MODEL_SIZES[size]


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_a_temporal_file_says_no_more_than_the_name_and_goes_with_an_experiment(name):
    by_file, by_name = (composed("experiment=demo", f"{key}={name}") for key in ("temporal", "temporal.name"))
    assert by_file.temporal == by_name.temporal
    assert (by_file.temporal.discretization, by_file.temporal.block) == (None, None)  # the layer has its own
    config = by_file
    spec = build_spec(config.dataset)
    detector = build_detector(config.model, config.temporal, spec.frame_height, spec.frame_width, spec.num_classes)
    assert len(detector.init_state(1)) == len(detector.backbone.stages)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"custom"}))
def test_a_dataset_file_leads_to_its_spec(name):
    config = composed(f"dataset={name}")
    assert build_spec(config.dataset) == DATASETS[name]
    assert config.sampling.chunk_length == (21 if name == "gen1" else 10)
    assert config.windows.reduce == ("nearest" if name == "onempx" else None)


def test_the_defaults_of_the_code_are_those_of_the_files():
    assert plain(composed()) == plain(Config())


def test_the_command_line_has_the_last_word():
    config = compose(
        ["model.embed_dim=16", "experiment=demo", "training.steps=3", "dataset.height=64", "temporal=lstm"]
    )
    assert (config.model.embed_dim, config.model.size) == (16, "tiny")
    assert (config.training.steps, config.dataset.name, config.dataset.height) == (3, "synthetic", 64)
    assert config.temporal.name == "lstm"


def test_every_key_says_what_it_means():
    assert [key.name for key in keys_of(Config()) if len(key.meaning) < 5 or "None" in key.meaning] == []  # null there
    assert {key.name for key in keys_of(Config())} == {name for name, _, _ in leaves(Config())}


def test_defaults_are_written_as_the_command_line_takes_them():
    assert plain(compose([f"{key.name}={key.default}" for key in keys_of(Config())])) == plain(Config())


@pytest.mark.parametrize("name", CAMERAS)
def test_a_sensor_is_the_camera_of_that_name(name):
    words = full_words("generate", [f"sensor={name}", "num_train=3"])
    assert compose(words, "generate").synthetic.camera == CAMERAS[name]


# wrong values


# what only the disk or the network can judge, and names that mean nothing
FREE = {
    "preprocess.scheduler",
    *("dataset.raw_dir", "dataset.prepared_dir", "preprocess.splits", "evaluation.split", "evaluation.checkpoints"),
    *("out", "checkpoint", "recording", "resume", "training.init_from"),
    *("simulate.video", "simulate.labels", "synthetic.assets", "detection.camera_settings", "live.camera"),
    *("score.detections", "score.labels"),
    *("serve.host", "serve.token", "serve.camera_settings", "export.calibrate"),
    *("model.timm_name", "model.timm_weights"),  # another backbone does not read them
}
# where neither a negative number nor a word is wrong, or more than one is
WRONG = {
    "dataset.key": ("../x",),
    "temporal.strides": ("[0]", "[5]", "[-4]", "[4,4]"),
    "training.recompute_strides": ("[0]", "[5]", "[1,1]"),
    "model.dim_multiplier": ("[1,2]", "[0,1,1,1]"),
    "model.num_blocks": ("[1,1]", "[-1,1,1,1]"),
    "training.average": ("1", "-0.1"),
    "training.loggers": ("[wandb]",),
    "training.precision": ("16", "bf16-mixed", "bf16-true"),
    "temporal.name": ("S5",),
    "plugins": ("[gone.py]",),
    "predict.formats": ("[avi]",),
    "export.note": ("long" * 20, "\u03b1"),
}


def all_leaves() -> dict[str, tuple[str, str]]:
    """By key, the verb whose settings have it (none for those of the core) and its type."""
    found: dict[str, tuple[str, str]] = {}
    for verb in ("", *verbs()):
        settings = verbs()[verb].settings_class if verb else Config
        for key, kind, _ in leaves(settings()):
            found.setdefault(key, (verb, kind))
    return found


def wrong_values():
    for key, (verb, kind) in all_leaves().items():
        if key in FREE:
            continue
        if key in WRONG:
            values = WRONG[key]
        elif kind.startswith("bool"):
            values = ("maybe",)
        elif kind.startswith("int"):
            values = ("-1", "ten")
        elif kind.startswith("float"):
            values = ("-1", "nan")
        else:
            values = ("nonsense",)
        yield from ((verb, key, value) for value in values)


@functools.cache
def defaults(verb: str) -> DictConfig:
    """The settings without overrides, composed once: to compose them for each wrong value takes most of the time."""
    return OmegaConf.structured(compose([], verb))


@pytest.mark.parametrize(("verb", "key", "value"), list(wrong_values()), ids=str)
def test_a_wrong_value_is_refused_by_key_and_value(verb, key, value):
    with pytest.raises((ValueError, HydraException, OmegaConfBaseException)) as refused:
        composed = deepcopy(defaults(verb))
        words = OverridesParser.create().parse_overrides([f"{key}={value}"])
        ConfigLoaderImpl._apply_overrides_to_config(words, composed)  # as in `hydra.compose`
        config = to_config(composed)
        if hasattr(config, "synthetic"):
            config.synthetic.check()  # first of all in `rvtssm generate`, as the other in `rvtssm train`
        check(config)
    message = f"{getattr(refused.value, 'full_key', '')} {refused.value}"
    section, _, name = key.rpartition(".")
    assert name in message and section.split(".")[-1] in message
    assert value.strip("[]").split(",")[0] in message


def test_what_is_free_is_there():
    assert {*all_leaves()} >= FREE | set(WRONG)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("model.backbone=timm",), "setting.needs"),
        (("model.backbone=timm", "model.timm_name=resnet81"), "setting.choice"),
        (("model.backbone=timm", "model.timm_name=vit_tiny_patch16_224"), "setting.conflict"),
        (("training.recompute_strides=[2]",), "setting.form"),
        (("model.head_dim=7",), "setting.conflict"),
        (("temporal=lstm", "temporal.bandlimit=0.5"), "setting.conflict"),
        (("sampling.batch_size=1",), "setting.conflict"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(overrides, key):
    with raises(key):
        check(compose(list(overrides)))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("resume=/gone.ckpt", "file.missing"),
        ("training.init_from=/gone.ckpt", "weights.missing"),
        ("training.accelerator=mps", "setting.conflict"),
    ],
)
def test_a_run_is_refused_before_its_data_are_sought(tmp_path, override, key):
    from rvtssm.cli.train import train

    somewhere = ["dataset=gen1", f"dataset.raw_dir={tmp_path / 'nowhere'}", f"out={tmp_path / 'out'}"]
    with raises(key):
        train(compose([*somewhere, override]))


def test_a_file_of_settings_is_what_config_prints_and_words_win(tmp_path, printed_by):
    (tmp_path / "robot.yaml").write_text(
        "hz: 50\nmin_score: 0.4\nfilters: [flicker, {region: {top: 10}}]\nlive:\n  formats: []\n"
    )
    robot = f"config={tmp_path / 'robot.yaml'}"
    shown = []
    for words in (
        [robot, "hz=20"],
        ["hz=20", "min_score=0.4", "filters=[flicker,{region:{top:10}}]", "live.formats=[]"],
    ):
        shown.append(printed_by("live", *words, "--config"))
    assert shown[0] == shown[1] and "hz: 20" in shown[0]
    (tmp_path / "again.yaml").write_text(shown[0])
    assert printed_by("live", f"config={tmp_path / 'again.yaml'}", "--config") == shown[0]


def test_a_choice_wins_over_what_a_file_says_of_all_that_it_sets(tmp_path, printed_by):
    """Also over the sizes of a preset, which `--config` prints one by one."""
    (tmp_path / "base.yaml").write_text(printed_by("train", "model=base", "temporal=s5", "--config"))
    (tmp_path / "short.yaml").write_text("model: {size: small, mixer: ssm2d}\ntemporal: {name: s4}\n")
    choices = ["model=tiny", "temporal=lstm", "mixer=attention"]
    expected = printed_by("train", *choices, "--config")
    for name in ("base", "short"):
        assert printed_by("train", f"config={tmp_path / name}.yaml", *choices, "--config") == expected


@pytest.mark.parametrize("name", ["demo", "gen1_s4d_base_h2", "onempx_lstm_small", "part_study", "street_tiny"])
def test_an_experiment_wins_over_what_a_file_says_of_all_that_it_sets(tmp_path, name):
    """Also of what the experiments set on which it is based. All else is that of the file."""
    verb = reader(yaml.safe_load((CONFIGS / "experiment" / f"{name}.yaml").read_text())) or "train"
    other = "gen1_s5_base" if name == "street_tiny" else "street_tiny"
    of_file = composed(f"experiment={other}", "temporal.bandlimit=0.25", verb=verb)
    (tmp_path / "full.yaml").write_text(yaml.safe_dump(plain(of_file)))
    alone = composed(f"experiment={name}", verb=verb)
    usual = composed(f"dataset={alone.dataset.name}", verb=verb)
    found = compose(with_settings_files(verb, [f"config={tmp_path / 'full.yaml'}", f"experiment={name}"]), verb)
    for (key, _, value), *others in zip(*map(leaves, (found, alone, usual, of_file)), strict=True):
        of_experiment, of_nobody, written = (value for _, _, value in others)
        if of_experiment != of_nobody:
            assert value == of_experiment, key
        assert value in (of_experiment, written), key


def test_a_file_of_settings_stands_beside_one_experiment_and_short_keys_win_over_full_ones(tmp_path, refused):
    (tmp_path / "run.yaml").write_text("training: {steps: 5}\noptim: {learning_rate: 1}\n")
    file = f"config={tmp_path / 'run.yaml'}"
    assert "one experiment" in refused("train", file, "experiment=demo,street_tiny", "--multirun")
    assert with_settings_files("train", [file, "steps=9,10"]) == ["optim.learning_rate=1", "steps=9,10"]


def test_an_experiment_wins_also_where_it_sets_what_is_usual(tmp_path):
    (tmp_path / "run.yaml").write_text("temporal: {bandlimit: 0.5, num_blocks: 2}\nprecision: bf16\n")
    words = with_settings_files("train", [f"config={tmp_path / 'run.yaml'}", "experiment=gen1_lstm_small"])
    found = compose(words, "train")
    assert (found.temporal.bandlimit, found.temporal.num_blocks) == (0.0, 2)


def test_a_choice_wins_over_the_words_of_the_run_that_goes_on(tmp_path):
    """So that a run of another model is refused, and does not go on as if nothing had been typed."""
    of_run = ["model.size=tiny", "model.embed_dim=32", "temporal.name=s5", "training.steps=7"]
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(of_run))
    (tmp_path / "environment.json").write_text('{"verb": "train"}')
    for typed, expected in (([], ("tiny", 32, "s5", 7)), (["model=small", "temporal=lstm"], ("small", 48, "lstm", 7))):
        config = compose([f"out={tmp_path}", "resume=auto", *typed], "train")
        model = config.model
        assert (model.size, model.embed_dim, config.temporal.name, config.training.steps) == expected


def test_texts_of_a_settings_file_stand_as_they_are(tmp_path):
    """No comma, bracket or `=` of a text or a path means anything there, and a setting may hold a dict."""
    (tmp_path / "run.yaml").write_text(
        f"out: '{tmp_path}/a, [b=1]'\n"
        "training:\n  loggers: ['a,b=[1].C']\n  init_from: street-tiny\n  class_map: {person: human}\n"
    )
    config = compose(with_settings_files("train", [f"config={tmp_path / 'run.yaml'}", "seed=3"]), "train")
    assert (config.out, config.seed, config.training.init_from) == (f"{tmp_path}/a, [b=1]", 3, "street-tiny")
    assert config.training.loggers == ["a,b=[1].C"]
    assert config.training.class_map == {"person": "human"}


@pytest.mark.parametrize("text", [None, "[1, 2]", "{"])
def test_a_file_without_settings_is_refused(tmp_path, refused, text):
    if text is not None:
        (tmp_path / "robot.yaml").write_text(text)
    assert str(tmp_path / "robot.yaml") in "".join(refused("live", f"config={tmp_path / 'robot.yaml'}").split("\n"))
