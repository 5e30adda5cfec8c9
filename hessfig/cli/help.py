"""The help text of each verb, generated from the schema and the shipped configuration."""

from __future__ import annotations

from hessfig.cli.main import VERBS
from hessfig.cli.overrides import choices, keys, values_of

_EXAMPLES = {
    "run": "\n  ".join(
        [
            "hessfig run sweep=sigma seeds=5 workers=2",
            "hessfig run sweep=sigma dry_run=true",
            "hessfig run -m sweep=sigma,layernorm",
        ]
    ),
    "plot": "hessfig plot figure=3a",
    "slopes": "hessfig slopes sweep=sigma 'sweep.windows=[[null,1.0]]'",
    "check": "hessfig check sweep=sigma tolerance=0.1",
    "compare": "\n  ".join(
        [
            "hessfig compare reference=results    (a folder of the authors' pickles: every figure measured)",
            "hessfig compare sweep=sigma reference=published.csv",
        ]
    ),
    "verify": "hessfig verify statement=thm31,lem41",
    "status": "hessfig status sweep=sigma",
    "completion": 'eval "$(hessfig completion bash)"',
}
_GROUPS = {
    "run": ("sweep", "estimator", "grid", "model", "task"),
    "plot": ("figure",),
    "slopes": ("sweep",),
    "check": ("sweep",),
    "compare": ("sweep",),
    "status": ("sweep",),
}


def verb_help(verb: str) -> str:
    """Return usage, groups with a line for each choice, and the single settings with their types."""
    parts = [
        f"hessfig {verb}: {VERBS[verb]}",
        f"usage: hessfig {verb} key=value ...",
        f"example:\n  {_EXAMPLES[verb]}",
    ]
    parts += [_group_help(group) for group in _GROUPS.get(verb, ())]
    if verb == "run":
        parts.append("settings:\n" + "\n".join(f"  {key:<26} {_type(kind)}" for key, kind in keys().items()))
    if verb not in ("verify", "completion"):
        parts.append("flags: --cfg job (print the resolved settings), -m (several runs: key=a,b), --help")
    return "\n\n".join(parts)


def _group_help(group: str) -> str:
    return f"{group}=\n" + "\n".join(f"  {name:<18} {about}" for name, about in choices(group).items())


def _type(kind: object) -> str:
    return "|".join(values_of(kind)) or str(getattr(kind, "__name__", kind)).replace("typing.", "")
