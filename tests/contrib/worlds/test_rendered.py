"""Laws of rendered worlds: objects are where a pinhole camera sees them, boxes are exact, seeds are recordings."""

import functools
import json
import math
import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from contrib.worlds.rendered_models import boxes_mesh, write_assets, write_glb, write_person
from user_errors import raises

from rvtssm.contrib.demo.generate_recordings import generate_dataset
from rvtssm.contrib.worlds.generate import generate
from rvtssm.contrib.worlds.rendered import raster
from rvtssm.contrib.worlds.rendered.assets import digest, read_assets
from rvtssm.contrib.worlds.rendered.glb import grey_picture, read_glb
from rvtssm.contrib.worlds.rendered.lens import build_lens
from rvtssm.contrib.worlds.rendered.motion import CameraTrip, halting, line, steady, turned
from rvtssm.contrib.worlds.rendered.raster import GLOWING, GROUND, SAMPLES, Eye, Light
from rvtssm.contrib.worlds.rendered.rendered_world import RENDERED_WORLD, SPEC, rendered_recording
from rvtssm.contrib.worlds.rendered.scene import MIN_INSIDE, RenderedScene
from rvtssm.contrib.worlds.rendered.scene_building import build_scene, drawn_kind
from rvtssm.contrib.worlds.rendered.scene_kinds import EMPTY, KINDS
from rvtssm.contrib.worlds.rendered.skin import WALK, build_figure
from rvtssm.contrib.worlds.rendered.stage import Stage, block, quad
from rvtssm.contrib.worlds.rendered.traffic import Actor, keep_apart, standing
from rvtssm.contrib.worlds.rules import MIN_VISIBLE, VEHICLE, drawn_sensor
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig, WorldConfig
from rvtssm.datasets import DATASETS
from tests.killed import killed_at_each_call

RNG = np.random.default_rng
HEIGHT, WIDTH, FOCAL = 60, 80, 70.0
SUN = np.array([0.6, 0.8, 0.0])
LIGHT = Light(SUN, 0.7, 0.3, 0.2, 0.2, 5.0, 1.0, np.full((4, 4), 0.8, np.float32))


@functools.cache
def assets_folder() -> str:
    return str(write_assets(Path(tempfile.mkdtemp(prefix="rvtssm-models-"))))


def config(**changes: object) -> OpenWorldConfig:
    world = replace(WorldConfig(), min_lines=48, max_lines=48, lens_blur=0.0)
    settings: dict = {"num_train": 2, "num_val": 1, "num_test": 0, "duration_s": 0.4, "workers": 1}
    return OpenWorldConfig(**{**settings, "assets": assets_folder(), "world": world, **changes})


def eye(position: tuple[float, float, float] = (0.0, 1.0, 0.0)) -> Eye:
    return Eye(np.array(position), np.eye(3), FOCAL * SAMPLES, WIDTH * SAMPLES / 2, HEIGHT * SAMPLES / 2)


def scene_of(*cars: tuple[float, float], speed: float = 0.0, camera_speed: float = 0.0) -> RenderedScene:
    """Boxes of 2 x 1.5 x 4 m at (x, z), with a speed to the right, before a camera that looks along z."""
    stage = Stage()
    grey = stage.material(-1, 0.5)
    actors = []
    for number, (x, z) in enumerate(cars, start=1):
        path = line(x, z, math.pi / 2, steady(0.5, speed, RNG(0))) if speed else standing(x, z, math.pi / 2)
        actor = Actor(VEHICLE, path, number)
        instance = stage.place(block((-1, 0, -2), (1, 1.5, 2), grey, 1.0), None, number)
        actor.parts.append((instance, np.eye(4)))
        actors.append(actor)
    way = line(0, 0, 0, steady(0.5, camera_speed, RNG(0))) if camera_speed else standing(0, 0, 0)
    camera = CameraTrip(way, 1.0, 0.0, 0.0, 0.0, 0.0, np.zeros((4, 3, 2)))
    return RenderedScene(stage.packed(), actors, camera, LIGHT, FOCAL, HEIGHT, WIDTH, 200_000)


