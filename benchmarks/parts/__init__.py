"""What each combination of backbone and head reaches on the data of the demo, and what it costs."""
