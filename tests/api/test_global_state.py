"""Everything that a process has only once is as it was after every public call, after a refusal, and among threads."""

import gc
import locale
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hessfig
from hessfig.errors import UserError
from hessfig.models.lens_bridge import wrapped
from tests.api.test_sessions import SMALL
from tests.models.test_lens_bridge import WORDS, native

pytestmark = pytest.mark.long

State = dict[str, Any]
_PRECISE = {
    "all": torch.backends,
    "cuda": torch.backends.cuda.matmul,
    "mkldnn": torch.backends.mkldnn.matmul,
    "cudnn": torch.backends.cudnn,
    "conv": torch.backends.cudnn.conv,
}


def global_state(network):
    """Return all of it, of torch, NumPy and Python, and what a network carries besides its weights."""
    cuda = torch.backends.cuda
    return {
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "kernels of attention": [
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
            cuda.fp16_bf16_reduction_math_sdp_allowed(),
        ],
        "default type and device": (
            torch.get_default_dtype(),
            torch.get_default_device(),
        ),
        "precision": _or_error(torch.get_float32_matmul_precision),
        "precision by backend": {
            name: one.fp32_precision for name, one in _PRECISE.items()
        },
        "reductions": (
            cuda.matmul.allow_fp16_reduced_precision_reduction,
            torch.backends.opt_einsum.enabled,
        ),
        "cudnn": [
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
        ],
        "mkldnn": torch.backends.mkldnn.enabled,
        "deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ],
        "generator of torch": torch.get_rng_state().tolist(),
        "generator of numpy": str(np.random.get_state()),  # noqa: NPY002
        "generator of Python": random.getstate()
        if _IS_ALONE
        else "type checks under pytest draw from it",
        "modes": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_anomaly_enabled(),
        ),
        "autocast": [
            (torch.is_autocast_enabled(one), torch.get_autocast_dtype(one))
            for one in ("cpu", "cuda")
        ],
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "denormals": float(
            torch.full((1,), 1e-310, dtype=torch.float64, device="cpu") * 1.0
        ),
        "warnings": (list(warnings.filters), warnings.showwarning is _SHOWN),
        "printing": (str(np.get_printoptions()), str(torch._tensor_str.PRINT_OPTS)),
        "errors of numpy": np.geterr(),
        "figures": _figures(),
        "environment": dict(os.environ),
        "place": (
            Path.cwd(),
            list(sys.path),
            locale.setlocale(locale.LC_ALL),
            sys.getrecursionlimit(),
        ),
        "handlers": (
            list(logging.getLogger().handlers),
            logging.getLogger().level,
            gc.isenabled(),
            gc.get_threshold(),
        ),
        "signals": [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)],
        "network": {
            name: (one.training, len(one._forward_hooks))
            for name, one in network.named_modules()
        },
        "weights": {
            name: (one.requires_grad, one.grad, one.tolist())
            for name, one in network.named_parameters()
        },
        "buffers": {name: one.tolist() for name, one in network.named_buffers()},
    }


_SHOWN = warnings.showwarning
_IS_ALONE = "pytest" not in sys.modules
ROOT = Path(__file__).parent.parent.parent


def _or_error(read):
    try:
        return read()
    except RuntimeError as error:
        return type(error).__name__


def _figures():
    if "matplotlib" not in sys.modules:
        return {}
    import matplotlib as mpl

    return {
        name: str(value)
        for name, value in dict.items(mpl.rcParams)
        if name != "backend"
    }


def differences(before, after):
    return [name for name in before if before[name] != after[name]]


@contextmanager
def odd_state():
    """Hold a state in which nothing that a computation might set to a value has that value, nor its default."""
    with ExitStack() as stack:

        def held(read, write, value):
            stack.callback(write, read())
            write(value)

        held(
            torch.backends.mha.get_fastpath_enabled,
            torch.backends.mha.set_fastpath_enabled,
            True,
        )
        held(
            torch.backends.cuda.cudnn_sdp_enabled,
            torch.backends.cuda.enable_cudnn_sdp,
            False,
        )
        held(
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "high",
        )
        held(torch.get_num_threads, torch.set_num_threads, 3)
        held(torch.get_default_dtype, torch.set_default_dtype, torch.float64)
        held(random.getstate, random.setstate, random.Random(5).getstate())
        held(
            np.random.get_state,
            np.random.set_state,
            np.random.RandomState(7).get_state(),
        )
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(11)
        stack.enter_context(torch.device("meta"))
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="a filter of the caller's own")
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")
        stack.enter_context(np.errstate(all="ignore"))
        yield


