"""Events in HDF5 files: those of RVT and DSEC, and any file whose columns t, x, y, p can be told.

The columns are four datasets in one group, a table of four columns, or those that the caller names. RVT stores
`events/{t, x, y, p, height, width}`. DSEC stores `events/{t, x, y, p}`, `ms_to_idx` and `t_offset`, which is added to
all times; pixels are those of the sensor (the distorted frame), as in the labels of DSEC-Det.
Sources: RVT scripts/genx/preprocess_dataset.py; Gehrig et al., DSEC, 2021, and its published code.
"""

from dataclasses import dataclass
from pathlib import Path
from posixpath import basename
from typing import Any

import h5py
import numpy as np

from rvtssm.readers.columns import (
    FIRST_ROWS,
    NAMES,
    Columns,
    ColumnsRecording,
    agreed_unit,
    are_complete,
    check_kinds,
    find_columns,
    matching,
    order_of_unnamed,
)
from rvtssm.readers.gate import LATEST_POSSIBLE_US, Column, Gate
from rvtssm.readers.hdf5 import OpenDatasets, check_storage, is_blosc, open_hdf5, read_rows, reading
from rvtssm.readers.header import sensor_size
from rvtssm.records import ReadOptions
from rvtssm.records.settings import COLUMNS_EXAMPLE, TIME_UNITS
from rvtssm.system.user_error import UserError

