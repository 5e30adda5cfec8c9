"""Every setting given to every kind of network, data and state: it changes a key, is of none, is noted, or refused."""

import hashlib
import re

import pytest
import torch
from omegaconf import OmegaConf

from hessfig.config.compose.job import Job, compose
from hessfig.config.compose.overrides import command_settings
from hessfig.config.facts import Role
from hessfig.config.settings import settings, value_of
from hessfig.errors import UserError, typed
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.states.point import drawn
from hessfig.sweep.plan import Sweep
from hessfig.sweep.variant import Variant
from hessfig.verbs import VERBS

SIZES = ("model.d_model=8", "task.batch_size=3", "seeds=1")
SMALL = (*SIZES, "estimator=hutchinson", "blocks=each")
SUMS = (*SMALL, "task.digits=1")
NETWORKS = {
    "transformer": (*SUMS, "model.n_heads=2"),
    "normed": (
        *SUMS,
        "model.n_heads=2",
        "model.norm=pre",
        "model.scores=softcap",
        "model.attention=sigmoid",
    ),
    "differential": (
        *SUMS,
        "model.n_heads=2",
        "model.attention=differential",
        "model.sink=embedding",
        "model.sink_beta=2",
    ),
    "text": (*SMALL, "task=text", "task.length=8", "model.n_heads=2"),
    "self_attention": (
        *SUMS,
        "model=self_attention",
        "task=gaussian",
        "model.n_heads=2",
    ),
    "mlp": (*SUMS, "model=mlp"),
    "mlp of a width": (*SUMS, "model=mlp", "model.d_mlp=6"),
    "linear_mlp": (*SUMS, "model=linear_mlp"),
    "vit": (*SMALL, "model=vit", "task=digits"),
    "cnn": (*SMALL, "model=cnn", "task=digits"),
    "cnn with norms": (*SMALL, "model=cnn", "task=digits", "model.norm=post"),
    "huggingface": (
        *SMALL,
        "model=huggingface",
        "task=tokens",
        "task.length=6",
        "model.n_heads=2",
        "model.n_layers=1",
    ),
    "python": (
        *SMALL[2:],
        "model=python",
        "task=python",
        "model.factory=net.py:make",
        "grid.points=3",  # every point is drawn, and its function is witnessed, at every plan
    ),
}
STATES = {
    "loaded": ("state=loaded", "state.path=weights.pt"),
    "trained": ("state=trained", "training.steps=20", "state.step=[0,20]"),
    "descent": ("state=trained", "training=gd", "training.steps=20", "state.step=20"),
}
MEASURED = {
    "losses": ("quantities=[loss,held_out_loss]",),
    "updates": (
        "quantities=[critical_step,batch_sharpness]",
        "training.schedule=constant",
    ),
    "landscape": (
        "quantities=[landscape_difference,landscape_subspace]",
        "landscape.distance=0.1",
    ),
    "walks": ("quantities=[descent,critical_points]",),
    "spectra": ("quantities=[density,largest_eigenvalue]",),
    "compressed": (
        "quantities=[pruning,quantisation,approximations]",
        "estimator=dense",
    ),
}
VALUES = {
    "task.path": ("words.txt",),
    "task.sha256": ("0" * 64,),
    "model.kind": ("mlp",),
    "model.factory": ("other.py:make",),
    "model.path": ("folder",),
    "model.sha256": ("0" * 64,),
    "model.options": ("{b: 2}", "{activation_function: relu}"),
    "model.n_kv_heads": ("1",),
    "model.name": ("GPT2LMHeadModel",),
    "model.architecture": ("gpt_neo",),
    "model.vocabulary": ("40",),
    "state.path": ("other.pt",),
    "state.sha256": ("0" * 64,),
    "state.step": ("[0,5]",),
    "grid.values": ("[0.3,2]",),
    "quantities": ("[frobenius]",),
    "blocks": ("all",),
    "parts": ("[H_o]",),
    "dtype": ("float32",),
    "device": ("cuda",),
    "sweep.vary": ("{task.seed: [3, 4]}",),
    "sweep.variants": ("[{}, {task.seed: 5}]",),
    "sweep.axis": ("sigma",),
    "landscape.dimensions": ("[2]",),
    "landscape.samples": ("2",),
    "compression.shares": ("[0.5]",),
    "compression.bits": ("[2]",),
    "approximation.names": ("[kfac]",),
    "directions.along": ("[gradient]",),
    "directions.plane": ("[gradient,random]",),
    "directions.named": ("[gradient]",),
    "directions.rules": ("[sgd]",),
    "training.betas": ("[0.5,0.6]",),
    "training.checkpoints": ("[3]",),
    "training.steps": ("30",),
    "reuse": ("sources",),
    "memory": ("7GB",),
}
# Nothing of these is a number: who measures, where, how tables are read and named.
NOT_OF_KEYS = {
    Role.machine,
    Role.command,
    Role.reading,
    Role.flag,
    Role.fit,
    Role.label,
    Role.means,
}