class Net(nn.Module):
    """Attention with a norm, a dropout that is off, and a part whose mode is not its parent's."""

    def __init__(self):
        super().__init__()
        self.into, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(4, 2)
        self.odd = nn.Tanh()
        self.eval()
        self.odd.train()

    def forward(self, x):
        h = self.into(x)
        h = self.norm(h.transpose(1, 2)).transpose(1, 2)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.out(self.drop(self.odd(h)).mean(dim=1))


@cache
def network():
    torch.manual_seed(0)
    return Net()


def given():
    generator = torch.Generator("cpu").manual_seed(1)
    drawn = torch.randn(4, 5, 3, generator=generator, dtype=torch.float32, device="cpu")
    return drawn, torch.tensor([0, 1, 1, 0], device="cpu")


def problem():
    return hessfig.Problem(network(), *given(), "cross_entropy")


@cache
def operator():
    return problem().operator("out.weight")


@cache
def pair():
    return problem().operator(("out.weight", "into.weight"))


@cache
def approximation():
    return problem().approximation("kfac", "into.weight")


@cache
def bridge():
    made = native()
    made.train()
    next(iter(made.children())).eval()
    return made


def tokens():
    return torch.tensor([[0, 3, 1], [1, 2, WORDS - 1]], device="cpu")


def monitor(folder, **further):
    options = {
        "max_fraction": None,
        "on_error": "raise",
        "overwrite": True,
        "weights": {"W": "out.weight"},
        **further,
    }
    return hessfig.Monitor(
        network(), "cross_entropy", given(), folder=folder, every=1, **options
    )


def monitored(folder):
    made = monitor(folder / f"{threading.get_ident()}")
    made(0)
    made.close()


def vector(size=8):
    return torch.ones(size, dtype=torch.float64, device="cpu")


class Draws(Net):
    """A network that draws from every global generator."""

    def forward(self, x):
        random.random(), np.random.random()  # noqa: NPY002
        return super().forward(x) + torch.rand((), device="cpu")


@cache
def drawing():
    return Draws()


def measured(**asked):
    return hessfig.measure(problem(), **{"blocks": ["out.weight"], **asked})


def swept(folder):
    made = hessfig.run("sigma", *SMALL, seeds=2, workers=1, output_dir=str(folder))
    hessfig.read(made.folder).slopes()
    made.plot("3a")


Call = Callable[[Path], Any]
CALLS = {
    "measure": lambda at: measured(
        quantities=["frobenius", "trace", "largest_eigenvalue"]
    ),
    "measure in float32": lambda at: measured(dtype="float32", estimator="hutchinson"),
    "measure by xtrace": lambda at: measured(estimator="xtrace", num_probes=2),
    "measure along": lambda at: measured(
        blocks=["all"], quantities=["along", "slices", "pruning", "density"], parts="H"
    ),
    "objective": lambda at: problem().objective("float64"),
    "operator": lambda at: problem().operator("out.weight").dense(),
    "approximation": lambda at: problem().approximation("kfac", "into.weight"),
    "@": lambda at: operator() @ vector(),
    "rmatvec": lambda at: pair().rmatvec(vector()),
    "matmat": lambda at: operator().matmat(torch.ones(8, 2, device="cpu")),
    "split": lambda at: operator().split(vector()),
    "dense": lambda at: operator().dense(),
    "solve": lambda at: operator().solve(vector(), damping=1.0),
    "to_scipy": lambda at: operator().to_scipy() @ np.ones(8),
    "to_curvlinops": lambda at: operator().to_curvlinops() @ vector(),
    "flatten": lambda at: operator().flatten(operator().unflatten(vector())),
    "approximation @": lambda at: approximation() @ vector(12),
    "approximation.solve": lambda at: approximation().solve(vector(12), damping=1.0),
    "monitor": monitored,
    "find_weights": lambda at: hessfig.find_weights(wrapped(_still())),
    "lens.attention_patterns": lambda at: hessfig.lens.attention_patterns(
        hessfig.Problem(bridge(), tokens())
    ),
    "lens.attention_scores": lambda at: hessfig.lens.attention_scores(
        hessfig.Problem(bridge(), tokens())
    ),
    "lens.residual_norms": lambda at: hessfig.lens.residual_norms(
        hessfig.Problem(bridge(), tokens())
    ),
    "measure a bridge": lambda at: hessfig.measure(
        hessfig.Problem(_still(), tokens()), blocks=["W_V"], parts="H_o"
    ),
    "predict": lambda at: hessfig.predict("model.scores=qk_norm"),
    "run, read, slopes, plot": lambda at: swept(at),
}
REFUSED = {
    "measure": (lambda at: measured(blocks=["nothing"]), UserError),
    "measure what draws": (
        lambda at: hessfig.measure(hessfig.Problem(drawing(), *given())),
        UserError,
    ),
    "operator": (lambda at: problem().operator("nothing"), UserError),
    "approximation": (
        lambda at: problem().approximation("kfac", "norm.weight"),
        UserError,
    ),
    "@": (lambda at: operator() @ vector(3), UserError),
    "solve": (lambda at: operator().solve(vector() / 0), UserError),
    "monitor": (lambda at: monitor(at, weights={"W": "nothing"}), UserError),
    "lens": (
        lambda at: hessfig.lens.residual_norms(
            hessfig.Problem(bridge(), tokens() + 99)
        ),
        Exception,
    ),
    "find_weights": (lambda at: hessfig.find_weights(network()), UserError),
    "run": (lambda at: hessfig.run("sigmas"), UserError),
    "read": (lambda at: hessfig.read(at), UserError),
    "plot": (lambda at: hessfig.plot(at), UserError),
    "predict": (lambda at: hessfig.predict("model.scores=none_such"), UserError),
}


