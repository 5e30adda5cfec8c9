"""hessfig.Monitor in a Lightning training: Trainer(callbacks=[MonitorCallback(monitor)])."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from hessfig.monitor import Monitor


class MonitorCallback(Callback):
    """Calls monitor(step) at the start of the training and after every batch, with the Trainer's global steps."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Measure the state with which the training starts or resumes."""
        self.monitor(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
        """Measure the state after an update; batches that only accumulate gradients keep the step of the last one."""
        self.monitor(trainer.global_step)
