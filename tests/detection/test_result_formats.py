"""Every format of results, also those of other folders, keeps one contract: its tests run over the table."""

import numpy as np
import pytest
from event_examples import SPEC

from rvtssm.detection import result_writers
from rvtssm.detection.result_files import ResultContext, open_result_files
from rvtssm.detection.window_results import WindowResult
from rvtssm.records import Detections
from rvtssm.system.extras import is_installed

CONTEXT = ResultContext(SPEC, SPEC.sensor_hw, 0.3)
NEEDED = {"mcap": "rosbags", "rrd": "rerun"}
FILES = {name: file_name for name, (file_name, _) in result_writers().items() if file_name}


def results(are_tracked: bool) -> list[WindowResult]:
    """Two windows with boxes, and one without between them."""
    found = []
    for number, num_boxes in enumerate((2, 0, 1)):
        xyxy = np.array([[1, 2, 9, 12], [20, 5, 40.5, 30.25]], np.float32)[:num_boxes]
        score, class_id = np.array([0.9, 0.5], np.float32)[:num_boxes], np.array([0, 1])[:num_boxes]
        t_us = 50_000 * (number + 1)
        track_id = np.arange(1, num_boxes + 1) if are_tracked else None
        frame = Detections(xyxy, score, class_id, t_us=t_us, track_id=track_id)
        found.append(WindowResult(frame, t_us - 50_000, SPEC.sensor_hw, SPEC))
    return found


def written(folder, name: str, windows: list[WindowResult]) -> bytes:
    folder.mkdir(exist_ok=True)
    with open_result_files(folder, [name], CONTEXT) as writers:
        for window in windows:
            for append in writers:
                append(window)
    assert [path.name for path in folder.iterdir()] == [FILES[name]], "one file, and nothing beside it"
    return (folder / FILES[name]).read_bytes()


@pytest.mark.parametrize("are_tracked", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_format_writes_the_file_that_the_table_names(name, are_tracked, tmp_path):
    if not is_installed(NEEDED.get(name, "numpy")):
        pytest.skip(f"{name} needs {NEEDED[name]}")
    full = written(tmp_path / "full", name, results(are_tracked))
    none = written(tmp_path / "none", name, [])
    assert len(full) > len(none), "windows are in the file"


def test_a_format_that_is_not_asked_for_writes_nothing(tmp_path):
    with open_result_files(tmp_path, ["mp4"], CONTEXT) as writers:
        assert writers == []
    assert list(tmp_path.iterdir()) == []
