"""Tables of a study under their seal: made again, by the same command, when they are not whole, and not edited."""

import pytest

from hessfig.theory import studies

DAMAGES = {
    "killed after the first table": lambda folder: [
        (folder / n).unlink() for n in ("table.csv", studies.SEAL)
    ],
    "of an unsealed version": lambda folder: (folder / studies.SEAL).unlink(),
}
EDITS = {
    "altered": lambda folder: (folder / "looseness.csv").write_text(
        "sigma,bound\n1,2\n"
    ),
    "empty": lambda folder: (folder / "looseness.csv").write_bytes(b""),
    "a broken seal": lambda folder: (folder / studies.SEAL).write_text(
        '{"tables": [' * 1000
    ),
    "a seal of nothing": lambda folder: (folder / studies.SEAL).write_text(
        '{"tables": {}}'
    ),
    "a seal that is a folder": lambda folder: (
        (folder / studies.SEAL).unlink(),
        (folder / studies.SEAL).mkdir(),
    ),
}


@pytest.fixture
def small(monkeypatch):
    for name, value in {
        "BOUNDS_PROBLEMS": 2,
        "RANDOM_SCALES": 2,
        "SIGMAS": (0.1, 1.0),
    }.items():
        monkeypatch.setattr(studies, name, value)


@pytest.mark.usefixtures("small")
@pytest.mark.long
def test_the_same_command_mends_a_study(cli, tmp_path):
    assert cli("plot", "figure=bounds", "figure.formats=[svg]").code == 0
    folder = tmp_path / "outputs/bounds"
    whole = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()
    }
    for name, damage in {**DAMAGES, **EDITS}.items():
        damage(folder)
        answer = cli("plot", "figure=bounds", "figure.formats=[svg]")
        if name in EDITS:
            assert answer.code == 2, (name, answer.err)
            assert "contains what hessfig did not write" in answer.err, (
                name,
                answer.err,
            )
            for path in (folder / "looseness.csv", folder / studies.SEAL):
                path.rename(tmp_path / f"{name}, {path.name}")
            answer = cli("plot", "figure=bounds", "figure.formats=[svg]")
        assert answer.code == 0, (name, answer.err)
        assert "are not whole, and are computed again" in answer.err
        assert {
            path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()
        } == whole, name


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_whole_tables_are_not_computed_again(cli, tmp_path):
    cli("plot", "figure=bounds", "figure.formats=[svg]")
    before = (tmp_path / "outputs/bounds/table.csv").stat().st_mtime_ns
    assert cli("plot", "figure=bounds", "figure.formats=[svg]").err == ""
    assert (tmp_path / "outputs/bounds/table.csv").stat().st_mtime_ns == before
