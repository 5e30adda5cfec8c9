"""150 bad inputs and more: each exits with 2, says what it must, steers no terminal, and changes no file."""

from tests.attack.bad_inputs import BESIDE_RESULTS
from tests.cli.test_bad_input import BAD

KIND = "bad inputs"
# These depend on what is there: the fast suite calls them in an empty folder.
NEED_NO_RESULTS = {
    words: said for words, said in BAD.items() if "missing" not in " ".join(said)
}


def test_bad_inputs(place, call, ledger):
    before = files_in(place)
    for words, said in {**NEED_NO_RESULTS, **BESIDE_RESULTS}.items():
        answer = call(*words)
        wanted = [*said, "error: ", "\n  got: ", "\n  allowed: ", "\n  remedy: "]
        lacks = [text for text in wanted if text not in answer.err]
        unclear = f"{words}: lacks {lacks}: {answer.err[:200]!r}" if lacks else ""
        steers = (
            f"{words}: steers the terminal" if "\x1b" in answer.out + answer.err else ""
        )
        taken = f"{words}: exit {answer.code}" * (answer.code != 2)
        ledger.note(
            KIND, traceback=answer.traceback or steers, silent=taken, unclear=unclear
        )
    assert files_in(place) == before
    assert not ledger.wrong(KIND)


def files_in(folder):
    return {
        str(path): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }
