"""``python -m examples.clickstream``."""

from __future__ import annotations

from examples.clickstream.example import EXAMPLE
from examples.deliveries import main

main(EXAMPLE)
