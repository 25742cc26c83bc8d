"""The script that builds models from clones: what it writes is what the generator reads, placed as the page says."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from rvtssm.contrib.worlds.rendered.glb import read_glb

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import worlds_assets  # type: ignore[import-not-found]

COLLADA = """<?xml version="1.0"?><COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
<asset><unit name="inch" meter="0.5"/><up_axis>Z_UP</up_axis></asset>
<library_images><image id="image"><init_from>Leaves.tga</init_from></image></library_images>
<library_effects><effect id="effect"><profile_COMMON><newparam sid="s"><surface><init_from>image</init_from></surface>
</newparam><newparam sid="p"><sampler2D><source>s</source></sampler2D></newparam><technique><lambert><diffuse>
<texture texture="p"/></diffuse></lambert></technique></profile_COMMON></effect></library_effects>
<library_materials><material id="material"><instance_effect url="#effect"/></material></library_materials>
<library_geometries><geometry id="shape"><mesh>
<source id="points"><float_array>0 0 0 2 0 0 2 0 4 0 0 4</float_array>
<technique_common><accessor stride="3"/></technique_common></source>
<source id="places"><float_array>0 0 1 0 1 1 0 1</float_array>
<technique_common><accessor stride="2"/></technique_common></source>
<vertices id="vertices"><input semantic="POSITION" source="#points"/></vertices>
<polylist material="m" count="1"><input semantic="VERTEX" source="#vertices" offset="0"/>
<input semantic="TEXCOORD" source="#places" offset="1"/><vcount>4</vcount><p>0 0 1 1 2 2 3 3</p></polylist>
</mesh></geometry></library_geometries>
<library_visual_scenes><visual_scene id="scene"><node><rotate>0 0 1 90</rotate><scale>3 1 1</scale>
<instance_geometry url="#shape"><bind_material><technique_common><instance_material symbol="m" target="#material"/>
</technique_common></bind_material></instance_geometry></node></visual_scene></library_visual_scenes>
<scene><instance_visual_scene url="#scene"/></scene></COLLADA>"""


@pytest.fixture
def clones(tmp_path, monkeypatch):
    """A tree that is a sheet with holes (COLLADA), and a car of 2 x 1 x 4 (OBJ) whose picture a neighbour has."""
    models = tmp_path / "gazebo_models"
    for folder in ("tree/meshes", "tree/materials/textures", "car/meshes"):
        (models / folder).mkdir(parents=True)
    leaves = np.full((600, 300, 4), 90, np.uint8)
    leaves[:300, :, 3] = 0
    cv2.imwrite(str(models / "tree/materials/textures/leaves.png"), leaves)
    (models / "tree/meshes/tree.dae").write_text(COLLADA)
    points = [(x, y, z) for x in (0, 4) for y in (0, 2) for z in (0, 1)]
    lines = ["mtllib car.mtl", *(f"v {x} {y} {z}" for x, y, z in points), "vt 0 0", "usemtl paint"]
    (models / "car/meshes/car.obj").write_text("\n".join([*lines, "f 1/1 3/1 7/1 5/1", "f 2/1 4/1 8/1"]))
    (models / "car/meshes/car.mtl").write_text("newmtl paint\nKd 0.2 0.2 0.2\nmap_Kd model://tree/leaves.png\n")
    texture = tmp_path / "OSM2World-default-style/textures/road.png"
    texture.parent.mkdir(parents=True)
    cv2.imwrite(str(texture), leaves[..., :3])
    monkeypatch.setattr(worlds_assets, "VEHICLES", {"car": worlds_assets.Source(turns=1, length_m=5.0)})
    monkeypatch.setattr(worlds_assets, "SCENERY", {"tree": worlds_assets.Source(scale=2.0)})
    monkeypatch.setattr(worlds_assets, "TEXTURES", {"road.jpg": "road.png"})
    return tmp_path


def test_models_stand_centred_in_metres_with_their_front_ahead(clones, tmp_path):
    worlds_assets.main(str(clones), str(tmp_path / "out"))
    car = read_glb(tmp_path / "out/vehicles/car.glb")
    np.testing.assert_allclose(car.bounds, [(-1.25, 0, -2.5), (1.25, 1.25, 2.5)], atol=1e-6)
    assert sum(len(surface.faces) for surface in car.surfaces) == 3
    # The sheet of 2 x 4 units of 0.5 m is drawn out 3 times, turned, and twice as large.
    tree = read_glb(tmp_path / "out/scenery/tree.glb")
    np.testing.assert_allclose(tree.bounds, [(0, 0, -3), (0, 4, 3)], atol=1e-6)
    (sheet,) = tree.surfaces
    assert sheet.is_two_sided and sheet.opacity is not None
    heights = sheet.vertices[:, 1]
    np.testing.assert_allclose(sheet.uv[:, 1], heights / 4, atol=1e-6)
    picture = cv2.imread(str(tmp_path / "out/textures/road.jpg"))
    assert picture.shape == (512, 512, 3)


def test_the_script_says_how_it_is_called():
    called = subprocess.run([sys.executable, worlds_assets.__file__], capture_output=True, text=True)
    assert called.returncode and called.stderr == "usage: python scripts/worlds_assets.py CLONES MODELS\n"


def test_clones_without_a_model_are_one_line(clones, tmp_path):
    (clones / "gazebo_models/car/meshes/car.obj").unlink()
    with pytest.raises(SystemExit, match="car has no model"):
        worlds_assets.main(str(clones), str(tmp_path / "out"))
