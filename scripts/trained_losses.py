"""Losses of the trained encoders on real sequences, against random weights and against the same words shuffled.

    python scripts/trained_losses.py outputs/trained [--draws 20]

The folder is that of scripts/fetch_trained.py. Of each network the mean cross-entropy of masked words (15 %, in nats)
over so many draws of masks, with the standard error over draws; `uniform` is the logarithm of the vocabulary's size,
`unigram` the entropy of the sequences' own words. One thread, a minute.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hessfig.config.enums import Data, Scored
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.gradients import loss_of
from hessfig.curvature.problem import Objective
from hessfig.models.kinds.huggingface import STORED, completed
from hessfig.models.stored.architectures import sizes_of
from hessfig.models.stored.causal_model import special_words
from hessfig.models.stored.model_folder import settings_of
from hessfig.rng import one_thread, stream
from hessfig.states.point import drawn
from hessfig.tasks.masked_tokens import Special, masked_batches


def losses(place: Path, draws: int) -> dict[str, object]:
    """Return a row of the table: the losses of the network in a folder."""
    count = len((place / "sequences.txt").read_text("utf-8").splitlines())
    task = TaskConfig(data=Data.masked_tokens, scored=Scored.all, batch_size=count)
    config = completed(Config(model=ModelConfig("huggingface", path=str(place)), task=task))
    ids, special = torch.tensor(STORED.ids(config)), special_words(config, sizes_of(*settings_of(config)))
    trained = drawn(config, sigma=None, seed=0)
    anew = replace(config, model=replace(config.model, random=True))
    random = drawn(anew, sigma=None, seed=0)
    size = STORED.sizes(config).vocabulary
    return {
        "network": place.name,
        "sequences": count,
        "trained": _mean(trained, ids, task, special, draws, size),
        "shuffled": _mean(trained, _shuffled(ids, special), task, special, draws, size),
        "random weights": _mean(random, ids, task, special, draws, size),
        "uniform": f"{math.log(size):.3f}",
        "unigram": f"{_entropy(ids, special):.3f}",
    }


def _mean(problem: Objective, ids: Tensor, task: TaskConfig, special: Special, draws: int, size: int) -> str:
    found = []
    for seed in range(draws):
        (batch,) = masked_batches(ids, replace(task, seed=seed), special, vocabulary=size, at_once=len(ids))
        with torch.no_grad():
            found.append(float(loss_of(replace(problem, batch=batch, more=()))))
    return f"{statistics.mean(found):.3f} ± {statistics.stdev(found) / math.sqrt(draws):.3f}"


def _shuffled(ids: Tensor, special: Special) -> Tensor:
    """Return every sequence with its words, but the special ones, in another order."""
    found = ids.clone()
    for number, row in enumerate(found):
        places = torch.tensor([word not in special.kept for word in row.tolist()]).nonzero().squeeze(1)
        row[places] = row[places[torch.randperm(len(places), generator=stream(0, "shuffled", number))]]
    return found


def _entropy(ids: Tensor, special: Special) -> float:
    words: Sequence[int] = [word for word in ids.flatten().tolist() if word not in special.kept]
    shares = [words.count(word) / len(words) for word in set(words)]
    return -sum(share * math.log(share) for share in shares)


def main() -> None:
    """Print the table of every network below the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    with one_thread():
        for place in sorted(path.parent for path in given.folder.glob("*/config.json")):
            print("  ".join(f"{name}: {value}" for name, value in losses(place, given.draws).items()), flush=True)


if __name__ == "__main__":
    main()
