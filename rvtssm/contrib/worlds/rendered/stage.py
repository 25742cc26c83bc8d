"""Collect meshes, materials and textures, and place instances of them: what the rasteriser draws."""

from dataclasses import dataclass

import numpy as np

from rvtssm.contrib.worlds.rendered.glb import Model, Surface
from rvtssm.contrib.worlds.rendered.raster import SRGB, Packed
from rvtssm.system.jit import jit

MIRROR = np.array([-1.0, 1.0, 1.0])  # glTF has x to the left of a model that faces z; the world has x to the right
_CREASE = 0.6  # cosine of the angle between two faces from which their edge is sharp
_CORNER_M = 2e-3  # corners nearer than this are one corner
_THIN = 1.25  # factor of the opacity of coarser levels, since thin leaves would vanish far away


@dataclass(frozen=True)
class Mesh:
    """Triangles that are placed together."""

    corners: np.ndarray  # (T, 3, 3) float32, metres, x to the right
    normals: np.ndarray  # (T, 3, 3) float32
    uv: np.ndarray  # (T, 3, 2) float32
    material: np.ndarray  # (T,) int32, numbers of a stage
    is_closed: bool  # only triangles that face the camera are drawn

    @property
    def size_m(self) -> np.ndarray:
        """Width, height and length (3,)."""
        points = self.corners.reshape(-1, 3)
        return np.asarray(points.max(0) - points.min(0))

    def stretched(self, factors: tuple[float, float, float]) -> "Mesh":
        """Return the mesh with each axis multiplied by its own factor."""
        scale = np.array(factors, np.float32)
        normals = self.normals / scale
        normals /= np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-9)
        return Mesh(self.corners * scale, normals, self.uv, self.material, self.is_closed)


def joined(*meshes: Mesh) -> Mesh:
    """Return one mesh of several."""
    corners = np.concatenate([mesh.corners for mesh in meshes])
    normals = np.concatenate([mesh.normals for mesh in meshes])
    uv = np.concatenate([mesh.uv for mesh in meshes])
    material = np.concatenate([mesh.material for mesh in meshes])
    is_closed = all(mesh.is_closed for mesh in meshes)
    return Mesh(corners, normals, uv, material, is_closed)


def quad(corner: tuple[float, ...], across: tuple[float, ...], up: tuple[float, ...], uv: tuple[float, float],
         material: int) -> Mesh:  # fmt: skip
    """Return a rectangle from a corner along two edges, in metres; its texture repeats `uv` times along them."""
    a, u, v = np.array(corner, float), np.array(across, float), np.array(up, float)
    corners = np.array([[a, a + u, a + u + v], [a, a + u + v, a + v]], np.float32)
    normal = np.cross(u, v)
    normals = np.tile(normal / max(np.linalg.norm(normal), 1e-9), (2, 3, 1)).astype(np.float32)
    s, t = uv
    places = np.array([[[0, 0], [s, 0], [s, t]], [[0, 0], [s, t], [0, t]]], np.float32)
    return Mesh(corners, normals, places, np.full(2, material, np.int32), False)


def block(low: tuple[float, float, float], high: tuple[float, float, float], material: int, tile_m: float) -> Mesh:
    """Return a box between two corners, without its lower face; its texture has cells of `tile_m`."""
    (x0, y0, z0), (x1, y1, z1) = low, high
    w, h, d = (x1 - x0) / tile_m, (y1 - y0) / tile_m, (z1 - z0) / tile_m
    up = (0, y1 - y0, 0)
    return joined(
        quad((x0, y0, z0), (x1 - x0, 0, 0), up, (w, h), material),
        quad((x0, y0, z1), (x1 - x0, 0, 0), up, (w, h), material),
        quad((x0, y0, z0), (0, 0, z1 - z0), up, (d, h), material),
        quad((x1, y0, z0), (0, 0, z1 - z0), up, (d, h), material),
        quad((x0, y1, z0), (x1 - x0, 0, 0), (0, 0, z1 - z0), (w, d), material),
    )


