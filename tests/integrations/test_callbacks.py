"""Monitors in trainers and loggers, with the real packages where these are installed."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hessfig
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.integrations.loggers import LOGGERS
from tests import watched

pytestmark = pytest.mark.filterwarnings("ignore")


def steps(folder):
    return sorted({int(step) for step in read_run(folder).table["step"]})


@pytest.mark.long
def test_a_trainer_of_transformers_is_watched(tmp_path):
    """Its weights are, to the bit, those of a training without a monitor."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from hessfig.integrations.transformers import MonitorCallback

    config = transformers.GPT2Config(
        vocab_size=9,
        n_positions=6,
        n_embd=4,
        n_layer=1,
        n_head=1,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = torch.randint(1, 9, (8, 5), generator=torch.Generator().manual_seed(0))
    examples = [{"input_ids": one, "labels": one} for one in ids]
    batch = {"input_ids": ids, "labels": ids}

    def trained(*, is_watched):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        arguments = transformers.TrainingArguments(
            str(tmp_path / "trainer"),
            max_steps=6,
            per_device_train_batch_size=2,
            save_strategy="no",
            report_to=[],
        )
        callbacks = []
        if is_watched:
            monitor = hessfig.Monitor(
                model,
                None,
                batch,
                folder=tmp_path / "mine",
                every=3,
                quantities=["loss"],
                max_fraction=None,
            )
            callbacks.append(MonitorCallback(monitor))
        transformers.Trainer(
            model, arguments, train_dataset=examples, callbacks=callbacks
        ).train()
        return model

    plain = trained(is_watched=False)
    seen = trained(is_watched=True)
    assert all(
        torch.equal(*pair)
        for pair in zip(plain.parameters(), seen.parameters(), strict=True)
    )
    assert steps(tmp_path / "mine") == [0, 3, 6]


@pytest.mark.long
def test_a_lightning_training_is_watched(tmp_path):
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from hessfig.integrations.lightning import MonitorCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.network = nn.Linear(3, 2)

        def training_step(self, batch, number):
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trained(*, is_watched):
        module = Module()
        monitor = (
            watched.monitor(module.network, tmp_path / "mine") if is_watched else None
        )
        trainer = pl.Trainer(
            max_steps=6,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            accelerator="cpu",
            callbacks=[MonitorCallback(monitor)] if monitor else [],
        )
        trainer.fit(module, DataLoader(TensorDataset(*watched.data()), batch_size=4))
        return module

    plain = trained(is_watched=False)
    seen = trained(is_watched=True)
    assert all(
        torch.equal(*pair)
        for pair in zip(plain.parameters(), seen.parameters(), strict=True)
    )
    assert steps(tmp_path / "mine") == [0, 3, 6]


def test_a_function_is_told_of_every_measurement(tmp_path):
    told = []
    watch = watched.monitor(
        watched.network(),
        tmp_path,
        quantities=["loss"],
        log=lambda values, step: told.append((step, [*values])),
    )
    watch(0), watch(1), watch(3)
    assert told == [(0, ["loss"]), (3, ["loss"])]


def test_a_logger_that_fails_loses_no_measurement(tmp_path):
    """It is said once, as a warning at the line of the loop, and ends the training only where that is asked for."""

    def broken(values, step):
        raise ConnectionError("no route to host")

    watch = watched.monitor(
        watched.network(), tmp_path / "mine", quantities=["loss"], log=broken
    )
    words = "step 0 was measured, but not logged: ConnectionError: no route to host"
    with pytest.warns(RuntimeWarning, match=words) as said:
        found = [watch(step) for step in (0, 3)]
    assert [one.filename for one in said] == [__file__]
    assert all("loss" in values for values in found)
    assert steps(tmp_path / "mine") == [0, 3]
    strict = watched.monitor(
        watched.network(),
        tmp_path / "other",
        quantities=["loss"],
        log=broken,
        on_error="raise",
    )
    with pytest.raises(ConnectionError, match="no route"):
        strict(0)


@pytest.mark.parametrize("name", LOGGERS)
@pytest.mark.long
def test_loggers_are_chosen_by_name(name, tmp_path, monkeypatch):
    """With the real package, offline, in a folder of the test."""
    library = {"tensorboard": "tensorboard"}.get(name, LOGGERS[name][0])
    if importlib.util.find_spec(library) is None:
        with pytest.raises(
            UserError, match=f"log={name}: its library is not installed"
        ):
            watched.monitor(watched.network(), tmp_path / "mine", log=name)
        pytest.skip(f"{name} is not installed: the refusal alone was tested")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlflow'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip(
        library, reason=f"{name} lacks what it needs", exc_type=ImportError
    )
    watch = watched.monitor(
        watched.network(),
        tmp_path / "mine",
        quantities=["loss"],
        log=name,
        on_error="raise",
    )
    found = watch(0)
    assert found["loss"] == pytest.approx(watch_value(name, tmp_path), rel=1e-6)


def watch_value(name, folder):
    """Read the loss back from what a logger has written."""
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import (
            EventAccumulator,
        )

        events = EventAccumulator(str(folder / "mine" / "tensorboard"))
        events.Reload()
        return float(events.Scalars("loss")[0].value)
    if name == "mlflow":
        import mlflow

        run = mlflow.get_run(mlflow.active_run().info.run_id)
        mlflow.end_run()
        return float(run.data.metrics["loss"])
    if name == "wandb":
        import wandb

        value = wandb.run.summary["loss"]
        wandb.finish()
        return float(value)
    import trackio

    run = trackio.context_vars.current_run.get()
    logged = SimpleNamespace(run=run)
    trackio.finish()
    return float(_of_trackio(logged.run))


def _of_trackio(run):
    from trackio.sqlite_storage import SQLiteStorage

    return float(SQLiteStorage.get_logs(run.project, run.name)[0]["loss"])
