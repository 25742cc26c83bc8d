"""Sources of events, schedules of windows, live detection and its latency."""
