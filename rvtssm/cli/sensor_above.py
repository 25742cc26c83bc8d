"""The sensor size of a recording that does not state it, from the description of the dataset that it belongs to."""

from dataclasses import replace
from pathlib import Path

from rvtssm.datasets.custom import FILE, read_spec
from rvtssm.readers import open_with
from rvtssm.readers.header import UnknownSensorSize
from rvtssm.records import ReadOptions


def sensor_above(path: Path, options: ReadOptions) -> ReadOptions:
    """Return the options with the size in the nearest `dataset.yaml` above a recording that does not state its size.

    Return the options unchanged if the recording states its size, or if there is no such file. Raise UserError if the
    recording cannot be read, or if the content of `dataset.yaml` is wrong.
    """
    try:
        open_with(path, options).close()
    except UnknownSensorSize:
        for folder in path.absolute().parents:
            if (folder / FILE).is_file():
                spec = read_spec(folder)
                return replace(options, height=spec.height, width=spec.width)
    return options
