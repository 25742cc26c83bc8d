"""Procedural traffic and an event camera in software: recordings with exact boxes. No torch."""
