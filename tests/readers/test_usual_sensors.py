"""The size of a sensor that a file does not say is that of the smallest usual sensor with room for its events."""

import pytest
from event_examples import to_events
from user_errors import raises

from rvtssm.readers import USUAL_SENSORS_HW, open_recording, usual_sensor
from rvtssm.readers.dat import write_dat


def write_csv(path, rows):
    path.write_text("t,x,y,p\n" + "".join(f"{t},{x},{y},{t % 2}\n" for t, x, y in rows))
    return path


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        (10, 10, "DAVIS240"),
        (239, 179, "DAVIS240"),
        (240, 0, "the sensor of Gen1"),
        (0, 239, "the sensor of Gen1"),
        (304, 0, "DAVIS346"),
        (0, 260, "GenX320"),
        (400, 10, "VGA"),
        (1279, 719, "720p"),
    ],
)
def test_the_smallest_sensor_with_all_events_is_taken(tmp_path, x, y, wanted):
    path = write_csv(tmp_path / "a.csv", [(1, 0, 0), (5, x, y), (9, 3, 2)])
    name, hw = usual_sensor(path)
    assert name == wanted and hw == USUAL_SENSORS_HW[wanted]
    assert len(open_recording(path, *hw).read().t) == 3


def test_a_file_that_says_its_size_keeps_it(tmp_path):
    write_dat(tmp_path / "a_td.dat", to_events([7], [1], [2], [1]), 48, 64)
    assert usual_sensor(tmp_path / "a_td.dat") is None


@pytest.mark.parametrize("rows", [[], [(1, 1280, 0)], [(1, 0, 800)]])
def test_what_fits_no_sensor_is_the_error_of_before(tmp_path, rows):
    with raises("sensor.unknown"):
        usual_sensor(write_csv(tmp_path / "a.csv", rows))
