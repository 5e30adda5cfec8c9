"""The house plan as a test: which module may import which, one door a library, size, and clean committed files."""

import ast
import io
import multiprocessing
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from hessfig.analysis.presented import marked
from hessfig.registry import study_records
from scripts.pages import architecture

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "hessfig").rglob("*.py"))
# Arrows point from right to left: a room may use those before it.
MEASURING = (
    "errors",
    "terms",
    "weights",
    "record",
    "row_facts",
    "registry",
    "files",
    "register",
    "rng",
    "curvature",
    "config",
    "tasks",
    "models",
    "states",
    "measurements",
    "sweep",
)
VOCABULARY = MEASURING[: MEASURING.index("rng")]
READING = ("analysis", "figures", "report")
LIGHT = (
    "hessfig.errors",
    "hessfig.terms",
    "hessfig.record",
    "hessfig.predictions.architecture",
    "hessfig.predictions.growth_rates",
    "hessfig.predictions.monomials",
    "hessfig.predictions.network_series",
)
# What plans and previews read of the measuring wing: names and sizes, never tensors.
WITHOUT_TORCH = (
    "hessfig.sweep.plan",
    "hessfig.sweep.preview",
    "hessfig.sweep.runner",
    "hessfig.models.protocol",
)
DOORS = {
    "pytorch_optimizer": ("hessfig.states.training.step_rules",),
    "curvlinops": ("hessfig.curvature.curvlinops",),
    "transformer_lens": ("hessfig.models.",),
    "transformers": (
        "hessfig.models.stored.architectures",
        "hessfig.models.stored.loaded_model",
        "hessfig.models.stored.tokenizer",
        "hessfig.models.stored.lens_registry",
        "hessfig.integrations.transformers",
    ),
    "lightning": ("hessfig.integrations.lightning",),
    "safetensors": ("hessfig.models.weight_files", "hessfig.states."),
    "hydra": ("hessfig.config.compose",),
    "omegaconf": ("hessfig.config.compose",),
    "matplotlib": ("hessfig.figures", "hessfig.studies."),
    "jinja2": ("hessfig.report.page",),
    "tueplots": ("hessfig.figures.parts.page",),
}
MOST_FILES = 20
MOST_TOKENS = 4200
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
MACHINE = re.compile(
    "/"
    + "work/|/"
    + "root/|/home"
    + "/[a-z]|/"
    + "tmp/|python"
    + "hosted|https?://"
    + "pypi"
)


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    )


@cache
def statements_of(path):
    """Return the imports of a module: all, and those at its top or for its types; its tree is not kept."""
    tree = ast.parse(path.read_text())
    top = [*_top_of(tree.body)]
    return [node for node in ast.walk(tree) if isinstance(node, _IMPORTS)], [
        node for node in top if isinstance(node, _IMPORTS)
    ]


_IMPORTS = (ast.Import, ast.ImportFrom)


def imports_of(path):
    for node in statements_of(path)[0]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            yield node.module


def wing_of(module):
    return module.split(".")[1] if module.startswith("hessfig.") else ""


def top_imports(path):
    """Yield what a module imports when it is imported, or for its types: submodules that `from` names included."""
    yield from _imported(statements_of(path)[1])


def submodule_imports(path):
    """Yield what a module imports anywhere, inside of functions too."""
    yield from _imported(statements_of(path)[0])


def _imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inside & NAMES or {node.module}


