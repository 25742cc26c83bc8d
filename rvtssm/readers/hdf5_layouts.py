"""Where an HDF5 file holds its events: four columns in one group, a table of four columns, or as the caller says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rvtssm.readers.columns import NAMES, Columns, agreed_unit, find_columns, listed, matching, order_of_unnamed
from rvtssm.records import ReadOptions
from rvtssm.records.settings import COLUMNS_EXAMPLE, TIME_UNITS
from rvtssm.system.user_error import UserError

_EVENTS = "events"  # the group or table that is taken if there are others
_MVSEC = "davis/"  # tables of MVSEC are x, y, t, p with times in seconds
_UNITS = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}  # as attributes name them
_UNITS |= {unit: unit for unit in TIME_UNITS}
_LOOKED_AT = 4096  # rows of a table whose order is not certain


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


def find_layout(path: Path, file: h5py.File, options: ReadOptions) -> Layout:
    """Find the events of an HDF5 file.

    Args:
        path: The file, for messages.
        file: The opened file.
        options: What the caller says about the file.

    Raises:
        UserError: The file holds no events, or in several places.
    """
    shapes, datasets = _datasets(file)
    if options.columns:
        return _given(path, file, datasets, options)
    groups: dict[str, list[str]] = {}
    for name, item in datasets.items():
        if item.ndim == 1 or is_vector(item):
            groups.setdefault(name.rpartition("/")[0], []).append(name)
    complete = {group: names for group, names in groups.items() if _is_complete(names)}
    tables = [name for name, item in datasets.items() if _is_table(item) and not is_vector(item)]
    places = [*complete, *tables]
    if _EVENTS in places:
        places = [_EVENTS]
    if len(places) != 1:
        if links := _links_elsewhere(file):
            raise UserError(
                "hdf5.other_file",
                f"{path} has links to other files, which are not followed ({', '.join(links)}); copy the data into one "
                "file, as with `h5copy`",
            )
        held = f"events in {', '.join(place or '/' for place in places)}" if places else "no events that can be told"
        raise UserError(
            "hdf5.no_events",
            f"{path} holds {held}; its datasets are {listed(shapes)}: say which are the events, as in "
            "columns={t: GROUP/t, x: GROUP/x, y: GROUP/y, p: GROUP/p}",
        )
    (place,) = places
    if place in complete:
        return _of_group(path, file, complete[place], options)
    return _of_table(path, place, file[place], options)


def _datasets(file: h5py.File) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Return the shapes of all datasets, and those of one or two dimensions, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    datasets: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            shapes[name] = item.shape or ()
            if item.ndim in (1, 2):
                datasets[name] = item

    file.visititems(note)
    return shapes, datasets


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


def _is_complete(names: list[str]) -> bool:
    places_of, _ = matching([name.rpartition("/")[2] for name in names])
    return set(places_of) == set(NAMES) and all(len(places) == 1 for places in places_of.values())


def _is_table(item: Any) -> bool:
    if item.dtype.names:
        return item.ndim == 1 and set(matching(item.dtype.names)[0]) == set(NAMES)
    return item.ndim == 2 and item.shape[1] == len(NAMES) and item.dtype.kind in "iuf"


def _of_group(path: Path, file: h5py.File, names: list[str], options: ReadOptions) -> Layout:
    columns = find_columns(path, [name.rpartition("/")[2] for name in names], options)
    chosen = [names[i] for i in columns.index]
    is_rvt = chosen == [f"{_EVENTS}/{name}" for name in NAMES]
    stated = [file[chosen[0]].attrs.get(name) for name in ("unit", "units")]
    in_words = next((_UNITS[unit] for unit in stated if isinstance(unit, str) and unit in _UNITS), None)
    time_unit = columns.time_unit or agreed_unit(path, in_words, options)
    return Layout(tuple((name, None) for name in chosen), time_unit, "rvt_hdf5" if is_rvt else "hdf5")


def _of_table(path: Path, name: str, table: Any, options: ReadOptions) -> Layout:
    if table.dtype.names:
        columns = find_columns(path, table.dtype.names, options)
        return Layout(tuple((name, table.dtype.names[i]) for i in columns.index), columns.time_unit)
    is_mvsec = name.startswith(_MVSEC)
    if is_mvsec and not options.columns:
        columns = Columns((2, 0, 1, 3), agreed_unit(path, "s", options))
    else:
        usual = "t, x, y, p" if name == _EVENTS else None
        columns = order_of_unnamed(path, np.asarray(table[:_LOOKED_AT]), options, usual)
    return Layout(tuple((name, i) for i in columns.index), columns.time_unit)


def _given(path: Path, file: h5py.File, datasets: dict[str, Any], options: ReadOptions) -> Layout:
    """Return the layout that the caller names: datasets, or columns of the only table."""
    given = [str(options.columns[name]).strip("/") for name in NAMES]
    if all(name in datasets for name in given):
        time_unit = matching([given[0].rpartition("/")[2]])[1]
        return Layout(tuple((name, None) for name in given), agreed_unit(path, time_unit, options))
    tables = [name for name, item in datasets.items() if item.dtype.names or item.ndim == 2]
    if len(tables) != 1:
        shapes = {name: item.shape for name, item in datasets.items()}
        raise UserError(
            "hdf5.no_such_dataset",
            f"{path} does not hold all of {', '.join(given)}; its datasets are {listed(shapes)}: name those, as in "
            f"{COLUMNS_EXAMPLE}",
        )
    return _of_table(path, tables[0], file[tables[0]], options)
