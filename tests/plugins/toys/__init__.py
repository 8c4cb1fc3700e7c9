"""Plugins as users write them."""
