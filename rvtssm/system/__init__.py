"""Files, locks, processes, memory and optional packages; nothing about events."""
