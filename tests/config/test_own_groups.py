"""A user's own folder: its files are choices like the shipped ones, and its mistakes are named with their file."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hessfig.config.compose.job import checked_job
from hessfig.config.presets import choices
from hessfig.config.user.user_dir import own_folder
from hessfig.errors import UserError
from tests.config.composing import job
from tests.daily import thinned

MINE = """# @package _global_
defaults:
  - override /model: tiny
  - override /estimator: hutchinson
sweep:
  name: mine
  about: "My own"
  vary: {model.n_heads: [1, 2]}
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path):
    """Write files of a folder called 'my own, ü' and return the folder."""
    folder = tmp_path / "my own, ü"

    def written(**texts):
        for name, text in texts.items():
            path = folder / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return own_folder(str(folder))

    return written


def test_own_choices_come_after_the_shipped_ones(write):
    own = write(sweep__mine=MINE, model__tiny="# Tiny\nd_model: 8\n")
    assert list(choices("sweep", own)) == [*choices("sweep"), "mine"]
    assert choices("sweep", own)["mine"] == "My own"
    assert choices("model", own)["tiny"] == "Tiny"


def test_own_files_compose(write):
    own = write(
        sweep__mine=MINE,
        model__tiny="# Tiny\nd_model: 8\n",
        figure__f="name: f\nsweep: mine\nlayout: growth\n",
    )
    found = job("sweep=mine", "figure=f", own=own)
    config = found.config
    assert (config.sweep.name, config.model.d_model, config.estimator.method) == (
        "mine",
        8,
        "hutchinson",
    )
    assert (config.figure.name, config.figure.sweep, config.figure.group) == (
        "f",
        "mine",
        "own",
    )
    assert [name for name, _ in found.variants] == [
        "model.n_heads=1",
        "model.n_heads=2",
    ]
    assert config.config_dir == str(own)
    assert Path(config.config_dir).is_absolute()
    assert found.of_sweep("depth").config.config_dir == str(own)


def test_own_choices_are_meant_too(write):
    own = write(sweep__mine=MINE)
    with pytest.raises(UserError, match="did you mean 'mine'"):
        checked_job(["sweep=mime"], own)


BAD = {
    "nam": (
        "# @package _global_\nsweep: {name: bad, nam: x}",
        "no setting 'sweep.nam'",
        "did you mean 'sweep.name'",
    ),
    "package": ("seeds: 3", "no setting 'sweep.seeds'", "# @package _global_"),
    "value": (
        "# @package _global_\nseeds: x",
        "seeds must be a whole number",
        "seeds: x",
    ),
    "vary": (
        "# @package _global_\nsweep: {name: bad, vary: 3}",
        "sweep.vary must be",
        "{setting: values}",
    ),
    "yaml": ("# @package _global_\nseeds: [", "is not YAML (line 2", "fix line 2"),
    "twice": (
        "# @package _global_\nseeds: 1\nseeds: 2",
        "is not YAML (line 3",
        "duplicate key seeds",
    ),
    "list": ("- 3", "does not contain settings by name", "key: value"),
    "name": (
        "# @package _global_\nsweep: {name: sigma}",
        "does not name itself",
        "sweep.name: bad",
    ),
}


@pytest.mark.parametrize("name", thinned(BAD, 2))
def test_mistakes_are_named_with_their_file(write, name):
    text, *said = BAD[name]
    own = write(sweep__bad=text)
    with pytest.raises(UserError) as caught:
        checked_job(["sweep=bad"], own)
    error = caught.value
    assert str(own / "sweep/bad.yaml") in str(error)
    assert error.got is not None
    assert error.allowed
    assert error.remedy
    for words in said:
        assert words in str(error)


def test_a_file_that_nobody_chose_does_no_harm(write):
    assert (
        job("sweep=sigma", own=write(sweep__bad="seeds: [")).config.sweep.name
        == "sigma"
    )


def test_a_name_given_by_hand_is_the_users(write):
    own = write(sweep__bad="# @package _global_\nsweep: {name: sigma}")
    assert job("sweep=bad", "sweep.name=other", own=own).config.sweep.name == "other"


@pytest.mark.parametrize("name", ["sweep__sigma", "figure__3a", "model__gpt2"])
def test_a_shipped_name_is_taken(write, name):
    with pytest.raises(
        UserError, match=r"already has a \w+ of this name(.|\n)*rename the file"
    ):
        write(**{name: ""})


def test_names_are_plain(write):
    with pytest.raises(UserError, match="is named by its file"):
        write(**{"sweep__a b": MINE})


def test_a_folder_that_is_not_there():
    with pytest.raises(UserError, match=r"no such folder(.|\n)*nowhere(.|\n)*mkdir"):
        own_folder("nowhere")


def test_a_file_of_other_bytes(write):
    own = write(sweep__mine=MINE)
    (own / "sweep/mine.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        own_folder(str(own))


@pytest.mark.parametrize(
    "text", ["5", "hello", "true", "''", "2001-01-01", "!!binary x", "|\n  a\n"]
)
def test_a_file_of_one_value(write, text):
    with pytest.raises(
        UserError, match=r"mine\.yaml does not contain settings by name"
    ):
        write(sweep__mine=text)


def listed(count):
    return f"a: [{','.join('1' * count)}]"


ENDLESS = {
    "20 MB": lambda path: path.write_text(listed(10**7)),
    "depth": lambda path: path.write_text("[" * 9000),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.long
def test_files_without_end_are_refused_at_once(write, kind):
    own = write(sweep__mine=MINE)
    started = time.process_time()
    ENDLESS[kind](own / "sweep/other.yaml")
    with pytest.raises(UserError, match=r"other.yaml cannot be read"):
        own_folder(str(own))
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    "word", ["2:30:00", "1:30", "-1:30.5", "010", "yes", "No", "ON", "off"]
)
def test_a_word_that_yaml_reads_as_something_else_is_refused(write, word):
    """YAML 1.1 reads 2:30:00 as 9000, which Slurm takes for minutes: six days."""
    with pytest.raises(
        UserError, match=rf"mine\.yaml, line 3: YAML reads this as .*\n.*{word}"
    ):
        write(launcher__mine=f"kind: slurm\ntasks: 2\ntime: {word}\n")
    assert write(launcher__mine=f'kind: slurm\ntasks: 2\ntime: "{word}"\n')


@pytest.mark.parametrize(
    "word", ["90", "0", "0.5", "1e-3", "true", "null", "1-00:00:00", "none", "0x10"]
)
def test_other_words_are_read(write, word):
    assert write(launcher__mine=f"time: {word}\n")


def test_a_time_in_quotes_reaches_slurm_as_it_is(write):
    own = write(launcher__mine='kind: slurm\ntasks: 2\ntime: "2:30:00"\n')
    assert job("launcher=mine", own=own).config.launcher.time == "2:30:00"


def test_a_file_of_comments_alone_is_one(write):
    assert write(sweep__mine="# nothing yet")
