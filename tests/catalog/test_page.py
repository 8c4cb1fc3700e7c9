"""The page about catalogs shows what its commands print, with a Hive metastore."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.catalog.metastores import Player, hive
from tests.docs.console import ROOT, settled

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1_200)]

PAGE = ROOT / "docs" / "how-to" / "catalog.md"


def played(player: Player) -> str:
    """The page with what its commands print now."""
    with TemporaryDirectory() as folder:  # a short path: tables wrap the long one of pytest
        return player.page(PAGE, Path(folder))


def test_the_page_shows_what_its_commands_print(hive):
    assert settled(played(hive)) == settled(PAGE.read_text()), "`python -m tests.catalog.test_page` writes what is printed now"


if __name__ == "__main__":
    with TemporaryDirectory() as temporary, hive(Path(temporary)) as playing:
        PAGE.write_text(played(playing))
    sys.exit(0)
