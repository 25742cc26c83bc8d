"""Laws of the open world: boxes hold what is painted, hidden objects have no label, the same seed is the same world."""

import functools
import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from user_errors import raises

from rvtssm.contrib.demo.generate_recordings import generate_dataset
from rvtssm.contrib.worlds import generate
from rvtssm.contrib.worlds.atlas import Atlas
from rvtssm.contrib.worlds.evidence import with_events
from rvtssm.contrib.worlds.generate import OPEN_WORLD, SIMULATIONS, open_world_recording
from rvtssm.contrib.worlds.people import STANDING, WALKING, build_animal, build_person
from rvtssm.contrib.worlds.perspective import Shot, paint_limbs, paint_panels, panel, rotation
from rvtssm.contrib.worlds.rules import MIN_VISIBLE, PERSON, TWO_WHEELER, VEHICLE
from rvtssm.contrib.worlds.surroundings import limb
from rvtssm.contrib.worlds.trips import MANNERS, build_camera_trip, build_trip
from rvtssm.contrib.worlds.vehicles import build_automobile, build_two_wheeler
from rvtssm.contrib.worlds.world import NO_CLASS, STEP_US, Body, Pictures, Player, World
from rvtssm.contrib.worlds.world_building import build_world
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig, WorldConfig
from rvtssm.datasets import DATASETS
from rvtssm.events.label_rules import nothing_times_us
from rvtssm.events.labels import BOX_DTYPE
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.models.weight_files import local_weights
from rvtssm.records import Events

SPEC = DATASETS["open_world"]

RNG = np.random.default_rng


def body(kind: int, atlas: Atlas, seed: int = 0) -> Body:
    if kind == PERSON:
        return build_person(WALKING, 0, RNG(seed))
    if kind == VEHICLE:
        return build_automobile(atlas, RNG(seed))
    return build_two_wheeler(seed % 3, atlas, 0, RNG(seed)) if kind == TWO_WHEELER else build_animal(0, RNG(seed))


@functools.cache
def empty_world() -> World:
    config = WorldConfig(indoor_share=0, dark_share=0, max_actors=0, max_animals=0, max_clutter=0, crowd_share=0)
    return build_world(120, 160, 1_000_000, replace(config, min_lines=120, max_lines=120), RNG(0), False)


def world(*players: tuple[int, float, float, float], speed: float = 1.0, is_moving: bool = False) -> World:
    """A world without houses or clutter; of each player its class, place (x, z) and heading are given."""
    empty, atlas = empty_world(), Atlas()  # the surroundings keep their pictures; those of the players come after them
    atlas.levels, atlas.size = [empty.pictures.flat], len(empty.pictures.flat)
    atlas.places = [(int(a), int(b), int(c), int(d)) for a, b, c, d in empty.pictures.places]
    found = [
        Player(kind, body(kind, atlas, seed), build_trip(1.0, 0.0, x, z, heading, speed, RNG(0), 0, 0))
        for seed, (kind, x, z, heading) in enumerate(players)
    ]
    manner = "handheld" if is_moving else "rest"
    camera = build_camera_trip(manner, 1.0, (0.0, 1.5, 0.0, 0.0, 0.0), 120.0, (80.0, 50.0), RNG(0))
    return replace(empty, players=tuple(found), camera=camera, pictures=Pictures(*atlas.packed()))


def test_a_panel_is_painted_where_a_pinhole_camera_sees_it():
    atlas = Atlas()
    white = atlas.add(np.ones((16, 16)))
    lens = np.array([[100.0, 0, 80], [0, 100, 60], [0, 0, 1]])
    for yaw, pitch in ((0.0, 0.0), (0.3, -0.2)):
        canvas = np.zeros((120, 160), np.float32)
        matrix, eye = lens @ rotation(yaw, pitch, 0.1), np.array([0.2, 1.0, -0.5])
        corner, across, down = np.array([-0.5, 1.7, 3.0]), np.array([1.2, 0, 0.3]), np.array([0.0, -1.0, 0.0])
        row = panel(tuple(corner), tuple(across), tuple(down), white)
        shot = Shot(matrix, eye, 100.0, np.zeros(3))
        paint_panels(canvas, row[None], shot, Pictures(*atlas.packed()), 1.0, False)
        ends = [corner, corner + across, corner + across + down, corner + down]
        points = np.array([matrix @ (end - eye) for end in ends])
        x, y = points[:, 0] / points[:, 2], points[:, 1] / points[:, 2]
        area = 0.5 * abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))
        assert canvas.sum() == pytest.approx(area, rel=0.02)
        columns, rows = (np.flatnonzero(canvas.max(axis=axis) > 0.5) for axis in (0, 1))
        np.testing.assert_allclose((columns[0], columns[-1] + 1), (x.min(), x.max()), atol=1.2)
        np.testing.assert_allclose((rows[0], rows[-1] + 1), (y.min(), y.max()), atol=1.2)


