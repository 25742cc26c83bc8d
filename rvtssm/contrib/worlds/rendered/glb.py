"""Read GLB files (glTF 2.0 in one binary file): triangles, grey textures, skeletons and animations.

Source: Khronos, glTF 2.0 specification, sections 3 (the JSON) and 4.4 (the container). Read are triangles without
compression, textures inside of the file, and rotations of joints with linear interpolation; anything else is refused.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from rvtssm.contrib.worlds.video import decoded
from rvtssm.system.files import CONTENT_ERRORS
from rvtssm.system.user_error import UserError

_HEADER = struct.Struct("<4sII")
_CHUNK = struct.Struct("<I4s")
_NUMBERS = {5120: "i1", 5121: "u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT4": 16}
_LARGEST_SIDE = 512  # of a texture in pixels
_TRIANGLES = 4  # the mode of a primitive
GREY = (0.0722, 0.7152, 0.2126)  # weights of blue, green and red


@dataclass(frozen=True)
class Surface:
    """Triangles of one material, in metres: x to the left of the model, y upwards, z ahead."""

    vertices: np.ndarray  # (V, 3) float64
    faces: np.ndarray  # (T, 3) int64, numbers of vertices
    uv: np.ndarray  # (V, 2) float64, v upwards
    grey: float  # reflected share of the light, multiplied with the texture
    texture: np.ndarray | None  # (H, W) uint8, coded as sRGB, sides are powers of two
    opacity: np.ndarray | None  # (H, W) uint8, of a texture with holes
    is_two_sided: bool
    joints: np.ndarray | None = None  # (V, 4) int64
    weights: np.ndarray | None = None  # (V, 4) float64, sums are 1


@dataclass(frozen=True)
class Animation:
    """Rotations of all joints relative to their parents, at increasing times."""

    times_s: np.ndarray  # (K,)
    rotations: np.ndarray  # (K, J, 4) unit quaternions x, y, z, w


@dataclass(frozen=True)
class Skeleton:
    """Joints, parents before children, and how they move."""

    parents: np.ndarray  # (J,) int64; -1 for the root
    offsets: np.ndarray  # (J, 3) from the parent, in metres
    unbind: np.ndarray  # (J, 4, 4) from the model at rest to the joint
    animations: dict[str, Animation]


@dataclass(frozen=True)
class Model:
    """What a file holds."""

    name: str
    surfaces: tuple[Surface, ...]
    skeleton: Skeleton | None

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest coordinates, (3,) each, in metres."""
        used = np.concatenate([surface.vertices[surface.faces.ravel()] for surface in self.surfaces])
        return used.min(0), used.max(0)


def read_glb(path: Path | str) -> Model:
    """Return the model of a file.

    Raises:
        UserError: The file is cut, damaged, no GLB, or uses a part of glTF that is not read.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError("file.unreadable", name=path, found=error.strerror or "not readable") from None
    document, data = _chunks(path, content)
    try:
        return _File(path, document, data).model()
    except (UserError, MemoryError):
        raise
    except (*CONTENT_ERRORS, cv2.error) as error:
        raise UserError(
            "file.damaged", name=path, found=f"not a complete glTF ({type(error).__name__}: {error})"[:200]
        ) from None


def _chunks(path: Path, content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the JSON and the binary data of a file."""
    if len(content) < _HEADER.size or content[:4] != b"glTF":
        raise UserError("file.kind", name=path, found="not a GLB file", needed="glTF 2.0 in one binary file (.glb)")
    _, version, length = _HEADER.unpack_from(content)
    if version != 2:
        raise UserError("file.kind", name=path, found=f"glTF version {version}", needed="version 2")
    if length > len(content):
        raise UserError("file.cut", name=path, found=f"{len(content)} of {length} bytes")
    chunks: dict[bytes, bytes] = {}
    at = _HEADER.size
    while at + _CHUNK.size <= length:
        size, kind = _CHUNK.unpack_from(content, at)
        at += _CHUNK.size
        chunks.setdefault(kind, content[at : at + size])
        at += size
    try:
        document = json.loads(chunks[b"JSON"])
        return dict(document), chunks.get(b"BIN\0", b"")
    except (KeyError, ValueError, TypeError, RecursionError):
        raise UserError("file.damaged", name=path, found="its JSON cannot be read") from None