def _top_of(body):
    """Yield the statements of a module, those below `if TYPE_CHECKING` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top_of(node.body)


NAMES = {name_of(path) for path in MODULES}
Rule = Callable[[str, str], bool]  # whether a module may import another


def broken(is_allowed):
    """Return every import that a rule forbids."""
    arrows = (
        (name_of(path), imported) for path in MODULES for imported in imports_of(path)
    )
    return [
        f"{module} imports {imported}"
        for module, imported in arrows
        if not is_allowed(module, imported)
    ]


def test_arrows_of_the_measuring_wing_point_one_way():
    def is_allowed(module, imported):
        wing = wing_of(module)
        target = wing_of(imported)
        if wing not in MEASURING:
            return True
        backwards = target in MEASURING and MEASURING.index(target) > MEASURING.index(
            wing
        )
        return not backwards and target not in (
            *READING,
            "theory",
            "predictions",
            "api",
            "cli",
        )

    assert broken(is_allowed) == []


def test_the_reading_wing_needs_only_the_table():
    def is_allowed(module, imported):
        wing = wing_of(module)
        target = wing_of(imported)
        if wing not in READING:
            return True
        later = READING[READING.index(wing) + 1 :]
        measuring = MEASURING[len(VOCABULARY) :]
        is_theory = target in ("theory", "predictions") and imported not in LIGHT
        return (
            imported.partition(".")[0] != "torch"
            and target not in (*later, *measuring, "api")
            and not is_theory
        )

    assert broken(is_allowed) == []


def test_the_command_line_alone_makes_reports():
    assert (
        broken(
            lambda module, imported: (
                wing_of(imported) != "report" or wing_of(module) in ("report", "cli")
            )
        )
        == []
    )


def test_the_interface_needs_no_sweep():
    """One network of the reader's own is measured without variants, cells, stores and workers."""
    assert (
        broken(
            lambda module, imported: (
                module != "hessfig.api.interface"
                or wing_of(imported) not in ("sweep", "cli")
            )
        )
        == []
    )


def test_python_needs_no_command_line():
    """What scripts and notebooks call does not go through the terminal: only the command line imports its own rooms."""
    library = [
        module for module in NAMES if wing_of(module) not in ("cli", "", "__main__")
    ]

    def is_allowed(module, imported):
        return module not in library or wing_of(imported) != "cli"

    assert broken(is_allowed) == []


def test_studies_can_be_taken_out():
    """No module of the core imports a study, and no study another one."""

    def is_allowed(module, imported):
        if not imported.startswith("hessfig.studies."):
            return True
        return (
            wing_of(module) == "studies"
            and imported.split(".")[2] == module.split(".")[2]
        )

    assert broken(is_allowed) == []


def test_every_study_names_a_page_that_is_there():
    pages = {name: study.page for name, study in study_records().items()}
    assert len(pages) == 7
    assert [page for page in pages.values() if not (ROOT / page).is_file()] == []


def test_modules_of_studies_are_of_one_wing():
    """What measures does not draw, and what draws and judges does not measure: it needs the table alone."""
    measuring = (*MEASURING[len(VOCABULARY) :], "torch")
    for path in MODULES:
        if wing_of(name_of(path)) == "studies":
            wings = {
                wing_of(module) or module.partition(".")[0]
                for module in imports_of(path)
            }
            assert not (wings & set(measuring) and wings & set(READING)), name_of(path)


def test_theory_knows_nothing_of_the_runner():
    known = ("", "theory", "predictions", *VOCABULARY, "rng")
    assert (
        broken(
            lambda module, imported: (
                wing_of(module) not in known[1:3] or wing_of(imported) in known
            )
        )
        == []
    )


LAUNCHERS = ("hessfig.sweep.slurm", "hessfig.config.shards")


# What is built on the core: pages of results, launchers, models of other libraries,
# theory, studies, and the terminal.
OUTSIDE_OF_THE_CORE = (
    "hessfig.report",
    "hessfig.cli",
    "hessfig.theory",
    "hessfig.studies",
    "hessfig.integrations",
    "hessfig.sweep.launchers",
    "hessfig.sweep.slurm",
    "hessfig.config.shards",
    "hessfig.models.stored",
    "hessfig.models.kinds.huggingface",
    "hessfig.models.kinds.transformer_lens",
)
CORE = [path for path in MODULES if not name_of(path).startswith(OUTSIDE_OF_THE_CORE)]


def test_the_core_needs_nothing_that_is_built_on_it():
    """What the paper and a user's own network need can be read alone; callbacks of trainers are handed out by name."""

    def is_allowed(module, imported):
        of_callbacks = (module, imported.split(".")[:2]) == (
            "hessfig.api.monitor",
            ["hessfig", "integrations"],
        )
        is_outside = module.startswith(OUTSIDE_OF_THE_CORE) or module in (
            "hessfig",
            "hessfig.__main__",
        )
        return (
            is_outside or of_callbacks or not imported.startswith(OUTSIDE_OF_THE_CORE)
        )

    assert broken(is_allowed) == []
    assert {
        "hessfig.curvature.problem",
        "hessfig.api.interface",
        "hessfig.sweep.plan",
    } <= set(map(name_of, CORE))


