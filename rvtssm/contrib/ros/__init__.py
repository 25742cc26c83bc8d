"""Detections in bags of ROS, and its node."""
