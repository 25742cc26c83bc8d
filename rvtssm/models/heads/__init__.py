"""Heads: features become boxes, with the losses that train them."""
