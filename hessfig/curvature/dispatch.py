"""A mode that sees every operation of torch, without torch's compiler."""

from torch.utils._python_dispatch import TorchDispatchMode


class Dispatch(TorchDispatchMode):
    """A TorchDispatchMode whose first use does not import torch's compiler, which takes two seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps `__torch_dispatch__` for its compiler."""
        return False
