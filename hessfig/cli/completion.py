"""Completes command lines in bash, zsh and fish, by argcomplete (docs/commands.md)."""

import argparse
from collections.abc import Sequence
from typing import Any

import argcomplete
from argcomplete.completers import DirectoriesCompleter

from hessfig.cli.help import candidates


def complete() -> None:
    """Print what the last word of the line may become, if a shell asks for it, and end the process."""
    # Flags are words as any other.
    parser = argparse.ArgumentParser(add_help=False, prefix_chars="\0")
    words: Any = parser.add_argument("words", nargs="*")
    words.completer = _offered
    argcomplete.autocomplete(parser, append_space=False)


def _offered(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> Sequence[str]:
    before = list(parsed_args.words or ())
    if before[-1:] in (["--config-dir"], ["-cd"]):
        return list(DirectoriesCompleter()(prefix))
    return candidates([*before, prefix])
