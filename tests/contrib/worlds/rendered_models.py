"""A folder of models for tests: a car of boxes, a stick person with two animations, and plain textures."""

import json
import struct
from pathlib import Path

import cv2
import numpy as np

from rvtssm.contrib.worlds.rendered.assets import TEXTURES
from rvtssm.contrib.worlds.rendered.stage import block


def boxes_mesh(*boxes: tuple[tuple[float, float, float], tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) and faces (T, 3) of boxes between two corners, in the axes of glTF."""
    corners = np.concatenate([block(low, high, 0, 1.0).corners for low, high in boxes])
    return corners.reshape(-1, 3), np.arange(len(corners) * 3).reshape(-1, 3)


def write_glb(
    path: Path,
    vertices: np.ndarray,
    faces: np.ndarray,
    *,
    material: dict | None = None,
    joints: np.ndarray | None = None,
    bones: list[tuple[float, float, float]] | None = None,
    animations: tuple[str, ...] = (),
    **changes: object,
) -> Path:
    """A GLB with one mesh; with bones, each of which hangs on the one before, and animations that turn the last one."""
    parts: list[bytes] = []
    document: dict = {"asset": {"version": "2.0"}, "scene": 0, "accessors": [], "bufferViews": []}

    def accessor(values: np.ndarray, component: int, kind: str) -> int:
        data = values.tobytes()
        document["bufferViews"].append({"buffer": 0, "byteOffset": sum(map(len, parts)), "byteLength": len(data)})
        parts.append(data + bytes(-len(data) % 4))
        view = len(document["bufferViews"]) - 1
        document["accessors"].append(
            {"bufferView": view, "componentType": component, "count": len(values), "type": kind}
        )
        return len(document["accessors"]) - 1

    attributes = {"POSITION": accessor(vertices.astype("<f4"), 5126, "VEC3")}
    primitive = {"attributes": attributes, "indices": accessor(faces.astype("<u2").reshape(-1, 1), 5123, "SCALAR")}
    primitive["material"] = 0
    grey = {"pbrMetallicRoughness": {"baseColorFactor": [0.5, 0.5, 0.5, 1]}}
    document["materials"] = [grey if material is None else material]
    document["meshes"] = [{"primitives": [primitive]}]
    node: dict = {"mesh": 0}
    document["nodes"] = [node]
    document["scenes"] = [{"nodes": [0]}]
    if bones is not None and joints is not None:
        of_joint = np.zeros((len(vertices), 4), "u1")
        of_joint[:, 0] = joints
        weights = np.tile(np.array([1, 0, 0, 0], "<f4"), (len(vertices), 1))
        attributes["JOINTS_0"] = accessor(of_joint, 5121, "VEC4")
        attributes["WEIGHTS_0"] = accessor(weights, 5126, "VEC4")
        unbind = np.tile(np.eye(4, dtype="<f4"), (len(bones), 1, 1))
        unbind[:, 3, :3] = -np.cumsum(bones, axis=0)  # columns come first
        for number, offset in enumerate(bones):
            child = {"children": [number + 2]} if number + 1 < len(bones) else {}
            document["nodes"].append({"translation": list(offset), **child})
        node["skin"] = 0
        document["scenes"][0]["nodes"].append(1)
        matrices = accessor(unbind.reshape(-1, 16), 5126, "MAT4")
        document["skins"] = [{"joints": [*range(1, len(bones) + 1)], "inverseBindMatrices": matrices}]
        times = accessor(np.array([[0], [0.5], [1]], "<f4"), 5126, "SCALAR")
        half = np.sqrt(0.5)
        turns = accessor(np.array([[0, 0, 0, 1], [half, 0, 0, half], [0, 0, 0, 1]], "<f4"), 5126, "VEC4")
        channel = {"sampler": 0, "target": {"node": len(bones), "path": "rotation"}}
        document["animations"] = [
            {"name": name, "samplers": [{"input": times, "output": turns}], "channels": [channel]}
            for name in animations
        ]
    document |= changes
    data = b"".join(parts)
    document["buffers"] = [{"byteLength": len(data)}]
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(data), b"BIN\0") + data
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks)
    return path


def write_person(path: Path, **changes: object) -> Path:
    """A person of 1.7 m: a trunk, and a leg that the animations lift by a quarter turn."""
    vertices, faces = boxes_mesh(((-0.2, 0.9, -0.15), (0.2, 1.7, 0.15)), ((-0.1, 0, -0.1), (0.1, 0.9, 0.1)))
    settings: dict = {"joints": (vertices[:, 1] <= 0.9).astype(int) * (np.arange(len(vertices)) >= len(vertices) // 2)}
    settings |= {"bones": [(0, 1.0, 0), (0, -0.1, 0)], "animations": ("walk", "ride")}
    return write_glb(path, vertices, faces, **{**settings, **changes})


def write_assets(root: Path) -> Path:
    """A folder that the generator can use, with one model of each kind that it needs."""
    car = boxes_mesh(((-0.85, 0.3, -2.0), (0.85, 0.9, 2.0)), ((-0.7, 0.9, -1.5), (0.7, 1.45, 0.6)))
    write_glb(root / "vehicles/car.glb", *car)
    bike = boxes_mesh(((-0.05, 0, -0.8), (0.05, 0.7, 0.8)), ((-0.25, 0.7, 0.4), (0.25, 0.8, 0.5)))
    write_glb(root / "vehicles/bicycle.glb", *bike)
    write_glb(root / "vehicles/motorcycle.glb", *bike)
    write_person(root / "people/one.glb")
    rng = np.random.default_rng(0)
    (root / "textures").mkdir()
    for patterns in TEXTURES.values():
        picture = rng.integers(60, 200, (32, 32, 4), np.uint8)
        cv2.imwrite(str(root / "textures" / f"{patterns[0].strip('*.')}.png"), picture)
    return root
