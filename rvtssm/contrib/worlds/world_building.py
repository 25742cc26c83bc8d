"""Draws an open world at random: its camera, its surroundings, and who moves in it and where."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rvtssm.contrib.worlds.atlas import WEAVES, Atlas, cloth
from rvtssm.contrib.worlds.people import SITTING, STANDING, WALKING, build_animal, build_person
from rvtssm.contrib.worlds.perspective import Pictures
from rvtssm.contrib.worlds.rules import PERSON, TWO_WHEELER, VEHICLE, drawn_sensor, log_uniform
from rvtssm.contrib.worlds.surroundings import Surroundings, build_indoors, build_outdoors
from rvtssm.contrib.worlds.trips import CameraTrip, build_camera_trip, build_trip, build_trip_ahead
from rvtssm.contrib.worlds.vehicles import Automobile, build_automobile, build_two_wheeler
from rvtssm.contrib.worlds.world import NO_CLASS, Body, Player, World
from rvtssm.contrib.worlds.worlds_config import WorldConfig
from rvtssm.system.user_error import UserError

_TRIES = 12  # attempts to place a player


def build_world(
    height: int, width: int, duration_us: int, config: WorldConfig, rng: np.random.Generator, is_ego_moving: bool
) -> World:
    """Return a random world. The same arguments and generator state give the same world.

    The number of lines of the sensor is drawn too. If the sensor is larger than the frame, the world shows a part of
    it; if it is smaller, the world fills only a part of the frame. `World.height` and `World.width` are the size of the
    visible part.

    Args:
        height: Height of the frame in pixels.
        width: Width of the frame in pixels.
        duration_us: Length of the recording in microseconds.
        config: What the world contains.
        rng: Random generator.
        is_ego_moving: Whether the camera moves.

    Raises:
        UserError: If the frame is too small or the recording too short.
    """
    if duration_us <= 0 or min(height, width) < 16:
        raise UserError(
            "setting.out_of_range", name="dataset.height, dataset.width", found=f"{height} x {width}",
            needed="at least 16 pixels per side, and a duration above 0",
        )  # fmt: skip
    duration_s = duration_us * 1e-6
    is_indoors, is_dark = rng.random() < config.indoor_share, rng.random() < config.dark_share
    atlas = Atlas()
    first_cloth, *_ = [atlas.add(cloth(kind, rng)) for kind in range(WEAVES)]
    lines, seen_h, seen_w = drawn_sensor((height, width), config, rng)
    has_houses = rng.random() < 0.55
    is_drive = not is_indoors and is_ego_moving and _happens(config.drive_share, rng)
    is_dusk = not is_indoors and not is_dark and _happens(config.dusk_share, rng)
    if _happens(config.far_share, rng):
        config = replace(config, max_object_px=min(config.max_object_px, 5 * config.min_object_px))
    if is_indoors:
        around = build_indoors(is_dark, config.max_clutter, atlas, rng)
    else:
        has_houses = has_houses or (is_drive and rng.random() < 0.7)
        around = build_outdoors(has_houses, is_dark, config.max_clutter, atlas, rng, is_dusk=is_dusk, is_drive=is_drive)
    focal_px = lines * rng.uniform(0.55, 1.2) if is_indoors else lines * log_uniform(0.6, 2.5, rng)
    if is_drive:
        focal_px = lines * log_uniform(0.7, 2.0, rng)
        camera = _camera_in_car(duration_s, focal_px, (seen_h, seen_w), rng)
        traffic = _traffic(camera, duration_s, is_dark, atlas, rng) if config.max_actors else ()
    else:
        camera = _camera(is_indoors, has_houses, is_ego_moving, around, duration_s, focal_px, (seen_h, seen_w), rng)
        traffic = ()
    players = _players(
        camera, around, is_indoors, is_dark, duration_s, (seen_h, seen_w), config, atlas, first_cloth, rng, traffic
    )
    lens_px = rng.uniform(0.2, max(config.lens_blur, 0.2)) if config.lens_blur else 0.0
    return World(duration_us, seen_h, seen_w, around, players, camera, Pictures(*atlas.packed()), float(lens_px))


def _happens(share: float, rng: np.random.Generator) -> bool:
    """Return whether something of a share happens; without a share no number is drawn."""
    return share > 0 and bool(rng.random() < share)


def _camera_in_car(duration_s: float, focal_px: float, size: tuple[int, int], rng: np.random.Generator) -> CameraTrip:
    """Return a camera behind the windscreen of a car that drives along the street at 20 to 60 km/h."""
    start = (rng.uniform(-1.5, 1.5), rng.uniform(1.1, 1.7), 0.0, rng.normal(0, 0.02), rng.normal(-0.02, 0.03))
    middle = (size[1] / 2 * rng.uniform(0.9, 1.1), size[0] / 2 * rng.uniform(0.8, 1.1))
    return build_camera_trip("driving", duration_s, start, focal_px, middle, rng, (20 / 3.6, 60 / 3.6))


def _traffic(
    camera: CameraTrip, duration_s: float, is_dark: bool, atlas: Atlas, rng: np.random.Generator
) -> tuple[Player, ...]:
    """Return a car ahead that hardly moves in the picture, parked cars on both sides, and cars that come towards it."""
    cars = [build_automobile(atlas, rng) for _ in range(4)]
    own_x = float(camera.rows[0, 0])
    players = []
    if rng.random() < 0.75:
        lead = build_automobile(atlas, rng)
        gap_m = lead.size_m[0] / 2 + log_uniform(4, 25, rng)
        players.append(Player(VEHICLE, lead, build_trip_ahead(camera, gap_m, rng), is_dark))
    for side in (-1, 1):
        x, share = own_x + side * rng.uniform(3.0, 4.5), rng.choice((0.0, 0.4, 0.8))
        z = rng.uniform(3, 12)
        while z < 110:
            if rng.random() < share:
                heading = rng.normal(0, 0.04) + math.pi * (side < 0)
                car = cars[rng.integers(len(cars))]
                trip = build_trip(duration_s, 0.0, x + rng.normal(0, 0.15), z, heading, 0.0, rng, 0, 0)
                players.append(Player(VEHICLE, car, trip))
            z += rng.uniform(6.0, 9.0)
    z, speed = rng.uniform(15, 60), rng.uniform(5, 15)  # all that come have one speed, so that none passes another
    for _ in range(int(rng.integers(0, 4))):
        x = own_x - 2.6 - rng.uniform(0, 0.3)
        trip = build_trip(duration_s, 0.0, x, z, math.pi, speed, rng, 0, 0)
        players.append(Player(VEHICLE, cars[rng.integers(len(cars))], trip, is_dark))
        z += rng.uniform(12, 40)
    return tuple(players)


def _camera(
    is_indoors: bool, has_houses: bool, is_moving: bool, around: Surroundings, duration_s: float, focal_px: float,
    size: tuple[int, int], rng: np.random.Generator,
) -> CameraTrip:  # fmt: skip
    height, width = size
    x0, x1, _, _ = around.bounds_m
    manner = "rest"
    if is_indoors:
        if is_moving:
            manner = str(rng.choice(("handheld", "handheld", "panning", "walking")))
        start = (rng.uniform(0.5 * x0, 0.5 * x1), rng.uniform(0.4, 2.3), 0.3, rng.uniform(-0.3, 0.3), 0.0)
    else:
        if is_moving:
            manner = str(rng.choice(("handheld", "panning", "walking", "driving", "driving", "turning")))
        if manner == "turning" and has_houses:
            manner = "driving"
        along = manner in ("driving", "walking") or rng.random() < 0.4
        yaw = rng.normal(0, 0.08) if along else rng.uniform(-1.4, 1.4)
        is_high = manner in ("rest", "panning") and rng.random() < 0.4
        y = rng.uniform(2.5, 8) if is_high else rng.uniform(0.5, 2.2)
        x = rng.uniform(-3, 3) if along else -math.copysign(0.8 * min(x1, 10.0), yaw)
        start = (x, y, 0.0, yaw, 0.0)
    pitch = rng.normal(-0.03, 0.06) - (0.1 * start[1] / 3 if start[1] > 2.3 else 0.0)
    middle = (width / 2 * rng.uniform(0.9, 1.1), height / 2 * rng.uniform(0.8, 1.1))
    return build_camera_trip(manner, duration_s, (*start[:4], pitch), focal_px, middle, rng)


def _players(
    camera: CameraTrip, around: Surroundings, is_indoors: bool, is_dark: bool, duration_s: float, size: tuple[int, int],
    config: WorldConfig, atlas: Atlas, first_cloth: int, rng: np.random.Generator, traffic: tuple[Player, ...] = (),
) -> tuple[Player, ...]:  # fmt: skip
    """Return `traffic`, and players who are seen at some time and do not pass through others, the camera or a wall."""
    players = [*traffic]
    largest_px = max(min(config.max_object_px, 1.3 * size[0]), config.min_object_px)
    beside: Player | None = None  # someone whose way the next person may share
    times_s = np.arange(0.0, duration_s + 0.05, 0.1)
    count = int(rng.integers(0, config.max_actors + 1))
    if rng.random() < config.crowd_share:
        count = int(rng.integers(config.max_actors, 3 * config.max_actors + 1))
    people_share = 1.0 if is_indoors else rng.choice((0.25, 0.5, 0.8))
    kinds = [PERSON if rng.random() < people_share else int(rng.choice((VEHICLE, VEHICLE, TWO_WHEELER)))
             for _ in range(count)]  # fmt: skip
    kinds += [NO_CLASS] * int(rng.integers(0, config.max_animals + 1))
    for kind in kinds:
        body, speed, tall_m, radius_m = _body_and_speed(kind, camera.is_moving, atlas, first_cloth, rng)
        for _ in range(_TRIES):
            at_s = rng.uniform(0, duration_s)
            shot = camera.shot(at_s, around.light)
            tall_px = log_uniform(config.min_object_px, largest_px, rng)
            tall_px *= {PERSON: 1.0, TWO_WHEELER: 1.0}.get(kind, 0.5)
            depth_m = shot.focal_px * tall_m / tall_px
            ray = np.linalg.solve(shot.matrix, (rng.uniform(0.02, 0.98) * size[1], size[0] / 2, 1.0))
            ray = ray[[0, 2]] / np.hypot(ray[0], ray[2])
            x, z = shot.position[[0, 2]] + ray * depth_m
            heading = rng.uniform(0, 2 * math.pi)
            if not is_indoors and rng.random() < (0.85 if kind == VEHICLE else 0.6):  # along the street
                heading = rng.normal(0, 0.1) + math.pi * rng.integers(2)
                if kind != VEHICLE and rng.random() < 0.35:
                    heading += math.pi / 2
            elif rng.random() < 0.3:  # across the view
                heading = math.atan2(ray[0], ray[1]) + rng.choice((-1, 1)) * math.pi / 2
            turn_share = 0.15 if kind == VEHICLE else 0.35
            if kind == PERSON and beside is not None and speed > 0 and _happens(config.group_share, rng):
                x, z, heading, _ = beside.trip.at(at_s)
                aside, along = rng.choice((-1, 1)) * rng.uniform(0.55, 0.9), rng.normal(0, 0.4)
                x += aside * math.cos(heading) + along * math.sin(heading)
                z += along * math.cos(heading) - aside * math.sin(heading)
                speed = float(np.ptp(beside.trip.rows[:, 3])) / duration_s
            trip = build_trip(duration_s, at_s, x, z, heading, speed, rng, turn_share)
            player = Player(kind, body, trip, is_dark and kind in (VEHICLE, TWO_WHEELER))
            if _fits(player, radius_m, players, camera, around, times_s) and _is_seen(
                player, at_s, camera, around, size
            ):
                players.append(player)
                if kind == PERSON and speed > 0:
                    beside = player
                break
    return tuple(players)


def _body_and_speed(
    kind: int, is_camera_moving: bool, atlas: Atlas, first_cloth: int, rng: np.random.Generator
) -> tuple[Body, float, float, float]:
    """Return a body, its speed in m/s, its height in metres, and roughly its radius in metres."""
    if kind == PERSON:
        posture = int(rng.choice((WALKING, STANDING, SITTING), p=(0.72, 0.2, 0.08)))
        person = build_person(posture, first_cloth, rng)
        is_running = person.look[12] > 0.9
        speed = 0.0
        if posture == WALKING:
            speed = rng.uniform(2.2, 4.5) if is_running else rng.uniform(0.5, 1.8)
        return person, speed, person.height_m, 0.3
    if kind == VEHICLE:
        car = build_automobile(atlas, rng)
        is_parked = rng.random() < (0.4 if is_camera_moving else 0.1)
        return car, 0.0 if is_parked else log_uniform(1.5, 16, rng), car.size_m[1], car.size_m[0] / 2
    if kind == TWO_WHEELER:
        which = int(rng.choice(3, p=(0.55, 0.35, 0.1)))
        return build_two_wheeler(which, atlas, first_cloth, rng), log_uniform(1.5, (8, 15, 6)[which], rng), 1.75, 0.9
    animal = build_animal(first_cloth, rng)
    return animal, log_uniform(0.3, 5, rng), 1.0, 0.5


def _fits(
    player: Player, radius_m: float, others: list[Player], camera: CameraTrip, around: Surroundings,
    times_s: np.ndarray,
) -> bool:  # fmt: skip
    """Return whether a player keeps its distance from the others and from the camera, and stays within the bounds."""
    steps = np.minimum((times_s / 0.005).astype(int), len(player.trip.rows) - 1)
    x, z = player.trip.rows[steps, 0], player.trip.rows[steps, 1]
    eye = camera.rows[steps]
    far = np.hypot(x - eye[:, 0], z - eye[:, 2])
    if far.min() < (radius_m + 1.0):
        return False
    x0, x1, z0, z1 = around.bounds_m
    is_outside = (x < x0) | (x > x1) | (z < z0) | (z > z1)
    if is_outside.any():
        return False
    for other in others:
        gap = np.hypot(x - other.trip.rows[steps, 0], z - other.trip.rows[steps, 1])
        other_radius = other.size_m[0] / 2 if isinstance(other.body, Automobile) else 0.4
        if gap.min() < 0.75 * (radius_m + other_radius):
            return False
    return True


def _is_seen(player: Player, at_s: float, camera: CameraTrip, around: Surroundings, size: tuple[int, int]) -> bool:
    shot = camera.shot(at_s, around.light)
    left, top, right, bottom = player.box(player.parts(at_s, shot.position), at_s, shot)
    is_inside = right > 2 and left < size[1] - 2 and bottom > 2 and top < size[0] - 2
    return is_inside and right > left and bottom - top < 1.6 * size[0] and right - left < 1.4 * size[1]
