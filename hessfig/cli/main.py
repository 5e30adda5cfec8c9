"""The command line: `hessfig VERB key=value ...`. Verbs import what they need when they run."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Any

from hessfig.cli.flags import read
from hessfig.cli.verbs import VERBS, Verb
from hessfig.errors import UserError, did_you_mean

EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130
_HELP = ("-h", "--help", "help")


def main(arguments: list[str] | None = None) -> None:
    """Run one verb and exit: 0 done, 1 some cells or checks failed, 2 bad input, 130 interrupted."""
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module="torch.jit"
    )  # TransformerLens's, not the user's
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = _dispatch(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    except BrokenPipeError:  # whoever reads, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        print("interrupted: finished cells are kept; run the same command to go on", file=sys.stderr)
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in _HELP:
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"hessfig {import_module('hessfig').__version__}")
        return 0
    return _run(_verb(arguments[0]), arguments[1:])


def _verb(name: str) -> Verb:
    if name not in VERBS:
        raise UserError(
            f"there is no verb {name!r}",
            got=name,
            allowed=", ".join(VERBS),
            remedy=did_you_mean(name, VERBS) or "`hessfig --help` says what each is for",
        )
    return VERBS[name]


def _run(verb: Verb, rest: list[str]) -> int:
    if not verb.composed and not set(rest) & set(_HELP):
        return _function(verb.does)(rest)
    command = read(rest)
    if command.asks_help or not verb.composed:
        print(import_module("hessfig.cli.help").verb_help(verb, command.own))
        return 0
    return import_module("hessfig.cli.dispatch").run(verb, command, _function(verb.does))


def _function(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def overview() -> str:
    """Return what `hessfig` alone prints."""
    verbs = "\n".join(f"  {verb.name:<11} {verb.about}" for verb in VERBS.values())
    return (
        "hessfig: measure the Hessian of a transformer, block by block, and redraw the figures that rest on it.\n\n"
        "usage: hessfig VERB key=value ...\n\n"
        f"verbs:\n{verbs}\n\n"
        "start:  hessfig run sweep=sigma && hessfig plot figure=3a\n"
        "help:   hessfig run --help        (settings, and the sweeps with a line each)"
    )


if __name__ == "__main__":
    main()
