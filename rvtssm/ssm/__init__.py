"""The recurrence: temporal layers over sequences (L, N, D) with explicit state, at any rate."""
