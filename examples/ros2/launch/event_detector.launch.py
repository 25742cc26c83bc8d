"""Starts the node with its parameters as arguments: `ros2 launch rvtssm_ros event_detector.launch.py hz:=50.0`."""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from rvtssm_ros.parameters import PARAMETERS


def generate_launch_description() -> LaunchDescription:
    """Return the node, and an argument for every parameter and for the topic of the events."""
    arguments = [DeclareLaunchArgument("events", default_value="/event_camera/events", description="topic of events")]
    values = {}
    for name, (default, description) in PARAMETERS.items():
        arguments.append(DeclareLaunchArgument(name, default_value=str(default), description=description))
        # A rate is a number or `auto`, so that launch takes the type from what is given.
        kind = None if name == "hz" else type(default)
        values[name] = ParameterValue(LaunchConfiguration(name), value_type=kind)
    node = Node(
        package="rvtssm_ros",
        executable="event_detector",
        parameters=[values],
        remappings=[("events", LaunchConfiguration("events"))],
        output="screen",
    )
    return LaunchDescription([*arguments, node])
