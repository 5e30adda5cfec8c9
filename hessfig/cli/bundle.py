"""Implements `hessfig bundle`: packs a table and everything that made it into one archive."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files as resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hessfig.cli.reproduce import bundle_arguments, draw_all, job_again, measured_table
from hessfig.cli.terminal import print_plain
from hessfig.config.compose.job import Job
from hessfig.config.enums import Kind
from hessfig.config.schema import GROUPS, Config
from hessfig.config.training_settings import StateConfig
from hessfig.config.user.packed import (
    ARCHIVE,
    BATCHES,
    CODE,
    FIGURES,
    OWN,
    REQUIREMENTS,
    SUMS,
    in_markdown,
    places_of,
    requirements_of,
    zipped,
)
from hessfig.config.user.user_code import files_of, is_own, specs_of
from hessfig.config.user.user_dir import NAME, NAME_IN_WORDS
from hessfig.errors import UserError, plain, run_command
from hessfig.files import fingerprint, is_file
from hessfig.record import CHECKSUM, MANIFEST, TABLE, checksum
from hessfig.register import check_replaceable, publish

if TYPE_CHECKING:
    from hessfig.analysis.manifest import RecordedRun

_BUNDLE = "bundle"  # kind of files, for the register
LARGEST = 200_000_000  # bytes of a file of weights or data that is packed; of a larger one only its SHA-256
_ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|mnt|scratch|work|data|opt|var)/[^\s\"']*")
_LOCAL_WORDS = ("output_dir=", "workers=", "force_workers=", "launcher", "shard=", "memory=")


def bundle_verb(arguments: Sequence[str]) -> int:
    """Write one archive with a table and everything needed to measure it again; print its contents."""
    place, own, given = bundle_arguments("bundle", arguments)
    folder = place if place.is_dir() else place.parent
    run, manifest = measured_table(folder)
    packed = Bundle(folder, run, manifest, job_again(folder, manifest, own, given))
    path = _archive_at(given.get("file", f"{packed.name}{ARCHIVE}"))
    files = packed.files()
    publish({path: (content := zipped(packed.name, files))}, _BUNDLE)
    print_plain(*packed.notes, f"written: {path} ({len(files)} files, {len(content) / 1e6:.2f} MB)")
    print_plain(f"SHA-256: {hashlib.sha256(content).hexdigest()}")
    return 0


def _archive_at(name: str) -> Path:
    """Return where to write a bundle. Raises UserError for another kind of file, and for what is no bundle's place."""
    path = Path(name)
    if path.suffix != ARCHIVE:
        raise UserError("file names an archive", got=f"file={path}", allowed="NAME.zip", remedy="file=NAME.zip")
    check_replaceable([path], _BUNDLE)
    return path


