"""Where plugins are found, when they are imported, and what is said when that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.plugins.test_aggregates import SPEC
from windowmill.jobs.cli import main
from windowmill.jobs.commands.doctor import Check, check_plugins
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.errors import PluginError
from windowmill.windowing.registry import Plugin, all_added, named_plugins
from windowmill.windowing.settings import PLUGINS

ALIAS = """
from windowmill.plugins import Declaration, register_aggregate

register_aggregate(Declaration("{name}", recipe="windowmill.windowing.kernels.recipes:MEAN", plain="statistics:fmean", takes="number"))
"""


def validate(folder: Path, function: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``windowmill validate`` of a spec that names ``function``, in ``folder``."""
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(SPEC | {"aggregates": {"x": {function: "price"}}}))
    command = [sys.executable, "-m", "windowmill.jobs.cli", "validate", "spec.yaml"]
    return subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_module_of_the_working_directory_is_found(tmp_path):
    (tmp_path / "averages.py").write_text(ALIAS.format(name="average"))
    done = validate(tmp_path, "average", WINDOWMILL_PLUGINS="averages")
    assert (done.returncode, done.stderr) == (0, "")


def install(folder: Path, entry_point: str) -> tuple[Path, str]:
    """A distribution with a plugin, as ``pip install`` leaves it: its folder, and a PYTHONPATH with it."""
    installed = folder / "site"
    (installed / "shop-1.0.dist-info").mkdir(parents=True)
    (installed / "shop-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (installed / "shop-1.0.dist-info" / "entry_points.txt").write_text(f"[windowmill.plugins]\nshop = {entry_point}\n")
    (installed / "shop_windows.py").write_text(ALIAS.format(name="average"))
    return installed, os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])


def test_an_entry_point_that_names_no_module_is_told(tmp_path):
    _, path = install(tmp_path, "shop windows")
    done = validate(tmp_path, "average", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("windowmill: plugin 'shop windows', named by the distribution shop, cannot be imported (")


def test_an_installed_distribution_names_one(tmp_path):
    installed, path = install(tmp_path, "shop_windows")
    assert validate(tmp_path, "average", PYTHONPATH=path).returncode == 0
    (installed / "shop_windows.py").write_text("1 / 0")
    done = validate(tmp_path, "average", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr == (
        "windowmill: plugin 'shop_windows', named by the distribution shop, cannot be imported (ZeroDivisionError: division by zero); "
        "correct it, put its folder on PYTHONPATH, or uninstall the distribution shop\n"
    )


def test_a_pipeline_that_uses_no_plugin_waits_for_none(tmp_path):
    assert validate(tmp_path, "mean", WINDOWMILL_PLUGINS="nowhere").returncode == 0


def test_one_that_is_not_there_is_told_in_one_line(plug, tmp_path, capsys):
    plug("nowhere.at_all")
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    for _ in range(2):
        assert main(["validate", str(spec)]) == 2
        assert capsys.readouterr().err == (
            "windowmill: plugin 'nowhere.at_all', named by WINDOWMILL_PLUGINS, cannot be imported (ModuleNotFoundError: No module named "
            "'nowhere'); correct it, put its folder on PYTHONPATH, or take it out of WINDOWMILL_PLUGINS\n"
        )


def test_two_plugins_of_one_name_are_told_apart(plug, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("averages_one", "averages_two"):
        (tmp_path / f"{module}.py").write_text(ALIAS.format(name="average"))
    plug("averages_one", "averages_two")
    for _ in range(2):
        with pytest.raises(
            PluginError, match="plugin 'averages_two': the aggregate 'average' is registered by averages_one already; give it another name"
        ):
            "average" in DECLARED  # noqa: B015 - asking is what imports plugins


def test_a_built_in_name_stays_what_it_is(plug, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "averages_three.py").write_text(ALIAS.format(name="mean"))
    plug("averages_three")
    assert DECLARED["mean"].recipe == "windowmill.windowing.kernels.recipes:MEAN"
    with pytest.raises(PluginError, match="plugin 'averages_three': the aggregate 'mean' is registered by windowmill itself already"):
        list(DECLARED)


def test_each_is_imported_once_although_named_twice(plug, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "averages_four.py").write_text(ALIAS.format(name="average"))
    plug("averages_four", " averages_four ", "")
    assert [found for found in named_plugins() if found.named_by == PLUGINS.name] == [Plugin("averages_four", "WINDOWMILL_PLUGINS")]
    assert all_added() == [("aggregate", "average", "averages_four")]
    assert DECLARED.module_of("average") == "averages_four"
    assert DECLARED.module_of("mean") is None


def test_a_plugin_may_ask_a_registry_while_it_is_imported(plug, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    asking = "from windowmill.windowing.catalogue import DECLARED\nassert 'average' not in DECLARED\n"
    (tmp_path / "averages_five.py").write_text(asking + ALIAS.format(name="average"))
    plug("averages_five")
    assert "average" in DECLARED


def test_a_cell_of_a_notebook_may_run_again(plug):
    for _ in range(2):
        exec(ALIAS.format(name="average"), {"__name__": "__main__"})
    assert DECLARED.module_of("average") == "__main__"


def test_an_interrupted_import_does_not_pass_for_a_whole_one(plug, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_averages.py").write_text("raise KeyboardInterrupt")
    plug("slow_averages")
    with pytest.raises(KeyboardInterrupt):
        list(DECLARED)
    with pytest.raises(PluginError, match="the import of plugins was interrupted, and some are missing; start this process again"):
        list(DECLARED)


def test_doctor_lists_them(plug):
    assert check_plugins() == []
    plug("tests.plugins.toys.window", "tests.plugins.toys.command")
    found = "tests.plugins.toys.window (named by WINDOWMILL_PLUGINS), tests.plugins.toys.command (named by WINDOWMILL_PLUGINS): "
    [check] = check_plugins()
    assert (check.name, check.ok) == ("Plugins", True)
    assert check.found.startswith(found)
    added = set(check.found.removeprefix(found).split(", "))
    assert added == {"window type each of tests.plugins.toys.window", "command keys of tests.plugins.toys.command"}
    plug("nowhere")
    assert check_plugins() == [
        Check(
            "Plugins",
            False,
            "plugin 'nowhere', named by WINDOWMILL_PLUGINS, cannot be imported (ModuleNotFoundError: No module named 'nowhere')",
            "correct it, put its folder on PYTHONPATH, or take it out of WINDOWMILL_PLUGINS",
        )
    ]
