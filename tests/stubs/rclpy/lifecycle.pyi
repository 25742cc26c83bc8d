from enum import Enum

from rclpy.node import Node, Publisher
from rclpy.qos import QoSProfile

class TransitionCallbackReturn(Enum):
    SUCCESS = 97
    FAILURE = 98

class LifecycleNode(Node):
    def create_lifecycle_publisher(self, msg_type: type, topic: str, qos_profile: QoSProfile | int) -> Publisher: ...
    def on_activate(self, state: object) -> TransitionCallbackReturn: ...
    def trigger_configure(self) -> TransitionCallbackReturn: ...
    def trigger_activate(self) -> TransitionCallbackReturn: ...