@dataclass(frozen=True)
class Bundle:
    """The contents of a bundle of a sweep's folder; `job` is composed from its manifest, `notes` are printed."""

    folder: Path
    run: RecordedRun
    manifest: Mapping[str, Any]
    job: Job
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its sweep, of its folder and of the archive. Raises UserError for one that is none."""
        name = str(self.run.table["sweep"].iloc[0])
        if not NAME.fullmatch(name):
            remedy = "measure it again: hessfig run sweep.name=NAME"
            raise UserError("the sweep has no plain name", got=plain(name), allowed=NAME_IN_WORDS, remedy=remedy)
        return name

    def files(self) -> dict[str, bytes]:
        """Return every file by its name in the archive's folder. Raises UserError for one that cannot be read."""
        requirements, (table, manifest) = requirements_of(self.manifest).encode(), self._texts()
        packed = {TABLE: table, MANIFEST: manifest, **self._arrays(), **self._remembered()}
        packed |= {f"{OWN}/{name}": path.read_bytes() for name, path in sorted(self._own.items())}
        packed |= dict(self._batches())
        packed |= self._figures(packed)
        packed["CITATION.cff"] = resources("hessfig.data").joinpath("CITATION.cff").read_bytes()
        packed[REQUIREMENTS] = requirements
        packed["README.md"] = self._readme(packed).encode()
        self._note_places(packed)
        sums = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(packed.items()))
        return {**packed, SUMS: "".join(sums).encode()}

    def _texts(self) -> tuple[bytes, bytes]:
        """Return table and manifest; where they name files by their place here, by their place in the archive."""
        before = (self.folder / MANIFEST).read_bytes()
        manifest = (json.dumps(self._portable, indent=2) + "\n").encode()
        return self._table.encode(), before if self._portable == json.loads(before) else manifest

    @cached_property
    def _table(self) -> str:
        text = (self.folder / TABLE).read_text("utf-8")
        for before, after in self._renamed.items():
            text = text.replace(before, after)
        return text

    @cached_property
    def _portable(self) -> dict[str, Any]:
        """The manifest as it is packed: without places and words of this machine."""
        content = _without_places(dict(self.manifest), self._renamed)
        content["command"] = _portable(str(content.get("command") or ""))
        content["table_sha256"] = hashlib.sha256(self._table.encode()).hexdigest()
        return {**content, CHECKSUM: checksum(content)}

    @cached_property
    def _configs(self) -> list[Config]:
        return [config for _, config in self.job.variants]

    @cached_property
    def _specs(self) -> list[str]:
        """Code of the user's own that the settings name: factories and quantities."""
        named = (spec for config in self._configs for spec in specs_of(config))
        return [spec for spec in dict.fromkeys(named) if is_own(spec)]

    @cached_property
    def _places(self) -> dict[str, Path]:
        """The files and folders that the settings name, by the text that names them."""
        named = (place for config in self._configs for place in places_of(config).values())
        return {place: Path(place) for place in named if Path(place).exists()}

    @cached_property
    def _renamed(self) -> dict[str, str]:
        """What settings call a file, where that is a place of this machine, and its name in the folder `own`."""
        names = [*(spec.rpartition(":")[0] for spec in self._specs), *self._places]
        return {name: kept for name in names if (kept := _kept(name, self.job.own)) != name}

    @cached_property
    def _own(self) -> dict[str, Path]:
        """The user's files by their names in the folder `own`: code, data, weights, and YAML of --config-dir."""
        files: dict[str, Path] = {}
        for spec in self._specs:
            files |= files_of(spec, self.job.config.config_dir)
        for text, place in self._places.items():
            inside = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
            for file in inside:
                name = _kept(text, self.job.own)
                files[f"{name}/{file.name}" if place.is_dir() else name] = file
        if self.job.own:
            own = self.job.own
            files |= {str(file.relative_to(own)): file for group in GROUPS for file in (own / group).glob("*.yaml")}
        return {name: file for name, file in files.items() if self._is_packed(name, file)}

    def _is_packed(self, name: str, file: Path) -> bool:
        if file.stat().st_size <= LARGEST:
            return True
        self.notes.append(f"too large to be packed: put it at {OWN}/{name} (SHA-256 {fingerprint(file)})")
        return False

    def _arrays(self) -> dict[str, bytes]:
        """Return the arrays next to the cells that the manifest names. Raises UserError where they are not there."""
        from hessfig.analysis.arrays import entries_of

        entries = entries_of(self.folder)
        for path, sha256 in ((self.folder / entry["file"], entry["sha256"]) for entry in entries):
            actual = fingerprint(path) if is_file(path) else "no such file"
            if actual != sha256:
                remedy = f"measure it again: {run_command(self.folder)}"
                raise UserError(f"{path} is not the array that was stored", got=actual, allowed=sha256, remedy=remedy)
        return {entry["file"]: (self.folder / entry["file"]).read_bytes() for entry in entries}

    def _remembered(self) -> dict[str, bytes]:
        """Return the specifications of the user's own figures that `hessfig plot` stored."""
        from hessfig.api.requested import DRAWN

        packed = {}
        for path in sorted((self.folder / DRAWN).glob("*.json")):
            content = json.loads(path.read_bytes())
            content["command"] = _portable(str(content.get("command") or ""))
            content[CHECKSUM] = checksum(content)
            packed[f"{DRAWN}/{path.name}"] = (json.dumps(content, indent=1) + "\n").encode()
        return packed

    def _batches(self) -> Iterator[tuple[str, bytes]]:
        """Yield every batch that was measured on, once, as .npz, and which networks it belongs to, as CSV."""
        from hessfig.states.exported import batches_as_bytes
        from hessfig.states.point import axes, drawn
        from hessfig.sweep.variant import Variant

        lines, seen = ["variant,seed,file"], set()
        for variant in (Variant(name, config) for name, config in self.job.variants):
            plain_state = replace(variant.config, state=StateConfig())
            by_seed = variant.config.model.kind == Kind.python and "seed" in axes(plain_state)
            for seed in variant.seeds() if by_seed else [variant.config.first_seed]:
                problem = drawn(plain_state, sigma=variant.sigmas()[0], seed=seed)
                content = batches_as_bytes((problem.batch, *problem.more))
                name = f"{BATCHES}/{hashlib.sha256(content).hexdigest()[:12]}.npz"
                label = variant.name.replace('"', '""')
                lines.append(f'"{label}",{seed if by_seed else ""},{Path(name).name}')
                if name not in seen:
                    seen.add(name)
                    yield name, content
        yield f"{BATCHES}/batches.csv", ("\n".join(lines) + "\n").encode()

    def _figures(self, packed: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the sweep's figures, drawn from the packed files."""
        with TemporaryDirectory(prefix="hessfig-") as temporary:
            folder = Path(temporary) / self.name
            for name, content in packed.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            drawn = draw_all(folder, self.job.own, Path(temporary) / FIGURES)
            return {f"{FIGURES}/{path.name}": path.read_bytes() for path in drawn}

    def _readme(self, packed: Mapping[str, bytes]) -> str:
        manifest = self._portable
        about, made_by = in_markdown((manifest["config"].get("sweep") or {}).get("about") or ""), self._made_by
        own = [name for name in packed if name.startswith(f"{OWN}/")]
        listed = [f"- `{name}`: SHA-256 {hashlib.sha256(packed[name]).hexdigest()}" for name in own]
        parts = [
            f"# {self.name}",
            f"{about}\n\n{len(self.run.table)} numbers, measured with {made_by}.",
            _MEASURE_AGAIN.format(name=self.name, code=f" {CODE}=run" * bool(self._specs), command=manifest["command"]),
            _CONTENT,
            "\n".join(["## Files of the authors' own", *listed, *(f"- {note}" for note in self.notes)]),
            "## Citation\n\n`CITATION.cff` holds software and paper. Add the hash of this archive to what you cite.",
        ]
        return "\n\n".join(part for part in parts) + "\n"

    @property
    def _made_by(self) -> str:
        words = [in_markdown(self.manifest.get(key)) for key in ("hessfig", "python", "platform", "end")]
        return "hessfig {}, Python {}, on {} ({})".format(*words)

    def _note_places(self, packed: Mapping[str, bytes]) -> None:
        """Refuse a table or manifest that names a place of this machine; say so of the user's own texts."""
        for name, content in packed.items():
            place = _ABSOLUTE.search(content.decode("utf-8", "ignore")) if _is_text(name) else None
            if place and name in (TABLE, MANIFEST, "README.md"):
                raise UserError(
                    f"{name} names a place of this machine",
                    got=plain(place[0]),
                    allowed="relative paths",
                    remedy="measure again with a relative path (finished cells are reused)",
                )
            if place:
                self.notes.append(f"{name} names a place of this machine, and is packed as it is: {plain(place[0])}")


_MEASURE_AGAIN = """## Measure it again

```sh
python -m venv environment && . environment/bin/activate
pip install -r {name}/requirements.txt
hessfig reproduce {name}{code}
```

`hessfig reproduce` measures every number again in a temporary folder and compares row by row: equal to the bit, within
1e-9, within the stated errors, or different. It exits with 0 if the table is reproduced, with 1 if not. Code in the
folder `own` is executed where `code=run` is given, and only then: read it first. The table was made by

```sh
{command}
```"""
_CONTENT = """## Content

| file | content |
|---|---|
| `table.csv` | one row per measured number, with its error, seed and status |
| `manifest.json` | every setting, versions, and the hash of the table |
| `cells/` | arrays (spectra, eigenvectors, blocks) that belong to the table, where there are any |
| `own/` | code, data and settings that are not part of hessfig |
| `batch/` | the batches: `inputs_k`, `targets_k`, and `scored_k`, first scored position and end |
| `figures/` | the figures of this sweep, drawn from the table, with the numbers drawn as CSV |
| `requirements.txt` | versions that made the table |
| `SHA256SUMS` | hashes of all files; `sha256sum -c SHA256SUMS` checks them |"""


def _without_places(content: Any, renamed: Mapping[str, str]) -> Any:
    """Return what a JSON file holds, with every text that begins with a place by the name of that in the archive."""
    if isinstance(content, dict):
        return {_without_places(key, renamed): _without_places(value, renamed) for key, value in content.items()}
    if isinstance(content, list):
        return [_without_places(entry, renamed) for entry in content]
    if isinstance(content, str):
        for before, after in renamed.items():
            content = content.replace(before, after)
    return content


def _kept(text: str, own: Path | None) -> str:
    """Return the name of a file in the folder `own`: as it is called, or its last part where that leads elsewhere."""
    path = Path(text)
    if own and path.is_relative_to(own):
        return str(path.relative_to(own))
    return path.name if path.is_absolute() or ".." in path.parts else text


def _portable(command: str) -> str:
    """Return a command of hessfig's without the words that are of one machine; nothing for any other text.

    Words of one machine are folders, workers and launchers.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    if words[:1] not in (["hessfig"], ["hessfig.Monitor"]) or plain(command, most=len(command)) != command:
        return ""
    return shlex.join([word for word in words if not word.startswith(_LOCAL_WORDS)])


def _is_text(name: str) -> bool:
    return not name.endswith((".npz", ".npy", ".pdf", ".png", ".safetensors", ".pt", ".bin"))
