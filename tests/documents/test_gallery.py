"""The gallery is what this tree draws: every picture's record, its kept table, and the page that shows it."""

import hashlib
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from hessfig.config.presets import EVERY_PAGE, shipped_figures
from hessfig.errors import UserError
from hessfig.record import CHECKSUM, MANIFEST, TABLE, checksum
from tests.pages import ROOT

IMAGES = ROOT / "docs" / "img"
TABLES = ROOT / "docs" / "tables"
RECORDS = json.loads((IMAGES / "manifest.json").read_text())
FIGURES = {figure.name: figure for figure in shipped_figures()}
KEPT = sorted(
    sweep
    for sweep, table in RECORDS["tables"].items()
    if f"{sweep}.csv.xz" in table["kept"]
)
DRAWN = sorted({record["figure"] for record in RECORDS["pictures"].values()})
OF_ANOTHER_KEY = "trained_transformers"  # measured by hessfig 0.4.0, when networks of folders were rebuilt
_FAINT = 8  # of 255: last digits of numbers may differ between processors, and move the edge of a line by so much
_MOVED = 1e-4  # share of the pixels that may differ by more; a curve that is moved by 1 % of a decade changes more


@pytest.fixture(scope="module")
def modules():
    """Imported once: every import of `pictures` that draws adds a hook to all that follows in this process."""
    names = ("kept_tables", "pictures", "gallery")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts/pages"))
        yield {name: import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def test_every_picture_was_drawn_from_the_kept_tables(modules):
    assert {path.name for path in IMAGES.glob("*.png")} == {
        *RECORDS["pictures"],
        *RECORDS["others"],
    }
    for record in RECORDS["pictures"].values():
        assert record["figure"] in FIGURES
        for sweep, table in record["tables"].items():
            assert modules["kept_tables"].kept_hash(sweep, RECORDS["tables"]) == table


def test_the_page_is_generated_from_the_manifest(modules):
    assert (ROOT / "docs/gallery.md").read_text() == modules["gallery"].page_text(
        RECORDS
    )


def test_every_picture_is_shown_by_a_page():
    shown = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        shown.update(re.findall(r"img/([\w.-]+\.png)", path.read_text()))
    assert {path.name for path in IMAGES.glob("*.png")} == shown


def test_colour_bars_keep_their_colours_and_lines_take_a_palette(modules):
    """A palette of 256 colours would cut a colour bar into steps that are seen; grey edges of lines need no more."""
    picture = np.full((400, 400, 3), 255, dtype=np.uint8)
    picture[:, ::40] = 120
    assert modules["pictures"].compact(Image.fromarray(picture)).mode == "P"
    heights = np.linspace(0, 255, 400)
    for column in range(300, 400):  # as wide as a heat map: more than 256 colours
        picture[:, column] = np.stack(
            [heights, 255 - heights, (heights + 2 * column) % 255], axis=1
        )
    assert modules["pictures"].compact(Image.fromarray(picture)).mode == "RGB"


def test_pictures_of_no_figure_say_what_they_come_from():
    others = RECORDS["others"]
    assert set(others) == {name for name in others if (IMAGES / name).is_file()}
    assert not set(others) & set(DRAWN)
    for about in others.values():
        assert set(about) == {"made_by", "drawn_from"}
        for script in re.findall(r"scripts/\S+\.py", about["made_by"]):
            assert (ROOT / script).is_file() or "removed" in about["made_by"]


def test_the_page_shows_or_lists_every_figure_in_45_sections(modules):
    gallery = modules["gallery"]
    text = (ROOT / "docs/gallery.md").read_text()
    titles = re.findall(r"^### (.+)$", text, flags=re.MULTILINE)
    assert titles == [
        figure.title.removesuffix(".") for figure in gallery.gallery_figures()
    ]
    assert len(titles) <= 45
    listed = [
        figure.name
        for figure in gallery.all_figures()
        if figure.name in gallery.LISTED_ONLY
    ]
    assert re.findall(r"^\| `(\w+)` \| .+ \|$", text, flags=re.MULTILINE) == listed
    assert len(listed) + len(titles) == len(
        [figure for figure in FIGURES.values() if figure.group.value != "own"]
    )


def test_every_sentence_on_what_is_seen_belongs_to_a_page(modules):
    """A page that was renamed would lose its title without a word."""
    shown = {path.stem.removeprefix("fig") for path in IMAGES.glob("fig*.png")}
    for figure in modules["gallery"].gallery_figures():
        for suffix in {*figure.seen} - {EVERY_PAGE}:
            assert f"{figure.name}_{suffix}".rstrip("_") in shown, figure.name


def test_kept_tables_are_small_and_those_of_the_manifest(modules):
    recorded = {}
    most = modules["kept_tables"].LARGEST
    for table in RECORDS["tables"].values():
        recorded |= table["kept"]
        assert sum(table["kept"].values()) <= most
    sizes = {path.name: path.stat().st_size for path in TABLES.iterdir()}
    assert sizes == recorded
    assert sum(sizes.values()) <= 8 * 2**20


def test_kept_tables_name_no_machine(modules, tmp_path):
    kept_tables = modules["kept_tables"]
    for sweep in KEPT:
        kept_tables.unpack(sweep, tmp_path)
        for name in (TABLE, MANIFEST):
            kept_tables.check_names_no_machine(
                (tmp_path / sweep / name).read_bytes(), tmp_path / sweep
            )
    with pytest.raises(ValueError, match="names this machine: /srv/mine"):
        kept_tables.check_names_no_machine(
            b'{"command": "hessfig run output_dir=/srv/mine"}', tmp_path / "sigma"
        )


def test_the_kept_table_of_figure_3a_has_the_cells_that_are_planned(modules, tmp_path):
    kept_tables = modules["kept_tables"]
    kept_tables.unpack("sigma", tmp_path)
    assert kept_tables.disagreements(tmp_path / "sigma", "sigma") == []
    (other,) = kept_tables.disagreements(tmp_path / "sigma", "layernorm")[:1]
    assert "has cells that are not planned" in other
    shorter = (tmp_path / "sigma" / TABLE).read_text().splitlines(keepends=True)[:-6]
    (tmp_path / "sigma" / TABLE).write_text("".join(shorter))
    assert (
        "lacks 1 of 400 planned cells"
        in kept_tables.disagreements(tmp_path / "sigma", "sigma")[0]
    )


@pytest.mark.long
@pytest.mark.parametrize("sweep", KEPT)
def test_kept_tables_have_the_cells_that_are_planned(sweep, modules, tmp_path):
    modules["kept_tables"].unpack(sweep, tmp_path)
    try:
        apart = modules["kept_tables"].disagreements(tmp_path / sweep, sweep)
        if sweep == OF_ANOTHER_KEY:
            assert "has cells that are not planned" in apart[0]
        else:
            assert apart == []
    except UserError as error:
        assert "no such folder" in str(error)
        pytest.skip(
            "its network is not downloaded here, so its cells cannot be planned"
        )


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
def test_pictures_are_what_the_kept_tables_draw(name, modules, tmp_path):
    """Covers the parts that all figures share, which no hash of a layout covers."""
    kept_tables = modules["kept_tables"]
    pictures = modules["pictures"]
    shown = {
        path.name: path
        for path in pictures.pictures_of(name, IMAGES)
        if path.name not in RECORDS["old"]
    }
    if not shown:
        pytest.skip("its pictures are admitted as old")
    sweeps = set()
    for picture in shown:
        sweeps |= {*RECORDS["pictures"][picture]["tables"]}
    for sweep in sweeps:
        if left_out := kept_tables.lacking(sweep, RECORDS["tables"]):
            pytest.skip(f"cannot be redrawn: {left_out}")
        kept_tables.unpack(sweep, tmp_path)
    drawing = pictures.draw(FIGURES[name], tmp_path, tmp_path / "pictures")
    drawn = {path.name: path for path in drawing.pictures}
    for picture, path in shown.items():
        with Image.open(path) as before, Image.open(drawn[picture]) as now:
            assert apart(before, pictures.compact(now)) <= _MOVED, picture


def apart(before, now):
    """Return the share of the pixels of two pictures that differ visibly."""
    assert before.size == now.size
    one = np.array(before.convert("RGB"), int)
    other = np.array(now.convert("RGB"), int)
    return float((np.abs(one - other).max(axis=2) > _FAINT).mean())


@pytest.mark.long
def test_a_moved_curve_is_another_picture_and_last_digits_are_not(modules, tmp_path):
    """One of the curves of Figure 3a is multiplied by 1 + 4 eps, and by 1 % of a decade."""

    def drawn(factor):
        folder = tmp_path / str(factor)
        modules["kept_tables"].unpack("sigma", folder)
        _multiply(folder / "sigma", factor)
        (picture,) = (
            modules["pictures"]
            .draw(FIGURES["3a"], folder, folder / "pictures")
            .pictures
        )
        with Image.open(picture) as image:
            return modules["pictures"].compact(image)

    before = drawn(1.0)
    assert (
        apart(before, drawn(1 + 2**-50))
        <= _MOVED
        < 10 * _MOVED
        < apart(before, drawn(10**0.01))
    )


def _multiply(folder, factor):
    """Multiply a curve of a table, and seal it again."""
    path = folder / TABLE
    manifest = json.loads((folder / MANIFEST).read_text())
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    chosen = (table[["row", "col", "part"]] == ["W_V", "W_V", "H_o"]).all(axis=1)
    assert chosen.any()
    table.loc[chosen, "value"] = [
        repr(factor * float(text)) for text in table.loc[chosen, "value"]
    ]
    table.to_csv(path, index=False)
    manifest["table_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / MANIFEST).write_text(
        json.dumps({**manifest, CHECKSUM: checksum(manifest)})
    )


def test_what_a_layout_reads_is_kept_and_unpacked_byte_by_byte(
    modules, tmp_path, monkeypatch
):
    kept_tables = modules["kept_tables"]
    folder = tmp_path / "outputs" / "sigma"
    kept_tables.unpack("sigma", tmp_path / "outputs")
    arrays = [folder / "cells" / name for name in ("aa/1.npz", "bb/2.npz")]
    for number, path in enumerate(arrays):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(range(100 + number)))
    monkeypatch.setattr(kept_tables, "TABLES", tmp_path / "tables")
    entry = kept_tables.keep(folder, {arrays[0], folder / TABLE})
    assert set(entry["kept"]) == {"sigma.csv.xz", "sigma.json.xz", "sigma.tar"}
    assert entry["left_out"] == {}
    kept_tables.unpack("sigma", tmp_path / "again")
    files = set()
    for path in (tmp_path / "again").rglob("*"):
        if path.is_file():
            place = path.relative_to(tmp_path / "again/sigma")
            assert path.read_bytes() == (folder / place).read_bytes()
            files.add(str(place))
    assert files == {TABLE, MANIFEST, "cells/aa/1.npz"}
    monkeypatch.setattr(kept_tables, "LARGEST", sum(entry["kept"].values()) - 1)
    entry = kept_tables.keep(folder, {arrays[0], folder / TABLE})
    assert set(entry["left_out"]) == {"sigma.tar"}
    assert not (tmp_path / "tables/sigma.tar").exists()
    assert "sigma.tar (0.0 MB) is not kept" in kept_tables.lacking(
        "sigma", {"sigma": entry}
    )