class _File:
    """The parts of one file, by their numbers in its JSON."""

    def __init__(self, path: Path, document: dict[str, Any], data: bytes) -> None:
        self.path = path
        self.document = document
        self.data = data
        self.above: dict[int, np.ndarray] = {}  # where the parent of each node of the scene is placed (4, 4)
        if needed := document.get("extensionsRequired"):
            raise self._foreign(f"it requires {', '.join(map(str, needed))}")

    def model(self) -> Model:
        """Return all surfaces, placed by their nodes, and the first skeleton."""
        surfaces: list[Surface] = []
        scene = self.document["scenes"][self.document.get("scene", 0)]
        waiting = [(int(number), np.eye(4)) for number in scene["nodes"]]
        while waiting:
            number, parent = waiting.pop(0)
            if number in self.above:
                raise ValueError("a node has two parents")
            self.above[number] = parent
            node = self.document["nodes"][number]
            placed = parent @ _placement(node)
            if "mesh" in node:
                mesh = self.document["meshes"][node["mesh"]]
                if any((*mesh.get("weights", ()), *node.get("weights", ()))):
                    raise self._foreign("a mesh is a mixture of several")
                if "EXT_mesh_gpu_instancing" in node.get("extensions", {}):
                    raise self._foreign("a node stands for many")
                # A skinned mesh is placed by its joints alone.
                matrix = np.eye(4) if "skin" in node else placed
                surfaces += [self._surface(primitive, matrix) for primitive in mesh["primitives"]]
            waiting += [(int(child), placed) for child in node.get("children", ())]
        if not surfaces:
            raise UserError("file.content", name=self.path, found="no triangles", needed="a model with a mesh")
        has_look = any(surface.texture is not None or surface.grey != 1 for surface in surfaces)
        if not has_look:
            raise UserError(
                "file.content", name=self.path, found="no surface has a texture or a colour",
                advice="export the model with its materials",
            )  # fmt: skip
        return Model(self.path.stem, tuple(surfaces), self._skeleton())

    def _surface(self, primitive: dict[str, Any], matrix: np.ndarray) -> Surface:
        if primitive.get("mode", _TRIANGLES) != _TRIANGLES:
            raise self._foreign("a mesh is not made of triangles")
        attributes = primitive["attributes"]
        vertices = self._array(attributes["POSITION"], "VEC3") @ matrix[:3, :3].T + matrix[:3, 3]
        if "indices" in primitive:
            faces = self._array(primitive["indices"], "SCALAR").reshape(-1, 3).astype(np.int64)
        else:
            faces = np.arange(len(vertices)).reshape(-1, 3)
        if np.linalg.det(matrix[:3, :3]) < 0:  # a mirrored node turns its triangles round
            faces = np.ascontiguousarray(faces[:, ::-1])
        if not np.isfinite(vertices).all() or faces.size == 0 or faces.min() < 0 or faces.max() >= len(vertices):
            raise ValueError("its triangles are not valid")
        uv = np.zeros((len(vertices), 2))
        if "TEXCOORD_0" in attributes:
            uv = self._array(attributes["TEXCOORD_0"], "VEC2") * (1, -1) + (0, 1)  # glTF counts v downwards
        if "COLOR_0" in attributes and (self._array(attributes["COLOR_0"], "VEC3", "VEC4")[:, :3] != 1).any():
            raise self._foreign("its vertices have colours")
        joints = weights = None
        if "JOINTS_0" in attributes:
            joints = self._array(attributes["JOINTS_0"], "VEC4").astype(np.int64)
            weights = self._array(attributes["WEIGHTS_0"], "VEC4")
            weights = weights / np.maximum(weights.sum(1, keepdims=True), 1e-9)
            num_joints = min((len(skin["joints"]) for skin in self.document.get("skins", ())), default=math.inf)
            if joints.min() < 0 or joints.max() >= num_joints:
                raise ValueError("its skeleton lacks joints")
        # Compiled loops read all of these by the number of a vertex.
        if any(rows is not None and len(rows) != len(vertices) for rows in (uv, joints, weights)):
            raise ValueError("its vertices lack numbers")
        grey, texture, opacity, is_two_sided = self._material(primitive)
        return Surface(vertices, faces, uv, grey, texture, opacity, is_two_sided, joints, weights)

    def _material(self, primitive: dict[str, Any]) -> tuple[float, np.ndarray | None, np.ndarray | None, bool]:
        if "material" not in primitive:
            return 1.0, None, None, False
        material = self.document["materials"][primitive["material"]]
        plain = material.get("pbrMetallicRoughness", {})
        colour = np.array(plain.get("baseColorFactor", (1, 1, 1, 1)), float)
        grey = float(colour[:3] @ GREY[::-1])
        if not 0 <= grey < math.inf:
            raise ValueError("a colour is no share of the light")
        has_holes = material.get("alphaMode") == "MASK"
        texture = opacity = None
        if "baseColorTexture" in plain:
            texture, opacity = grey_picture(self._picture(plain["baseColorTexture"]))
        is_two_sided = bool(material.get("doubleSided")) or has_holes
        return grey, texture, opacity if has_holes else None, is_two_sided

    def _picture(self, used: dict[str, Any]) -> np.ndarray | None:
        if used.get("texCoord") or "KHR_texture_transform" in used.get("extensions", {}):
            raise self._foreign("a texture is not placed by the first coordinates")
        texture = self.document["textures"][used["index"]]
        if "source" not in texture:
            raise self._foreign("a texture is neither PNG nor JPEG")
        image = self.document["images"][texture["source"]]
        if "bufferView" not in image:
            raise self._foreign("a texture lies outside of the file")
        view = self._view(image["bufferView"])
        start = view.get("byteOffset", 0)
        return decoded(self.data[start : start + view["byteLength"]], cv2.IMREAD_UNCHANGED)

    def _view(self, number: int) -> dict[str, Any]:
        """Return a part of the binary data by its description."""
        view: dict[str, Any] = self.document["bufferViews"][number]
        if view["buffer"] != 0 or "uri" in self.document["buffers"][0]:
            raise self._foreign("its numbers lie outside of the file, or are compressed")
        return view

    def _array(self, number: int, *types: str) -> np.ndarray:
        """Return the numbers of an accessor of one of these types, (N, width)."""
        accessor = self.document["accessors"][number]
        if "sparse" in accessor or "bufferView" not in accessor:
            raise self._foreign("an accessor is sparse or compressed")
        if accessor["type"] not in types:
            raise ValueError(f"an accessor is {accessor['type']} in place of {types[0]}")
        view = self._view(accessor["bufferView"])
        width = _WIDTHS[accessor["type"]]
        dtype = np.dtype(_NUMBERS[accessor["componentType"]])
        count = accessor["count"]
        start = view.get("byteOffset", 0) + accessor.get("byteOffset", 0)
        stride = view.get("byteStride", width * dtype.itemsize)
        if (
            count < 1
            or stride < width * dtype.itemsize
            or start + (count - 1) * stride + width * dtype.itemsize > len(self.data)
        ):
            raise ValueError("an accessor reaches beyond the data")
        rows = np.ndarray((count, width), dtype, self.data, start, (stride, dtype.itemsize))
        if accessor.get("normalized"):
            return rows / np.iinfo(dtype).max
        if dtype.kind != "f":
            return rows
        if not np.isfinite(rows).all():
            raise ValueError("its numbers are not finite")
        return rows.astype(np.float64)

    def _skeleton(self) -> Skeleton | None:
        if not self.document.get("skins"):
            return None
        skin, *others = self.document["skins"]
        if any(other["joints"] != skin["joints"] for other in others):
            raise self._foreign("it has several skeletons")
        numbers = [int(number) for number in skin["joints"]]
        nodes = [self.document["nodes"][number] for number in numbers]
        parents = np.full(len(nodes), -1)
        for joint, node in enumerate(nodes):
            parents[[numbers.index(child) for child in node.get("children", ()) if child in numbers]] = joint
        if (parents >= np.arange(len(nodes))).any():
            raise self._foreign("a joint comes before its parent")
        # Joints turn and are shifted, and nothing else places them.
        above = [
            self.above.get(number, np.eye(4)) for number, parent in zip(numbers, parents, strict=True) if parent < 0
        ]
        scales = [node.get("scale", (1, 1, 1)) for node in nodes]
        is_plain = np.allclose(scales, 1, atol=1e-3) and not any("matrix" in node for node in nodes)
        if not is_plain or not np.allclose(above, np.eye(4), atol=1e-3):
            raise self._foreign(
                "its joints are scaled, or its skeleton is placed", "apply the transforms of the armature"
            )
        offsets = np.array([node.get("translation", (0, 0, 0)) for node in nodes], float)
        unbind = self._array(skin["inverseBindMatrices"], "MAT4").reshape(-1, 4, 4).transpose(0, 2, 1)
        if len(unbind) != len(nodes) or not np.isfinite(offsets).all():
            raise ValueError("its joints are not valid")
        animations = {
            str(animation.get("name", "")): self._animation(animation, numbers, nodes)
            for animation in self.document.get("animations", ())
        }
        return Skeleton(parents, offsets, unbind, animations)

    def _animation(self, animation: dict[str, Any], numbers: list[int], nodes: list[dict[str, Any]]) -> Animation:
        times = np.zeros(1)
        tracks: dict[int, np.ndarray] = {}
        for channel in animation["channels"]:
            sampler = animation["samplers"][channel["sampler"]]
            is_read = channel["target"]["path"] == "rotation" and sampler.get("interpolation", "LINEAR") == "LINEAR"
            own_times = self._array(sampler["input"], "SCALAR")[:, 0]
            is_read &= channel["target"]["node"] in numbers
            if not is_read or (tracks and not np.array_equal(times, own_times)):
                raise self._foreign("an animation is not made of linear rotations of joints at common times")
            times = own_times
            tracks[numbers.index(channel["target"]["node"])] = self._array(sampler["output"], "VEC4")
        # A joint that an animation does not turn stays as it is at rest.
        at_rest = np.array([node.get("rotation", (0, 0, 0, 1)) for node in nodes], float)
        rotations = np.tile(at_rest, (len(times), 1, 1))
        for joint, track in tracks.items():
            rotations[:, joint] = track
        is_unit = np.abs(np.linalg.norm(rotations, axis=-1) - 1) < 0.01
        if (np.diff(times) <= 0).any() or not is_unit.all():
            raise ValueError("an animation goes back in time, or a rotation is none")
        # Of the two quaternions of a rotation, take the one that is near its predecessor.
        for k in range(1, len(times)):
            is_far = (rotations[k] * rotations[k - 1]).sum(-1) < 0
            rotations[k, is_far] *= -1
        return Animation(times, rotations)

    def _foreign(
        self, found: str, advice: str = "export plain triangles with textures inside of the file"
    ) -> UserError:
        return UserError("file.kind", name=self.path, found=found, advice=advice)


