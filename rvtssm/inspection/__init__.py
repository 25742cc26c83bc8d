"""Measure what recordings and datasets contain, in one pass: numbers to print, JSON and pictures."""