@pytest.mark.parametrize("status", [0, 1, 2])
def test_sweeps_without_a_table_are_run_and_failed_cells_do_not_stop_the_rest(
    status, modules, tmp_path, monkeypatch
):
    gallery = modules["gallery"]
    commands = list[list[str]]()
    done = SimpleNamespace(returncode=status)
    monkeypatch.setattr(
        gallery.subprocess,
        "run",
        lambda command, **_: commands.append(command[1:]) or done,
    )
    if status == 2:
        assert (
            gallery.measure(FIGURES["3a"], tmp_path)
            == "not measured: hessfig run ended with status 2"
        )
    else:
        assert gallery.measure(FIGURES["3a"], tmp_path) == "1 sweeps run"
        assert (
            gallery.measure(FIGURES["centring_training"], Path("outputs"))
            == "2 sweeps run"
        )
        assert [command[1] for command in commands] == [
            "sweep=sigma",
            "sweep=centring_training",
            "sweep=centring",
        ]
        modules["kept_tables"].unpack("sigma", tmp_path)
        assert gallery.measure(FIGURES["3a"], tmp_path) == "measured before"
    assert commands[0] == ["run", "sweep=sigma", f"output_dir={tmp_path}"]


def test_a_drawing_knows_what_it_read(modules, tmp_path):
    modules["kept_tables"].unpack("sigma", tmp_path)
    drawing = modules["pictures"].draw(FIGURES["3a"], tmp_path, tmp_path / "pictures")
    assert {path.name for path in drawing.read} == {TABLE, MANIFEST}
    assert drawing.sweeps(tmp_path) == ["sigma"]
    assert [path.name for path in drawing.pictures] == ["fig3a.png"]