@cache
def _still():
    return native().eval()


@cache
def _made():
    """Make what calls share, and let libraries set up what they set up once."""
    for make in (operator, pair, approximation, bridge, _still, drawing):
        make()


@pytest.fixture(autouse=True)
def _warm(tmp_path):
    _made()


def asked(call, folder, error=None):
    if error is None:
        call(folder)
        return
    with pytest.raises(error):
        call(folder)


EVERY = [(name, call, None) for name, call in CALLS.items()]
EVERY += [(f"{name} refuses", call, error) for name, (call, error) in REFUSED.items()]
IDS = [name for name, _, _ in EVERY]


@pytest.mark.parametrize(("name", "call", "error"), EVERY, ids=IDS)
def test_the_state_of_the_process_is_as_it_was(name, call, error, tmp_path):
    asked(call, tmp_path, error)  # what is imported on the way sets up itself once
    for held in (False, True):
        watched = bridge() if name.startswith("lens") else network()
        with odd_state() if held else ExitStack():
            before = global_state(watched)
            try:
                asked(call, tmp_path, error)
            finally:
                after = global_state(watched)
            assert differences(before, after) == [], f"{name}, held: {held}"


@pytest.mark.parametrize(("name", "call", "error"), EVERY, ids=IDS)
@pytest.mark.long
def test_threads_leave_it_too(name, call, error, tmp_path):
    if name in ("monitor refuses", "run, read, slopes, plot"):
        pytest.skip("one folder is one monitor's, and one run's")
    watched = bridge() if name.startswith("lens") else network()
    torch.set_num_threads(3)
    before = global_state(watched)
    failures = list[BaseException]()

    def several():
        try:
            for _ in range(3):
                call(tmp_path)
        except BaseException as raised:
            if error is None or not isinstance(raised, error):
                failures.append(raised)

    threads = [threading.Thread(target=several) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    seen = list[int]()
    late = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    late.start()
    late.join()
    assert failures == []
    assert seen == [3]
    assert differences(before, global_state(watched)) == []


ALONE = """
import random, sys, tempfile, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import tests.api.test_global_state as every
every._made()
for name, call, error in every.EVERY:
    folder, watched = Path(tempfile.mkdtemp()), every.bridge() if name.startswith("lens") else every.network()
    for _ in range(2):
        before = every.global_state(watched)
        try:
            call(folder)
        except Exception as raised:
            assert error and isinstance(raised, error), (name, raised)
    assert every.differences(before, every.global_state(watched)) == [], name
"""


@pytest.mark.long
def test_the_generator_of_python_is_as_it_was_where_no_types_are_checked():
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_number_does_not_hang_on_the_callers_state():
    asked = {
        "quantities": ["frobenius", "trace", "largest_eigenvalue", "loss"],
        "blocks": ["out.weight", "all"],
    }
    for dtype in ("float64", "float32"):
        plain = measured(dtype=dtype, estimator="hutchinson", **asked)["value"]
        with odd_state():
            odd = measured(dtype=dtype, estimator="hutchinson", **asked)["value"]
        assert plain.tolist() == odd.tolist()


@pytest.mark.parametrize("setting", ["older", "newer", "newer, of all"])
def test_precision_is_full_inside_and_the_callers_outside(setting):
    from hessfig.curvature.double_backward import differentiating

    try:
        if setting == "older":
            torch.set_float32_matmul_precision("medium")
        else:
            place = (
                torch.backends
                if setting.endswith("all")
                else torch.backends.mkldnn.matmul
            )
            place.fp32_precision = (
                "bf16" if place is torch.backends.mkldnn.matmul else "tf32"
            )
        there = global_state(network())
        with differentiating(), differentiating():
            inside = (
                torch.backends.cuda.matmul.fp32_precision,
                torch.backends.mkldnn.matmul.fp32_precision,
            )
        assert not {*inside} & {"tf32", "bf16"}
        assert differences(there, global_state(network())) == []
    finally:
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        for one in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            one.fp32_precision = "none"
