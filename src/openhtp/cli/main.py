"""``openhtp``: finds the commands in this folder, and loads only the one that is called."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import openhtp.cli
from openhtp.cli._terminal import INTERRUPTED, complain, end_of_pipe, note_process_start, say, settle_streams
from openhtp.core.foreign_text import printable


class _Folder(TyperGroup):
    """Commands are modules: some need a third of a second to import, and a call needs one of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        names = [module.name for module in pkgutil.iter_modules(openhtp.cli.__path__)]
        return sorted(name.replace("_", "-") for name in names if name != "main" and not name.startswith("_"))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load a command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        word = cmd_name.replace("-", "_")
        try:
            module = importlib.import_module(f"openhtp.cli.{word}")
        except KeyboardInterrupt:
            complain(f"interrupted: {cmd_name} had not begun", "yellow")
            raise
        group = getattr(module, "app", None)
        if group is None:
            group = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
            group.command(cmd_name)(getattr(module, word))
        command = typer.main.get_command(group)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print help in boxes, as every command's own help is. Errors of usage have none (see ``app``)."""
        from typer import rich_utils

        overview = CommandOverview(name=self.name, params=self.params, help=self.help)
        rich_utils.rich_format_help(obj=overview, ctx=ctx, markup_mode="rich")

    def invoke(self, ctx: Any) -> Any:
        """Run a command; if its reader has gone, or on Ctrl-C, end with the status that shells expect."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            end_of_pipe()
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except Exception as error:
            # The parser repeats words of the command line as they are, and any of them may be the name of a file.
            words = getattr(error, "message", None)
            if hasattr(error, "format_message") and isinstance(words, str):
                vars(error)["message"] = printable(words)
            raise


class CommandOverview(_Folder):
    """The commands with what each is for, read in their files: to import them all takes seconds."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command that can be listed, not run."""
        return TyperCommand(cmd_name, help=_purpose(cmd_name.replace("-", "_")))


def _purpose(word: str) -> str | None:
    """The help of a group's ``app``, or the docstring of the function that is the command."""
    tree = ast.parse(Path(openhtp.cli.__path__[0], f"{word}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "help" and ast.unparse(node.targets[0]) == "app":
                    return str(ast.literal_eval(keyword.value))
        elif isinstance(node, ast.FunctionDef) and node.name == word:
            return ast.get_docstring(node)
    return None


app = typer.Typer(
    cls=_Folder,
    help="An open HTP: queue graphs, plan and see what several models do to each other on one NPU.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # In a box, an error would be broken wherever the terminal ends, in the middle of the path that it names.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"openhtp {openhtp.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options before any command."""


def main() -> None:
    """Entry point."""
    settle_streams()
    note_process_start()
    app()
