"""Write detections as `vision_msgs/Detection2DArray` to an MCAP file, which ROS 2 and its viewers can open.

The file contains the definitions of its messages, those of vision_msgs 4 (ROS 2 Humble and later).
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.detection.result_files import ResultContext, Write
from rvtssm.detection.window_results import WindowResult
from rvtssm.records import Detections
from rvtssm.system.extras import check_extra
from rvtssm.system.output_folder import free_number, numbered_name
from rvtssm.system.user_error import UserError

TOPIC = "/detections"
FRAME_ID = "event_camera"
_ARRAY = "vision_msgs/msg/Detection2DArray"
_DEFINITIONS = {
    "vision_msgs/msg/Point2D": "float64 x\nfloat64 y\n",
    "vision_msgs/msg/Pose2D": "vision_msgs/Point2D position\nfloat64 theta\n",
    "vision_msgs/msg/BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score\n",
    "vision_msgs/msg/ObjectHypothesisWithPose": (
        "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n"
    ),
    "vision_msgs/msg/Detection2D": (
        "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\nvision_msgs/BoundingBox2D bbox\n"
        "string id\n"
    ),
    _ARRAY: "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
}
_LATEST_US = (1 << 31) * 1_000_000  # the seconds of a message are an int32


@contextmanager
def open_detection_bag(path: Path, context: ResultContext) -> Iterator[Write]:
    """Yield a function that writes the detections of one window as one message, with the time of the window's end.

    If the events come from a bag, this is the time on the clock of its messages, so that both bags play together.

    `class_id` is the name of the class; `id` is the number of the track, or empty.

    Args:
        path: The file to write.
        context: Names the classes.

    Raises:
        UserError: The package `rosbags` is not installed.
    """
    check_extra("formats=[mcap]", "bags", "rosbags")
    from rosbags.rosbag2 import StoragePlugin, Writer  # an optional package
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    for kind, definition in _DEFINITIONS.items():
        store.register(get_types_from_msg(definition, kind))
    # The library writes the folder of a bag; that of a run that was killed stays, because it holds what was found.
    name = f"{path.stem}.folder"
    folder = path.with_name(numbered_name(name, free_number(path.parent, [name])))
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection(TOPIC, _ARRAY, typestore=store)

        def append(result: WindowResult) -> None:
            frame = replace(result.detections, t_us=result.t_us + context.stamp_offset_us)
            if not 0 <= frame.t_us < _LATEST_US:
                needed = f"a message cannot have the time {frame.t_us} us: leave mcap out"
                raise UserError("setting.conflict", name="formats", found="[mcap]", needed=needed)
            message = _message(store.types, frame, context)
            writer.write(connection, 1000 * frame.t_us, store.serialize_cdr(message, _ARRAY))

        yield append
    (folder / f"{folder.name}.mcap").rename(path)
    shutil.rmtree(folder)


def _message(types: Any, frame: Detections, context: ResultContext) -> Any:
    header = types["std_msgs/msg/Header"](
        stamp=types["builtin_interfaces/msg/Time"](frame.t_us // 1_000_000, frame.t_us % 1_000_000 * 1000),
        frame_id=context.frame_id or FRAME_ID,
    )
    point = types["geometry_msgs/msg/Point"](0.0, 0.0, 0.0)
    quaternion = types["geometry_msgs/msg/Quaternion"]
    nowhere = types["geometry_msgs/msg/PoseWithCovariance"](
        types["geometry_msgs/msg/Pose"](point, quaternion(0.0, 0.0, 0.0, 1.0)), np.zeros(36)
    )
    detections = []
    track_ids = np.zeros(len(frame), np.int64) if frame.track_id is None else frame.track_id
    columns = (frame.xyxy.tolist(), frame.class_id.tolist(), frame.score.tolist(), track_ids.tolist())
    for (left, top, right, bottom), class_id, score, track_id in zip(*columns, strict=True):
        center = types["vision_msgs/msg/Point2D"]((left + right) / 2, (top + bottom) / 2)
        box = types["vision_msgs/msg/BoundingBox2D"](
            types["vision_msgs/msg/Pose2D"](center, 0.0), right - left, bottom - top
        )
        hypothesis = types["vision_msgs/msg/ObjectHypothesis"](context.spec.class_names[class_id], score)
        results = [types["vision_msgs/msg/ObjectHypothesisWithPose"](hypothesis, nowhere)]
        detections.append(types["vision_msgs/msg/Detection2D"](header, results, box, str(track_id or "")))
    return types[_ARRAY](header, detections)
