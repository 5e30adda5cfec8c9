"""hessfig.Monitor in a transformers.Trainer: Trainer(..., callbacks=[MonitorCallback(monitor)])."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from hessfig.monitor import Monitor


class MonitorCallback(TrainerCallback):
    """Calls monitor(step) at the start of the training and after every update, with the Trainer's global steps."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the state with which the training starts or resumes."""
        self.monitor(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the state after an update."""
        self.monitor(state.global_step)