def test_launchers_are_known_by_their_records_alone():
    """Launchers are named by strings and imported when they are chosen: nothing else depends on Slurm or torchrun."""
    users = ("hessfig.sweep.launchers", *LAUNCHERS)
    assert (
        broken(lambda module, imported: imported not in LAUNCHERS or module in users)
        == []
    )


@pytest.mark.parametrize(
    ("module", "imported", "test"),
    [
        (
            "hessfig.curvature.x",
            "hessfig.models.protocol",
            "test_arrows_of_the_measuring_wing_point_one_way",
        ),
        (
            "hessfig.sweep.x",
            "hessfig.figures.sheets",
            "test_arrows_of_the_measuring_wing_point_one_way",
        ),
        (
            "hessfig.report.x",
            "hessfig.models.blocks",
            "test_the_reading_wing_needs_only_the_table",
        ),
        (
            "hessfig.api.interface",
            "hessfig.sweep.plan",
            "test_the_interface_needs_no_sweep",
        ),
        (
            "hessfig.api.sessions",
            "hessfig.cli.results",
            "test_python_needs_no_command_line",
        ),
        (
            "hessfig.theory.x",
            "hessfig.sweep.plan",
            "test_theory_knows_nothing_of_the_runner",
        ),
        ("hessfig.cli.x", "hydra.core", "test_each_library_has_one_door"),
        (
            "hessfig.states.x",
            "hessfig.models.stored.architectures",
            "test_the_core_needs_nothing_that_is_built_on_it",
        ),
        (
            "hessfig.studies.removal.x",
            "hessfig.studies.spectra.layouts",
            "test_studies_can_be_taken_out",
        ),
        (
            "hessfig.config.machine",
            "hessfig.config.shards",
            "test_launchers_are_known_by_their_records_alone",
        ),
    ],
)
def test_a_forbidden_import_is_found(module, imported, test, tmp_path, monkeypatch):
    path = tmp_path / Path(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(f"import {imported}\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "MODULES", [path])
    with pytest.raises(AssertionError, match=f"{module} imports {imported}"):
        globals()[test]()


# Circles through imports inside of functions that still stand: (importer, imported),
# each to be turned one day.
LAZY_CIRCLES = set()


@pytest.mark.parametrize(
    "is_lazy", [False, True], ids=["at_the_top", "inside_of_functions_too"]
)
def test_no_module_is_in_a_circle(is_lazy):
    """Imports of modules form no circle: those at the top and for types, and those inside of functions.

    The package itself imports nothing: what it hands out (Problem, measure) it names
    for type checkers alone.
    """
    imports = submodule_imports if is_lazy else top_imports
    arrows = {name_of(path): set(imports(path)) & NAMES for path in MODULES} | {
        "hessfig": set()
    }
    for importer, imported in LAZY_CIRCLES if is_lazy else ():
        # Raises where the arrow is gone: then its line goes too.
        arrows[importer].remove(imported)
    done = set()

    def visit(module, above):
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module not in done:
            for target in arrows[module]:
                visit(target, (*above, module))
            done.add(module)

    for module in arrows:
        visit(module, ())


def test_a_users_network_needs_nothing_of_stored_models():
    """What opens the wrapper of another library is named by a row of strings, and imported when it is met."""
    own = (
        "hessfig.models.own",
        "hessfig.models.naming",
        "hessfig.models.found_weights",
    )

    def is_allowed(module, imported):
        return not module.startswith(own) or not imported.startswith(
            ("hessfig.models.stored", "hessfig.models.lens")
        )

    assert broken(is_allowed) == []


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_plans_are_made_without_torch_and_hydra(module):
    heavy = "{'torch', 'hydra', 'omegaconf', 'transformer_lens', 'matplotlib'} & set(sys.modules)"
    program = f"import sys, {module}; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_workers_need_no_hydra(workers):
    """The server that workers are forked from has imported what they import, and nothing else."""
    from hessfig.sweep.pool import start_process

    received, sent = multiprocessing.Pipe(duplex=False)
    start_process(exec, "import sys; pipe.send(list(sys.modules))", {"pipe": sent})
    loaded = set(received.recv())
    assert "hessfig.models.networks" in loaded
    assert not {"hydra", "omegaconf", "matplotlib"} & loaded


@pytest.mark.parametrize("module", LIGHT)
def test_vocabulary_and_predictions_need_the_standard_library_only(module):
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    for imported in imports_of(path):
        assert (
            imported in LIGHT or imported.partition(".")[0] in sys.stdlib_module_names
        ), imported


def test_each_library_has_one_door():
    def is_allowed(module, imported):
        doors = DOORS.get(imported.partition(".")[0])
        return doors is None or module.startswith(doors)

    assert broken(is_allowed) == []


def test_modules_say_what_they_are_for():
    assert [
        name_of(path)
        for path in MODULES
        if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []


@pytest.mark.long
def test_modules_stay_small():
    assert {
        name_of(path): tokens
        for path in MODULES
        if (tokens := tokens_of(path.read_text())) > MOST_TOKENS
    } == {}


def tokens_of(text):
    """Return the number of tokens without comments, docstrings and layout."""
    owners = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    docstrings = [node.body[0] for node in owners if ast.get_docstring(node)]
    starts = {(node.lineno, node.col_offset) for node in docstrings}
    return sum(
        token.type not in LAYOUT and token.start not in starts
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def test_tokens_leave_words_and_layout_out():
    text = '"""Words.\n\nMore."""\n\n# why\ndef f():\n    """Words."""\n    return 1  # why\n'
    assert tokens_of(text) == len(["def", "f", "(", ")", ":", "return", "1"])


def test_no_folder_is_a_heap():
    folders = {path.parent for path in MODULES}
    sizes = {
        folder: len([p for p in folder.glob("*.py") if p.stem != "__init__"])
        for folder in folders
    }
    assert not {folder: size for folder, size in sizes.items() if size > MOST_FILES}


def test_no_two_neighbours_have_names_that_differ_by_an_ending():
    """compare, comparison, comparing: in one folder, only one of them."""
    neighbours = {
        folder: {p.stem for p in folder.iterdir()}
        for folder in {path.parent for path in MODULES}
    }
    endings = ("s", "es", "d", "ed", "ing", "er", "ison", "ation", "ments")
    alike = {
        (folder.name, name, name + ending)
        for folder, names in neighbours.items()
        for name in names
        for ending in endings
        if name + ending in names
    }
    assert not alike


def test_every_package_is_shipped():
    from setuptools import find_packages

    include = re.search(
        r"find_packages\(include=(\[.*?\])\)", (ROOT / "setup.py").read_text()
    )
    assert include
    shipped = find_packages(str(ROOT), include=ast.literal_eval(include[1]))
    found = {name_of(path.parent / "__init__.py") for path in MODULES}
    assert set(shipped) == found


def test_there_is_no_drawer_for_everything():
    assert not [
        path for path in MODULES if path.stem in ("utils", "helpers", "misc", "common")
    ]


# Of commands and pages, against everything at once; the files in tests/ itself are of
# the doors.
OF_NO_ROOM = (".", "attack", "browser", "documents", "scripts", "slurm")


def test_tests_mirror_the_package():
    """A folder of tests is called as a room or a module; a file that is called as one is where that is."""
    modules = [path.relative_to(ROOT / "hessfig") for path in MODULES]
    rooms = {
        path.parent if path.stem == "__init__" else path.with_suffix("")
        for path in modules
    }
    files = sorted(
        path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")
    )
    mine = [
        path for path in files if str(path.parent).partition("/")[0] not in OF_NO_ROOM
    ]
    astray = [path for path in mine if path.parent not in rooms]
    for path in mine:
        homes = {
            room.parent
            for room in rooms
            if room.name == path.stem.removeprefix("test_")
        }
        astray += [path] if homes and path.parent not in homes else []
    assert not astray
    assert len(mine) > 100


def tracked():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).exists()]


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="not a checkout: nothing is committed"
)
def test_committed_files_name_no_machine():
    found = {
        path.name: MACHINE.findall(path.read_text(errors="ignore"))
        for path in tracked()
        if _is_text(path)
    }
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="not a checkout: nothing is committed"
)
def test_no_result_is_committed():
    names = [path.relative_to(ROOT) for path in tracked()]
    results = [
        name
        for name in names
        if name.parts[0] in ("outputs", "multirun", "build") or name.suffix == ".log"
    ]
    assert results == [Path("outputs/README.md")]