def test_a_picture_brighter_than_white_is_opaque_and_no_more():
    atlas = Atlas()
    glow = atlas.add(np.full((64, 64), 6.0))
    matrix = np.array([[100.0, 0, 40], [0, -100, 30], [0, 0, 1]])
    row = panel((-0.5, 0.5, 3.0), (1.0, 0, 0), (0, -1.0, 0), glow, glow, is_glowing=True, strength=0.99)
    canvas, shot = np.full((60, 80), 15.0, np.float32), Shot(matrix, np.zeros(3), 100.0, np.zeros(3))
    for _ in range(2):
        paint_panels(canvas, row[None], shot, Pictures(*atlas.packed()), 1.0, False)
        assert canvas.min() >= 6 and canvas.max() <= 15
    assert canvas[30, 40] == pytest.approx(6.0, abs=0.01)


@pytest.mark.parametrize("kind", [PERSON, VEHICLE, TWO_WHEELER, NO_CLASS])
@pytest.mark.parametrize("heading", [0.0, 0.7, math.pi / 2])
def test_a_box_is_the_extent_of_what_is_painted(kind, heading):
    far = 12.0 if kind == VEHICLE else 4.0
    scene = world(*[(kind, 0.0, far, heading)])
    player, shot = scene.players[0], scene._shot(0.0)
    for t_s in (0.1, 0.4):
        parts = player.parts(t_s, shot.position)
        canvas = np.zeros((120, 160), np.float32)
        scene._paint(canvas, parts, shot, is_silhouette=True)
        assert canvas.min() >= 0 and canvas.max() <= 1 + 1e-5
        rows, columns = (np.flatnonzero(canvas.max(axis=axis) > 0.3) for axis in (1, 0))
        painted = np.array((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        box = np.clip(player.box(parts, t_s, shot), 0, (160, 120, 160, 120))
        # a wheel that is seen from its edge is thinner than a pixel
        np.testing.assert_allclose(painted, box, atol=3.0 if kind == TWO_WHEELER else 2.0)


def test_who_is_hidden_has_no_label_and_who_is_half_hidden_has_a_whole_box():
    front = (VEHICLE, 0.0, 6.0, math.pi / 2)
    alone = world((PERSON, 0.0, 12.0, 0.0), speed=0.0, is_moving=True).boxes(100_000, 2, 2)
    assert alone["class_id"].tolist() == [PERSON]
    hidden = world((PERSON, 0.0, 12.0, 0.0), (VEHICLE, 0.0, 5.0, math.pi / 2), speed=0.0, is_moving=True)
    assert hidden.boxes(100_000, 2, 2)["class_id"].tolist() == [VEHICLE]
    beside = world((PERSON, 0.0, 8.0, 0.0), front, speed=0.0, is_moving=True)
    shares = {}
    for x in np.arange(0.0, 4.5, 0.25):
        player = replace(beside.players[0], trip=build_trip(1.0, 0.0, x, 8.0, 0.0, 0.0, RNG(0)))
        boxes = replace(beside, players=(player, beside.players[1])).boxes(100_000, 2, 2)
        shares[x] = PERSON in boxes["class_id"]
    assert not shares[0.0] and shares[4.25]
    assert 0.2 < MIN_VISIBLE < 0.5


def test_what_has_not_moved_has_no_label_before_a_camera_at_rest():
    parked = ((VEHICLE, 0.0, 9.0, 1.0),)
    assert len(world(*parked, speed=0.0).boxes(500_000, 2, 2)) == 0
    assert len(world(*parked, speed=0.0, is_moving=True).boxes(500_000, 2, 2)) == 1
    assert len(world(*parked, speed=1.0).boxes(500_000, 2, 2)) == 1


@pytest.mark.parametrize("kind", [PERSON, VEHICLE, TWO_WHEELER])
def test_who_stands_still_is_still(kind):
    scene = world((kind, 0.0, 9.0, math.pi / 2))
    player = scene.players[0]
    stopped = replace(player, trip=replace(player.trip, still_s=np.full_like(player.trip.still_s, 0.4)))

    def still_us(player: Player, is_moving: bool = False) -> list[int]:
        shown = replace(scene, players=(player,), camera=replace(scene.camera, is_moving=is_moving))
        return shown.boxes(100_000, 2, 2)["still_us"].tolist()

    assert still_us(stopped) == [400_000] and still_us(player) == [0] == still_us(stopped, is_moving=True)
    if kind == PERSON:  # of someone who gestures, something always moves
        assert still_us(replace(stopped, body=build_person(STANDING, 0, RNG(0)))) == [0]


def test_limbs_are_bright_on_the_side_of_the_light():
    limbs, atlas = np.array([limb((0.0, 0.5, 4.0), 0.3, (0.0, 1.5, 4.0), 0.3, 0.5)]), Atlas()
    atlas.add(np.ones((1, 1)))
    pictures = Pictures(*atlas.packed())
    trip = build_camera_trip("still", 1.0, (0, 1.0, 0, 0, 0), 200.0, (80, 60), RNG(0))

    def painted(*light: float) -> np.ndarray:
        canvas = np.zeros((120, 160), np.float32)
        paint_limbs(canvas, limbs, trip.shot(0.0, np.array(light)), pictures, 1.0, False)
        return canvas

    behind_the_camera, in_front = painted(0, 0, -1), painted(0, 0, 1)
    assert behind_the_camera[60, 80] > 1.5 * in_front[60, 80] > 0
    from_the_right, from_the_left = painted(1, 0, 0), painted(-1, 0, 0)
    assert from_the_right[60, 88] > from_the_left[60, 88] and from_the_right[60, 72] < from_the_left[60, 72]
    assert painted(0, 1, 0)[26, 80] > painted(0, -1, 0)[26, 80]  # from above


def test_a_trip_passes_its_place_and_its_way_is_as_long_as_its_path():
    trip = build_trip(4.0, 1.5, 3.0, 7.0, 0.4, 2.0, RNG(5), turn_share=1.0, stop_share=1.0)
    assert trip.at(1.5)[:3] == pytest.approx((3.0, 7.0, 0.4), abs=1e-6)
    steps = np.hypot(*np.diff(trip.rows[:, :2], axis=0).T)
    assert steps.sum() == pytest.approx(trip.rows[-1, 3], rel=1e-6)
    assert trip.still_s.max() >= 0.35 and trip.still_us(0) == 0


@pytest.mark.parametrize("manner", MANNERS)
def test_cameras_move_without_jumps(manner):
    trip = build_camera_trip(manner, 3.0, (0, 1.5, 0, 0, 0), 200.0, (80, 60), RNG(1))
    assert trip.is_moving and 0 < np.abs(np.diff(trip.rows[:, 3:], axis=0)).max() < 0.02  # radians in 5 ms
    assert np.abs(np.diff(trip.rows[:, :3], axis=0)).max() < 0.12  # metres
    assert trip.speed_px_per_s(1.0) > 0
    ahead = trip.shot(1.0, np.array([0.0, 1.0, 0.0]))
    assert isinstance(ahead, Shot)
    np.testing.assert_allclose(ahead.matrix[2] @ ahead.matrix[2], 1.0)


@pytest.mark.parametrize("seed", range(2))
def test_a_world_is_what_its_seed_says(seed):
    one, same, other = (build_world(48, 64, 200_000, WorldConfig(), RNG(s), seed == 1) for s in (seed, seed, seed + 50))
    images = [next(islice(scene.frames(), 5, None))[1] for scene in (one, same)]
    np.testing.assert_array_equal(*images)
    assert images[0].dtype == np.float32 and np.isfinite(images[0]).all() and images[0].min() >= 0
    np.testing.assert_array_equal(one.boxes(100_000, 4, 10), same.boxes(100_000, 4, 10))
    assert other.pictures.flat[:1000].tolist() != one.pictures.flat[:1000].tolist()
    times = [t for t, _ in one.frames()]
    assert times[0] == 0 and times[-1] == 200_000 and np.diff(times).max() <= STEP_US[1]


def test_parts_of_the_world_can_be_switched_off():
    def built(seed: int, **changes) -> World:
        return build_world(64, 80, 200_000, replace(WorldConfig(), **changes), RNG(seed), False)

    empty = [built(seed, max_actors=0, max_animals=0, max_clutter=0) for seed in range(3)]
    assert all(scene.players == () and scene.surroundings.fixtures == () for scene in empty)
    rooms = [built(seed, indoor_share=1.0, dark_share=0.0, max_animals=0) for seed in range(3)]
    assert {player.class_id for scene in rooms for player in scene.players} == {PERSON}
    assert all(scene.surroundings.brightness >= 0.3 for scene in rooms)
    assert all(built(seed, dark_share=1.0).surroundings.brightness <= 0.25 for seed in range(3))
    full = [built(seed, min_lines=64, max_lines=64, lens_blur=0.0) for seed in range(3)]
    assert {(scene.height, scene.width, scene.lens_px) for scene in full} == {(64, 80, 0.0)}
    assert built(0, min_lines=20, max_lines=30).height <= 30


def test_a_label_waits_for_the_first_events():
    boxes = np.zeros(6, BOX_DTYPE)
    boxes["t"], boxes["track_id"] = [100_000, 100_000, 200_000, 200_000, 300_000, 300_000], [0, 1] * 3
    boxes["x"], boxes["w"], boxes["h"] = [0, 50] * 3, 10, 10
    t = np.sort(RNG(0).integers(160_000, 200_000, 60))
    seen = Events(t, np.full(60, 55, np.uint16), np.full(60, 5, np.uint16), np.ones(60, np.uint8))
    kept = with_events(boxes, [seen], noise_rate_hz=1.0)
    assert [(box["t"], box["track_id"]) for box in kept] == [(200_000, 1), (300_000, 1)]
    assert len(with_events(boxes, [seen], noise_rate_hz=20.0)) == 0  # as much as noise alone


def test_a_dataset_of_worlds_is_written_and_a_recording_does_not_depend_on_the_others(tmp_path):
    config = OpenWorldConfig(
        seed=3, num_train=2, num_val=0, num_test=0, duration_s=0.25, workers=1,
        sensor="any", ego_motion_share=0.5,
    )  # fmt: skip
    assert generate_dataset(config, tmp_path / "raw", OPEN_WORLD.sized(48, 64), progress=False) == [
        "train/train_0000",
        "train/train_0001",
    ]
    assert generate_dataset(config, tmp_path / "raw", OPEN_WORLD.sized(48, 64), progress=False) == []
    blocks, boxes = open_world_recording(config, "train", 1, (48, 64))
    t = np.concatenate([block.t for block in blocks])
    assert len(t) and np.diff(t).min() >= 0 and set(boxes["class_id"]) <= set(range(SPEC.num_classes))
    with raises("run.other_settings"):
        generate_dataset(config, tmp_path / "raw", SIMULATIONS[0], progress=False)


def test_the_simulated_datasets_agree_on_the_names_of_classes():
    """The order of `synthetic` is that of its files, so its numbers stay; `street-tiny` knows the other dataset."""
    assert set(DATASETS["synthetic"].class_names) < set(SPEC.class_names)
    assert read_checkpoint(local_weights("street-tiny")).spec.class_names == SPEC.class_names


def test_a_world_without_labels_is_drawn_again():
    config = OpenWorldConfig(duration_s=0.25, world=WorldConfig(max_actors=1))
    blocks, boxes = open_world_recording(config, "train", 1, (48, 64))  # whose first world has none
    assert (boxes["w"] > 0).any() and sum(len(block.t) for block in blocks)
    nobody = replace(config, world=WorldConfig(max_actors=0, crowd_share=0.0))
    assert len(open_world_recording(nobody, "val", 0, (48, 64))[1]) == 0


def test_an_empty_recording_says_at_every_label_time_that_nobody_is_there():
    world = WorldConfig(empty_share=1.0)
    config = OpenWorldConfig(duration_s=0.25, world=world, ego_motion_share=1.0)
    blocks, boxes = open_world_recording(config, "train", 0, (48, 64))
    times_us = [100_000, 150_000, 200_000, 250_000]
    assert nothing_times_us(boxes, boxes["t"][:0]).tolist() == boxes["t"].tolist() == times_us
    assert sum(len(block.t) for block in blocks)
    assert (open_world_recording(config, "val", 0, (48, 64))[1]["w"] > 0).all()
    some = replace(config, world=replace(world, empty_share=0.25))
    assert 10 < sum(some.is_empty("train", index) for index in range(100)) < 40


def test_a_camera_in_a_car_follows_a_car_that_hardly_moves_in_the_picture():
    config = WorldConfig(indoor_share=0, drive_share=1, min_lines=96, max_lines=96)
    leads = 0
    for seed in range(4):
        scene = build_world(96, 128, 1_000_000, config, RNG(seed), True)
        speed = np.hypot(*np.diff(scene.camera.rows[:, [0, 2]], axis=0).T) / 0.005
        assert speed.min() > 0.8 * 20 / 3.6 and speed.max() < 1.2 * 60 / 3.6
        ahead = scene.players[0]
        far = ahead.trip.rows[:, 1] - scene.camera.rows[:, 2]
        if ahead.trip.rows[-1, 3] > 1 and 3 < far.min() <= far.max() < 40 and np.ptp(far) < 0.15 * far[0]:
            boxes = [ahead.box(ahead.parts(t, scene._shot(t).position), t, scene._shot(t)) for t in (0.2, 0.7)]
            widths = [right - left for left, _, right, _ in boxes]
            leads += 1
            assert abs(boxes[1][0] - boxes[0][0]) < widths[0] and 0.8 < widths[1] / widths[0] < 1.25
        classes = set(scene.boxes(500_000, 3, 8)["class_id"])
        assert VEHICLE in classes
        assert build_world(96, 128, 1_000_000, config.empty(), RNG(seed), True).boxes(500_000, 3, 8).size == 0
    assert leads >= 2


def test_groups_walk_side_by_side_and_far_worlds_have_small_actors():
    streets = WorldConfig(indoor_share=0, crowd_share=1, min_lines=120, max_lines=120)

    def gaps_m(group_share: float) -> list[float]:
        found: list[float] = []
        for seed in range(3):
            scene = build_world(120, 160, 200_000, replace(streets, group_share=group_share), RNG(seed), True)
            places = np.array([each.trip.at(0.1)[:2] for each in scene.players if each.class_id == PERSON])
            gaps = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1)) + 99 * np.eye(len(places))
            found += gaps.min(axis=0).tolist() if len(places) > 1 else []
        return found

    assert np.median(gaps_m(1.0)) < 1.2 < np.median(gaps_m(0.0))
    far = replace(streets, far_share=1.0, min_object_px=8.0)
    heights = [build_world(120, 160, 200_000, far, RNG(s), True).boxes(100_000, 3, 8)["h"] for s in range(3)]
    assert 0 < np.percentile(np.concatenate(heights), 80) < 50