def _placement(node: dict[str, Any]) -> np.ndarray:
    """Return the matrix (4, 4) of a node, relative to its parent."""
    if "matrix" in node:
        return np.array(node["matrix"], float).reshape(4, 4).T
    matrix = np.eye(4)
    matrix[:3, :3] = rotation_matrices(np.array(node.get("rotation", (0, 0, 0, 1)), float))
    matrix[:3, :3] *= node.get("scale", (1, 1, 1))
    matrix[:3, 3] = node.get("translation", (0, 0, 0))
    return matrix


def rotation_matrices(quaternions: np.ndarray) -> np.ndarray:
    """Return the matrices (..., 3, 3) of unit quaternions (..., 4) x, y, z, w."""
    x, y, z, w = np.moveaxis(quaternions, -1, 0)
    rows = (
        np.stack((1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)), -1),
        np.stack((2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)), -1),
        np.stack((2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)), -1),
    )
    return np.stack(rows, -2)


def grey_picture(picture: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a picture (H, W) or (H, W, 1 to 4) as grey uint8, and its opacity; sides become powers of two.

    Raises:
        ValueError: The picture is None, as `decoded` returns it, or has neither 8 nor 16 bits.
    """
    if picture is None or picture.dtype not in (np.uint8, np.uint16):
        raise ValueError("a texture cannot be decoded to 8 or 16 bits")
    if picture.dtype == np.uint16:
        picture = (picture >> 8).astype(np.uint8)
    picture = np.atleast_3d(picture)
    opacity = picture[..., -1] if picture.shape[2] in (2, 4) else None
    grey = picture[..., 0]
    if picture.shape[2] > 2:
        grey = np.clip(picture[..., :3].astype(np.float32) @ np.array(GREY, np.float32), 0, 255).astype(np.uint8)
    height, width = (1 << min(max(side, 1), _LARGEST_SIDE).bit_length() - 1 for side in grey.shape)
    sized = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    if opacity is not None:
        opacity = np.asarray(cv2.resize(opacity, (width, height), interpolation=cv2.INTER_AREA))
    return np.asarray(sized), opacity
