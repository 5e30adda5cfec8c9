"""Settings may refer to settings; neither the environment, nor the clock, nor a function answers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer

from hessfig.api.sessions import run
from hessfig.config.compose.job import _no_resolvers, _own_hydra, checked_job
from hessfig.config.user.user_dir import own_folder
from hessfig.errors import UserError
from hessfig.verbs import VERBS
from tests.daily import daily, thinned

SECRET = "hunter2-of-the-environment"
# By a resolver's name: those of OmegaConf and Hydra, and any other; nested, in a text,
# in a key, in lists.
REFERENCES = [
    "${oc.env:SECRET}",
    "${oc.env:SECRET,x}",
    "text ${oc.env:SECRET} text",
    "${oc.create:{a:1}}",
    "${oc.decode:${oc.env:SECRET}}",
    "${oc.select:seeds}",
    "${oc.dict.keys:model}",
    "${oc.deprecated:seeds}",
    "${now:%Y}",
    "${hydra:runtime.cwd}",
    "${python_version:major}",
    "${ oc.env:SECRET }",
    "${${oc.env:SECRET}}",
    "${model.${oc.env:SECRET}}",
    "${oc.env:SECRET",
]
PLACES = {
    "a text": "# @package _global_\nsweep: {{name: mine, about: '{0}'}}\n",
    "a number": "# @package _global_\nsweep: {{name: mine}}\nseeds: '{0}'\n",
    "a list": "# @package _global_\nsweep: {{name: mine}}\nquantities: ['{0}']\n",
    "a key": "# @package _global_\nsweep: {{name: mine, vary: {{'{0}': [1]}}}}\n",
    "a default": "# @package _global_\ndefaults:\n  - override /model: '{0}'\nsweep: {{name: mine}}\n",
    "a group": "# @package _global_\ndefaults:\n  - override '/{0}': x\nsweep: {{name: mine}}\n",
}


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)


@pytest.mark.parametrize("place", daily(PLACES, next(iter(PLACES))))
@pytest.mark.parametrize("reference", thinned(REFERENCES, 8))
def test_a_file_of_ones_own_refers_to_settings_alone(tmp_path, place, reference):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/mine.yaml").write_text(PLACES[place].format(reference))
    with pytest.raises(UserError) as caught:
        checked_job(["sweep=mine"], own_folder(str(tmp_path)))
    assert SECRET not in str(caught.value)
    assert "2026" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("reference", thinned(REFERENCES, 4))
@pytest.mark.parametrize(
    "key", daily(["sweep.about", "output_dir", "model.factory", "seeds"], "output_dir")
)
def test_so_do_words_of_the_command_line(key, reference):
    with pytest.raises(UserError) as caught:
        VERBS["run"].job(["sweep=sigma", f"{key}={reference}"])
    assert SECRET not in str(caught.value)
    assert caught.value.remedy


def test_nothing_is_written_where_a_word_refers_to_the_environment(cli, tmp_path):
    for verb in ("run", "slopes", "export"):
        answer = cli(verb, "sweep=sigma", "output_dir=${oc.env:SECRET}")
        assert answer.code == 2
        assert SECRET not in answer.out + answer.err
    with pytest.raises(UserError, match=r"unsupported interpolation type oc\.env"):
        run("sigma", "output_dir=${oc.env:SECRET}")
    assert list(tmp_path.iterdir()) == []


def test_resolvers_of_an_application_stay():
    OmegaConf.register_new_resolver("of_an_application", lambda: 3, replace=True)
    checked_job(["sweep=sigma"])
    assert OmegaConf.create({"a": "${of_an_application:}"}).a == 3
    OmegaConf.clear_resolver("of_an_application")


def test_another_thread_sees_what_is_the_applications():
    """While hessfig composes, other threads resolve, register, compose and copy as before."""
    hydra = GlobalHydra.instance()
    none = object()

    def other():
        OmegaConf.register_new_resolver("late", lambda: 4, replace=True)
        text = OmegaConf.create({"a": "${oc.env:SECRET}${late:}"}).a
        return (
            text,
            GlobalHydra.instance(),
            [*Singleton.get_state()["omegaconf_resolvers"]],
        )

    before = [*BaseContainer._resolvers]
    with _own_hydra(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(other).result() == (f"{SECRET}4", hydra, [*before, "late"])
        assert [*BaseContainer._resolvers] == []
        assert Singleton._instances.get(GlobalHydra, none) is none
    assert OmegaConf.create({"a": "${late:}"}).a == 4
    with _no_resolvers(), ThreadPoolExecutor(1) as pool:
        pool.submit(OmegaConf.clear_resolvers).result()
    assert not OmegaConf.has_resolver("late")
    assert isinstance(BaseContainer._resolvers, dict)


def test_a_setting_may_be_another_ones(tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/mine.yaml").write_text(
        "# @package _global_\nsweep: {name: mine}\nseeds: ${model.n_layers}\n"
    )
    job = checked_job(["sweep=mine", "model.n_layers=2"], own_folder(str(tmp_path)))
    assert job.config.seeds == 2


@pytest.mark.parametrize(
    "default",
    daily(
        ["/other/x", "/other@sweep: x", "sub/x", "/sweep/sub/x", "../x"],
        "/other@sweep: x",
        "../x",
    ),
)
def test_a_default_elsewhere_is_refused_for_what_it_holds(tmp_path, default):
    for folder in ("sweep/sub", "other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.yaml").write_text("about: ${oc.env:SECRET}\n")
    (tmp_path / "sweep/mine.yaml").write_text(
        f"# @package _global_\ndefaults:\n  - {default}\nsweep: {{name: mine}}\n"
    )
    with pytest.raises(
        UserError, match=r"there is no|unsupported interpolation type"
    ) as caught:
        checked_job(["sweep=mine"], own_folder(str(tmp_path)))
    assert SECRET not in str(caught.value)
    assert caught.value.remedy