def test_make_alone_lists_every_target():
    shown = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = re.findall(
        r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE
    )
    assert {
        "figures",
        "figure-%",
        "test",
        "test-all",
        "test-slow",
        "lint",
        "slopes",
        "check",
        "clean",
        "help",
    } <= set(targets)
    assert all(f"make {target} " in shown for target in targets)


def test_constraints_hold_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(
        line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.+]*", line)
        for line in lines
    )


# Names and paths as they stand in strings, comments and pages; files of the reader's
# own are no part of the package.
DOTTED = re.compile(r"(?<![\w./-])hessfig(?:\.[A-Za-z_]\w*)+")
NAMED = re.compile(r"(?<![\w./<>*{}-])(?:[\w-]+/)*[\w-]+\.(?:py|md|yaml)(?![\w/(])")
OF_THE_READER = re.compile(
    r"(outputs|DIR|my)/|^report\.md$|launcher/mine\.yaml$|FILE\.py$|mynet\.py$|net\.py$|NAME\.yaml$"
)


def texts(path):
    """Yield what a file says in words: strings and comments of code, all of a page."""
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        words = (
            tokenize.STRING,
            tokenize.COMMENT,
            getattr(tokenize, "FSTRING_MIDDLE", -1),
        )
        yield from (token.string for token in tokens if token.type in words)
    else:
        yield path.read_text()