def test_a_share_of_the_training_recordings_shows_plain_worlds(monkeypatch):
    class Asked(Exception):
        """Which world a recording would show."""

    def build(*args):
        raise Asked(args[3])

    monkeypatch.setattr(generate, "build_world", build)
    whole = WorldConfig(max_actors=2)
    for share, plain_trainings in ((0.0, {False}), (0.5, {False, True}), (1.0, {True})):
        world = replace(whole, plain_share=share)
        config = OpenWorldConfig(duration_s=0.1, world=world)
        for split, expected in (("train", plain_trainings), ("test", {False})):
            asked = set()
            for index in range(8):
                with pytest.raises(Asked) as world_asked:
                    open_world_recording(config, split, index, (32, 48))
                asked.add(world_asked.value.args[0] == world.plain())
            assert asked == expected
    easy = whole.plain()
    assert easy.indoor_share == easy.dark_share == easy.crowd_share == easy.max_animals == easy.max_clutter == 0
    assert easy.max_actors == whole.max_actors


def test_an_impossible_world_is_refused():
    with raises("setting.out_of_range"):
        build_world(8, 100, 1000, WorldConfig(), RNG(0), False)
    with raises("setting.out_of_range", "synthetic.world.max_object_px"):
        replace(OpenWorldConfig(), world=WorldConfig(max_object_px=5)).check()
