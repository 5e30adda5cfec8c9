"""hessfig.Monitor in a Lightning training: Trainer(callbacks=[MonitorCallback(monitor)])."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from hessfig.api.monitor import Monitor


class LightningMonitor(Callback):
    """Calls monitor(step) when the training begins, and after every batch; the steps are the Trainer's global ones."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Measure the state with which the training starts or resumes."""
        self.monitor(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
        """Measure the state after an update; batches that only accumulate gradients keep the step of the last one."""
        self.monitor(trainer.global_step)


MonitorCallback = LightningMonitor  # the name that the documentation imports
