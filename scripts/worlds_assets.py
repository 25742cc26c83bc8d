"""Build the models and textures of rendered worlds that come from two public repositories.

    git clone https://github.com/osrf/gazebo_models CLONES/gazebo_models  # commit 8163eb4b
    git clone https://github.com/tordanik/OSM2World-default-style CLONES/OSM2World-default-style  # commit 4a2df762
    python scripts/worlds_assets.py CLONES MODELS

It writes `vehicles/`, `scenery/` and `textures/` in the layout of `rvtssm/contrib/worlds/assets.md`, which has the
licences, the credits, and the sources of the other folders. Vehicles are scaled to the lengths of that page. All models
are in metres, with y upwards and their front to +z, stand on y = 0 and are centred; textures have at most 512 pixels.
"""

import json
import re
import struct
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

LARGEST_SIDE = 512
_TRIANGLE_MODE = 4
_HOLES = 128  # opacity below which a texel is a hole


@dataclass(frozen=True)
class Source:
    """A model of gazebo_models."""

    turns: int = 0  # quarter turns around the vertical axis that bring its front to +z
    length_m: float | None = None  # None: in the unit of its file
    scale: float = 1.0
    pictures: tuple[str, ...] = ()  # of its materials in their order, where the file does not name them


VEHICLES = {
    "hatchback": Source(0, 4.0), "hatchback_blue": Source(0, 4.0), "hatchback_red": Source(0, 4.0),
    "suv": Source(2, 4.8), "pickup": Source(2, 5.4), "bus": Source(0, 12.0), "ambulance": Source(0, 6.4),
    "fire_truck": Source(2, 9.0), "prius_hybrid": Source(0, 4.5), "polaris_ranger_xp900": Source(2, 3.0),
}  # fmt: skip
SCENERY = {
    name: Source()
    for name in [
        "apartment",
        "construction_barrel",
        "construction_cone",
        "dumpster",
        "fast_food",
        "fire_hydrant",
        "fire_station",
        "gas_station",
        "grocery_store",
        "house_1",
        "house_2",
        "house_3",
        "jersey_barrier",
        "lamp_post",
        "law_office",
        "mailbox",
        "osrf_first_office",
        "police_station",
        "post_office",
        "salon",
        "school",
        "stop_sign",
        "telephone_pole",
        "thrift_shop",
    ]
}
SCENERY["oak_tree"] = Source(pictures=("branch_diffuse.png", "bark_diffuse.png"))
for name, scale in {
    "construction_barrel": 0.7,
    "construction_cone": 7,
    "dumpster": 1.5,
    "fast_food": 2,
    "lamp_post": 2,
    "stop_sign": 1.3,
}.items():
    SCENERY[name] = Source(scale=scale)
SCENERY["pine_tree"] = Source(scale=1.6, pictures=("branch_2_diffuse.png", "bark_diffuse.png"))
AMBIENT = [
    "Asphalt003",
    "Bricks008",
    "Concrete034",
    "CorrugatedSteel005",
    "Facade005",
    "Gravel020",
    "Ground003",
    "Metal002",
    "Plaster002",
    "RoofingTiles003",
    "RoofingTiles010",
    "Tiles036",
    "Wood026",
    "WoodSiding008",
]
TEXTURES = {f"{name}.jpg": f"cc0textures/{name}/{name}_Color.jpg" for name in AMBIENT} | {
    "grass.jpg": "Grass-2048.JPG", "plaster_rough.jpg": "Fabi2-putz1.png",
    "door.jpg": "DE19F1FreisingDoor00005_small.png",
    "garage_door.jpg": "DE20F1GarageDoor00001.jpg", "window.jpg": "custom/Window/Window_Color.png",
    "windows.jpg": "custom/Windows/Windows_Color.png", "apple_tree.png": "apfelbaum_alpha.png",
    "tree_broad_leaved.png": "arbaro_tree_broad_leaved.png", "tree_coniferous.png": "arbaro_tree_coniferous.png",
    "sky_day.jpg": "sky/DaySkyHDRI041B.jpg",
}  # fmt: skip


@dataclass
class Part:
    """Triangles of one material, as in the file."""

    material: str
    corners: np.ndarray  # (T, 3, 3)
    uv: np.ndarray  # (T, 3, 2), v upwards
    picture: str = ""  # name of a file, or empty
    colour: tuple[float, ...] = (1.0, 1.0, 1.0)


# --- OBJ -----------------------------------------------------------------------------------------------------------


