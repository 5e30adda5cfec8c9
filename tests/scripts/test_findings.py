"""What full-size tables say stands on the pages between marks; here the functions that write it, on small tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from hessfig.analysis.presented import between_marks
from scripts.pages import findings
from scripts.pages.page import keep


def test_every_finding_has_its_place_on_a_page() -> None:
    for name, (page, _, _) in findings.FINDINGS.items():
        text = (findings.DOCS / page).read_text()
        assert "\nnew\n" in between_marks(text, name, "\nnew\n", findings.COMMAND), name


def test_a_finding_is_written_from_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "outputs" / "sublayers_steps"
    folder.mkdir(parents=True)
    heads = (
        "sweep,variant,num_layers,layer,row_layer,row,col,part,quantity,index,value,error,sigma,step,seed,num_probes"
    )
    rows = [
        f"sublayers_steps,,1,0,0,,,,accuracy,,{value},0,0.2,{step},{seed},0,auto,float64,ok,0.1,0123456789ab"
        for step, values in ((0, (0.1, 0.12)), (100, (0.9, 0.92)))
        for seed, value in enumerate(values)
    ]
    (folder / "table.csv").write_text("\n".join([f"{heads},estimator,dtype,status,seconds,config", *rows, ""]))
    page = tmp_path / "studies" / "landscape.md"
    page.parent.mkdir()
    page.write_text(
        f"before\n<!-- vit_accuracy: {findings.COMMAND} -->\nold\n<!-- end of the vit_accuracy -->\nafter\n"
    )
    (tmp_path / "studies" / "training.md").write_text(
        f"<!-- races: {findings.COMMAND} -->\n<!-- end of the races -->\n"
        f"<!-- learned: {findings.COMMAND} -->\nearlier\n<!-- end of the learned -->\n"
    )
    chosen = {name: findings.FINDINGS[name] for name in ("vit_accuracy", "races", "learned")}
    monkeypatch.setattr(findings, "FINDINGS", chosen)
    monkeypatch.setattr(findings, "DOCS", tmp_path)
    told = [str(tmp_path / "outputs")]
    assert keep(None, findings.COMMAND, findings.parts, ["--check", *told]) == 1
    assert capsys.readouterr().out.splitlines() == ["landscape.md, vit_accuracy: behind", "training.md, races: behind"]
    assert keep(None, findings.COMMAND, findings.parts, ["--write", *told]) == 0
    assert keep(None, findings.COMMAND, findings.parts, ["--check", *told]) == 0
    text = page.read_text()
    assert "| 0 | 0.11 [-0.0171, 0.237] |" in text and "| 100 | 0.91 [0.783, 1.04] |" in text
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    unmeasured = (tmp_path / "studies" / "training.md").read_text()
    assert "Not measured at full size by this version: `hessfig run sweep=steps`." in unmeasured
    assert "\nearlier\n" in unmeasured
