"""Cars and pedestrians that cross the street or move along it, and stop and go on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rvtssm.contrib.demo.figures import build_car, build_pedestrian
from rvtssm.contrib.demo.painting import Figure
from rvtssm.contrib.demo.simulation_config import SceneConfig
from rvtssm.contrib.demo.street import FOCAL_PX, HOUSES_PX_PER_M, View

CAR, PEDESTRIAN = 0, 1  # class ids
NEAREST_PX_PER_M = 80.0  # a figure that appears larger has passed the camera; pixels of the reference sensor
PAUSE_S = (0.3, 2.0)  # shortest and longest stop
BRAKING_S, STARTING_S = 0.25, 0.3
CHECK_STEP_S = 0.1  # time step in which paths are checked
UNSEEN_S = 2.0  # an actor that has been outside the frame for this long does not come back


@dataclass(frozen=True)
class Journey:
    """A straight path over the ground.

    The pace, between 0 and 1, multiplies the velocity. It is 1 until the first knot and linear between knots.
    """

    start_s: float
    x_m: float  # where the path starts, to the right of the position of the camera at time 0
    depth_m: float  # where the path starts, ahead of the camera
    velocity_m_per_s: tuple[float, float]  # to the right, away from the camera
    knots_s: tuple[float, ...] = ()
    paces: tuple[float, ...] = ()  # at the knots
    pauses_s: tuple[tuple[float, float], ...] = ()  # start and end of each stop

    def paused(self, brake_s: float, pause_s: float) -> Journey:
        """Return the same journey with one more stop.

        Args:
            brake_s: When braking begins, in seconds.
            pause_s: Length of the stop in seconds.
        """
        stop_s = brake_s + BRAKING_S
        go_s = stop_s + pause_s
        return replace(
            self,
            knots_s=(*self.knots_s, brake_s, stop_s, go_s, go_s + STARTING_S),
            paces=(*self.paces, 1.0, 0.0, 0.0, 1.0),
            pauses_s=(*self.pauses_s, (stop_s, go_s)),
        )

    def moved_s(self, t_s: float) -> float:
        """Return the integral of the pace since the start, in seconds. It is exactly constant during a stop.

        Args:
            t_s: Time in seconds.
        """
        moved, before_s, pace = 0.0, self.start_s, 1.0
        for knot_s, next_pace in zip(self.knots_s, self.paces, strict=True):
            if t_s <= knot_s:
                slope = (next_pace - pace) / (knot_s - before_s)
                return moved + pace * (t_s - before_s) + slope * (t_s - before_s) ** 2 / 2
            moved += (pace + next_pace) / 2 * (knot_s - before_s)
            before_s, pace = knot_s, next_pace
        return moved + pace * (t_s - before_s)

    def still_us(self, t_us: int) -> int:
        """Return the time since the last stop began, in microseconds, or 0 during motion.

        Args:
            t_us: Time in microseconds.
        """
        for stop_s, go_s in self.pauses_s:
            if round(stop_s * 1e6) <= t_us <= round(go_s * 1e6):
                return t_us - round(stop_s * 1e6)
        return 0


class Sighting(NamedTuple):
    """Where and how large a figure appears on the sensor."""

    box_ltrb: tuple[float, float, float, float]  # px, around visible and hidden parts
    ground_px: tuple[float, float]  # (x, y) of the point where it stands
    px_per_m: float  # size of a metre at its depth
    gait_m: float  # distance that it has walked or driven


@dataclass(frozen=True)
class Actor:
    """A figure on its journey, seen by a camera. It exists from the start of the journey to `until_s`."""

    class_id: int
    figure: Figure
    journey: Journey
    view: View
    until_s: float = float("inf")

    def sighting(self, t_s: float) -> Sighting | None:
        """Return where the actor appears, or None if no part of it is in the frame.

        Args:
            t_s: Time in seconds.
        """
        if not self.journey.start_s <= t_s <= self.until_s:
            return None
        moved = self.journey.moved_s(t_s)
        right, away = self.journey.velocity_m_per_s
        px_per_m = self.view.unit * FOCAL_PX / (self.journey.depth_m + away * moved)
        if not HOUSES_PX_PER_M < px_per_m / self.view.unit < NEAREST_PX_PER_M:  # negative means behind the camera
            return None
        x, y = self.view.project(self.journey.x_m + right * moved, px_per_m, t_s)
        gait_m = math.hypot(right, away) * moved
        left, bottom, right, top = self.figure.extent_m(gait_m)
        box = (x + left * px_per_m, y - top * px_per_m, x + right * px_per_m, y - bottom * px_per_m)
        is_inside = box[2] > 0 and box[0] < self.view.width and box[3] > 0 and box[1] < self.view.height
        if not is_inside:
            return None
        return Sighting(box, (x, y), px_per_m, gait_m)


def build_actors(view: View, duration_s: float, config: SceneConfig, rng: np.random.Generator) -> tuple[Actor, ...]:
    """Return the actors that are in the frame at some time of the recording. No actor passes through another one.

    Args:
        view: The camera.
        duration_s: Length of the recording in seconds.
        config: How many actors there are, and what they do.
        rng: Random generator.
    """
    actors: list[Actor] = []
    for _ in range(rng.integers(config.min_actors, config.max_actors, endpoint=True)):
        enter_s = -rng.uniform(0.3, 2.5)  # the first actors start before the recording begins
        while enter_s < duration_s:
            actor = _build_actor(view, enter_s, config, rng)
            if rng.random() < config.stopping_share:
                actor = _with_pauses(actor, duration_s, rng)
            times_s = _times_in_frame_s(actor, duration_s)
            if times_s and not any(_collide(actor, other, times_s) for other in actors):
                enter_s = times_s[-1] + CHECK_STEP_S
                actors.append(replace(actor, until_s=enter_s))
            enter_s += rng.uniform(0.1, 0.5)
    return tuple(actors)


def _across_the_street(is_car: bool, heading: int, rng: np.random.Generator) -> tuple[float, tuple[float, float]]:
    """Return pixels per metre and the velocity of an actor that crosses the view."""
    if is_car:
        px_per_m = rng.uniform(7, 15)
        speed, slant = rng.uniform(45, 110) / px_per_m, 0.0
    else:
        px_per_m = rng.uniform(13, 28)
        speed = rng.uniform(0.9, 2.2)
        lowest = -0.4 if px_per_m < 20 else 0.0
        slant = rng.uniform(lowest, 0.4)  # distance gained from the camera per distance moved across
    return px_per_m, (heading * speed, slant * speed)


def _along_the_street(is_car: bool, heading: int, rng: np.random.Generator) -> tuple[float, tuple[float, float]]:
    """Return pixels per metre and the velocity of an actor that comes from far away, or goes there."""
    if is_car:
        px_per_m = 0.95 * NEAREST_PX_PER_M
        if heading < 0:
            px_per_m = 1.05 * HOUSES_PX_PER_M
        return px_per_m, (0.0, heading * rng.uniform(5, 9))
    return rng.uniform(12, 18), (0.0, heading * rng.uniform(1.0, 2.0))


def _build_actor(view: View, enter_s: float, config: SceneConfig, rng: np.random.Generator) -> Actor:
    """Return an actor at the border of the view that will cross the street, pass the camera or come from far away.

    Sizes and speeds refer to the reference sensor. On another sensor, the same scene has another scale.
    """
    is_car = rng.random() < config.car_share
    heading = int(rng.choice((-1, 1)))
    # A pedestrian along the street would take too long to come close, so only the first ones walk there.
    if is_car:
        is_crossing = rng.random() < 0.75
    else:
        is_crossing = enter_s >= 0 or rng.random() < 0.8
    if is_crossing:
        px_per_m, velocity = _across_the_street(is_car, heading, rng)
        views, max_px_per_m = ("left", "right"), px_per_m
    else:
        px_per_m, velocity = _along_the_street(is_car, heading, rng)
        views, max_px_per_m = ("front", "rear"), 40.0
    figure_rng = rng.spawn(1)[0]  # separate, because textures for a finer sensor consume more random numbers
    if is_car:
        figure: Figure = build_car(views[heading > 0], 1.3 * max_px_per_m * view.unit, figure_rng)
    else:
        figure = build_pedestrian(heading * is_crossing, figure_rng)
    if is_crossing:
        left, _, right, _ = figure.extent_m(0.0)
        edge_px = -right * px_per_m * view.unit
        if heading < 0:
            edge_px = view.width - left * px_per_m * view.unit
        x_m = view.metres_right(edge_px, px_per_m * view.unit, enter_s)
    else:  # far enough to the side that it leaves the frame before it reaches the camera
        x_m = float(rng.choice((-1, 1))) * rng.uniform(2.2, 4.5) + view.pose(enter_s)[2]
    journey = Journey(enter_s, x_m, FOCAL_PX / px_per_m, velocity)
    return Actor(CAR if is_car else PEDESTRIAN, figure, journey, view)


def _with_pauses(actor: Actor, duration_s: float, rng: np.random.Generator) -> Actor:
    """Return the actor with stops well inside the frame, each of them after the actor was visible in motion."""
    brake_s = max(actor.journey.start_s + rng.uniform(0.4, 1.2), rng.uniform(0.5, 1.1))
    visible_s = actor.journey.start_s
    while brake_s < min(duration_s, visible_s + UNSEEN_S):
        sighting = actor.sighting(brake_s)
        if sighting is not None:
            visible_s = brake_s
        if sighting is not None and 0.1 < sighting.ground_px[0] / actor.view.width < 0.9:
            pause_s = rng.uniform(*PAUSE_S)
            actor = replace(actor, journey=actor.journey.paused(brake_s, pause_s))
            brake_s += BRAKING_S + pause_s + STARTING_S + rng.uniform(0.4, 1.3)
            visible_s = brake_s
        else:
            brake_s += 2 * CHECK_STEP_S
    return actor


def _times_in_frame_s(actor: Actor, duration_s: float) -> list[float]:
    """Return the times of the recording, CHECK_STEP_S apart, at which part of the actor is in the frame."""
    times_s: list[float] = []
    t_s = max(actor.journey.start_s, 0.0)
    last_s = t_s
    while t_s < min(duration_s, last_s + UNSEEN_S):
        if actor.sighting(t_s) is not None:
            times_s.append(t_s)
            last_s = t_s
        t_s += CHECK_STEP_S
    return times_s


def _collide(actor: Actor, other: Actor, times_s: list[float]) -> bool:
    """Return whether two actors overlap at nearly the same depth at one of the times."""
    for t_s in times_s:
        one, two = actor.sighting(t_s), other.sighting(t_s)
        if one is None or two is None or not 0.87 < one.px_per_m / two.px_per_m < 1.15:
            continue
        a, b = one.box_ltrb, two.box_ltrb
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            return True
    return False