def pose(x: float, z: float, heading: float = 0.0, y: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """Return the matrix (4, 4) of something at (x, y, z) that faces `heading` radians from z towards x."""
    cosine, sine = np.cos(heading) * scale, np.sin(heading) * scale
    return np.array([[cosine, 0, sine, x], [0, scale, 0, y], [-sine, 0, cosine, z], [0, 0, 0, 1.0]])


class Stage:
    """A scene that is built part by part and then packed."""

    def __init__(self) -> None:
        self._meshes: list[Mesh] = []
        self._first: list[int] = [0]
        self._materials: list[tuple[int, int, float, float]] = []
        self._levels: list[np.ndarray] = []
        self._places: list[tuple[int, int, int, int, int]] = []
        self._size = 0
        self._instances: list[tuple[int, np.ndarray, int, bool, float]] = []
        self._known: dict[tuple[int, float], Mesh] = {}

    def texture(self, grey: np.ndarray, opacity: np.ndarray | None = None) -> int:
        """Add a picture (H, W) uint8 whose sides are powers of two, with its opacity, and return its number."""
        levels = [grey]
        light = SRGB[grey]
        while min(light.shape) > 1:
            light = _halved(light)
            levels.append(np.searchsorted(SRGB, light).clip(0, 255).astype(np.uint8))
        start, opacity_start = self._add(levels), -1
        if opacity is not None:
            covers = [opacity]
            cover = opacity.astype(np.float32)
            while len(covers) < len(levels):
                cover = _halved(cover)
                covers.append(np.clip(cover * _THIN, 0, 255).astype(np.uint8))
            opacity_start = self._add(covers)
        self._places.append((start, *grey.shape, len(levels), opacity_start))
        return len(self._places) - 1

    def _add(self, levels: list[np.ndarray]) -> int:
        start = self._size
        self._levels += [level.ravel() for level in levels]
        self._size += sum(level.size for level in levels)
        return start

    def material(self, texture: int = -1, grey: float = 1.0, mirrored: float = 0.0, flags: int = 0) -> int:
        """Add a material and return its number; see `Packed`."""
        self._materials.append((texture, flags, grey, mirrored))
        return len(self._materials) - 1

    def model_mesh(self, model: Model, mirrored: float = 0.02) -> Mesh:
        """Return the mesh of a model at rest; its textures are added once.

        Args:
            model: The model.
            mirrored: Share of the sky that its surfaces without holes mirror at normal incidence.
        """
        key = (id(model), mirrored)  # of two folders, models may have the same name
        if key not in self._known:
            parts = [self._surface_mesh(surface, mirrored) for surface in model.surfaces]
            self._known[key] = joined(*parts)
        return self._known[key]

    def _surface_mesh(self, surface: Surface, mirrored: float) -> Mesh:
        material = self.surface_material(surface, 0.0 if surface.is_two_sided else mirrored)
        corners = surface.vertices[surface.faces]
        normals = crease_normals(corners)
        return Mesh(
            (corners * MIRROR).astype(np.float32),
            (normals * MIRROR).astype(np.float32),
            surface.uv[surface.faces].astype(np.float32),
            np.full(len(surface.faces), material, np.int32),
            not surface.is_two_sided,
        )

    def surface_material(self, surface: Surface, mirrored: float = 0.0, factor: float = 1.0) -> int:
        """Add the material of a surface and return its number."""
        texture = -1
        if surface.texture is not None:
            texture = self.texture(surface.texture, surface.opacity)
        return self.material(texture, surface.grey * factor, mirrored)

    def mesh(self, mesh: Mesh) -> int:
        """Add a mesh and return its number."""
        self._meshes.append(mesh)
        self._first.append(self._first[-1] + len(mesh.corners))
        return len(self._meshes) - 1

    def place(self, mesh: int | Mesh, matrix: np.ndarray | None = None, number: int = 0, casts_shadow: bool = False,
              tint: float = 1.0) -> int:  # fmt: skip
        """Add an instance and return its number.

        Args:
            mesh: A mesh, or the number of one that was added.
            matrix: Placement (4, 4); None: where the mesh is.
            number: The object that it belongs to; 0: none.
            casts_shadow: Whether it darkens the ground.
            tint: Factor of its grey.
        """
        if isinstance(mesh, Mesh):
            mesh = self.mesh(mesh)
        matrix = np.eye(4) if matrix is None else matrix
        self._instances.append((mesh, matrix, number, casts_shadow, tint))
        return len(self._instances) - 1

    def packed(self) -> Packed:
        """Return everything in arrays. Nothing can be added afterwards."""
        meshes = joined(*self._meshes)
        kinds = np.array(self._materials)
        spans, hides, tints, matrices = [], [], [], []
        for mesh, matrix, number, casts_shadow, tint in self._instances:
            spans.append((self._first[mesh], self._first[mesh + 1], number))
            hides.append((self._meshes[mesh].is_closed, casts_shadow))
            tints.append(tint)
            matrices.append(matrix[:3])
        packed = Packed(
            *(meshes.corners, meshes.normals, meshes.uv, meshes.material),
            *(kinds[:, :2].astype(np.int32), kinds[:, 2:].astype(np.float32)),
            np.concatenate(self._levels) if self._levels else np.zeros(1, np.uint8),
            np.array(self._places or [(0, 1, 1, 1, -1)], np.int64),
            *(np.array(spans, np.int64), np.array(hides), np.array(tints, np.float32), np.array(matrices)),
            np.zeros((len(spans), 4)),
        )
        for k in range(len(spans)):
            move(packed, k, packed.matrix[k])
        return packed


def move(packed: Packed, instance: int, matrix: np.ndarray) -> None:
    """Place an instance anew, by a rotation, one scale and a shift (4, 4)."""
    first, last, _ = packed.span[instance]
    packed.matrix[instance] = matrix[:3]
    _bound(packed.corners[first:last], packed.matrix[instance], packed.sphere[instance])


@jit
def _bound(corners: np.ndarray, matrix: np.ndarray, sphere: np.ndarray) -> None:
    """Write the centre and the radius of a sphere (4,) around placed triangles (T, 3, 3)."""
    low, high = np.full(3, 1e9), np.full(3, -1e9)
    for t in range(len(corners)):
        for k in range(3):
            for a in range(3):
                low[a], high[a] = min(low[a], corners[t, k, a]), max(high[a], corners[t, k, a])
    centre = (low + high) / 2
    scale = np.sqrt(matrix[0, 0] ** 2 + matrix[1, 0] ** 2 + matrix[2, 0] ** 2)
    for a in range(3):
        sphere[a] = matrix[a, 3]
        for b in range(3):
            sphere[a] += matrix[a, b] * centre[b]
    sphere[3] = scale * np.sqrt(((high - low) ** 2).sum()) / 2


def _halved(values: np.ndarray) -> np.ndarray:
    height, width = values.shape
    return np.asarray(values.reshape(height // 2, 2, width // 2, 2).mean((1, 3)))


def crease_normals(corners: np.ndarray) -> np.ndarray:
    """Return normals (T, 3, 3) of corners (T, 3, 3): means over the faces that meet there at a small angle."""
    faces = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    keys = np.round(corners.reshape(-1, 3) / _CORNER_M).astype(np.int64)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    return _mean_normals(faces, order, group.ravel()[order]).reshape(corners.shape)


@jit
def _mean_normals(faces: np.ndarray, order: np.ndarray, group: np.ndarray) -> np.ndarray:
    normals = np.zeros((len(order), 3))
    first = 0
    while first < len(order):
        last = first
        while last < len(order) and group[last] == group[first]:
            last += 1
        for i in range(first, last):
            one = faces[order[i] // 3]
            for j in range(first, last):
                two = faces[order[j] // 3]
                product = one[0] * two[0] + one[1] * two[1] + one[2] * two[2]
                if product >= _CREASE * np.sqrt((one**2).sum() * (two**2).sum()):
                    normals[order[i]] += two
            normals[order[i]] /= max(np.sqrt((normals[order[i]] ** 2).sum()), 1e-12)
        first = last
    return normals
