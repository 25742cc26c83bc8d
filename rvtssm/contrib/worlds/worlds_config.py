"""The settings of open worlds and of `rvtssm simulate`. This file does not import the renderer."""

import random
from dataclasses import dataclass, field, replace

from rvtssm.cli.inputs import needed
from rvtssm.contrib.demo.demo_config import DemoSettings
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.contrib.worlds.rendered.scene_kinds import KINDS
from rvtssm.records.settings import SPLITS
from rvtssm.system.limits import Settings, check_choice, check_number, setting
from rvtssm.system.user_error import UserError


@dataclass
class WorldConfig(Settings, section="synthetic.world"):
    """What the recordings of dataset=open_world show. A share of 0 removes that part of the world."""

    indoor_share: float = setting(0.3, at_least=0, at_most=1)
    """Share of the recordings in a room; the others are outdoors."""
    dark_share: float = setting(0.2, at_least=0, at_most=1)
    """Share of the recordings at night or in a dim room."""
    crowd_share: float = setting(0.15, at_least=0, at_most=1)
    """Share of the recordings with up to three times as many actors."""
    plain_share: float = setting(0.0, at_least=0, at_most=1)
    """Share of the training recordings outdoors by day, without crowds, animals and clutter."""
    empty_share: float = setting(0.0, at_least=0, at_most=1)
    """Share of the training recordings in which nobody is there."""
    far_share: float = setting(0.0, at_least=0, at_most=1)
    """Share of the recordings whose actors are at most five times as large as the smallest."""
    dusk_share: float = setting(0.0, at_least=0, at_most=1)
    """Share of the outdoor recordings by day with little light."""
    drive_share: float = setting(0.0, at_least=0, at_most=1)
    """Share of the outdoor recordings with a moving camera from a car at 20 to 60 km/h in traffic."""
    group_share: float = setting(0.0, at_least=0, at_most=1)
    """Share of the people who walk beside the person placed before them."""
    max_actors: int = setting(9, at_least=0)
    """Most people, vehicles and two-wheelers that are placed."""
    max_animals: int = setting(2, at_least=0)
    """Most dogs, which have no label."""
    max_clutter: int = setting(8, at_least=0)
    """Most trees, flags, posts, signs, screens, water and furniture."""
    min_object_px: float = setting(12.0, at_least=4)
    """Height of the smallest person when placed; half of it for vehicles and animals."""
    max_object_px: float = setting(300.0, at_least=4)
    """Height of the largest person when placed; half of it for vehicles and animals."""
    min_lines: int = setting(96, at_least=16)
    """Fewest lines of the sensor, drawn per recording; of a larger sensor the frame shows a part."""
    max_lines: int = setting(720, at_least=16)
    """Most lines of the sensor; a sensor smaller than the frame leaves the rest of it empty."""
    lens_blur: float = setting(1.0, at_least=0)
    """Strongest blur of the lens, standard deviation in pixels; 0: none."""
    distortion: float = setting(0.0, at_least=0, at_most=0.5)
    """Strongest distortion of the lens of rendered worlds: how much more it magnifies in the middle than at corners."""

    def plain(self) -> "WorldConfig":
        """Return the settings of an easy world, which a short training learns first."""
        return replace(self, indoor_share=0.0, dark_share=0.0, crowd_share=0.0, max_animals=0, max_clutter=0)

    def empty(self) -> "WorldConfig":
        """Return the settings of a world without people, vehicles and two-wheelers."""
        return replace(self, crowd_share=0.0, max_actors=0)


@dataclass
class OpenWorldConfig(SyntheticConfig):
    """What to generate, open and rendered worlds included."""

    world: WorldConfig = field(default_factory=WorldConfig)
    assets: str | None = setting(None, is_path=True)
    """Folder of the 3D models of dataset=rendered_world (rvtssm/contrib/worlds/assets.md)."""
    scenes: list[str] | None = None
    """Kinds of scenes of dataset=rendered_world; null: all."""

    @property
    def assets_folder(self) -> str:
        """The folder of the models; UserError if none is named."""
        return needed(self.assets, "assets=DIR", "the folder of 3D models; see rvtssm/contrib/worlds/assets.md")

    def is_empty(self, split: str, index: int) -> bool:
        """Return whether a recording, which is one for training, shows nobody."""
        return split == "train" and random.Random(f"{self.seed} {index} empty").random() < self.world.empty_share

    def check(self) -> None:
        """Raise a UserError for settings that cannot be generated."""
        super().check()
        if self.scenes == []:
            raise UserError("setting.form", name="synthetic.scenes", found="[]", needed="at least one kind of scene")
        for name in self.scenes or ():
            check_choice("synthetic.scenes", name, KINDS)
        world = self.world
        check_number("synthetic.world.max_object_px", world.max_object_px, world.min_object_px)
        check_number("synthetic.world.max_lines", world.max_lines, world.min_lines)


@dataclass
class SimulateConfig(Settings, section="simulate"):
    """What `rvtssm simulate` turns into events. `sensor=NAME` selects the camera."""

    video: str | None = setting(None, is_path=True)
    """A video file, or a folder of pictures, which are sorted by name."""
    labels: str | None = setting(None, is_path=True)
    """MOT text, COCO JSON, or a folder with one YOLO text or Pascal VOC XML file per frame."""
    label_format: str | None = setting(None, choices=("mot", "coco", "yolo", "voc", None))
    """mot, coco, yolo or voc; null: by suffix (.txt mot, .json coco), or by files."""
    label_columns: list[str] | None = None
    """YOLO: what the numbers of a line are, such as [class,cx,cy,w,h,track]; null: class cx cy w h."""
    label_hz: float | None = setting(None, above=0)
    """Interpolate boxes along tracks to this rate; null: labels at the frames."""
    classes: list[str] | None = None
    """MOT, YOLO: names of the class numbers; COCO, VOC: names of the classes to keep."""
    fps: float | None = setting(None, above=0)
    """Frames per second; null: the rate in the video file; a folder needs a number."""
    linear: bool | None = None
    """Whether pixel values are proportional to light; null: no with 8 bits (sRGB), else yes."""
    max_motion_px: float = setting(1.0, above=0)
    """Largest motion between two interpolated frames."""
    split: str = setting("train", choices=SPLITS)
    """Split of the dataset to write: train, val or test."""


@dataclass
class WorldsConfig(DemoSettings):
    """All settings, with those of open worlds and of videos."""

    synthetic: OpenWorldConfig = field(default_factory=OpenWorldConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)


def video_path(config: WorldsConfig) -> str:
    """Return what to simulate; raise UserError if it or the folder to write to is missing."""
    needed(config.out, "out=DIR", "the folder of the dataset that is written")
    return needed(config.simulate.video, "video=FILE", "a video file, or a folder of pictures")
