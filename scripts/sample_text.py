"""Let a trained language model continue a text, character by character.

    python scripts/sample_text.py outputs/states/KEY/step_002500.safetensors "def " --characters 400 --seed 1

The network is that of training=text with the settings named after --settings (model.d_model=64 ...); characters are
drawn from the softmax of the logits over --temperature, the last task.length - 1 of them being what the network sees.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from hessfig.config.compose.job import compose
from hessfig.rng import stream
from hessfig.states.initialised import build_network
from hessfig.states.stored_states import load_weights
from hessfig.tasks.text import as_ids, as_text


@torch.no_grad()
def continued(
    network: torch.nn.Module, prompt: str, *, length: int, characters: int, temperature: float, seed: int
) -> str:
    """Return the prompt and `characters` more, drawn one after the other."""
    ids, generator = as_ids(prompt).astype("int64").tolist(), stream(seed, "sample", prompt)
    for _ in range(characters):
        seen = ids[1 - length :]
        window = torch.tensor([seen + [0] * (length - len(seen))])  # nothing behind a position enters its logits
        logits = network(window)[0, len(seen) - 1] / temperature
        ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
    return as_text(torch.tensor(ids).numpy())


def main() -> None:
    """Read the arguments, load the weights, and print the text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("prompt", nargs="?", default="def ")
    parser.add_argument("--characters", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", nargs="*", default=[])
    told = parser.parse_args()
    if not told.prompt:
        parser.error("the prompt is empty: there is nothing to continue")
    config = compose(["training=text", *told.settings]).config
    network = build_network(config, sigma=1.0, seed=0)
    load_weights(network, Path(told.weights))
    wanted = {"characters": told.characters, "temperature": told.temperature, "seed": told.seed}
    print(continued(network, told.prompt, length=config.task.num_tokens, **wanted))


if __name__ == "__main__":
    main()
