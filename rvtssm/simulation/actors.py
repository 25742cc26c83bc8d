"""Who uses the street: figures that cross it, come along it, leave it, and stop and go on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rvtssm.simulation.cars import build_car
from rvtssm.simulation.painting import Figure
from rvtssm.simulation.pedestrians import build_pedestrian
from rvtssm.simulation.street import FOCAL_PX, HOUSES_PX_PER_M, View

CAR, PEDESTRIAN = 0, 1  # class ids
NEAREST_PX_PER_M = 80.0  # figures nearer than this have passed the camera; pixels of the reference sensor
PAUSE_S = (0.3, 2.0)
BRAKING_S, STARTING_S = 0.25, 0.3
WATCH_S = 0.1  # step at which paths are examined
UNSEEN_S = 2.0  # who is out of the frame for so long is gone, or never came


@dataclass
class SceneConfig:
    """What is going on in a scene."""

    min_actors: int = 3  # at a time, counting those about to enter
    max_actors: int = 5
    car_share: float = 0.6
    stopping_share: float = 0.9  # of the actors, those that stop and go


@dataclass(frozen=True)
class Journey:
    """A straight way over the ground, gone at a pace between 0 and 1 that is linear between its knots."""

    start_s: float
    x_m: float
    depth_m: float
    velocity_m_per_s: tuple[float, float]  # to the right, away
    knots_s: tuple[float, ...] = ()
    paces: tuple[float, ...] = ()
    pauses_s: tuple[tuple[float, float], ...] = ()

    def paused(self, brake_s: float, pause_s: float) -> Journey:
        """The same journey with one more stop at its end, which begins to brake at `brake_s`."""
        stop_s = brake_s + BRAKING_S
        go_s = stop_s + pause_s
        return replace(
            self,
            knots_s=(*self.knots_s, brake_s, stop_s, go_s, go_s + STARTING_S),
            paces=(*self.paces, 1.0, 0.0, 0.0, 1.0),
            pauses_s=(*self.pauses_s, (stop_s, go_s)),
        )

    def moved_s(self, t_s: float) -> float:
        """The integral of the pace since the start; exactly constant during a pause."""
        moved, since, pace = 0.0, self.start_s, 1.0
        for knot, following in zip(self.knots_s, self.paces, strict=True):
            if t_s <= knot:
                slope = (following - pace) / (knot - since)
                return moved + pace * (t_s - since) + slope * (t_s - since) ** 2 / 2
            moved += (pace + following) / 2 * (knot - since)
            since, pace = knot, following
        return moved + pace * (t_s - since)

    def still_us(self, t_us: int) -> int:
        """Time since it stopped, 0 while it moves."""
        for stop_s, go_s in self.pauses_s:
            if round(stop_s * 1e6) <= t_us <= round(go_s * 1e6):
                return t_us - round(stop_s * 1e6)
        return 0


class Sighting(NamedTuple):
    """Where and how large a figure is on the sensor."""

    box_ltrb: tuple[float, float, float, float]  # px, around all of it, also what is hidden or outside
    ground_px: tuple[float, float]  # (x, y) where it stands
    px_per_m: float
    gait_m: float  # the way it has gone


@dataclass(frozen=True)
class Actor:
    """A figure on its journey, as a camera sees it; it exists from the start of the journey to `until_s`."""

    class_id: int
    figure: Figure
    journey: Journey
    view: View
    until_s: float = float("inf")

    def seen(self, t_s: float) -> Sighting | None:
        """How it looks at that time; None if no part of it is in the frame."""
        if not self.journey.start_s <= t_s <= self.until_s:
            return None
        moved = self.journey.moved_s(t_s)
        right, away = self.journey.velocity_m_per_s
        px_per_m = self.view.unit * FOCAL_PX / (self.journey.depth_m + away * moved)
        if not HOUSES_PX_PER_M < px_per_m / self.view.unit < NEAREST_PX_PER_M:  # negative: behind the camera
            return None
        x, y = self.view.project(self.journey.x_m + right * moved, px_per_m, t_s)
        gait_m = math.hypot(right, away) * moved
        left, bottom, right, top = self.figure.extent_m(gait_m)
        box = (x + left * px_per_m, y - top * px_per_m, x + right * px_per_m, y - bottom * px_per_m)
        is_inside = box[2] > 0 and box[0] < self.view.width and box[3] > 0 and box[1] < self.view.height
        return Sighting(box, (x, y), px_per_m, gait_m) if is_inside else None


def build_actors(view: View, duration_s: float, config: SceneConfig, rng: np.random.Generator) -> tuple[Actor, ...]:
    """All who are in the frame at some time of the recording; none of them drives through another."""
    actors: list[Actor] = []
    for _ in range(rng.integers(config.min_actors, config.max_actors, endpoint=True)):
        enter_s = -rng.uniform(0.3, 2.5)  # the first ones are on their way when the recording begins
        while enter_s < duration_s:
            actor = _build_actor(view, enter_s, config, rng)
            if rng.random() < config.stopping_share:
                actor = _with_pauses(actor, duration_s, rng)
            seen_s = _seen_s(actor, duration_s)
            if seen_s and not any(_collide(actor, other, seen_s) for other in actors):
                enter_s = seen_s[-1] + WATCH_S
                actors.append(replace(actor, until_s=enter_s))
            enter_s += rng.uniform(0.1, 0.5)
    return tuple(actors)


def _build_actor(view: View, enter_s: float, config: SceneConfig, rng: np.random.Generator) -> Actor:
    """Someone at the edge of what can be seen: about to cross, to pass the camera, or to emerge from the distance.

    Sizes and speeds are those on the reference sensor; on other sensors the same scene is seen at another scale.
    """
    is_car = rng.random() < config.car_share
    heading = int(rng.choice((-1, 1)))
    # a pedestrian along the street would take too long to come close, so only the first ones walk there
    is_crossing = rng.random() < 0.75 if is_car else enter_s >= 0 or rng.random() < 0.8
    if is_crossing:
        px_per_m = rng.uniform(7, 15) if is_car else rng.uniform(13, 28)
        speed = rng.uniform(45, 110) / px_per_m if is_car else rng.uniform(0.9, 2.2)
        # a crossing changes the distance by this share of it
        slant = 0.0 if is_car else rng.uniform(-0.4 if px_per_m < 20 else 0.0, 0.4)
        velocity = (heading * speed, slant * speed)
        view_from = "left" if heading < 0 else "right"
        max_px_per_m = px_per_m
    else:
        px_per_m = {-1: 1.05 * HOUSES_PX_PER_M, 1: 0.95 * NEAREST_PX_PER_M}[heading] if is_car else rng.uniform(12, 18)
        velocity = (0.0, heading * (rng.uniform(5, 9) if is_car else rng.uniform(1.0, 2.0)))
        view_from = "front" if heading < 0 else "rear"
        max_px_per_m = 40.0
    for_figure = rng.spawn(1)[0]  # draws of its own: a texture takes more of them on a finer sensor
    if is_car:
        figure: Figure = build_car(view_from, 1.3 * max_px_per_m * view.unit, for_figure)
    else:
        figure = build_pedestrian(heading if is_crossing else 0, for_figure)
    if is_crossing:
        left, _, right, _ = figure.extent_m(0.0)
        edge_px = -right * px_per_m * view.unit if heading > 0 else view.width - left * px_per_m * view.unit
        x_m = view.metres_right(edge_px, px_per_m * view.unit, enter_s)
    else:  # far enough to a side to leave the frame before it reaches the camera
        x_m = float(rng.choice((-1, 1))) * rng.uniform(2.2, 4.5) + view.pose(enter_s)[2]
    journey = Journey(enter_s, x_m, FOCAL_PX / px_per_m, velocity)
    return Actor(CAR if is_car else PEDESTRIAN, figure, journey, view)


def _with_pauses(actor: Actor, duration_s: float, rng: np.random.Generator) -> Actor:
    """The actor with stops well inside the frame, none before it has been seen moving."""
    brake_s = max(actor.journey.start_s + rng.uniform(0.4, 1.2), rng.uniform(0.5, 1.1))
    seen_s = actor.journey.start_s
    while brake_s < min(duration_s, seen_s + UNSEEN_S):
        sighting = actor.seen(brake_s)
        if sighting is not None:
            seen_s = brake_s
        if sighting is not None and 0.1 < sighting.ground_px[0] / actor.view.width < 0.9:
            pause_s = rng.uniform(*PAUSE_S)
            actor = replace(actor, journey=actor.journey.paused(brake_s, pause_s))
            brake_s += BRAKING_S + pause_s + STARTING_S + rng.uniform(0.4, 1.3)
            seen_s = brake_s
        else:
            brake_s += 2 * WATCH_S
    return actor


def _seen_s(actor: Actor, duration_s: float) -> list[float]:
    """Those times of the recording, WATCH_S apart, at which a part of the actor is in the frame, until it is gone."""
    seen: list[float] = []
    t_s = max(actor.journey.start_s, 0.0)
    last_s = t_s
    while t_s < min(duration_s, last_s + UNSEEN_S):
        if actor.seen(t_s) is not None:
            seen.append(t_s)
            last_s = t_s
        t_s += WATCH_S
    return seen


def _collide(actor: Actor, other: Actor, times_s: list[float]) -> bool:
    """Whether the two ever overlap at nearly the same depth, as if one went through the other."""
    for t_s in times_s:
        one, two = actor.seen(t_s), other.seen(t_s)
        if one is None or two is None or not 0.87 < one.px_per_m / two.px_per_m < 1.15:
            continue
        a, b = one.box_ltrb, two.box_ltrb
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            return True
    return False
