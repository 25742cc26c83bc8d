"""The ROS 2 package of the node `event_detector`."""
