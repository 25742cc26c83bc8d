"""Procedural scenes of traffic as functions of time: pictures for a camera and the boxes of what is in them."""

from rvtssm.events.scenes.actors import CAR, PEDESTRIAN, Actor, Journey, SceneConfig
from rvtssm.events.scenes.scene import MIN_VISIBLE, Scene, build_scene

__all__ = ["CAR", "MIN_VISIBLE", "PEDESTRIAN", "Actor", "Journey", "Scene", "SceneConfig", "build_scene"]
