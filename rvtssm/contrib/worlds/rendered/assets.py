"""The folder of 3D models and textures that `assets=` names. `../assets.md` describes the layout and its sources."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from rvtssm.contrib.worlds.rendered.glb import Model, grey_picture, read_glb
from rvtssm.contrib.worlds.rendered.skin import RIDE, WALK, build_figure
from rvtssm.contrib.worlds.rendered.stage import Stage
from rvtssm.contrib.worlds.video import decoded
from rvtssm.system.files import check_name, file_errors
from rvtssm.system.user_error import UserError

# The textures of each role, as patterns of file names. Each role needs at least one.
TEXTURES = {
    "road": ("Asphalt*",),
    "pavement": ("Tiles*", "Concrete*", "Gravel*"),
    "ground": ("grass*", "Ground*"),
    "wall": ("plaster*", "Plaster*", "Bricks*", "Concrete*", "WoodSiding*", "Metal*"),
    "roof": ("RoofingTiles*",),
    "metal": ("CorrugatedSteel*", "garage_door*", "Metal*"),
    "window": ("window.*", "Facade*"),
    "door": ("door*", "garage_door*"),
    "tree": ("*tree*",),
    "sky": ("sky*",),
}
TWO_WHEELERS = ("bicycle", "motorcycle")  # beginnings of names in vehicles/
TREES = ("oak", "pine", "tree")  # words in names in scenery/
LONGEST_CAR_M = 5.6
_SIZES_M = {"vehicles": (1.2, 25.0), "far_vehicles": (1.2, 25.0), "people": (0.8, 2.3), "scenery": (0.2, 80.0)}
_KINDS = ("cars", "large", "bicycles", "motorcycles", "far", "people", "buildings", "posts", "small", "trees")
_BUILDING_M = 4.0  # both sides of the ground plan of a building are longer
_POST_M = 3.0  # posts are higher
_MOST_OFF = 0.2  # of the longest side, from the middle or from the ground


@dataclass(frozen=True)
class Assets:
    """The models by what they are used for."""

    cars: tuple[Model, ...]
    large: tuple[Model, ...]  # buses, trucks and other vehicles longer than LONGEST_CAR_M
    bicycles: tuple[Model, ...]
    motorcycles: tuple[Model, ...]
    far: tuple[Model, ...]  # plain vehicles, for far away; may be none
    people: tuple[Model, ...]
    buildings: tuple[Model, ...]
    posts: tuple[Model, ...]
    small: tuple[Model, ...]  # hydrants, cones and the like
    trees: tuple[Model, ...]
    textures: dict[str, tuple[tuple[np.ndarray, np.ndarray | None], ...]]  # of each role: grey and opacity


def digest(folder: Path | str) -> str:
    """Return the SHA-256 of all models and textures of a folder, with their names."""
    sha256 = hashlib.sha256()
    for path in _files(_existing(folder)):
        check_name(path.name)
        sha256.update(f"{path.parent.name}/{path.name}\0".encode())
        sha256.update(hashlib.sha256(path.read_bytes()).digest())
    return sha256.hexdigest()


def read_assets(folder: Path | str, expected: str | None = None) -> Assets:
    """Return everything that a folder holds.

    Args:
        folder: The folder.
        expected: Its `digest` before; None accepts any.

    Raises:
        UserError: A part of the layout is missing, a file is damaged, a model has an implausible size, or the folder is
            not what it was before.
    """
    found = digest(folder)
    if expected not in (None, found):
        raise UserError(
            "run.other_settings", name=folder, found="its models have changed since this generation began",
            advice="begin again in another folder",
        )  # fmt: skip
    return _read(_existing(folder), found)


@functools.lru_cache(maxsize=1)
def _read(root: Path, _digest: str) -> Assets:
    """Return what a folder holds; a change of the folder changes the digest, and it is read again."""
    found: dict[str, list[Model]] = {name: [] for name in _KINDS}
    for folder in _SIZES_M:
        for path in _listed(root / folder, "*.glb"):
            model = read_glb(path)
            _check_size(folder, model, _size(model))
            _check_place(folder, model)
            found[_kind(folder, model)].append(model)
    for model in found["people"]:
        for animation in (WALK, RIDE):  # the skeleton may give a person another size
            _, mesh = build_figure(Stage(), model, animation, (1.0, 1.0, 1.0), np.random.default_rng(0))
            _check_size("people", model, mesh.size_m)
    missing = [name for name in ("cars", "bicycles", "motorcycles", "people") if not found[name]]
    if missing:
        raise UserError("file.missing", name=root, found=f"no models of {', '.join(missing)}", advice=_ADVICE)
    textures = {role: _textures(root, role) for role in TEXTURES}
    return Assets(**{name: tuple(models) for name, models in found.items()}, textures=textures)


def _kind(folder: str, model: Model) -> str:
    """Return the field of `Assets` that a model belongs to."""
    width, height, length = _size(model)
    if folder in ("people", "far_vehicles"):
        return {"people": "people", "far_vehicles": "far"}[folder]
    if folder == "vehicles":
        for beginning in TWO_WHEELERS:
            if model.name.startswith(beginning):
                return f"{beginning}s"
        return "cars" if length <= LONGEST_CAR_M else "large"
    if any(word in model.name for word in TREES):
        return "trees"
    if min(width, length) > _BUILDING_M:
        return "buildings"
    return "posts" if height > _POST_M else "small"


_ADVICE = "rvtssm/contrib/worlds/assets.md describes the folder and where its models come from"


def _existing(folder: Path | str) -> Path:
    root = Path(folder)
    if not root.is_dir():
        raise UserError("file.missing", name=f"assets={folder}", found="is no folder", advice=_ADVICE)
    return root


def _files(root: Path) -> list[Path]:
    paths: list[Path] = []
    for name in (*_SIZES_M, "textures"):
        paths += _listed(root / name, "*")
    return sorted(path for path in paths if path.is_file())


def _listed(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern by name, without those that the system hides, such as the `._NAME` of macOS."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def _size(model: Model) -> np.ndarray:
    low, high = model.bounds
    return np.asarray(high - low)


def _check_size(folder: str, model: Model, size_m: np.ndarray) -> None:
    """Raise UserError if a model of this size (3,) cannot be in metres."""
    smallest, largest = _SIZES_M[folder]
    longest = float(size_m.max())
    if not smallest <= longest <= largest:
        raise UserError(
            "file.content", name=f"{folder}/{model.name}.glb", found=f"its longest side is {longest:.3g} m",
            needed=f"{smallest:g} to {largest:g} m", advice="scale the model to metres",
        )  # fmt: skip


def _check_place(folder: str, model: Model) -> None:
    """Raise UserError if a model does not stand where its path will be, or faces another way."""
    low, high = model.bounds
    size = high - low
    off = _MOST_OFF * size.max()
    faults = {
        "it does not stand on the ground": abs(low[1]) > off,
        "it is not centred": (np.abs(low + high)[[0, 2]] / 2 > off).any(),
        "it is wider than long": folder.endswith("vehicles") and size[0] > size[2],
        "it does not stand upright": folder == "people" and size[1] < size.max() / 2,
    }
    for fault, is_there in faults.items():
        if is_there:
            raise UserError(
                "file.content", name=f"{folder}/{model.name}.glb", found=fault,
                needed="y upwards, front to +z, standing on y = 0, centred", advice="move or turn the model",
            )  # fmt: skip


def _textures(root: Path, role: str) -> tuple[tuple[np.ndarray, np.ndarray | None], ...]:
    paths = {path for pattern in TEXTURES[role] for path in _listed(root / "textures", pattern)}
    if not paths:
        names = " or ".join(TEXTURES[role])
        raise UserError("file.missing", name=root / "textures", found=f"no texture {names}", advice=_ADVICE)
    found = []
    for path in sorted(paths):
        with file_errors(path, " is no texture", "give a PNG or JPEG", (ValueError, cv2.error)):
            found.append(grey_picture(decoded(path.read_bytes(), cv2.IMREAD_UNCHANGED)))
    return tuple(found)
