"""``python -m examples.glucose``."""

from __future__ import annotations

from examples.deliveries import main
from examples.glucose.example import EXAMPLE

main(EXAMPLE)