def read_obj(path: Path) -> list[Part]:
    """Return the parts of a Wavefront OBJ file and of the MTL file that it names; polygons become triangles."""
    vertices, places = [], []
    rows: dict[str, list[list[tuple[int, int]]]] = {}
    materials: dict[str, Part] = {}
    current = ""
    for line in path.read_text(errors="replace").splitlines():
        word, *rest = line.split() or [""]
        if word == "v":
            vertices.append([float(number) for number in rest[:3]])
        elif word == "vt":
            places.append([float(number) for number in rest[:2]])
        elif word == "mtllib":
            materials = _read_mtl(path.with_name(" ".join(rest)))
        elif word == "usemtl":
            current = " ".join(rest)
        elif word == "f":
            corner = [_of_corner(each) for each in rest]
            for k in range(1, len(corner) - 1):
                rows.setdefault(current, []).append([corner[0], corner[k], corner[k + 1]])
    points, uv = np.array(vertices), np.array(places or [[0.0, 0.0]])
    parts = []
    for name, triangles in rows.items():
        index = np.array(triangles)
        known = materials.get(name, Part(name, points, uv))
        part = Part(name, points[index[..., 0]], uv[index[..., 1]], known.picture, known.colour)
        parts.append(part)
    return parts


def _of_corner(text: str) -> tuple[int, int]:
    """Return the numbers of a corner, its point and its place on the picture, counted from 0."""
    point, place = f"{text}/".split("/")[:2]
    return int(point) - 1, int(place or 1) - 1


def _read_mtl(path: Path) -> dict[str, Part]:
    found: dict[str, Part] = {}
    name = ""
    for line in path.read_text(errors="replace").splitlines():
        word, *rest = line.split() or [""]
        if word == "newmtl":
            name = " ".join(rest)
            found[name] = Part(name, np.zeros((0, 3, 3)), np.zeros((0, 3, 2)))
        elif word == "Kd":
            found[name].colour = tuple(float(number) for number in rest[:3])
        elif word == "map_Kd":
            found[name].picture = rest[-1]
            found[name].colour = (1.0, 1.0, 1.0)
    return found


# --- COLLADA -------------------------------------------------------------------------------------------------------


class Collada:
    """A COLLADA 1.4 file with triangles and polygons (https://www.khronos.org/collada, sections 4 to 8)."""

    def __init__(self, path: Path) -> None:
        text = re.sub(r'\sxmlns="[^"]+"', "", path.read_text(errors="replace"), count=1)
        self.root = ET.fromstring(text)
        self.by_id = {element.get("id", ""): element for element in self.root.iter() if element.get("id")}
        self.unit_m = float(self.root.find("asset/unit").get("meter", "1"))  # type: ignore[union-attr]

    def parts(self) -> list[Part]:
        """Return all parts in metres, placed by their nodes."""
        scene = self._of(self.root.find("scene/instance_visual_scene"))
        parts: list[Part] = []
        for node in scene.findall("node"):
            parts += self._of_node(node, np.eye(4))
        return parts

    def _of(self, reference: ET.Element | None, name: str = "url") -> ET.Element:
        assert reference is not None
        return self.by_id[reference.get(name, "")[1:]]

    def _of_node(self, node: ET.Element, parent: np.ndarray) -> Iterator[Part]:
        matrix = parent
        for step in node:
            numbers = np.array((step.text or "").split(), float) if step.tag in _STEPS else np.zeros(0)
            if step.tag in _STEPS:
                matrix = matrix @ _STEPS[step.tag](numbers)
        for instance in node.findall("instance_geometry"):
            symbols = {each.get("symbol"): each for each in instance.iter("instance_material")}
            for shape in self._of(instance).findall("mesh/*"):
                if shape.tag in ("triangles", "polylist"):
                    yield self._part(shape, matrix, symbols.get(shape.get("material")))
        for child in node.findall("node"):
            yield from self._of_node(child, matrix)

    def _part(self, shape: ET.Element, matrix: np.ndarray, material: ET.Element | None) -> Part:
        inputs = {each.get("semantic"): each for each in reversed(shape.findall("input"))}  # the first set of places
        stride = 1 + max(int(each.get("offset", 0)) for each in shape.findall("input"))
        index = np.array((shape.findtext("p") or "").split(), int).reshape(-1, stride)
        if shape.tag == "polylist":
            counts = np.array((shape.findtext("vcount") or "").split(), int)
            index = index[_fans(counts)]
        vertices = self._of(inputs["VERTEX"], "source").find("input")
        points = self._floats(vertices, 3)[index[:, int(inputs["VERTEX"].get("offset", 0))]]
        points = (points @ matrix[:3, :3].T + matrix[:3, 3]) * self.unit_m
        uv = np.zeros((len(index), 2))
        if "TEXCOORD" in inputs:
            uv = self._floats(inputs["TEXCOORD"], 2)[index[:, int(inputs["TEXCOORD"].get("offset", 0))]]
        name = shape.get("material", "")
        part = Part(name, points.reshape(-1, 3, 3), uv.reshape(-1, 3, 2))
        if material is not None:
            effect = self._of(self._of(material, "target").find("instance_effect"))
            self._look(effect, part)
        return part

    def _floats(self, reference: ET.Element | None, width: int) -> np.ndarray:
        source = self._of(reference, "source")
        accessor = source.find("technique_common/accessor")
        stride = int(accessor.get("stride", width)) if accessor is not None else width
        values = np.array((source.findtext("float_array") or "").split(), float)
        return values.reshape(-1, stride)[:, :width]

    def _look(self, effect: ET.Element, part: Part) -> None:
        """Write the picture or the colour of an effect."""
        diffuse = effect.find(".//diffuse")
        if diffuse is None:
            return
        colour, texture = diffuse.findtext("color"), diffuse.find("texture")
        if colour:
            part.colour = tuple(float(number) for number in colour.split()[:3])
        if texture is not None:
            name = texture.get("texture", "")
            params = {each.get("sid"): each for each in effect.iter("newparam")}
            while name in params:  # a sampler of a surface of an image
                name = params[name].findtext(".//source") or params[name].findtext(".//init_from") or ""
            image = self.by_id.get(name)
            part.picture = Path(image.findtext(".//init_from") or "").name if image is not None else name