def test_a_rectangle_is_drawn_where_a_pinhole_camera_sees_it():
    stage = Stage()
    stage.place(quad((-1.0, 0.5, 4.0), (1.5, 0, 1.0), (0, 1.2, 0), (1, 1), stage.material(-1, 0.5)), None, 1)
    packed, buffers = stage.packed(), raster.new_buffers(HEIGHT, WIDTH, 3)
    assert raster.find_nearest(packed, eye(), buffers, -1) == 2
    rows, columns = (np.flatnonzero((buffers.nearest >= 0).any(axis)) / SAMPLES for axis in (1, 0))
    left, right = WIDTH / 2 - FOCAL * 1.0 / 4, WIDTH / 2 + FOCAL * 0.5 / 5
    top, bottom = HEIGHT / 2 - FOCAL * 0.7 / 4, HEIGHT / 2 + FOCAL * 0.5 / 4
    np.testing.assert_allclose((columns[0], columns[-1] + 0.5), (left, right), atol=0.5)
    np.testing.assert_allclose((rows[0], rows[-1] + 0.5), (top, bottom), atol=0.5)
    np.testing.assert_allclose(raster.outlines(packed, eye(), 2)[1] / SAMPLES, (left, top, right, bottom), atol=1e-3)
    middle = buffers.depth[HEIGHT, WIDTH - 20]
    assert middle == pytest.approx(1 / (4 + (4 * (-10 / FOCAL) + 1) / (1.5 - -10 / FOCAL)), rel=0.01)


def test_the_nearer_triangle_hides_the_farther_one_in_any_order():
    for order in ((0, 1), (1, 0)):
        stage = Stage()
        sheets = [
            quad((-1, 0, z), (2, 0, 0), (0, 2, 0), (1, 1), stage.material(-1, grey)) for z, grey in ((3, 0.2), (5, 0.9))
        ]
        for number in order:
            stage.place(sheets[number], None, number + 1)
        packed, buffers = stage.packed(), raster.new_buffers(HEIGHT, WIDTH, 5)
        raster.find_nearest(packed, eye(), buffers, -1)
        nearest = buffers.nearest[HEIGHT, WIDTH]
        assert packed.span[buffers.source[nearest, 1], 2] == 1


def test_a_shadow_falls_on_the_ground_away_from_the_sun_and_makes_it_darker():
    stage = Stage()
    stage.place(quad((-20, 0, 0), (40, 0, 0), (0, 0, 40), (1, 1), stage.material(-1, 0.5, 0, GROUND)))
    stage.place(block((-0.5, 0, 6), (0.5, 1.0, 7), stage.material(-1, 0.5), 1.0), None, 1, casts_shadow=True)
    packed, buffers = stage.packed(), raster.new_buffers(HEIGHT, WIDTH, 20)
    images = []
    for with_shadow in (False, True):
        raster.find_nearest(packed, eye(), buffers, -1)
        buffers.shadow[:] = 0
        if with_shadow:
            raster.mark_shadows(packed, eye(), SUN, buffers)
        images.append(np.zeros((HEIGHT, WIDTH), np.float32))
        raster.shade(images[-1], packed, eye(), LIGHT, buffers)
    darker = np.argwhere(images[1] < images[0] - 1e-4)
    assert len(darker) > 5
    assert darker[:, 1].max() < WIDTH / 2 + 6  # the sun is at the right
    assert (images[1] <= images[0] + 1e-6).all()


def test_a_box_is_the_exact_extent_also_of_what_another_object_hides():
    scene = scene_of((0.0, 10.0), (4.0, 14.0), speed=1.0)
    list(scene.frames([100_000, 200_000], 3, 8))
    at = scene.boxes[scene.boxes["t"] == 200_000]
    whole = raster.outlines(scene.packed, scene.eye(0.2), 3) / SAMPLES
    assert len(at) == 2
    for box in at:
        left, top, right, bottom = whole[box["track_id"]]
        np.testing.assert_allclose((box["x"], box["y"]), (left, top), atol=1e-3)
        np.testing.assert_allclose((box["x"] + box["w"], box["y"] + box["h"]), (right, bottom), atol=1e-3)


def test_an_object_that_is_hidden_or_outside_for_the_most_part_has_no_box():
    for x, is_seen in ((0.0, False), (3.8, True), (5.2, True), (7.2, False), (8.0, False)):
        scene = scene_of((0.0, 6.0), (x, 9.0), speed=0.01)
        list(scene.frames([200_000], 3, 8))
        assert (2 in scene.boxes["track_id"]) == is_seen, (x, MIN_VISIBLE, MIN_INSIDE)
        assert (scene.boxes["x"] >= 0).all() and (scene.boxes["x"] + scene.boxes["w"] <= WIDTH).all()


