"""Every YAML composes, says what the code says, and can be chosen; what is mistyped is refused by name."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from config_examples import leaves
from omegaconf import OmegaConf

from rvtssm.cli.composition import full_words
from rvtssm.cli.config import Config
from rvtssm.cli.help import keys_of
from rvtssm.cli.main import compose
from rvtssm.cli.weights import settings_of
from rvtssm.datasets import DATASETS, build_spec
from rvtssm.events.windows import WindowsConfig
from rvtssm.models.backbones.rvt import SPATIAL_MIXERS
from rvtssm.models.detector import build_detector
from rvtssm.models.model_config import MODEL_SIZES
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS
from rvtssm.synthetic.simulation_config import CAMERAS

CONFIGS = Path(__file__).parents[2] / "configs"
GROUPS = sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())
FILES = [(group, path.stem) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
# a table of the code and the group of files that names its entries
TABLES = {"dataset": DATASETS, "mixer": SPATIAL_MIXERS, "temporal": TEMPORAL_LAYERS}
composed = functools.cache(lambda *words, verb="": compose([*words], verb))  # for tests that only read it


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda value: value)
def test_every_file_composes_and_can_be_chosen(group, name):
    content = yaml.safe_load((CONFIGS / group / f"{name}.yaml").read_text())
    is_global = "# @package _global_" in (CONFIGS / group / f"{name}.yaml").read_text()
    content.pop("defaults", None)
    verb = "study" if "study" in content else {"street_worlds": "generate"}.get(name, "")
    config = composed(f"{group}={name}", verb=verb)
    assert_holds(plain(config), content if is_global else {group: content})


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
    own = TemporalConfig(name=name)
    assert (by_file.temporal.discretization, by_file.temporal.block) == (own.discretization, own.block)
    config = by_file
    spec = build_spec(config.dataset)
    detector = build_detector(config.model, config.temporal, spec.frame_height, spec.frame_width, spec.num_classes)
    assert len(detector.init_state(1)) == len(detector.backbone.stages)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"custom"}))
def test_a_dataset_file_leads_to_its_spec(name):
    assert build_spec(composed(f"dataset={name}").dataset) == DATASETS[name]


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
    assert compose(words).synthetic.camera == CAMERAS[name]