def _fans(counts: np.ndarray) -> np.ndarray:
    """Return the corners (3 T,) of the triangles of polygons with these numbers of corners."""
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rows = [
        (start, start + k, start + k + 1)
        for start, count in zip(first, counts, strict=True)
        for k in range(1, count - 1)
    ]
    return np.array(rows).ravel()


def _shifted(numbers: np.ndarray) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, 3] = numbers
    return matrix


def _turned(numbers: np.ndarray) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3] = cv2.Rodrigues(np.radians(numbers[3]) * numbers[:3])[0]
    return matrix


_STEPS = {
    "matrix": lambda numbers: numbers.reshape(4, 4),
    "translate": _shifted,
    "rotate": _turned,
    "scale": lambda numbers: np.diag([*numbers, 1.0]),
}


# --- GLB -----------------------------------------------------------------------------------------------------------


def write_glb(path: Path, parts: list[Part], pictures: dict[str, Path]) -> None:
    """Write parts, with y upwards in metres, as glTF 2.0 in one file. `pictures` are the files by their names."""
    data = bytearray()
    views: list[dict[str, int]] = []
    document: dict = {"asset": {"version": "2.0"}, "scene": 0, "scenes": [{"nodes": [0]}], "nodes": [{"mesh": 0}]}
    primitives, accessors, materials, textures, images = [], [], [], [], []

    def stored(content: bytes) -> int:
        data.extend(bytes(-len(data) % 4))
        views.append({"buffer": 0, "byteOffset": len(data), "byteLength": len(content)})
        data.extend(content)
        return len(views) - 1

    for part in parts:
        rows = np.concatenate([part.corners.reshape(-1, 3), part.uv.reshape(-1, 2)], 1).astype("<f4")
        rows, index = np.unique(rows, axis=0, return_inverse=True)
        points, uv = rows[:, :3], rows[:, 3:] * (1, -1) + (0, 1)  # glTF counts v downwards
        low, high = points.min(0).tolist(), points.max(0).tolist()
        first = len(accessors)
        accessors.append({"bufferView": stored(points.tobytes()), "componentType": 5126, "count": len(points),
                          "type": "VEC3", "min": low, "max": high})  # fmt: skip
        accessors.append({"bufferView": stored(uv.astype("<f4").tobytes()), "componentType": 5126, "count": len(uv),
                          "type": "VEC2"})  # fmt: skip
        accessors.append({"bufferView": stored(index.astype("<u4").tobytes()), "componentType": 5125,
                          "count": index.size, "type": "SCALAR"})  # fmt: skip
        look: dict = {"baseColorFactor": [*part.colour, 1.0], "metallicFactor": 0}
        material: dict = {"name": part.material, "pbrMetallicRoughness": look}
        if part.picture:
            picture = picture_of(pictures[part.picture])
            has_holes = picture.ndim == 3 and picture.shape[2] == 4 and (picture[..., 3] < _HOLES).any()
            if has_holes:
                material |= {"alphaMode": "MASK", "doubleSided": True}
            else:
                picture = picture[..., :3] if picture.ndim == 3 else picture
            coded = cv2.imencode(".png" if has_holes else ".jpg", picture)[1].tobytes()
            images.append({"bufferView": stored(coded), "mimeType": f"image/{'png' if has_holes else 'jpeg'}"})
            look["baseColorTexture"] = {"index": len(textures)}
            textures.append({"source": len(images) - 1})
        primitives.append({"attributes": {"POSITION": first, "TEXCOORD_0": first + 1}, "indices": first + 2,
                           "material": len(materials), "mode": _TRIANGLE_MODE})  # fmt: skip
        materials.append(material)
    data.extend(bytes(-len(data) % 4))
    document |= {"meshes": [{"primitives": primitives}], "accessors": accessors, "bufferViews": views,
                 "materials": materials, "buffers": [{"byteLength": len(data)}]}  # fmt: skip
    if images:
        document |= {"textures": textures, "images": images}
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack("<4sII", b"glTF", 2, 28 + len(text) + len(data))
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(data), b"BIN\0") + bytes(data)
    path.write_bytes(head + chunks)