def values(one):
    """Return values that are not the default."""
    if one.key in VALUES:
        return VALUES[one.key]
    if one.named:
        return tuple(value for value in one.named if value != one.default)
    if one.default in ("true", "false"):
        return ("false" if one.default == "true" else "true",)
    number = float(one.default) if one.default != "null" else 2.0
    if "whole number" in one.kind or one.type is int:
        return (str(int(number) + 1), str(max(1, int(number) - 1)))
    return (f"{number * 0.7 or 0.3:g}",)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Go to a folder with a network of one's own, and weights for the first network here."""
    body = "import torch\n\n\ndef make(seed=0, sigma=1.0, b=1, c=1):\n    torch.manual_seed(seed)\n"
    body += "    net = torch.nn.Linear(3, 2)\n"
    body += "    return net, b * torch.ones(4, 3), torch.tensor([0, 1, 0, 1]), 'cross_entropy'\n"
    (tmp_path / "net.py").write_text(body)
    (tmp_path / "other.py").write_text(
        body.replace("Linear(3, 2)", "Linear(3, 2, bias=False)")
    )
    network = drawn(compose(NETWORKS["transformer"]).config, sigma=0.3, seed=1).network
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    torch.save(
        {name: 2 * weight for name, weight in network.state_dict().items()},
        tmp_path / "other.pt",
    )
    monkeypatch.chdir(tmp_path)


def changed(base, key, value):
    """Return what a further word asks, as `hessfig run` does, without composing all of it again."""
    composed = base.composed.copy()
    word = f"{key}={value}"
    OmegaConf.update(composed, key, command_settings([word])[key], force_add=True)
    return Job(composed, (*base.words, word), None)


def keys(job):
    """Return the keys of the cells that are planned. Raises UserError where something is refused."""
    return planned(job)[0]


def planned(job):
    """Return the keys of the cells, and the notes."""
    job = job.without_unread()
    sweep = Sweep(job.variants, job.asked)
    return {cell.key for cell in (*sweep.cells, *sweep.pilots)}, sweep.unread


def others(base, one):
    """Return values that are not what it has."""
    return [
        value for value in values(one) if value != typed(value_of(base.first, one.key))
    ]


def outcome(base, known, one):
    """Return what becomes of a setting that is given: it changes a key, is noted, is refused, or neither."""
    found = []
    for value in others(base, one):
        try:
            made, notes = planned(changed(base, one.key, value))
            is_noted = is_of(one.key, notes)
            assert made == known or not is_noted, f"{one.key} is said to change nothing"
            found.append(
                "changes" if made != known else "noted" if is_noted else "same"
            )
        except UserError:
            found.append("refused")
    return next(
        (what for what in ("changes", "same", "noted") if what in found), "refused"
    )


def is_of(key, notes):
    """Return whether a note says that nothing reads this setting; others are of settings that it makes idle."""
    return any(re.match(rf"{re.escape(key)}(?![\w.])", note) for note in notes)


def outcomes(words):
    """Return what becomes of every setting that does not stand in `words` already."""
    base = compose(words)
    known = keys(base)
    given = {word.partition("=")[0] for word in words}
    told = [
        one
        for key, one in settings().items()
        if key not in given and one.role not in NOT_OF_KEYS
    ]
    return {one.key: outcome(base, known, one) for one in told}