# Sensors of files in the layout of DSEC, which does not say the size: halved by DAGr, DSEC, TUM-VIE.
_DSEC_SIZES_HW = ((240, 320), (480, 640), (720, 1280))
_SAMPLES, _SAMPLE_EVENTS = 16, 1 << 12  # events that tell the size
_RESOLUTION = "sensor_resolution"  # height and width, as rpg_e2vid and its successors write them
_EVENTS = "events"  # the group or table that is taken if there are others
_MVSEC = "davis/"  # tables of MVSEC are x, y, t, p with times in seconds
_UNITS = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}  # as attributes name them
_UNITS |= dict(zip(TIME_UNITS, TIME_UNITS, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the columns t, x, y and p are: a dataset each, with the field or the number of the column in a table."""

    columns: tuple[tuple[str, str | int | None], ...]
    time_unit: str | None
    format: str = "hdf5"

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets, each once."""
        return list(dict.fromkeys(name for name, _ in self.columns))


class Hdf5Recording(ColumnsRecording):
    """The events of an HDF5 file.

    Args:
        layout: Where the columns are.
        num_events: Number of events in the file.
        gate: The conversion of columns to events.
    """

    options_used = ("columns", "key")
    index_events = 1 << 16
    most_rows = 1 << 16  # which bounds the memory

    def __init__(self, layout: Layout, num_events: int, gate: Gate) -> None:
        super().__init__(gate, num_events)
        self.format = layout.format
        self._layout = layout

    @property
    def time_shift_us(self) -> int | None:
        """The `t_offset` of DSEC, which labels lack that were made with the times in the file."""
        return self._gate.offset_us if self.format == "dsec" else None

    def _open(self) -> OpenDatasets:
        return OpenDatasets(self.path, self._layout.datasets)

    def _columns(self, start: int, stop: int) -> list[Column]:
        with reading(self.path, f", events {start} to {stop}"):
            return _columns(self._file(), self._layout, start, stop)


def open_hdf5_events(path: Path, options: ReadOptions) -> Hdf5Recording:
    """Open an HDF5 file of events.

    Args:
        path: The file.
        options: What the caller says about the file.

    Raises:
        UserError: The file holds no events that can be told, or the size of the sensor is unknown.
    """
    offset_us, usual_hw = 0, None
    with reading(path), open_hdf5(path) as file:
        # Where the columns are, how many rows they have, and what else the file states.
        layout = find_layout(path, file, options)
        if is_dsec(file):
            layout = Layout(layout.columns, layout.time_unit, "dsec")
            offset_us = _offset(path, file.get("t_offset"))
        num_events = _count(path, file, layout)
        size_hw = _stated_size(file, layout)
        if layout.format == "dsec" and size_hw is None:
            usual_hw = _dsec_size(path, layout, num_events)
    height, width = sensor_size(path, size_hw, options, usual_hw)
    return Hdf5Recording(layout, num_events, Gate(path, height, width, layout.time_unit, offset_us))


def is_dsec(file: h5py.File) -> bool:
    """Return whether an HDF5 file contains a dataset that only DSEC has. Other layouts have the same columns."""
    return "events" in file and ("ms_to_idx" in file or "t_offset" in file)


def _columns(opened: OpenDatasets, layout: Layout, start: int, stop: int) -> list[Column]:
    """Return the stored t, x, y, p of the events [start, stop) in the byte order of this machine."""
    named = zip(layout.datasets, opened.datasets, strict=True)
    rows = {name: _rows(dataset, start, stop) for name, dataset in named}
    columns = []
    for name, part in layout.columns:
        column = rows[name]
        if isinstance(part, int):
            column = column[:, part]
        elif part is not None:
            column = column[part]
        columns.append(np.ascontiguousarray(column.astype(column.dtype.newbyteorder("="), copy=False)))
    return columns


def _rows(dataset: h5py.Dataset, start: int, stop: int) -> Column:
    """Return the rows [start, stop) of a dataset, those of (1, N) and (N, 1) as (N,)."""
    if not is_vector(dataset):
        return read_rows(dataset, start, stop)
    if dataset.shape[0] > 1:
        return read_rows(dataset, start, stop)[:, 0]
    columns: Column = dataset[0, start:stop]
    return columns


def _count(path: Path, file: h5py.File, layout: Layout) -> int:
    """Return the number of events, after checking the stored columns."""
    lengths = {}
    for name, part in layout.columns:
        dataset = file[name]
        check_kinds(path, [dataset.dtype[part] if isinstance(part, str) else dataset.dtype])
        check_storage(path, dataset)
        lengths[name] = dataset.size if is_vector(dataset) else len(dataset)
        if is_vector(dataset) and dataset.shape[0] == 1 and is_blosc(dataset):
            advice = "save it as (N,)"
            raise UserError("file.content", name=path, found=f"has {name} of shape {dataset.shape}", advice=advice)
    if len(set(lengths.values())) > 1:
        advice = "write it again"
        raise UserError("file.damaged", name=path, found=f"has columns of different lengths {lengths}", advice=advice)
    return min(lengths.values())


def _stated_size(file: h5py.File, layout: Layout) -> tuple[int, int] | None:
    """Return height and width that the file states, beside the columns or as attributes; None if it does not."""
    # Beside the columns, then in attributes from the column up to the file.
    group = layout.columns[0][0].rpartition("/")[0]
    for holder in dict.fromkeys((group, "")):
        prefix = f"{holder}/" if holder else ""
        sides = [file.get(f"{prefix}{name}") for name in ("height", "width")]
        if None not in sides:
            height, width = _side(sides[0]), _side(sides[1])
            return (height, width) if height or width else None  # 0 x 0 stands for an unknown size
    for place in dict.fromkeys((layout.columns[0][0], group or "/", "/")):
        stated = file[place].attrs
        if "height" in stated and "width" in stated:
            return _whole(stated["height"]), _whole(stated["width"])
        if np.shape(stated.get(_RESOLUTION)) == (2,):
            height, width = map(_whole, stated[_RESOLUTION])
            return height, width
    return None


def _side(item: Any) -> int:
    return _whole(item[()]) if isinstance(item, h5py.Dataset) and item.size == 1 else -1


def _whole(value: Any) -> int:
    """Return a whole number; -1, which is no valid size, for anything else."""
    array = np.asarray(value)
    return int(array.item()) if array.size == 1 and array.dtype.kind in "iu" else -1


def _dsec_size(path: Path, layout: Layout, num_events: int) -> tuple[int, int] | None:
    """Return the smallest sensor of files in this layout that contains a sample of the events; None if none does.

    A file with few events is taken for one of DSEC, if they fit.
    """
    # A few thousand events from all over the file.
    opened = OpenDatasets(path, layout.datasets)
    largest_x = largest_y = 0
    for start in np.linspace(0, max(0, num_events - _SAMPLE_EVENTS), _SAMPLES).astype(int):
        _, x, y, _ = _columns(opened, layout, int(start), min(int(start) + _SAMPLE_EVENTS, num_events))
        if len(x):
            largest_x, largest_y = max(largest_x, int(np.percentile(x, 99))), max(largest_y, int(np.percentile(y, 99)))
    opened.close()
    sizes_hw = _DSEC_SIZES_HW if num_events > _SAMPLE_EVENTS else _DSEC_SIZES_HW[1:]
    fitting = (size for size in sizes_hw if largest_y < size[0] and largest_x < size[1])
    return next(fitting, None)


def _offset(path: Path, item: Any) -> int:
    """Return the value of `t_offset`, 0 if there is none. Raise UserError if it is not a valid time."""
    if item is None:
        return 0
    if not isinstance(item, h5py.Dataset) or item.size != 1 or item.dtype.kind not in "iu":
        found = "has a t_offset that is not one whole number of microseconds"
        raise UserError("file.damaged", name=path, found=found, advice="write it again")
    offset_us = int(np.asarray(item[()]).reshape(()))
    if not 0 <= offset_us < LATEST_POSSIBLE_US:
        found = f"has a t_offset of {offset_us} us, which is impossible"
        raise UserError("file.damaged", name=path, found=found, advice="write it again")
    return offset_us


def find_layout(path: Path, file: h5py.File, options: ReadOptions) -> Layout:
    """Find the events of an HDF5 file.

    Args:
        path: The file, for messages.
        file: The opened file.
        options: What the caller says about the file.

    Raises:
        UserError: The file holds no events, or in several places.
    """
    # Groups with all four columns, and tables of four columns.
    everything = _datasets(file)
    datasets = {name: item for name, item in everything.items() if item.ndim in (1, 2)}
    groups: dict[str, list[str]] = {}
    for name, item in datasets.items():
        if item.ndim == 1 or is_vector(item):
            groups.setdefault(name.rpartition("/")[0], []).append(name)
    complete = {group: names for group, names in groups.items() if are_complete([*map(basename, names)])}
    tables = [name for name, item in datasets.items() if _is_table(item) and not is_vector(item)]
    places = [*complete, *tables]
    # The caller names the columns, a place, or neither.
    is_here = all(str(name).strip("/") in datasets for name in options.columns.values())
    if options.columns and (is_here or not complete or "columns" not in options.yields):
        return _given(path, file, datasets, options)
    if options.key is not None:
        places = _chosen(path, options, places)
    elif _EVENTS in places:
        places = [_EVENTS]
    if len(places) != 1:
        if links := _links_elsewhere(file):
            found = f"has links to other files, which are not followed ({', '.join(links)})"
            advice = "copy the data into one file, as with `h5copy`"
            raise UserError("file.content", name=path, found=found, advice=advice)
        if places:
            raise UserError(
                "file.ambiguous",
                name=path,
                found=f"it holds events in {', '.join(place or '/' for place in places)}",
                advice=f"choose one, as in key={places[0] or '/'}",
            )
        raise UserError(
            "file.content",
            name=path,
            found=f"it holds no events that can be told; its datasets are {_listed(everything)}",
            advice="say which are the events, as in columns={t: GROUP/t, x: GROUP/x, y: GROUP/y, p: GROUP/p}",
        )
    (place,) = places
    if place in complete:
        return _of_group(path, file, complete[place], options)
    return _of_table(path, place, file[place], options)


def _chosen(path: Path, options: ReadOptions, places: list[str]) -> list[str]:
    """Return the place that the caller names with `key`; all places if it is that of a folder and not in this file."""
    key = str(options.key).strip("/")
    if key in places:
        return [key]
    if "key" in options.yields and len(places) == 1:
        return places
    raise UserError("setting.choice", name=f"{path}: key", found=options.key, needed=[place or "/" for place in places])


def _datasets(file: h5py.File) -> dict[str, Any]:
    """Return all datasets by name."""
    datasets: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item

    file.visititems(note)
    return datasets


def _listed(datasets: dict[str, Any]) -> str:
    """Return datasets with their shapes as text."""
    listed = []
    for name, item in datasets.items():
        shape = "x".join(map(str, item.shape or ())) or "number"
        listed.append(f"{name} {shape}")
    return ", ".join(listed) or "nothing"


def _links_elsewhere(file: h5py.File) -> list[str]:
    """Return the links into other files in words."""
    links: list[str] = []

    def note(name: str, link: Any) -> None:
        if isinstance(link, h5py.ExternalLink):
            links.append(f"{name} leads to {link.path} in {link.filename}")

    file.visititems_links(note)
    return links


def is_vector(item: Any) -> bool:
    """Return whether a dataset of two dimensions is a vector, as MATLAB writes them: (1, N) or (N, 1)."""
    return item.ndim == 2 and 1 in item.shape and not item.dtype.names


def _is_table(item: Any) -> bool:
    if item.dtype.names:
        return item.ndim == 1 and set(matching(item.dtype.names)[0]) == set(NAMES)
    return item.ndim == 2 and item.shape[1] == len(NAMES) and item.dtype.kind in "iuf"


def _of_group(path: Path, file: h5py.File, names: list[str], options: ReadOptions) -> Layout:
    columns = find_columns(path, [*map(basename, names)], options)
    chosen = columns.pick(names)
    stated = [*map(file[chosen[0]].attrs.get, ("unit", "units"))]
    in_words = next((_UNITS[unit] for unit in stated if isinstance(unit, str) and unit in _UNITS), None)
    time_unit = columns.time_unit or agreed_unit(path, in_words, options)
    columns_of = tuple(zip(chosen, [None] * 4, strict=True))
    if chosen == [f"{_EVENTS}/{name}" for name in NAMES]:
        return Layout(columns_of, time_unit, "rvt_hdf5")
    return Layout(columns_of, time_unit)


def _of_table(path: Path, name: str, table: Any, options: ReadOptions) -> Layout:
    if table.dtype.names:
        columns = find_columns(path, table.dtype.names, options)
        return Layout(tuple(zip([name] * 4, columns.pick(table.dtype.names), strict=True)), columns.time_unit)
    is_mvsec = name.startswith(_MVSEC)
    if is_mvsec and not options.columns:
        columns = Columns((2, 0, 1, 3), agreed_unit(path, "s", options))
    else:
        usual = "t, x, y, p" if name == _EVENTS else None
        columns = order_of_unnamed(path, np.asarray(table[:FIRST_ROWS]), options, usual)
    return Layout(tuple(zip([name] * 4, columns.index, strict=True)), columns.time_unit)


def _given(path: Path, file: h5py.File, datasets: dict[str, Any], options: ReadOptions) -> Layout:
    """Return the layout that the caller names: datasets, or columns of the only table."""
    given = [str(options.columns[name]).strip("/") for name in NAMES]
    if all(name in datasets for name in given):
        time_unit = matching([given[0].rpartition("/")[2]])[1]
        return Layout(tuple(zip(given, [None] * 4, strict=True)), agreed_unit(path, time_unit, options))
    tables = [name for name, item in datasets.items() if item.dtype.names or item.ndim == 2]
    if len(tables) != 1:
        advice = f"its datasets are {_listed(datasets)}: name those, as in {COLUMNS_EXAMPLE}"
        raise UserError("file.content", name=path, found=f"does not hold all of {', '.join(given)}", advice=advice)
    return _of_table(path, tables[0], file[tables[0]], options)