def unknown_names(paths):
    """Return every dotted name, file and path in `paths` that stands for nothing."""
    files = {f"/{path.relative_to(ROOT)}" for path in tracked()}
    shown = {
        path.name for page in paths if page.suffix == ".md" for path in _shown(page)
    }
    found = ((path.name, text) for path in paths for text in texts(path))
    return [
        f"{where}: {name}"
        for where, text in found
        for name, is_there in (
            *((name, _is_object(name)) for name in DOTTED.findall(text)),
            *(
                (name, Path(name).name in shown or _is_tracked(name, files))
                for name in NAMED.findall(text)
            ),
        )
        if not is_there and not OF_THE_READER.search(name)
    ]


def _shown(page):
    """Yield the files of the reader's own that a page shows."""
    yield from map(
        Path, re.findall(r"^`([\w./-]+)`$", page.read_text(), flags=re.MULTILINE)
    )


def _is_tracked(name, files):
    return any(file.endswith(f"/{name}") for file in files)


@cache
def _is_object(name):
    """Whether a dotted name is a module, or something in one."""
    module, _, attribute = name.rpartition(".")
    try:
        import_module(name)
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != "hessfig":
            return True  # it is there, and its library is not
        return bool(module) and (
            _is_object(module) and hasattr(_object(module), attribute)
        )
    return True


def _object(name):
    try:
        return import_module(name)
    except ImportError:
        module, _, attribute = name.rpartition(".")
        return getattr(_object(module), attribute)


def test_the_page_shows_the_tree_as_it_is():
    """Every folder stands on the page with what it says it is for."""
    shown = marked(architecture.PAGE.read_text(), "tree", architecture.COMMAND)
    assert shown == architecture.tree(), (
        f"docs/tree.md is behind: run {architecture.COMMAND}"
    )


def test_the_tree_names_every_module_and_each_says_what_it_is_for():
    tree = architecture.tree()
    assert all(f"`{path.name}`" in tree for path in MODULES if path.stem != "__init__")
    assert not [path for path in MODULES if not architecture.opening_sentence(path)]