EVERY = {
    **NETWORKS,
    **{name: (*NETWORKS["transformer"], *words) for name, words in STATES.items()},
    **{name: (*SIZES, "task.digits=1", *words) for name, words in MEASURED.items()},
}


@pytest.mark.long
@pytest.mark.parametrize("name", EVERY)
def test_a_setting_changes_a_key_or_is_of_none_or_is_noted_or_refused(name, here):
    found = outcomes(EVERY[name])
    idle = {key for key, what in found.items() if what == "same"}
    watching = {
        key for key, one in settings().items() if one.says.watches and name in STATES
    }
    assert idle <= watching | {"estimator.variance_share"}
    # Its share settles probes only once pilots are measured: it is noted where there
    # are none by other settings.
    variants = Sweep(compose(EVERY[name]).variants).variants
    assert ("estimator.variance_share" in idle) == any(
        variant.may_have_pilots for variant in variants
    )
    assert {"changes", "noted", "refused"} <= set(found.values())


# A change of the size that is matched may be less than half a hidden unit.
WITHOUT_EFFECT = {
    "mlp": {"model.norm"},
    "huggingface": {"model.random"},  # as it is without a folder
}


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "python"])
@pytest.mark.long
def test_a_setting_of_network_and_data_that_is_taken_changes_what_is_measured(
    name, here
):
    """Keys hold all settings of network and data, so that they do not tell."""
    base = compose(NETWORKS[name])
    known = measured(base)
    given = {word.partition("=")[0] for word in NETWORKS[name]}
    told = [
        one
        for key, one in settings().items()
        if key.startswith(("model.", "task.")) and key not in given
    ]
    idle = set()
    for one in told:
        found = [
            measured_or_refused(changed(base, one.key, value), one.key)
            for value in others(base, one)
        ]
        if known in found and not set(found) - {"refused", known}:
            idle.add(one.key)
    assert idle <= WITHOUT_EFFECT.get(name, set())


def measured_or_refused(job, key):
    """Return what is measured, "refused" where the setting is refused, or noted as one that nothing reads."""
    try:
        return "refused" if is_of(key, planned(job)[1]) else measured(job)
    except UserError:
        return "refused"


def measured(job):
    """Return what tells a network at its weights with its data and loss from others, to the bit."""
    problem = drawn(job.first, sigma=0.7, seed=5)
    blocks = Variant("", job.first).blocks
    numbers = [
        row["value"]
        for name in ("loss", "gradient_norm")
        for row in quantity(name)
        .measured(problem, asked_of(quantity(name), blocks, At(job.first, 0.7, 5)))
        .rows
    ]
    weights = hashlib.sha256()
    for key, weight in problem.network.state_dict().items():
        weights.update(key.encode() + weight.detach().contiguous().numpy().tobytes())
    return f"{weights.hexdigest()} {numbers} {problem.decay}"


IMPLIED = {
    ("model.factory=net.py:make",): {"model.kind": "python", "task.data": "python"},
    ("state.path=weights.pt", *NETWORKS["transformer"]): {"state.kind": "loaded"},
}


@pytest.mark.parametrize("words", IMPLIED)
def test_a_setting_that_means_another_implies_it_and_says_so(words, here, capsys):
    job = VERBS["run"].job([*words, "blocks=each", "seeds=1"][: len(words) + 2])
    assert {key: str(value_of(job.first, key)) for key in IMPLIED[words]} == IMPLIED[
        words
    ]
    said = capsys.readouterr().err
    assert f"note: {words[0].partition('=')[0]} implies" in said
    assert job.words[-1].split("=")[0] in said


def test_what_contradicts_an_implication_is_refused(here):
    for words in (
        ["model.factory=net.py:make", "model=gpt2"],
        ["state.path=weights.pt", "state=initialised"],
    ):
        with pytest.raises(UserError, match=rf"^{words[0].partition('=')[0]}"):
            VERBS["run"].job(words)


