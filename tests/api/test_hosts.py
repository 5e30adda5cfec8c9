"""hessfig inside other people's programs: Hydra applications, process pools, threads, event loops, notebooks."""

import asyncio
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, process
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir, version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import hessfig
from hessfig.config.compose import job
from hessfig.errors import UserError
from hessfig.sweep.pool import start_process
from tests import runs
from tests.api.test_global_state import odd_state
from tests.api.test_sessions import SMALL


def swept(folder, workers=0, *words):
    return hessfig.run(
        "sigma", *SMALL, *words, seeds=2, workers=workers, output_dir=folder
    ).table


def measured():
    torch.manual_seed(0)
    problem = hessfig.Problem(
        torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])
    )
    return list(hessfig.measure(problem)["value"])


@pytest.fixture
def application(tmp_path):
    """A Hydra application with an older behaviour, and names of its own that are hessfig's too."""
    (tmp_path / "app.yaml").write_text("at: ${now:any}\nvalue: 1\n")
    store = ConfigStore.instance()
    known = OmegaConf.has_resolver("now")
    kept = dict(store.repo)
    store.store("schema", {"mine": 1})
    store.store("3a", {"mine": 2}, group="figure")
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        OmegaConf.register_new_resolver(
            "now", lambda text: f"mine: {text}", replace=True
        )
        yield GlobalHydra.instance().hydra
    store.repo = kept
    if not known:
        OmegaConf.clear_resolver("now")


def test_the_hydra_of_an_application_is_as_it_was(application, tmp_path):
    job._shipped.cache_clear()
    job._chosen.cache_clear()
    assert job.compose(["sweep=sigma", "figure=3a"]).config.figure.sweep == "sigma"
    with pytest.raises(UserError):
        job.compose(["model.d_model=many"])
    assert GlobalHydra.instance().hydra is application
    assert version.base_at_least("1.2")
    assert not version.base_at_least("1.3")
    assert ConfigStore.instance().load("schema.yaml").node.mine == 1
    assert ConfigStore.instance().load("figure/3a.yaml").node.mine == 2
    assert compose("app", overrides=["value=3"]) == {"at": "mine: any", "value": 3}


APPLICATION = """
import hydra, hessfig

@hydra.main(version_base="1.3", config_path=None)
def main(config):
    before = hydra.compose()
    table = hessfig.run("sigma", *WORDS, *[f"{key}={value}" for key, value in config.items()], workers=0).table
    assert hydra.compose() == before
    print("rows:", len(table))

main()
"""


@pytest.mark.long
@pytest.mark.usefixtures("workers")
def test_an_application_runs_sweeps_one_and_many(tmp_path):
    (tmp_path / "app.py").write_text(f"WORDS = {SMALL!r}\n{APPLICATION}")
    for words, rows in (
        (["+seeds=2"], ["18"]),
        (["--multirun", "+seeds=2,3"], ["18", "27"]),
    ):
        printed = runs.script("app.py", *words, folder=tmp_path).splitlines()
        assert [line.split()[1] for line in printed if line.startswith("rows:")] == rows


@pytest.mark.usefixtures("workers")
def test_workers_start_in_processes_of_other_libraries(monkeypatch):
    """The start method of joblib's workers is one that ours do not know; those of a pool are daemons."""
    default = multiprocessing.context._default_context
    monkeypatch.setattr(default, "_actual_context", SimpleNamespace(_name="loky"))
    monkeypatch.setitem(process.current_process()._config, "daemon", True)
    started = start_process(os.getpid)
    started.join(60)
    assert started.exitcode == 0
    assert process.current_process().daemon
    assert multiprocessing.get_start_method() == "loky"


@pytest.mark.usefixtures("workers")
def test_the_multiprocessing_of_the_caller_is_as_it_was(monkeypatch):
    default = multiprocessing.context._default_context
    monkeypatch.setattr(default, "_actual_context", None)
    servers = forkserver._forkserver
    before = dict(os.environ), dict(vars(servers))
    start_process(os.getpid).join(60)
    assert (dict(os.environ), dict(vars(servers))) == before
    assert multiprocessing.get_start_method(allow_none=True) is None


def test_without_workers_the_calling_process_measures_the_same_bits(
    tmp_path, monkeypatch
):
    apart = swept(tmp_path / "apart", 1)
    monkeypatch.setattr(
        "hessfig.sweep.pool.start_process",
        lambda *_: pytest.fail("a process was started"),
    )
    with odd_state():
        here = swept(tmp_path / "here", 0)
    different = ["seconds"]
    pd.testing.assert_frame_equal(
        here.drop(columns=different), apart.drop(columns=different), check_exact=True
    )


TRAINED = ("state=trained", "training.steps=3", "state.step=[0,3]")


def test_without_workers_networks_are_trained_too(tmp_path):
    words = [word for word in SMALL if not word.startswith("grid")]
    here = hessfig.run(
        "sigma", *words, *TRAINED, seeds=1, workers=0, output_dir=tmp_path
    ).table
    assert sorted({*here["step"]}) == [0, 3]
    assert here["value"].notna().all()


def test_the_generator_of_python_is_as_it_was_after_the_first_run(tmp_path):
    import random

    state = random.getstate()
    swept(tmp_path)
    assert random.getstate() == state


def _loky(call, arguments):
    from joblib import Parallel, delayed

    return list(Parallel(2)(delayed(call)(*one) for one in arguments))


def _pool(call, arguments):
    """One thread: after a parallel region of OpenMP, PyTorch hangs in a forked process that asks for several."""
    with multiprocessing.get_context("fork").Pool(
        1, torch.set_num_threads, (1,)
    ) as pool:
        return pool.starmap(call, arguments)


def _threads(call, arguments):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda one: call(*one), arguments))


def _coroutines(call, arguments):
    async def every():
        directly = call(*arguments[0])
        return [
            directly,
            *await asyncio.gather(
                *(asyncio.to_thread(call, *one) for one in arguments[1:])
            ),
        ]

    return asyncio.run(every())


def _numbers(folder, workers):
    return [*swept(folder, workers)["value"], *measured()]


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize("host", [_loky, _pool, _threads, _coroutines])
def test_numbers_in_other_programs(host, tmp_path):
    # A forked process finds the server of this one.
    plain = _numbers(tmp_path / "plain", 1)
    found = host(_numbers, [(tmp_path / f"{workers}", workers) for workers in (0, 1)])
    assert found == [plain, plain]
