"""Tab completion for bash, zsh and fish: verbs, flags, settings, and choices of groups, the user's own too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hessfig.cli.flags import FLAGS, read
from hessfig.cli.verbs import VERBS
from hessfig.config.settings import settings
from hessfig.config.shipped import GROUPS, names
from hessfig.errors import UserError

_SCRIPT = """\
_hessfig() {
  local line="${COMP_LINE:0:COMP_POINT}" word
  word="${line##* }"
  if [[ "$line" =~ (--config-dir|-cd)[\\ =]([^\\ ]*)$ ]]; then
    compopt -o filenames
    COMPREPLY=($(compgen -d -- "${BASH_REMATCH[2]}"))
    return
  fi
  COMPREPLY=($(compgen -W "$(hessfig completion words "${line#* }" 2>/dev/null)" -- "$word"))
  [[ "$word" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#*=}")
  [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" != *= ]] || compopt -o nospace
}
complete -F _hessfig hessfig
"""

_ZSH = """\
_hessfig() {
  local line="${(j: :)words[1,CURRENT]}" found
  found=("${(@f)$(hessfig completion words "${line#* }" 2>/dev/null)}")
  compset -P '*=' && found=("${found[@]#*=}")
  if [[ "$line" == *' --config-dir '* && "$words[CURRENT-1]" == (--config-dir|-cd) ]]; then
    _path_files -/
  else
    compadd -Q -S '' -- "${found[@]}"
  fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _hessfig hessfig
"""
_FISH = """\
function __hessfig_words
  hessfig completion words (string replace -r '^\\S+\\s' '' -- (commandline -cp)) 2>/dev/null
end
complete -c hessfig -f -a '(__hessfig_words)'
complete -c hessfig -l config-dir -r -a '(__fish_complete_directories)'
"""
_SCRIPTS = {"bash": _SCRIPT, "zsh": _ZSH, "fish": _FISH}


def run(arguments: list[str]) -> int:
    """The name of a shell prints its script; `words LINE` prints the candidates for its last word."""
    if len(arguments) == 1 and arguments[0] in _SCRIPTS:
        print(_SCRIPTS[arguments[0]], end="")
    elif arguments[:1] == ["words"] and len(arguments) > 1:
        print("\n".join(candidates(" ".join(arguments[1:]).split(" "))))
    else:
        raise UserError(
            "completion",
            got=" ".join(arguments) or "nothing",
            allowed=", ".join(_SCRIPTS),
            remedy='eval "$(hessfig completion bash)"',
        )
    return 0


def candidates(line: Sequence[str]) -> list[str]:
    """Return what the last word of `line` may become: a verb if it is the first, else a flag, key=, or key=value."""
    *before, word = line
    if not before:
        return list(VERBS)
    if before[0] not in VERBS:
        return []
    if word.startswith("-"):
        return [*FLAGS, "-m", "-cd"]
    verb, key = VERBS[before[0]], word.partition("=")[0]
    if "=" in word:
        return [f"{key}={value}" for value in _values(key, _own(before[1:]))]
    known = [*GROUPS, *settings()] if verb.composed else verb.reads
    return [f"{name}=" for name in known if verb.takes(name)]


def _values(key: str, own: Path | None) -> Sequence[str]:
    if key in GROUPS:
        return names(key, own)
    return settings()[key].choices if key in settings() else ()


def _own(words: Sequence[str]) -> Path | None:
    try:
        return read(words).own
    except UserError:  # a line that is being written
        return None
