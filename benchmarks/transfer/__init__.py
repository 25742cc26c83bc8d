"""What weights that were trained on simulation find on what they never saw, and what a few labels add."""