SPEAKING = [
    *MODULES,
    ROOT / "hessfig" / "theory" / "statement_texts.toml",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "SECURITY.md",
]


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="not a checkout: nothing is committed"
)
def test_every_name_and_path_in_words_is_there():
    assert unknown_names(SPEAKING) == []


@pytest.mark.parametrize(
    "text",
    [
        '"see hessfig.theory.attention.attention_hessian"',
        "# as models/protocols.py has it",
        '"""Counted as violations (theory/bounds.py)."""',
        '"conf/sweep/nowhere.yaml"',
        '"""`attention_literal.py` has the others."""',
        '"hessfig.cli.results:slopes_verb, cli/nowhere.py"',
    ],
)
def test_a_name_of_nothing_is_found(text, tmp_path):
    (tmp_path / "planted.py").write_text(f"{text}\n")
    assert len(unknown_names([tmp_path / "planted.py"])) == 1


def _is_text(path):
    return path.suffix not in (".png", ".pdf", ".npz")


BARE = re.compile(
    r"(?<![\w./\"'{<*-])([a-z_]\w{2,}(?:\.[a-z_]\w*)*)\.([A-Za-z_]\w*)(?![\w./*{<-])"
)
FILES = re.compile(
    "bin|css|csv|html|json|md|npz|pdf|png|py|safetensors|svg|toml|txt|yaml|zip"
)
LIBRARIES = (
    "matplotlib",
    "numpy",
    "pandas",
    "safetensors",
    "scipy",
    "torch",
    "torchvision",
    "transformers",
)
# Run by test_docstring_examples, which finds a wrong name.
EXAMPLE = re.compile(r"^ *(?:>>>|\.\.\.) .*$", re.MULTILINE)
# Of matplotlib's settings, and in examples.
OBJECTS = ("axes", "bridge", "kfac", "monitor", "parameter", "problem", "table")


def stale_names(path):
    """Return the bare names (module.thing) in a module's docstrings and comments that stand for nothing.

    They may be something in a module of that name, a setting, a file, something of a
    library, or what the module itself speaks of: both words are names in its code.
    """
    tokens = list(tokenize.generate_tokens(io.StringIO(path.read_text()).readline))
    own = {token.string for token in tokens if token.type == tokenize.NAME}
    words = [
        t.string
        for t in tokens
        if t.type == tokenize.COMMENT
        or (t.type == tokenize.STRING and '"""' in t.string)
    ]
    found = dict.fromkeys(
        pair for text in words for pair in BARE.findall(EXAMPLE.sub("", text))
    )
    return [
        f"{name_of(path)}: {first}.{name}"
        for first, name in found
        if not _stands(first, name, own)
    ]


def _stands(first, name, own):
    if FILES.fullmatch(name) or first.partition(".")[0] in (
        *LIBRARIES,
        *OBJECTS,
        *sys.stdlib_module_names,
        "hessfig",
    ):
        return True  # names below hessfig are checked whole
    if "_" in first[1:2] and "_" in name[1:2]:
        return True  # an inner product of two vectors
    if f"{first}.{name}" in _settings() or (first in _settings() and name):
        return True
    homes = [
        module for module in NAMES if module.endswith(f".{first}") or module == first
    ]
    return (
        any(_is_object(f"{module}.{name}") for module in homes)
        or {first.partition(".")[0], name} <= own
    )


@cache
def _settings():
    from hessfig.config.settings import settings

    keys = {*settings()}
    return keys | {key.rpartition(".")[0] for key in keys if "." in key}


@pytest.mark.long
def test_bare_names_in_docstrings_are_there():
    assert [name for module in MODULES for name in stale_names(module)] == []


def test_a_bare_name_of_nothing_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "planted.py"
    text = "As bootstrap.fit_slope has it, and fit.no_slope; fit.fit_slope, table.csv and model.norm stand."
    path.write_text(f'"""{text}\n\n    >>> made.here\n"""\n')
    assert stale_names(path) == [
        "planted: bootstrap.fit_slope",
        "planted: fit.no_slope",
    ]
