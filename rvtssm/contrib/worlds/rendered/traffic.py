"""What moves: vehicles with loads, plates and lamps, people with bags, and people on two-wheelers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import cv2
import numpy as np

from rvtssm.contrib.worlds.rendered.assets import Assets
from rvtssm.contrib.worlds.rendered.glb import Model
from rvtssm.contrib.worlds.rendered.motion import Path, line
from rvtssm.contrib.worlds.rendered.raster import GLOWING, Packed
from rvtssm.contrib.worlds.rendered.skin import RIDE, WALK, Figure, bend, build_figure
from rvtssm.contrib.worlds.rendered.stage import Mesh, Stage, block, joined, move, pose, quad
from rvtssm.contrib.worlds.rules import PERSON, TWO_WHEELER, VEHICLE

PEDALLED_M = 4.5  # way of a bicycle during one turn of the pedals
_STILL = np.zeros(2)  # distances of something that never moves
_CLOSEST_M = 0.5  # between two vehicles of a lane
_STRETCH = 0.08
_TALLEST = 1.35  # stretch of the height of a car that becomes a van
_TALL_SHARE = 0.35
_PAINT_MIRRORS = 0.06
_SHORT_M = 3.4  # shorter vehicles, such as those for fields, are rare
_SHORT_SHARE = 0.15  # how often, relative to a car
_CHILD_SHARE = 0.12
_CHILD = (0.62, 0.85)  # height, relative to a grown person
_GIRTH = (0.88, 1.2)  # relative to the model


@dataclass
class Actor:
    """Something with a label, and the instances that it is made of."""

    class_id: int
    path: Path
    number: int  # of the object; 1 and more
    height_m: float = 0.0  # of the ground below it
    length_m: float = 0.0  # of a vehicle
    parts: list[tuple[int, np.ndarray]] = field(default_factory=list)  # instances, placed (4, 4) relative to it
    figure: Figure | None = None
    figure_instance: int = -1
    cycle_m: float = 1.0  # way during a cycle of the animation
    phase: float = 0.0

    def move(self, packed: Packed, t_s: float) -> np.ndarray:
        """Place all parts for a time in seconds, and return x, z, heading and phase (4,)."""
        x, z, heading, distance = self.path.at(t_s)
        placed = pose(x, z, heading, self.height_m)
        phase = self.phase + distance / self.cycle_m
        if self.figure is not None:
            bend(packed, self.figure_instance, self.figure, phase)
            move(packed, self.figure_instance, placed)
        for instance, matrix in self.parts:
            move(packed, instance, placed @ matrix)
        return np.array([x, z, heading, phase])


class Cast:
    """Makes actors and puts them on a stage."""

    def __init__(self, stage: Stage, assets: Assets, has_lamps: bool, rng: np.random.Generator) -> None:
        self._stage = stage
        self._assets = assets
        self._has_lamps = has_lamps
        self._rng = rng
        self.actors: list[Actor] = []

    def _one_of(self, models: tuple[Model, ...]) -> Model:
        return models[self._rng.integers(len(models))]

    def _car(self) -> Model:
        weights = np.ones(len(self._assets.cars))
        for number, model in enumerate(self._assets.cars):
            low, high = model.bounds
            if high[2] - low[2] < _SHORT_M:
                weights[number] = _SHORT_SHARE
        return self._assets.cars[self._rng.choice(len(weights), p=weights / weights.sum())]

    def vehicle(self, path: Path, large_share: float) -> Actor:
        """Add a car, a van, a bus or a truck."""
        rng, stage = self._rng, self._stage
        is_large = bool(self._assets.large) and rng.random() < large_share
        model = self._one_of(self._assets.large) if is_large else self._car()
        mesh = stage.model_mesh(model, _PAINT_MIRRORS)
        # A few shapes become many: each axis is stretched on its own, and some cars become tall.
        across, up, along = 1 + rng.uniform(-_STRETCH, _STRETCH, 3)
        if not is_large and rng.random() < _TALL_SHARE:
            up *= rng.uniform(1.05, _TALLEST)
        mesh = mesh.stretched((across, up, along))
        actor = self._actor(VEHICLE, path)
        actor.length_m = float(mesh.size_m[2])
        tint = rng.choice((rng.uniform(0.25, 0.7), rng.uniform(0.7, 1.3)))
        self._part(actor, mesh, tint=float(tint))
        self._part(actor, self._plates(mesh))
        if not is_large and rng.random() < 0.12:
            self._part(actor, self._roof_load(mesh))
        if self._has_lamps:
            self._part(actor, self._lamps(mesh))
        return actor

    def far_vehicle(self, path: Path) -> Actor:
        """Add a plain vehicle, which must stay far away."""
        models = self._assets.far or self._assets.cars
        actor = self._actor(VEHICLE, path)
        self._part(
            actor, self._stage.model_mesh(self._one_of(models), _PAINT_MIRRORS), tint=self._rng.uniform(0.2, 1.0)
        )
        return actor

    def walker(self, path: Path, height_m: float) -> Actor:
        """Add a person who walks, or who stands if the path does not move."""
        rng = self._rng
        actor = self._actor(PERSON, path, height_m)
        actor.figure, mesh = self._figure(WALK)
        actor.cycle_m = actor.figure.cycle_m
        actor.phase = rng.random()
        actor.figure_instance = self._stage.place(mesh, None, actor.number, True, rng.uniform(0.6, 1.3))
        tall = float(mesh.size_m[1])
        if rng.random() < 0.2:  # a rucksack
            self._part(actor, self._bag((-0.16, 0.62 * tall, -0.32), (0.16, 0.84 * tall, -0.1)))
        if rng.random() < 0.12:  # a suitcase or a shopping bag
            self._part(actor, self._bag((0.3, 0.05, -0.2), (0.48, 0.4 * tall, 0.2)))
        if rng.random() < 0.15:  # a skirt or a coat
            wide = 0.5 * float(mesh.size_m[0]) * rng.uniform(0.35, 0.6)
            self._part(actor, self._bag((-wide, rng.uniform(0.2, 0.4) * tall, -0.16), (wide, 0.62 * tall, 0.14)))
        if rng.random() < 0.15:  # a hat
            self._part(actor, self._bag((-0.14, 0.95 * tall, -0.16), (0.14, 1.01 * tall, 0.18)))
        return actor

    def rider(self, path: Path, is_motorcycle: bool) -> Actor:
        """Add a bicycle or a motorcycle with a person on it."""
        actor = self.parked_two_wheeler(path, is_motorcycle)
        actor.figure, mesh = self._figure(RIDE)
        actor.cycle_m = PEDALLED_M if not is_motorcycle else math.inf
        actor.phase = 0.25 if is_motorcycle else self._rng.random()
        actor.figure_instance = self._stage.place(mesh, None, actor.number, True)
        if self._has_lamps:
            glow = self._stage.material(-1, 2.0, 0, GLOWING)
            self._part(actor, quad((-0.06, 0.85, 0.75), (0.12, 0, 0), (0, 0.12, 0), (1, 1), glow))
        return actor

    def parked_two_wheeler(self, path: Path, is_motorcycle: bool) -> Actor:
        """Add a bicycle or a motorcycle without a rider."""
        actor = self._actor(TWO_WHEELER, path)
        model = self._one_of(self._assets.motorcycles if is_motorcycle else self._assets.bicycles)
        mesh = self._stage.model_mesh(model, 0.04)
        size = 1 + self._rng.uniform(-_STRETCH, _STRETCH)
        self._part(actor, mesh.stretched((size, size, size)), tint=self._rng.uniform(0.5, 1.4))
        return actor

    def _actor(self, class_id: int, path: Path, height_m: float = 0.0) -> Actor:
        actor = Actor(class_id, path, len(self.actors) + 1, height_m)
        self.actors.append(actor)
        return actor

    def _part(self, actor: Actor, mesh: Mesh, tint: float = 1.0) -> None:
        actor.parts.append((self._stage.place(mesh, None, actor.number, True, tint), np.eye(4)))

    def _figure(self, animation: str) -> tuple[Figure, Mesh]:
        """Return a person, thin or stout, and among those who walk some children."""
        rng = self._rng
        tall = 1 + rng.normal(0, 0.035)
        if animation == WALK and rng.random() < _CHILD_SHARE:
            tall = rng.uniform(*_CHILD)
        girth = rng.uniform(*_GIRTH) * tall
        deep = girth * rng.uniform(0.95, 1.1)
        return build_figure(self._stage, self._one_of(self._assets.people), animation, (girth, tall, deep), rng)

    def _bag(self, low: tuple[float, float, float], high: tuple[float, float, float]) -> Mesh:
        return block(low, high, self._stage.material(-1, self._rng.uniform(0.03, 0.7)), 1.0)

    def _plates(self, mesh: Mesh) -> Mesh:
        """Return number plates at the front and the rear of a vehicle."""
        rng = self._rng
        picture = np.full((16, 64), int(rng.uniform(150, 250)), np.uint8)
        text = "".join(rng.choice(list("ABCDEFGHKLMNPRSTUVXYZ0123456789"), 6))
        cv2.putText(picture, text, (2, 13), cv2.FONT_HERSHEY_SIMPLEX, 0.42, 20, 1)
        material = self._stage.material(self._stage.texture(picture), 0.9)
        low, high = _ends(mesh)
        y = 0.25 + 0.2 * rng.random() + 0.1 * float(mesh.size_m[1] > 2)
        front = quad((0.26, y, high + 0.02), (-0.52, 0, 0), (0, 0.11, 0), (1, 1), material)
        rear = quad((-0.26, y + 0.15, low - 0.02), (0.52, 0, 0), (0, 0.11, 0), (1, 1), material)
        return joined(front, rear)

    def _lamps(self, mesh: Mesh) -> Mesh:
        wide, tall, _ = mesh.size_m
        low, high = _ends(mesh)
        y, x = 0.25 * float(tall) + 0.25, 0.34 * float(wide)
        white = self._stage.material(-1, self._rng.uniform(2.0, 8.0), 0, GLOWING)
        red = self._stage.material(-1, self._rng.uniform(0.15, 0.8), 0, GLOWING)
        lamps = []
        for side in (-x, x):
            lamps.append(quad((side - 0.1, y, high + 0.03), (0.2, 0, 0), (0, 0.13, 0), (1, 1), white))
            lamps.append(quad((side - 0.1, y + 0.15, low - 0.03), (0.2, 0, 0), (0, 0.13, 0), (1, 1), red))
        return joined(*lamps)

    def _roof_load(self, mesh: Mesh) -> Mesh:
        rng = self._rng
        wide, tall, long = (float(side) for side in mesh.size_m)
        half, deep, high = 0.3 * wide, rng.uniform(0.15, 0.3) * long, rng.uniform(0.15, 0.5)
        middle = -0.05 * long
        material = self._stage.material(-1, rng.uniform(0.04, 0.8), 0.03)
        return block((-half, tall - 0.02, middle - deep), (half, tall + high, middle + deep), material, 1.0)


def keep_apart(lane: list[tuple[float, Actor]], front_m: np.ndarray | float = -math.inf) -> None:
    """Move the vehicles of a lane forwards where they would drive into the one ahead.

    Args:
        lane: For each vehicle, where its path begins along the lane in metres, and the vehicle.
        front_m: How far a car with the camera, behind all of them, has come: (N,), as in `Path`.
    """
    for start_m, actor in sorted(lane, key=lambda one: one[0]):
        half_m = actor.length_m / 2
        reached_m = np.maximum(actor.path.reached_m, front_m + _CLOSEST_M + half_m - start_m)
        actor.path = replace(actor.path, reached_m=reached_m)
        front_m = start_m + reached_m + half_m


def _ends(mesh: Mesh) -> tuple[float, float]:
    """Return the rear and the front of a vehicle in metres."""
    along = mesh.corners[..., 2]
    return float(along.min()), float(along.max())


def standing(x: float, z: float, heading: float) -> Path:
    """Return the path of something that never moves."""
    return line(x, z, heading, _STILL)
