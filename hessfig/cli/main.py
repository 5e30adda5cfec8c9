"""The command line: `hessfig VERB key=value ...`. Verbs import what they need when they run."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module

from hessfig.errors import UserError, did_you_mean

VERBS = {
    "run": "measure the cells of a sweep that are not finished; write its table",
    "plot": "draw a figure from a sweep's table",
    "slopes": "fit growth rates to a sweep's curves, with errors",
    "check": "fail when a slope is outside its tolerance (regression gate)",
    "compare": "compare a sweep's curves with published values",
    "verify": "check every statement of the theory against automatic differentiation",
    "status": "say how much of a sweep is measured",
    "completion": "print the bash completion script",
}
EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130


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
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"hessfig {import_module('hessfig').__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise UserError(
            f"there is no verb {verb!r}", got=verb, allowed=", ".join(VERBS), remedy=did_you_mean(verb, VERBS)
        )
    if "-h" in rest or "--help" in rest:
        print(import_module("hessfig.cli.help").verb_help(verb))
        return 0
    return (
        import_module("hessfig.cli.completion").run(rest)
        if verb == "completion"
        else import_module("hessfig.cli.verbs").run(verb, rest)
    )


def overview() -> str:
    """Return what `hessfig` alone prints."""
    verbs = "\n".join(f"  {name:<11} {about}" for name, about in VERBS.items())
    return (
        "hessfig: measure the Hessian of a transformer, block by block, and redraw the figures that rest on it.\n\n"
        "usage: hessfig VERB key=value ...\n\n"
        f"verbs:\n{verbs}\n\n"
        "start:  hessfig run sweep=sigma && hessfig plot figure=3a\n"
        "help:   hessfig run --help        (settings, and the sweeps with a line each)"
    )


if __name__ == "__main__":
    main()
