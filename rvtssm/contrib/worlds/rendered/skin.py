"""People: models with skeletons, posed at any phase of an animation by linear blend skinning.

Source: Khronos, glTF 2.0 specification, section 3.7.3.
"""

from dataclasses import dataclass

import numpy as np

from rvtssm.contrib.worlds.rendered.glb import Model, rotation_matrices
from rvtssm.contrib.worlds.rendered.raster import Packed
from rvtssm.contrib.worlds.rendered.stage import MIRROR, Mesh, Stage
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

WALK, RIDE = "walk", "ride"
CYCLE_M = 1.42  # way of a walking person of 1.75 m during one cycle of the animation
_REFERENCE_M = 1.75
SADDLE_M = 0.26  # height of the lowest foot of a rider above the ground


@dataclass(frozen=True)
class Figure:
    """One person: joined surfaces of a model, whose corners are computed anew for every pose."""

    model: Model
    vertices: np.ndarray  # (V, 3)
    faces: np.ndarray  # (T, 3)
    joints: np.ndarray  # (V, 4)
    weights: np.ndarray  # (V, 4)
    stretch: np.ndarray  # (3,) factors of width, height and depth
    animation: str

    @property
    def cycle_m(self) -> float:
        """Way during one cycle of walking, in metres."""
        return CYCLE_M * float(self.model.bounds[1][1]) * self.stretch[1] / _REFERENCE_M

    def posed(self, phase: float) -> tuple[np.ndarray, np.ndarray]:
        """Return corners and normals (T, 3, 3) float32 at a phase, of which 1 is a whole cycle.

        The lowest point stands on y = 0; the feet of a rider are on the pedals of a bicycle.
        """
        matrices = self._matrices(phase)
        vertices = _skinned(self.vertices, self.joints, self.weights, matrices) * (MIRROR * self.stretch)
        vertices[:, 1] -= vertices[:, 1].min()
        if self.animation == RIDE:
            vertices[:, 1] += SADDLE_M
            vertices[:, 2] -= vertices[:, 2].mean() + 0.12
        return _corners(vertices, self.faces)

    def _matrices(self, phase: float) -> np.ndarray:
        """Return the matrices (J, 3, 4) that move vertices with their joints."""
        skeleton = self.model.skeleton
        assert skeleton is not None
        animation = skeleton.animations[self.animation]
        times = animation.times_s
        at = times[0] + (phase % 1.0) * (times[-1] - times[0])
        k = int(np.clip(np.searchsorted(times, at, side="right") - 1, 0, max(len(times) - 2, 0)))
        following = min(k + 1, len(times) - 1)
        share = (at - times[k]) / max(times[following] - times[k], 1e-9)
        mixed = (1 - share) * animation.rotations[k] + share * animation.rotations[following]
        local = rotation_matrices(mixed / np.linalg.norm(mixed, axis=-1, keepdims=True))
        placed = np.tile(np.eye(4), (len(local), 1, 1))
        for joint, parent in enumerate(skeleton.parents):
            placed[joint, :3, :3] = local[joint]
            placed[joint, :3, 3] = skeleton.offsets[joint]
            if parent >= 0:
                placed[joint] = placed[parent] @ placed[joint]
        return np.ascontiguousarray((placed @ skeleton.unbind)[:, :3])


def build_figure(
    stage: Stage, model: Model, animation: str, stretch: tuple[float, float, float], rng: np.random.Generator
) -> tuple[Figure, Mesh]:
    """Return a person of a stage, whose clothes have random greys, and the mesh of a first pose.

    Args:
        stage: Where its textures go.
        model: A model with a skeleton.
        animation: WALK or RIDE.
        stretch: Factors of width, height and depth.
        rng: Random generator.
    """
    animations = model.skeleton.animations if model.skeleton else {}
    if animation not in animations:
        found = f"its animations are {', '.join(animations) or 'none'}"
        raise UserError("file.content", name=f"people/{model.name}.glb", found=found, needed=f"{WALK} and {RIDE}")
    counts = np.cumsum([0, *[len(surface.vertices) for surface in model.surfaces]])
    faces, materials, uv = [], [], []
    vertices, joints, weights = [], [], []
    for start, surface in zip(counts, model.surfaces, strict=False):
        material = stage.surface_material(surface, factor=rng.uniform(0.6, 1.6))
        faces.append(surface.faces + start)
        materials.append(np.full(len(surface.faces), material, np.int32))
        uv.append(surface.uv[surface.faces].astype(np.float32))
        if surface.joints is None or surface.weights is None:
            found = "a surface does not hang on the skeleton"
            raise UserError("file.content", name=f"people/{model.name}.glb", found=found)
        vertices.append(surface.vertices)
        joints.append(surface.joints)
        weights.append(surface.weights)
    figure = Figure(
        model,
        np.concatenate(vertices),
        np.concatenate(faces),
        np.concatenate(joints),
        np.concatenate(weights),
        np.array(stretch),
        animation,
    )
    return figure, Mesh(*figure.posed(0.0), np.concatenate(uv), np.concatenate(materials), True)


def bend(packed: Packed, instance: int, figure: Figure, phase: float) -> None:
    """Give an instance of a figure the corners of a phase."""
    first, last, _ = packed.span[instance]
    packed.corners[first:last], packed.normals[first:last] = figure.posed(phase)


@jit
def _skinned(vertices: np.ndarray, joints: np.ndarray, weights: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Return vertices (V, 3) moved by the weighted matrices (J, 3, 4) of their four joints."""
    out = np.zeros_like(vertices)
    for v in range(len(vertices)):
        for k in range(4):
            weight = weights[v, k]
            if weight > 0:
                m = matrices[joints[v, k]]
                for a in range(3):
                    moved = m[a, 0] * vertices[v, 0] + m[a, 1] * vertices[v, 1] + m[a, 2] * vertices[v, 2] + m[a, 3]
                    out[v, a] += weight * moved
    return out


@jit
def _corners(vertices: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return corners and smooth normals (T, 3, 3) float32 of a mirrored mesh."""
    normals = np.zeros_like(vertices)
    for t in range(len(faces)):
        i, j, k = faces[t, 0], faces[t, 1], faces[t, 2]
        # The product of the edges (c - a) and (b - a): mirroring has turned the triangle round.
        x0, x1, x2 = vertices[k, 0] - vertices[i, 0], vertices[k, 1] - vertices[i, 1], vertices[k, 2] - vertices[i, 2]
        y0, y1, y2 = vertices[j, 0] - vertices[i, 0], vertices[j, 1] - vertices[i, 1], vertices[j, 2] - vertices[i, 2]
        for v in (i, j, k):
            normals[v, 0] += x1 * y2 - x2 * y1
            normals[v, 1] += x2 * y0 - x0 * y2
            normals[v, 2] += x0 * y1 - x1 * y0
    corners_out = np.empty((len(faces), 3, 3), np.float32)
    normals_out = np.empty((len(faces), 3, 3), np.float32)
    for t in range(len(faces)):
        for k in range(3):
            v = faces[t, k]
            length = max(np.sqrt((normals[v] ** 2).sum()), 1e-12)
            for a in range(3):
                corners_out[t, k, a] = vertices[v, a]
                normals_out[t, k, a] = normals[v, a] / length
    return corners_out, normals_out
