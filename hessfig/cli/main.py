"""The command line: `hessfig VERB key=value ...`. Verbs import what they need when they run."""

import errno
import gc
import os
import sys
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from hessfig.cli.flags import read_command
from hessfig.cli.terminal import print_plain, take_signals, take_streams
from hessfig.errors import UserError, did_you_mean, too_few_files
from hessfig.verbs import VERBS, Verb

EXIT_BAD_INPUT, EXIT_DEFECT = 2, 70
_HELP = ("-h", "--help", "help")
_OBJECTS = 10_000  # between two searches for reference cycles; Python's own is 700


def main(arguments: list[str] | None = None) -> None:
    """Run one verb and exit: 0 done, 1 some cells or checks failed, 2 bad input, 70 a defect, 130 and 143 interrupted.

    Signals, streams and the search path are taken over only for a command of its own,
    not for a caller in Python.
    """
    if arguments is None and "_ARGCOMPLETE" in os.environ:
        import_module("hessfig.cli.completion").complete()
    if arguments is None:
        take_signals()
        take_streams()
        _leave_current_folder()
        _take_environment()
        _collect_rarely(sys.argv[1:])
    # TransformerLens's, not the user's.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")
    try:
        code = _dispatch(sys.argv[1:] if arguments is None else arguments)
        print(end="", flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    except OSError as error:
        code = _out_of_files(error)
    except Exception:  # a defect of hessfig; failed cells have status 1
        traceback.print_exc()
        code = EXIT_DEFECT
    # Whose extensions would report as leaked what is frozen.
    if arguments is None and "torch" not in sys.modules:
        gc.freeze()  # what is left need not be searched at the end
    sys.exit(code)


def _out_of_files(error: OSError) -> int:
    """Report that this process may not open more files; other system errors are defects of hessfig."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        traceback.print_exc()
        return EXIT_DEFECT
    print(f"error: {too_few_files(str(error.strerror))}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _take_environment() -> None:
    """Take out of the environment what would end the drawing library, or reach a figure: none depends on these."""
    os.environ["MPLBACKEND"] = "agg"
    os.environ.pop("SOURCE_DATE_EPOCH", None)


def _collect_rarely(words: list[str]) -> None:
    """Look for reference cycles less often in verbs that hold no tensors: that is a tenth of the time of `plot`."""
    verb = VERBS.get(words[0]) if words else None
    if verb is None or not verb.makes_table:
        gc.set_threshold(_OBJECTS)


def _leave_current_folder() -> None:
    """Take the current folder off the search path, where `python -m` puts it, unless hessfig itself is there."""
    own = Path(__file__).parents[2]
    with suppress(OSError):  # the current folder may be gone
        if sys.path[0] == "" or (Path(sys.path[0]) == Path.cwd() != own):
            del sys.path[0]


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in _HELP:
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"hessfig {import_module('hessfig').__version__}")
        return 0
    verb = _verb(arguments[0])
    rest = arguments[1:]
    _check_current_folder()
    module, _, name = verb.does.partition(":")
    if not verb.composed and not set(rest) & set(_HELP):
        return int(getattr(import_module(module), name)(rest))
    command = read_command(rest)
    if command.asks_help or not verb.composed:
        print_plain(import_module("hessfig.cli.help").verb_help(verb, command.own))
        return 0
    return int(
        import_module("hessfig.cli.dispatch").compose_and_run(
            verb, command, getattr(import_module(module), name)
        )
    )


def _verb(name: str) -> Verb:
    if name in VERBS:
        return VERBS[name]
    setting = name.lstrip("-")
    if "=" in setting:
        as_setting = (
            f"a verb comes first, and settings have no dashes: hessfig run {setting}"
        )
    else:
        as_setting = ""
    raise UserError(
        f"there is no verb {name!r}",
        got=name,
        allowed=", ".join(VERBS),
        remedy=as_setting
        or did_you_mean(name, VERBS)
        or "`hessfig --help` describes each of them",
    )


def _check_current_folder() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise UserError(
            "the current folder no longer exists",
            got=os.environ.get("PWD", "a deleted folder"),
            allowed="a folder that exists",
            remedy="cd FOLDER, and run the same command there",
        ) from error


def overview() -> str:
    """Return the text that `hessfig` prints without a verb."""
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