def picture_of(path: Path) -> np.ndarray:
    """Return a picture whose sides are at most LARGEST_SIDE."""
    picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if picture is None:
        sys.exit(f"{path} cannot be read as a picture")
    factor = min(1.0, LARGEST_SIDE / max(picture.shape[:2]))
    size = round(picture.shape[1] * factor), round(picture.shape[0] * factor)
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA))


# --- the folder ----------------------------------------------------------------------------------------------------


def build_model(folder: Path, source: Source, out: Path) -> None:
    """Convert a folder of gazebo_models."""
    meshes = [path for ending in ("*.dae", "*.obj") for path in sorted((folder / "meshes").glob(ending))]
    if not meshes:
        sys.exit(f"{folder} has no model; clone the repository at the commit of this script")
    parts = read_obj(meshes[0]) if meshes[0].suffix == ".obj" else Collada(meshes[0]).parts()
    pictures = _pictures(folder)
    given = dict(zip(dict.fromkeys(part.material for part in parts), source.pictures, strict=False))
    for part in parts:
        part.picture = _known(given.get(part.material, part.picture), pictures)
    if not any(part.picture for part in parts):
        own = [path.name for path in sorted((folder / "materials/textures").glob("*.*"))]
        diffuse = next(name for name in own if "diffuse" in name.lower())
        for part in parts:
            part.picture, part.colour = diffuse, (1.0, 1.0, 1.0)
    _place(parts, source)
    write_glb(out / f"{folder.name}.glb", parts, pictures)


def _pictures(folder: Path) -> dict[str, Path]:
    """Return the pictures of a model and of its neighbours, whose wheels some models use; its own come last."""
    folders = [*sorted(folder.parent.glob("*/materials/textures")), folder / "materials/textures"]
    return {path.name: path for each in folders for path in sorted(each.glob("*.*"))}


def _known(name: str, pictures: dict[str, Path]) -> str:
    """Return the name of the picture that a file names, perhaps with another ending or in other letters."""
    stem = re.sub(r"_(tga|png|jpg)$", "", Path(name).name.rpartition(".")[0] or Path(name).name).lower()
    for known in pictures:
        if stem and Path(known).stem.lower() == stem:
            return known
    return ""


def _place(parts: list[Part], source: Source) -> None:
    """Turn, scale and centre a model, in place: from z upwards to y upwards."""
    angle = source.turns * np.pi / 2
    cosine, sine = round(float(np.cos(angle))), round(float(np.sin(angle)))
    turn = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    to_y_up = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]]) @ turn
    for part in parts:
        part.corners = part.corners @ to_y_up.T * source.scale
    points = np.concatenate([part.corners.reshape(-1, 3) for part in parts])
    low, high = points.min(0), points.max(0)
    fit = source.length_m / (high[2] - low[2]) if source.length_m else 1.0
    middle = np.array([(low[0] + high[0]) / 2, low[1], (low[2] + high[2]) / 2])
    for part in parts:
        part.corners = (part.corners - middle) * fit


def main(clones: str, out: str) -> None:
    """Write `vehicles/`, `scenery/` and `textures/` of a folder of models."""
    models, style = Path(clones) / "gazebo_models", Path(clones) / "OSM2World-default-style/textures"
    for name, sources in (("vehicles", VEHICLES), ("scenery", SCENERY)):
        for model, source in sources.items():
            build_model(models / model, source, Path(out) / name)
    (Path(out) / "textures").mkdir(parents=True, exist_ok=True)
    for name, path in TEXTURES.items():
        picture = picture_of(style / path)
        if name.endswith(".jpg"):  # these repeat
            width = 2 * LARGEST_SIDE if name.startswith("sky") else LARGEST_SIDE
            whole = cv2.imread(str(style / path), cv2.IMREAD_COLOR)
            picture = cv2.resize(whole, (width, LARGEST_SIDE), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(Path(out) / "textures" / name), picture)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python scripts/worlds_assets.py CLONES MODELS")
    main(*sys.argv[1:])
