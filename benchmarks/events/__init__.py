"""Speed of reading, counting, preparing and loading events, against what else exists: `python -m benchmarks.events`."""
