"""A command from outside."""

from __future__ import annotations

import pytest
import yaml

from tests.plugins.test_aggregates import SPEC
from windowmill.jobs.cli import main
from windowmill.jobs.commands import command_of
from windowmill.plugins import register_command
from windowmill.windowing.errors import PluginError

TOY = "tests.plugins.toys.command"
PLAIN = SPEC | {"aggregates": {"n": {"count": "*"}}}


@pytest.fixture
def spec(tmp_path):
    def written(**fields) -> str:
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(PLAIN | fields))
        return str(path)

    return written


def test_it_runs_with_its_arguments_and_exit_code(plug, spec, capsys):
    plug(TOY)
    assert main(["keys", spec(keys=["shop", "city"]), "--separator", "/"]) == 0
    assert capsys.readouterr().out == "shop/city\n"
    assert main(["keys", spec(keys=[])]) == 4


@pytest.mark.parametrize(("returned", "code"), [(True, 0), (False, 0), ("text", 0), (None, 0), (5, 5)])
def test_only_a_whole_number_is_an_exit_code(plug, returned, code):
    register_command("answer")(lambda: returned)
    assert main(["answer"]) == code


def test_errors_are_told_as_those_of_any_command(plug, spec, capsys):
    plug(TOY)
    assert main(["keys", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err.startswith("windowmill: 'nowhere.yaml': cannot be read")
    assert main(["keys", spec(), "--seperator", "/"]) == 2
    assert "No such option: --seperator" in capsys.readouterr().err


def test_help_lists_it_after_windowmills_own(plug, capsys):
    plug(TOY)
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert listed.index("│ doctor ") < listed.index("│ keys ") < listed.index("Print the keys of a pipeline; 4 if it has none.")


def test_one_that_nobody_has_is_refused(plug, capsys):
    plug(TOY)
    assert main(["kyes"]) == 2
    assert capsys.readouterr().err == "windowmill: No such command 'kyes'. Did you mean 'keys'?; see `windowmill --help`\n"


def test_windowmills_own_cannot_be_replaced(plug):
    with pytest.raises(PluginError, match="the command 'run' is registered by windowmill itself already"):
        register_command("run")(lambda: None)
    assert command_of("run").__module__ == "windowmill.jobs.commands.batch_commands"
