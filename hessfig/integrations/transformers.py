"""hessfig.Monitor in a transformers.Trainer: Trainer(..., callbacks=[MonitorCallback(monitor)])."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from hessfig.api.monitor import Monitor


class TrainerMonitor(TrainerCallback):
    """Calls monitor(step) when the training begins, and after every update; the steps are the Trainer's global ones."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the state with which the training starts or resumes."""
        self.monitor(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the state after an update."""
        self.monitor(state.global_step)


MonitorCallback = TrainerMonitor  # the name that the documentation imports
