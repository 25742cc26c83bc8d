"""The folder of a verb that is given none is another one for other weights or recordings."""

from pathlib import Path

import pytest

from rvtssm.cli import main as cli
from rvtssm.cli.composition import compose
from rvtssm.cli.inputs import default_out, weights_label
from rvtssm.cli.run_files import run_files, unlike_others


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("runs/gen1/checkpoints/best.ckpt", "gen1_best"),
        ("runs/gen1/checkpoints/last.ckpt", "gen1_last"),
        ("runs/onempx/checkpoints/best.ckpt", "onempx_best"),
        ("street-tiny", "street-tiny"),
        ("hf://lab/street", "street"),
        ("model.onnx", "model"),
    ],
)
def test_weights_have_a_name_for_folders(path, label):
    assert weights_label(path) == label
    assert default_out("evaluate", label) == Path("outputs/evaluate", label)


def test_a_report_with_other_settings_keeps_its_folder(tmp_path):
    def evaluated(*words: str) -> str:
        config = compose(list(words))
        out = unlike_others(tmp_path / "best", "evaluate", config)
        with run_files(out, "evaluate", config):
            pass
        return out.name

    assert [evaluated(), evaluated("evaluation.hz=[20]"), evaluated("evaluation.split=val")] == [
        "best",
        "best_2",
        "best_3",
    ]
    assert [evaluated(), evaluated("evaluation.hz=[20]")] == ["best", "best_2"]  # the same command again


def test_inspect_says_that_a_checkpoint_is_one(tmp_path, capsys):
    (tmp_path / "model.onnx").touch()
    assert cli.main(["inspect", str(tmp_path / "model.onnx")]) == 2
    assert "is a checkpoint; `rvtssm info" in capsys.readouterr().err
