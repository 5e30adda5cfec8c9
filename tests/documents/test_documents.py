"""The documents are true: the files they show are written, their commands composed or run, their links followed."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml

import hessfig
from hessfig.cli import bundle
from hessfig.config.compose.overrides import check_overrides
from hessfig.config.presets import names
from hessfig.config.schema import GROUPS
from hessfig.errors import UserError
from tests import pages, runs
from tests.pages import PAGES, ROOT, check_command, sections, text_of, write_files
from tests.test_architecture import tracked

# Pages whose shell blocks are run word for word, in an empty folder that holds the
# files they show.
RUN = [
    "docs/extending.md",
    "docs/library.md",
    "docs/own-model.md",
    "docs/own-training.md",
    "docs/tutorial.md",
]
# Commands that cannot be composed here, and why.
NOT_COMPOSED = {
    "make test-fast": "removed in 0.4.0",
    "register-python-argcomplete hessfig": "tests/cli/test_commands.py runs it",
    "hessfig run --config-dir examples sweep=ten_numbers workers=1": "tests/cli/test_export.py runs it",
    "hessfig run --config-dir examples sweep=by_hand workers=1": "tests/documents/test_by_hand.py runs it",
    "hessfig run sweep=trained_transformers": "the trained networks are fetched first",
    "hessfig run model=huggingface model.path=DIR task=masked_tokens task.path=sequences.txt sweep.name=mine "
    "blocks=each seeds=1": ("the folder of a model and its sequences are the reader's"),
    "hessfig run model=huggingface model.path=DIR task=tokens task.path=ids.npy sweep.name=mine blocks=each seeds=1": (
        "the folder of a model and its ids are the reader's"
    ),
    "hessfig run model=transformer_lens model.path=DIR task=tokens task.path=ids.npy sweep.name=mine "
    "blocks=each seeds=1": ("the folder of a model and its ids are the reader's"),
}
# key=value in code marks that is no setting of `hessfig`, and what it is.
NO_SETTINGS = {
    "file=NAME.zip": "a word of hessfig bundle",
    "launcher=mine": "a file of the reader's own",
    **dict.fromkeys(
        ("weights=trainable", "on_error=raise", "loss=None", "outputs=NAME"),
        "an argument in Python",
    ),
    **dict.fromkeys(
        ("products=differences", "use_reentrant=False"), "an argument in Python"
    ),
    "has_part=False": "an argument in Python",
    **dict.fromkeys(
        ("compute_outputs=g", "compute_loss=trainer.compute_loss"),
        "an argument in Python",
    ),
    "statement=thm31,lem41": "a word of hessfig verify",
    "code=run": "a word of hessfig export",
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Check a command in a folder that holds the files the pages show; equal commands are checked once."""
    folder = tmp_path_factory.mktemp("reader")
    for page in PAGES:
        write_files(page, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield cache(check_command)


def run(command, cli, folder):
    """Run one line of a document as its reader would (hessfig in this process: its imports are slow)."""
    words = shlex.split(command, comments=True)
    if words[0] == "hessfig":
        answer = cli(*words[1:])
        assert answer.code == 0, answer.err
        return answer.out
    assert words[0] == "python"
    return runs.script(*words[1:], folder=folder, paths=(folder / "my",))


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(
    ("page", "title"), [(page, title) for page in RUN for title in sections(page)]
)
@pytest.mark.long
def test_what_a_page_shows_works(page, title, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_files(page, tmp_path)
    for block in sections(page)[title]:
        for command in block["text"].splitlines() if block["language"] == "sh" else ():
            run(command, cli, tmp_path)
    outcomes = {
        "A sweep and its figure": _width,
        "Variants of a network": _variants,
        "A quantity": _quantities,
        "A first table and figure": _own,
        "Names, slices, layers": _named,
    }
    outcomes.get(title, lambda folder: None)(tmp_path)


def _width(folder):
    table = pd.read_csv(folder / "outputs/width/table.csv")
    assert set(table["variant"]) == {f"model.d_model={width}" for width in (4, 8, 16)}
    assert (folder / "outputs/figures/figwidth.png").is_file()
    slopes = pd.read_csv(folder / "outputs/width/slopes.csv")
    assert set(slopes["num_points"]) <= {0, 3}
    assert set(slopes["prediction"]) == {"unknown"}


def _variants(folder):
    every = pd.read_csv(folder / "outputs/figures/figall.csv")
    some = pd.read_csv(folder / "outputs/figures/figsome.csv")
    assert len(every["variant"].unique()) == 9
    assert len(some["variant"].unique()) == 2


def _quantities(folder):
    table = pd.read_csv(folder / "outputs/width/table.csv")
    assert set(table["quantity"]) == {"frobenius", "largest_entry"}
    wide = table.pivot_table(
        index=["variant", "row", "part", "seed"], columns="quantity", values="value"
    )
    assert (wide["largest_entry"] <= wide["frobenius"] * (1 + 1e-12)).all()
    lines = (folder / "my/largest_entry.py").read_text().splitlines()
    assert len(lines) < 40


def _own(folder):
    table = pd.read_csv(folder / "outputs/network/table.csv")
    assert set(table["row"]) == {
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    }
    assert list((folder / "outputs/figures").glob("fignetwork*.png"))


def _named(folder):
    table = pd.read_csv(folder / "outputs/network/table.csv")
    assert set(table["row"]) == {"filters", "readout"}
    assert set(table["quantity"]) == {"frobenius", "trace"}
    assert dict(zip(table["row"], table["layer"], strict=True)) == {
        "filters": 1,
        "readout": 2,
    }
    assert set(table["seed"]) == {1234, 1235}
    assert list((folder / "outputs/figures").glob("fignetwork*.png"))


@pytest.mark.long
def test_the_readmes_first_minutes(background, undisturbed, cli, tmp_path):
    """`make figure-3a` runs what the README says, and prints what it shows, numbers aside (here from the toy sweep).

    Seconds long: it draws Figure 3a, and the report, as the reader does.
    """
    commands, printed = sections("README.md")["The first five minutes"]
    first, *others = [
        shlex.split(line, comments=True) for line in commands["text"].splitlines()
    ]
    shown = subprocess.run(
        ["make", "-n", *first[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    measured, drawn = [
        line for line in shown.splitlines() if line.startswith(".venv/bin/hessfig ")
    ]
    run, _, otherwise = measured.partition(" || ")
    assert (run, drawn) == (
        ".venv/bin/hessfig run sweep=sigma",
        ".venv/bin/hessfig plot figure=3a",
    )
    assert otherwise == "[ $? -eq 1 ]"  # failed cells: drawn without them
    shutil.copytree(undisturbed / "outputs", tmp_path / "outputs")
    said = [
        *background["undisturbed"].result().stdout.splitlines()[-2:],
        drawn,
        *cli("plot", "figure=3a").out.splitlines(),
    ]
    assert _shapes(said) == _shapes(printed["text"].splitlines())
    verbs = []
    for program, *words in others:
        if program == "hessfig":
            verbs.append(words[0])
            assert cli(*words).code in ((0, 1) if words[0] == "check" else (0,))
    assert len(verbs) == 2
    assert (tmp_path / "outputs/report.html").is_file()


def _shapes(lines):
    """Return lines with their numbers left out, but for those of names."""
    return [re.sub(r"(?<![\w.])\d+(\.\d+)?(?![\w.])", "#", line) for line in lines]


@pytest.mark.parametrize(
    "page",
    [
        "docs/architecture.md",
        "docs/extending.md",
        "docs/own-model.md",
        "docs/theory.md",
    ],
)
def test_files_a_page_names_are_there(page):
    """Paths in code marks: of the package where it names no folder of the repository."""
    named = re.findall(
        r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|yaml|md)|(?:[\w.-]+/)+)`",
        (ROOT / page).read_text(),
    )
    mine = {
        "my",
        "outputs",
        "largest_entry.py",
        "activations.py",
        "mynet.py",
        "in_python.py",
        "pictures.py",
        "report.md",
    }
    mine |= {"block.py", "eigenvalue.py", "kinds.py", "weighted.py", "build"}
    there = set()
    for path in tracked():
        inside = path.relative_to(ROOT)
        there |= {f"/{one.as_posix()}" for one in (inside, *inside.parents)}
    assert len(named) > 0
    for name in named:
        if not mine & set(Path(name).parts):
            ending = f"/{name.rstrip('/')}"
            assert any(one.endswith(ending) for one in there), name


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.long
def test_every_command_of_a_page_could_be_run(page, reader):
    """Blocks of the pages that are run above are left out."""
    wrong = {}
    for command in pages.commands(text_of(page), inline=page in RUN):
        try:
            if command not in NOT_COMPOSED:
                reader(command)
        except (UserError, AssertionError) as error:
            wrong[command] = str(error).splitlines()[0]
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_that_a_page_names_is_one(page):
    wrong = {}
    for word in pages.settings_named(text_of(page)):
        try:
            if word not in NO_SETTINGS:
                check_overrides([word])
                _check_choices(word)
        except UserError as error:
            wrong[word] = str(error).splitlines()[0]
    assert not wrong


def _check_choices(word):
    """Raise UserError for a choice of a group that is not shipped."""
    group, _, choices = word.partition("=")
    for choice in choices.split(",") if group in GROUPS else ():
        if choice not in names(group):
            raise UserError(
                f"there is no {group} {choice}",
                got=word,
                allowed=", ".join(names(group)),
                remedy="mend it",
            )


def test_exceptions_are_still_needed():
    said = []
    words = []
    for page in PAGES:
        said += pages.commands(text_of(page))
        words += pages.settings_named(text_of(page))
    assert set(NOT_COMPOSED) <= set(said)
    assert set(NO_SETTINGS) <= set(words)
    assert len(set(said)) > 80


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("hessfig rum sweep=sigma", "no verb rum"),
        ("hessfig run sweep=sigmas", "there is no sweep 'sigmas'"),
        ("hessfig run 'blocks=[W_X]'", "W_X"),
        ("hessfig plot figure=99", "no figure '99'"),
        ("hessfig slopes sweep=sigma dry_run=true", "does not read dry_run"),
        ("hessfig run model.factory=nowhere.py:make sweep=network", "nowhere.py"),
        ("hessfig verify statement=thm99", "thm99"),
        ("make figure-99", "no target figure-99"),
        ("python scripts/benchmarks/norms.py --nothing", "takes no"),
        ("pip install nothing==1.0", "nothing==1.0"),
        ("brew install hessfig", "no such program"),
    ],
)
def test_a_wrong_command_is_found(command, said, reader):
    with pytest.raises((UserError, AssertionError), match=re.escape(said)):
        reader(command)


def test_commands_are_found_wherever_they_stand():
    text = "Say `hessfig status sweep=a` or `seeds=3`.\n\n```sh\nmake x && hessfig run  # b\n```\n"
    text += "```python\nmake = 1\n```\n"
    assert pages.commands(text) == ["make x", "hessfig run", "hessfig status sweep=a"]
    assert pages.settings_named(text) == ["seeds=3"]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_of_a_page_are_there(page):
    text = text_of(page)
    assert not pages.broken(page, text)
    for paragraph in pages.prose(text).split("\n\n"):
        assert paragraph.count("`") % 2 == 0


def test_broken_links_are_found():
    good = "# A b, c?\n[a](#a-b-c) ![b](img/fig3a.png) [c](table.md#arrays) [d](https://example.org)"
    assert not pages.broken("docs/x.md", good)
    bad = "[a](#nothing) ![b](img/none.png) [c](table.md#nothing) [d](nothing.md)"
    assert len(pages.broken("docs/x.md", bad)) == 4


def test_every_page_and_picture_can_be_reached_from_the_readme():
    reached = {ROOT / "README.md"}
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        for link in pages.links(page.read_text("utf-8")):
            place = (page.parent / link.partition("#")[0]).resolve()
            if place not in reached and place.is_file():
                reached.add(place)
                waiting += [place] * (place.suffix == ".md")
    here = {ROOT / page for page in PAGES} | set((ROOT / "docs/img").glob("*.png"))
    assert not here - reached


def test_a_release_begins_with_a_page_for_users():
    """At most 40 lines before the changes by kind; deprecated names have the version that drops them, a later one."""
    sections = re.split(r"^## ", text_of("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    latest = next(one for one in sections if "nreleased" not in one.partition("\n")[0])
    page, *kinds = re.split(r"^### ", latest, flags=re.MULTILINE)
    assert len(page.strip().splitlines()) <= 40
    assert [kind.partition("\n")[0] for kind in kinds] == [
        "New",
        "Changed",
        "Fixed",
        "Numbers",
    ]
    dropped = re.findall(
        r"^\| .+ \| ([\d.]+) \| .+ \| ([\d.]+) \|$", page, flags=re.MULTILINE
    )
    assert dropped
    for since, until in dropped:
        assert since < until
        assert until > hessfig.__version__


def test_pages_that_files_name_are_there():
    """Names of pages in messages, comments and settings."""
    missing = set()
    for path in tracked():
        if path.suffix in (".py", ".yaml", ".md", ""):
            named = re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(errors="ignore"))
            missing |= {page for page in named if not (ROOT / page).is_file()}
    assert missing <= {"docs/x.md"}


INSTALLED_BY_NAME = re.compile(
    r"hessfig(?:\[\w+\]|\[\{| *==)|"
    r"\b(?:install|inject|add|download)\b[^\n;&|#:]*[ '\"]hessfig(?=[\s'\"`\\,;)]|$)",
    re.MULTILINE,
)


def test_nothing_says_to_install_a_name_that_anybody_may_take():
    """hessfig is on no index: whoever registers its name there runs code on the machines of readers."""
    for wrong in (
        "pip install hessfig",
        "pip install -U 'hessfig[digits]'",
        "hessfig==0.4.0",
        'uv add "hessfig"',
    ):
        assert INSTALLED_BY_NAME.search(wrong)
    for right in (
        "pip install '.[docs]'",
        "pip install . && hessfig run",
        "pip keeps them when it installs hessfig",
    ):
        assert not INSTALLED_BY_NAME.search(right)
    of_bundle = {"hessfig": "0.4.0", "versions": {"torch": "2.15"}}
    assert not INSTALLED_BY_NAME.search(bundle._requirements(of_bundle))
    for path in {*tracked()} - {Path(__file__)}:
        text = path.read_text("utf-8", errors="ignore")
        assert not INSTALLED_BY_NAME.search(text), path


def test_the_readme_is_one_screen():
    assert len(text_of("README.md").splitlines()) <= 90


def test_the_first_screen_names_the_tests_with_their_minutes():
    first = text_of("README.md").partition("\n## ")[0]
    (minutes,) = re.findall(r"^make test +# (\d+) minutes", first, flags=re.MULTILINE)
    assert f"the everyday tests, {minutes} minutes" in text_of("CONTRIBUTING.md")
    assert "\nmake figure-3a " in first


@pytest.mark.usefixtures("workers")
def test_the_readmes_python_prints_its_table(tmp_path):
    """Row by row; numbers to the digits shown."""
    ((code, shown),) = re.findall(
        r"```python\n(.*?)```\n.*?```text\n(.*?)```",
        text_of("README.md"),
        flags=re.DOTALL,
    )
    # The site shows them too.
    front = [line.strip() for line in text_of("docs/index.rst").splitlines()]
    assert set(map(str.strip, [*code.splitlines(), *shown.splitlines()])) <= set(front)
    (tmp_path / "mine.py").write_text(code)
    printed = runs.script("mine.py", folder=tmp_path)
    assert _shapes(printed.splitlines()) == _shapes(shown.splitlines())
    found = re.findall(r"\d\.\d{6}", printed)
    told = re.findall(r"\d\.\d{6}", shown)
    assert [*map(float, found)] == pytest.approx([*map(float, told)], abs=1.5e-6)


def test_the_version_is_one():
    """In the package, in pyproject.toml, in CITATION.cff, and of the latest release in the changelog."""
    cited = yaml.safe_load(text_of("CITATION.cff"))
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    (latest, *_) = re.findall(
        r"^## ([\d.]+)$", text_of("CHANGELOG.md"), flags=re.MULTILINE
    )
    wheels = set(re.findall(r"hessfig-([\d.]+)-py3", text_of("docs/install.md")))
    (bibtex,) = re.findall(r"version = \{([\d.]+)\}", text_of("docs/reproduce.md"))
    assert (
        {hessfig.__version__, project["version"], latest, bibtex}
        == {cited["version"]}
        == wheels
    )
    assert text_of("data/CITATION.cff") == text_of("CITATION.cff")
    assert cited["license"] == project["license"]
    assert cited["cff-version"] == "1.2.0"
    paper = cited["preferred-citation"]
    assert paper["title"].lower() in text_of("README.md").replace("\n", " ").lower()
    assert paper["year"] == 2025
    for author in paper["authors"]:
        assert author["family-names"] in text_of("README.md")
    assert {"message", "title", "authors"} <= set(cited)