def test_what_has_not_moved_before_a_camera_at_rest_has_no_box():
    for settings, has_box in (({}, False), ({"speed": 1.0}, True), ({"camera_speed": 1.0}, True)):
        scene = scene_of((0.0, 10.0), **settings)
        list(scene.frames([100_000, 200_000], 3, 8))
        assert len(scene.boxes) == 2 * has_box
        assert (scene.boxes["still_us"] == 0).all()


def test_frames_are_at_the_label_times_and_end_with_the_recording():
    scene = scene_of((0.0, 10.0), speed=3.0)
    times = [t_us for t_us, _ in scene.frames([50_000, 123_457], 3, 8)]
    assert times[0] == 0 and times[-1] == scene.duration_us
    assert {50_000, 123_457} <= set(times)
    assert (np.diff(times) > 0).all()


def test_paths_keep_their_pace_and_turn_evenly():
    path = line(1.0, 2.0, math.pi / 2, steady(2.0, 5.0, RNG(0)))
    x, z, heading, distance = path.at(1.0)
    assert (x - 1.0, z, heading) == (pytest.approx(distance), pytest.approx(2.0), pytest.approx(math.pi / 2))
    assert distance == pytest.approx(5.0, rel=0.11)
    curve = turned(0.0, 0.0, 4.0, 6.0, 1, steady(5.0, 5.0, RNG(0)))
    headings = [curve.at(t_s)[2] for t_s in np.linspace(0, 4.9, 50)]
    assert headings[0] == pytest.approx(0) and headings[-1] == pytest.approx(math.pi / 2)
    assert (np.diff(headings) > -1e-9).all()
    halt = line(0, 0, 0, halting(3.0, 6.0, 1.5, 0.5))
    assert halt.at(1.55)[3] == pytest.approx(halt.at(1.95)[3])
    assert halt.at(2.9)[3] > halt.at(2.05)[3]


def test_vehicles_of_a_lane_keep_apart():
    times = np.linspace(0, 10, 100)
    lane = [(start, Actor(VEHICLE, line(0, start, 0, speed * times), 1, length_m=4.0))
            for start, speed in ((30.0, 4.0), (9.0, 9.0), (60.0, 20.0))]  # fmt: skip
    keep_apart(lane, 10.0 * times)
    far, near, last = (start + vehicle.path.reached_m for start, vehicle in lane)
    assert (near - 2 - 10.0 * times).min() == pytest.approx(0.5) and (far - near).min() == pytest.approx(4.5)
    np.testing.assert_array_equal(last, 60 + 20.0 * times)  # it was far enough away


@pytest.mark.parametrize(("name", "seed"), [("motorway", 5), ("motorway", 28), ("queue", 0), ("queue", 1)])
def test_the_camera_does_not_drive_through_a_vehicle_ahead(name, seed):
    scene = build_scene(
        read_assets(assets_folder()), KINDS[name], "car", (48, 64), 5_000_000, config().world, RNG(seed)
    )
    for t_s in np.linspace(0, 5, 51):
        position, _ = scene.camera.at(t_s)
        for actor in scene.actors:
            x, z, heading, _ = actor.path.at(t_s)
            is_ahead = actor.class_id == VEHICLE and heading == 0 and abs(x - position[0]) < 1
            assert not is_ahead or abs(z - position[2]) > actor.length_m / 2


def test_there_is_ground_at_the_end_of_a_long_way():
    scene = build_scene(
        read_assets(assets_folder()), KINDS["motorway"], "car", (48, 64), 30_000_000, config().world, RNG(0)
    )
    buffers = raster.new_buffers(48, 64, len(scene.packed.corners))
    raster.find_nearest(scene.packed, scene.eye(29.9)._replace(rotation=np.eye(3)), buffers, -1)
    assert (buffers.nearest[-40:] >= 0).all()


def test_a_person_lifts_the_leg_that_the_animation_turns(tmp_path):
    figure, mesh = build_figure(Stage(), read_glb(write_person(tmp_path / "p.glb")), WALK, (1, 1, 1), RNG(0))
    assert mesh.size_m == pytest.approx((0.4, 1.7, 0.3), abs=1e-5)
    down, _ = figure.posed(0.0)
    lifted, normals = figure.posed(0.5)
    # The leg now points back, so that the trunk stands on the ground, and the person is deeper.
    assert np.ptp(down[..., 1]) == pytest.approx(1.7, abs=1e-5)
    assert np.ptp(lifted[..., 1]) == pytest.approx(0.9, abs=0.02)
    assert np.ptp(lifted[..., 2]) > 0.9
    assert lifted[..., 1].min() == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(figure.posed(1.0)[0], down, atol=1e-6)