def test_a_sweep_of_the_users_own_gives_its_settings(tmp_path):
    (tmp_path / "sweep").mkdir()
    file = tmp_path / "sweep" / "mine.yaml"
    file.write_text("# @package _global_\nsweep: {name: mine}\nmodel: {softcap: 7}\n")
    plain = VERBS["run"].job(["sweep=sigma"])
    known = {cell.key for cell in Sweep(plain.variants).cells}
    job = VERBS["run"].job(["sweep=mine"], tmp_path)
    assert planned(job) == (
        known,
        ["model.softcap is read with model.scores=softcap alone"],
    )
    file.write_text("# @package _global_\nsweep: {name: mine}\ntraining: {steps: 7}\n")
    job = VERBS["run"].job(["sweep=mine"], tmp_path)
    assert planned(job) == (
        known,
        ["training.steps: nothing is trained, and no quantity takes updates"],
    )


@pytest.mark.parametrize(
    "words",
    [
        ("training=gd",),
        ("spectrum=zhang",),
        ("grid=linear", "model=cnn", "task=digits"),
    ],
)
def test_a_preset_of_which_nothing_is_read_is_noted(words):
    job = VERBS["run"].job([*words, "blocks=each"])
    (note,) = Sweep(job.variants, job.asked).unread
    assert note.startswith(f"{words[0]}: nothing that it sets is read here")


UNREAD = {
    (
        "quantities=[density]",
        "estimator=dense",
    ): "estimator.method: nothing that is measured reads it",
    (
        "model.sink=both",
        "model.sink_beta=0",
    ): "model.sink is read with model.sink_beta other than 0.0 alone",
    ("quantities=[hessian_distance]", "landscape.permutations=20"): (
        "landscape.permutations: nothing that is measured reads it"
    ),
    ("quantities=[spectrum]", "quantities=[largest_eigenvalue,spectrum]"): (
        "largest_eigenvalue is among the rows of spectrum, and is measured once"
    ),
    ("model.mlp=none", "model.d_mlp=7"): (
        "model.d_mlp is read with model.mlp=relu|gelu|linear|silu|swiglu|geglu alone"
    ),
    (
        "grid.values=[0.1,1]",
        "grid.points=7",
    ): "grid.points is read with grid.values=null alone",
}


@pytest.mark.parametrize("words", UNREAD, ids=" ".join)
def test_a_setting_that_nothing_reads_is_noted_and_leaves_the_cells_as_they_are(words):
    *plain, further = words
    plain = [] if words[0] == "model.sink=both" else plain
    base, job = (
        VERBS["run"].job([*SIZES, "task.digits=1", *given]) for given in (plain, words)
    )
    assert planned(job) == (planned(base)[0], [UNREAD[words]])
    assert job.words[-1] == further


@pytest.mark.parametrize(
    ("word", "said"),
    [("model.softcap=-7", "model.softcap"), ("model.softcapp=7", "model.softcapp")],
)
def test_a_setting_that_nothing_reads_has_a_name_and_a_value_of_its_kind(word, said):
    with pytest.raises(UserError, match=said):
        VERBS["run"].job([word])


def test_one_variant_that_reads_a_setting_is_enough():
    vary = "sweep.variants=[{model.scores: softcap}, {model.scores: plain}]"
    VERBS["run"].job([vary, "model.softcap=50.0"])
    with pytest.raises(
        UserError, match=r"model.n_heads: kind=linear_mlp does not read it"
    ):
        VERBS["run"].job(["model=linear_mlp", "sweep.vary={model.n_heads: [1, 2]}"])


def test_an_entry_of_an_open_setting_is_read_with_it(here):
    job = VERBS["run"].job(
        [
            *NETWORKS["python"],
            "model.options.c=2",
            "sweep.vary={model.options.b: [1, 2]}",
        ]
    )
    assert len(Sweep(job.variants, job.asked).variants) == 2
    for words in (
        ["model.options.seed=1"],
        ["sweep.vary={model.options.sigma: [0.1, 1]}"],
    ):
        job = VERBS["run"].job([*NETWORKS["python"], *words])
        with pytest.raises(UserError, match="the sweep runs over"):
            Sweep(job.variants, job.asked)
    job = VERBS["run"].job(["model.options.b=2"])
    assert planned(job)[1] == ["model.options: kind=transformer does not read it"]
