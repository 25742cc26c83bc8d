"""Draws events and boxes as pictures and videos, and shows them in a viewer."""