def test_a_model_is_read_as_it_was_written(tmp_path):
    vertices, faces = boxes_mesh(((-1, 0, -2), (1, 1.5, 2)))
    model = read_glb(write_glb(tmp_path / "car.glb", vertices, faces))
    assert model.name == "car" and model.skeleton is None
    np.testing.assert_allclose(model.surfaces[0].vertices[model.surfaces[0].faces], vertices[faces])
    assert model.surfaces[0].grey == pytest.approx(0.5)
    placed = read_glb(
        write_glb(
            tmp_path / "b.glb", vertices, faces, nodes=[{"mesh": 0, "translation": [1, 2, 3], "scale": [2, 2, 2]}]
        )
    )
    np.testing.assert_allclose(placed.bounds[1], (3, 5, 7))


@pytest.mark.parametrize("cut", [0, 3, 11, 15, 40, 200])
def test_a_cut_file_is_one_line(tmp_path, cut):
    path = write_glb(tmp_path / "car.glb", *boxes_mesh(((-1, 0, -2), (1, 1.5, 2))))
    path.write_bytes(path.read_bytes()[:cut])
    with raises("file.kind" if cut < 12 else "file.cut", about="car.glb"):
        read_glb(path)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"extensionsRequired": ["KHR_draco_mesh_compression"]}, "file.kind"),
        ({"meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "mode": 1}]}]}, "file.kind"),
        ({"meshes": [{"primitives": [{"attributes": {"POSITION": 99}}]}]}, "file.damaged"),
        ({"accessors": []}, "file.damaged"),
        ({"nodes": [{}]}, "file.content"),
        ({"nodes": [{"mesh": 0, "children": [0]}]}, "file.damaged"),
        ({"material": {}}, "file.content"),
        ({"material": {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}}}, "textures": [{"source": 0}],
          "images": [{"uri": "a.png"}]}, "file.kind"),
        ({"material": {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0, "texCoord": 1}}}}, "file.kind"),
        ({"material": {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}}}, "textures": [{}]}, "file.kind"),
        ({"material": {"pbrMetallicRoughness": {"baseColorFactor": [math.nan] * 4}}}, "file.damaged"),
        ({"nodes": [{"mesh": 0, "extensions": {"EXT_mesh_gpu_instancing": {}}}]}, "file.kind"),
        ({"nodes": [{"mesh": 0, "weights": [0.5]}]}, "file.kind"),
    ],
)  # fmt: skip
def test_a_foreign_or_damaged_file_is_one_line(tmp_path, changes, kind):
    with raises(kind, about="car.glb"):
        read_glb(write_glb(tmp_path / "car.glb", *boxes_mesh(((-1, 0, -2), (1, 1.5, 2))), **changes))


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (b'"buffer": 0', b'"buffer": 1', "file.kind"),
        (b'"buffers": [{', b'"buffers": [{"uri": "a.bin", ', "file.kind"),
        (b'"type": "VEC3"', b'"type": "VEC2"', "file.damaged"),
        (b'"type": "VEC3"', b'"sparse": {}, "type": "VEC3"', "file.kind"),
        (b'"asset": ', b'"deep": ' + b"[" * 99999 + b', "asset": ', "file.damaged"),
        (b'"POSITION": 0', b'"POSITION": 0, "COLOR_0": 0', "file.kind"),
    ],
)
def test_numbers_of_another_file_or_another_form_are_not_read(tmp_path, old, new, kind):
    path = write_glb(tmp_path / "car.glb", *boxes_mesh(((-1, 0, -2), (1, 1.5, 2))))
    with_text(path, lambda text: text.replace(old, new))
    with raises(kind, about="car.glb"):
        read_glb(path)


