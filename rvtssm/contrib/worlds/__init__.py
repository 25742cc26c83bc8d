"""Open worlds and their renderer, and video that becomes events."""
