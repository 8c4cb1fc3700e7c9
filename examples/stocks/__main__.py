"""``python -m examples.stocks``."""

from __future__ import annotations

from examples.deliveries import main
from examples.stocks.example import EXAMPLE

main(EXAMPLE)