def with_text(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the JSON of a GLB."""
    whole = path.read_bytes()
    (size,) = struct.unpack_from("<I", whole, 12)
    text = change(whole[20 : 20 + size])
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + whole[20 + size :]
    path.write_bytes(struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks)


@pytest.mark.parametrize("accessor", range(7))
def test_numbers_that_are_not_finite_are_not_read(tmp_path, accessor):
    """They would reach the picture, and no event says so."""
    path = write_person(tmp_path / "p.glb")
    whole = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<I", whole, 12)
    document = json.loads(whole[20 : 20 + size])
    found = document["accessors"][accessor]
    if found["componentType"] != 5126:
        return
    start = 28 + size + document["bufferViews"][found["bufferView"]]["byteOffset"]
    whole[start : start + 4] = struct.pack("<f", math.nan)
    path.write_bytes(whole)
    with raises("file.damaged", about="finite"):
        read_glb(path)


def test_a_mirrored_node_is_seen_from_outside(tmp_path):
    """Its triangles have the other sense of rotation, and only those that face the camera are drawn."""
    mesh = boxes_mesh(((-1, 0, -2), (1, 1.5, 2)))
    plain = read_glb(write_glb(tmp_path / "a.glb", *mesh)).surfaces[0]
    mirrored = read_glb(write_glb(tmp_path / "b.glb", *mesh, nodes=[{"mesh": 0, "scale": [-1, 1, 1]}])).surfaces[0]
    for k in range(len(plain.faces)):
        one, other = (np.cross(*np.diff(surface.vertices[surface.faces[k]], axis=0)) for surface in (plain, mirrored))
        np.testing.assert_allclose(other, one * (-1, 1, 1), atol=1e-9)


def test_a_skeleton_is_read_as_it_stands_or_refused(tmp_path):
    def person(change: Callable[[dict], object]) -> Path:
        def changed(text: bytes) -> bytes:
            document = json.loads(text)
            change(document)
            return json.dumps(document).encode()

        path = write_person(tmp_path / "p.glb")
        with_text(path, changed)
        return path

    half = math.sqrt(0.5)
    model = read_glb(person(lambda of: of["nodes"][1].update(rotation=[0, half, 0, half])))
    # The animations turn the second joint only.
    np.testing.assert_allclose(model.skeleton.animations[WALK].rotations[:, 0], [[0, half, 0, half]] * 3)
    other = {"joints": [2, 1], "inverseBindMatrices": 4}
    for change, kind in (
        (lambda of: of["nodes"][1].update(scale=[0.01] * 3), "file.kind"),
        (lambda of: of["nodes"].append({"children": [1], "scale": [100] * 3}) or of["scenes"][0].update(nodes=[0, 3]),
         "file.kind"),
        (lambda of: of["skins"].append(other), "file.kind"),
        (lambda of: of["accessors"][4].update(count=1), "file.damaged"),
        (lambda of: of["accessors"][3].update(type="VEC3"), "file.damaged"),
    ):  # fmt: skip
        with raises(kind, about="p.glb"):
            read_glb(person(change))


def test_joints_and_vertices_that_are_not_there_are_not_read(tmp_path):
    """Compiled loops would read memory beyond the arrays."""
    num_vertices = len(boxes_mesh(((-0.2, 0.9, -0.15), (0.2, 1.7, 0.15)), ((-0.1, 0, -0.1), (0.1, 0.9, 0.1)))[0])
    with raises("file.damaged", about="lacks joints"):
        read_glb(write_person(tmp_path / "p.glb", joints=np.full(num_vertices, 250)))
    whole = write_person(tmp_path / "p.glb").read_bytes()
    count = b'"count": %d, "type": "VEC4"' % num_vertices
    assert whole.count(count) == 2
    (tmp_path / "p.glb").write_bytes(whole.replace(count, count.replace(b"%d" % num_vertices, b"%2d" % 9), 1))
    with raises("file.damaged", about="lack numbers"):
        read_glb(tmp_path / "p.glb")


def test_noise_in_a_file_never_ends_in_a_traceback(tmp_path):
    whole = bytearray(write_person(tmp_path / "p.glb").read_bytes())
    rng = RNG(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 8):
            damaged[place] = rng.integers(256)
        path = tmp_path / "damaged.glb"
        path.write_bytes(damaged)
        try:
            read_glb(path)
        except ValueError as error:
            assert "damaged.glb" in str(error) and "\n" not in str(error)


def test_missing_parts_of_the_folder_and_models_of_no_scale_are_one_line(tmp_path):
    with raises("file.missing", about="nowhere"):
        read_assets(tmp_path / "nowhere")
    root = write_assets(tmp_path / "models")
    write_glb(root / "vehicles/tiny.glb", *boxes_mesh(((-0.01, 0, -0.02), (0.01, 0.015, 0.02))))
    with raises("file.content", about="vehicles/tiny.glb"):
        read_assets(root)
    (root / "vehicles/tiny.glb").unlink()
    write_person(root / "people/stiff.glb", animations=())
    with raises("file.content", about="people/stiff.glb"):
        read_assets(root)
    write_person(root / "people/stiff.glb")
    with_text(root / "people/stiff.glb", lambda text: text.replace(b"-0.1, 0]", b"-9.1, 0]"))
    with raises("file.content", about="people/stiff.glb"):
        read_assets(root)
    (root / "people/stiff.glb").unlink()
    (root / "textures/sky.png").unlink()
    with raises("file.missing", about="textures"):
        read_assets(root)


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [
        ("vehicles/a.glb", (-1, 2, -2), (1, 3.5, 2)),
        ("vehicles/a.glb", (-1, 0, 8), (1, 1.5, 12)),
        ("far_vehicles/a.glb", (-2, 0, -1), (2, 1.5, 1)),
        ("scenery/a.glb", (20, 0, -2), (30, 9, 2)),
    ],
)
def test_a_model_that_lies_elsewhere_or_faces_another_way_is_one_line(tmp_path, path, low, high):
    root = write_assets(tmp_path)
    write_glb(root / path, *boxes_mesh((low, high)))
    with raises("file.content", about=path):
        read_assets(root)


def test_models_of_two_folders_may_have_the_same_name(tmp_path):
    root = write_assets(tmp_path / "models")
    write_glb(root / "far_vehicles/car.glb", *boxes_mesh(((-1, 0, -4), (1, 3, 4))))
    assets, stage = read_assets(root), Stage()
    assert stage.model_mesh(assets.cars[0], 0.06).size_m[2] == pytest.approx(4)
    assert stage.model_mesh(assets.far[0], 0.06).size_m[2] == pytest.approx(8)


@pytest.mark.parametrize("name", ["textures/sky.png", "vehicles/car.glb"])
def test_a_name_that_is_not_utf_8_is_one_line(tmp_path, name):
    """OpenCV would end the process."""
    root = write_assets(tmp_path / "models")
    (root / name).rename(root / name.replace("/", os.fsdecode(b"/sky\xff")))
    with raises("file.name"):
        read_assets(root)


def test_pictures_become_grey_with_sides_that_are_powers_of_two():
    grey, opacity = grey_picture(np.full((300, 70, 4), 128, np.uint8))
    assert grey.shape == opacity.shape == (256, 64)
    assert grey_picture(np.full((9, 5), 40, np.uint8))[1] is None


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("num_channels", [1, 2, 3, 4])
def test_pictures_of_8_or_16_bits_have_one_to_four_channels(dtype, num_channels):
    """The last of two or four is the opacity."""
    picture = np.full((8, 8, num_channels), 90 * (np.iinfo(dtype).max // 255), dtype)
    picture[..., num_channels - 1] *= 2
    grey, opacity = grey_picture(picture)
    assert grey.dtype == np.uint8 and grey.shape == (8, 8)
    if num_channels % 2:
        assert opacity is None
    else:
        assert (opacity == 180).all() and (abs(grey.astype(int) - 90) <= 1).all()


@pytest.mark.parametrize("content", ["float32", "int32", "text", "cut"])
def test_a_texture_of_another_kind_is_refused_by_name(tmp_path, content):
    """A sky of numbers from 0 to 1 would be black."""
    root = write_assets(tmp_path)
    if content == "text":
        (root / "textures/sky.tiff").write_text("no picture")
    elif content == "cut":  # OpenCV would fill the rest with grey
        coded = cv2.imencode(".jpg", RNG(0).integers(0, 255, (64, 64), np.uint8))[1].tobytes()
        (root / "textures/sky.tiff").write_bytes(coded[: len(coded) // 2])
    else:
        cv2.imwrite(str(root / "textures/sky.tiff"), np.full((8, 8), 1, content))
    with raises("file.damaged", about="sky.tiff is no texture"):
        read_assets(root)


@pytest.mark.parametrize("name", [*KINDS, "empty"])
def test_every_kind_of_scene_is_drawn(name):
    kind = KINDS.get(name, EMPTY)
    assets = read_assets(assets_folder())
    for manner in kind.cameras:
        world = config().world
        scene = build_scene(assets, kind, manner, (48, 64), 150_000, world, RNG(1))
        images = [image for _, image in scene.frames([100_000], 3, 8)]
        assert images[0].shape == (48, 64) and len(images) > 10
        assert all(np.isfinite(image).all() for image in images)
        assert (scene.camera.is_moving) == (manner != "rest")
        assert bool(scene.actors) == (name != "empty")


def test_a_narrow_frame_of_a_small_sensor_has_a_column():
    world = replace(config().world, min_lines=16, max_lines=16)
    sensor = drawn_sensor((900, 16), world, RNG(0))
    assert (sensor.height, sensor.width) == (16, 1)


def test_kinds_are_drawn_among_those_that_are_named():
    rng = RNG(0)
    assert {drawn_kind(["square"], True, rng)[1] for _ in range(20)} == {"hand"}
    assert drawn_kind(["motorway"], False, rng) == (KINDS["motorway"], "car")
    with raises("setting.choice", about="synthetic.scenes"):
        config(scenes=["moon"]).check()
    with raises("setting.form", about="synthetic.scenes"):
        config(scenes=[]).check()


def test_the_same_seed_is_the_same_recording_with_any_number_of_workers(tmp_path):
    simulation = RENDERED_WORLD.sized(48, 64)
    for name, workers in (("one", 1), ("two", 2)):
        generate_dataset(config(workers=workers), tmp_path / name, simulation, progress=False)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 1 + 2 * 3
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_generation_that_is_killed_at_any_moment_keeps_what_is_complete_and_ends_with_the_same_bytes(tmp_path):
    def make(folder: Path) -> None:
        settings = config(num_train=1, duration_s=0.12)
        generate_dataset(settings, folder, RENDERED_WORLD.sized(48, 64), progress=False)

    def contents(folder: Path) -> dict[Path, bytes]:
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    (tmp_path / "whole").mkdir()
    make(tmp_path / "whole")
    was_kept = False
    for folder in killed_at_each_call(tmp_path, Path.mkdir, make):
        complete = {path: path.stat().st_mtime_ns for path in folder.rglob("*_bbox.npy")}
        make(folder)
        assert contents(folder) == contents(tmp_path / "whole")
        assert all(path.stat().st_mtime_ns == stamp for path, stamp in complete.items())
        was_kept |= len(complete) == 1
    assert was_kept


def test_a_lens_keeps_corners_and_bends_what_is_between_them():
    lens = build_lens(HEIGHT, WIDTH, 0.3)
    for column, x in ((0, 0.25), (-1, WIDTH - 0.25)):
        np.testing.assert_allclose((lens.x[0, column], lens.y[0, column]), (x, 0.25), atol=0.1)
    across = np.diff(lens.x[HEIGHT])
    assert across[WIDTH - 1] == pytest.approx(1.3 / SAMPLES, rel=0.01) and across[0] < across[WIDTH - 1]
    # What a pixel shows lies there: samples of a pixel of the source come back to it.
    x, y = (int(side[10, 15] * SAMPLES) for side in lens.source)
    assert (lens.x[y, x], lens.y[y, x]) == (pytest.approx(15.5, abs=1), pytest.approx(10.5, abs=1))


def test_boxes_follow_the_lens():
    scene = scene_of((1.0, 8.0), speed=1.0)
    scene.distortion = 0.4
    *_, (_, image) = scene.frames([200_000], 3, 8)
    plain = scene_of((1.0, 8.0), speed=1.0)
    list(plain.frames([200_000], 3, 8))
    (box,), (straight,) = scene.boxes, plain.boxes
    assert box["w"] > 1.15 * straight["w"]
    is_car = np.abs(image - image[0, 0]) > 0.05
    columns = np.flatnonzero(is_car[int(box["y"] + box["h"] / 2)])
    np.testing.assert_allclose((columns[0], columns[-1] + 1), (box["x"], box["x"] + box["w"]), atol=1.1)


def test_a_box_is_the_extent_of_what_the_lens_leaves_in_the_frame():
    """The lens moves a tall mast out of the frame, and leaves a part of its long foot."""
    lens = build_lens(HEIGHT, WIDTH, 0.5)
    is_covered = np.zeros((HEIGHT * SAMPLES, WIDTH * SAMPLES), np.bool_)
    is_covered[40:80, :4] = is_covered[56:64, :60] = True
    left, top, right, bottom, share = lens.part(is_covered)
    shown = is_covered[tuple(np.rint(side * SAMPLES).astype(int) for side in reversed(lens.source))]
    rows, columns = (np.flatnonzero(shown.any(axis)) for axis in (1, 0))
    np.testing.assert_allclose((left, right), (columns[0], columns[-1] + 1), atol=1)
    np.testing.assert_allclose((top, bottom), (rows[0], rows[-1] + 1), atol=1)
    assert bottom - top < 8 and 0.3 < share < 0.9
    # What lies outside is not counted as seen.
    assert not lens.is_inside[40, 0] and lens.is_inside[0, 0] and lens.is_inside[HEIGHT, WIDTH]


def test_a_folder_from_before_a_setting_had_the_usual_value(tmp_path):
    simulation = RENDERED_WORLD.sized(48, 64)
    generate_dataset(config(), tmp_path, simulation, progress=False, only=[])
    path = tmp_path / "synthetic.json"
    settings = json.loads(path.read_text())
    del settings["world"]["distortion"]
    path.write_text(json.dumps(settings))
    generate_dataset(config(), tmp_path, simulation, progress=False, only=[])
    with raises("run.other_settings", about="distortion"):
        world = replace(config().world, distortion=0.1)
        generate_dataset(config(world=world), tmp_path, simulation, progress=False, only=[])


def test_windows_are_lit_at_dusk_and_people_differ():
    assets = read_assets(assets_folder())
    for dusk_share in (0.0, 1.0):
        world = replace(config().world, dusk_share=dusk_share)
        scene = build_scene(assets, KINDS["square"], "rest", (48, 64), 100_000, world, RNG(1))
        glowing = scene.packed.material_kind[:, 1] == GLOWING
        is_lit = np.isin(scene.packed.material, np.flatnonzero(glowing))
        high = is_lit & (scene.packed.corners[:, :, 1].min(1) > 3.0)
        assert high.any() == bool(dusk_share)
    figures = [actor.figure for actor in scene.actors if actor.figure is not None]
    heights = [figure.stretch[1] for figure in figures]
    girths = [figure.stretch[0] / figure.stretch[1] for figure in figures]
    assert min(heights) < 0.9 < max(heights) and np.ptp(girths) > 0.1


def test_a_scene_without_objects_says_at_each_label_time_that_nothing_was_there():
    world = replace(config().world, empty_share=1.0)
    blocks, boxes = rendered_recording(config(world=world), "train", 0, (48, 64))
    assert (boxes["w"] == 0).all()
    np.testing.assert_array_equal(boxes["t"], config().label_times_us)
    assert sum(len(block) for block in blocks) > 0
    assert (rendered_recording(config(), "val", 0, (48, 64))[1]["w"] > 0).all()


def test_other_models_are_other_settings(tmp_path):
    root = write_assets(tmp_path / "models")
    before = digest(root)
    assert before == digest(assets_folder())
    (root / "textures/sky.png").write_bytes((root / "textures/sky.png").read_bytes() + b"\0")
    assert digest(root) != before
    for facts in ({"assets_sha256": "a"}, {"assets_sha256": "b"}):
        simulation = replace(RENDERED_WORLD, facts=facts)
        if facts["assets_sha256"] == "a":
            generate_dataset(config(), tmp_path / "raw", simulation, progress=False, only=[])
            continue
        with raises("run.other_settings", about="assets_sha256"):
            generate_dataset(config(), tmp_path / "raw", simulation, progress=False, only=[])


def test_models_that_change_while_recordings_are_made_end_the_generation(tmp_path, monkeypatch):
    """The recordings of a folder would be of different models, and its settings would name the first ones."""
    from rvtssm.cli.main import compose

    root = write_assets(tmp_path / "models")
    (root / "people/._one.glb").write_text("macOS keeps the properties of a file in such files")

    def changed(*arguments: object) -> RenderedScene:
        (root / "textures/sky.png").write_bytes((root / "textures/sky.png").read_bytes() + b"\0")
        return build_scene(*arguments)

    monkeypatch.setattr("rvtssm.contrib.worlds.rendered.rendered_world.build_scene", changed)
    words = [
        "dataset=rendered_world",
        f"assets={root}",
        f"dataset.raw_dir={tmp_path}/raw",
        "duration_s=0.1",
        "workers=1",
    ]
    words += ["dataset.height=48", "dataset.width=64", "num_train=2", "num_val=0", "num_test=0"]
    with raises("run.other_settings", about="have changed"):
        generate(compose(words, "generate"))
    assert [path.name for path in (tmp_path / "raw").rglob("*.npy")] == ["train_0000_bbox.npy"]


def test_the_verb_asks_for_the_folder_of_models(tmp_path):
    from rvtssm.cli.main import compose

    with raises("setting.missing", about="assets=DIR"):
        generate(compose(["dataset=rendered_world", f"dataset.raw_dir={tmp_path}/raw"], "generate"))
    assert not (tmp_path / "raw").exists()
    assert SPEC.class_names == DATASETS["open_world"].class_names
