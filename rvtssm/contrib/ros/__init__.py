"""Optional: bags of ROS with events or detections, and live messages; README.md says more."""
