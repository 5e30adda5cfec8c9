"""Tab completion for bash: verbs, settings, and the choices of groups and enums."""

from __future__ import annotations

from hessfig.cli.main import VERBS
from hessfig.cli.overrides import GROUPS, choices, keys, values_of
from hessfig.errors import UserError

_SCRIPT = """\
_hessfig() {
  local line="${COMP_LINE:0:COMP_POINT}" word
  word="${line##* }"
  local candidates
  candidates="$(hessfig completion words ${COMP_WORDS[1]} "$word" 2>/dev/null)"
  COMPREPLY=($(compgen -W "$candidates" -- "$word"))
  [[ "$word" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#*=}")
  [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" != *= ]] || compopt -o nospace
}
complete -F _hessfig hessfig
"""


def run(arguments: list[str]) -> int:
    """`bash` prints the script; `words VERB WORD` prints the candidates for WORD."""
    if arguments == ["bash"]:
        print(_SCRIPT, end="")
    elif arguments[:1] == ["words"] and len(arguments) in (2, 3):
        print("\n".join(candidates(arguments[1], arguments[2] if len(arguments) == 3 else "")))
    else:
        raise UserError(
            "completion", got=" ".join(arguments), allowed="bash", remedy='eval "$(hessfig completion bash)"'
        )
    return 0


def candidates(verb: str, word: str) -> list[str]:
    """Return what `word` may become: a verb while it is the first word, then key=, group=choice or key=value."""
    if verb not in VERBS or verb == word:
        return list(VERBS)
    key, equals, _ = word.partition("=")
    if not equals:
        return [f"{name}=" for name in (*GROUPS, *keys())]
    values = list(choices(key)) if key in GROUPS else values_of(keys().get(key))
    return [f"{key}={value}" for value in values]
