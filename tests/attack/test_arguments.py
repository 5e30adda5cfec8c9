"""Bad arguments of the Python interface: each is refused with a message that says what it must, and no traceback."""

import hessfig
from hessfig.errors import UserError
from tests.api.test_arguments import PROBLEMS, REQUESTS, problem

KIND = "arguments of the Python interface"


def test_bad_arguments(ledger):
    cases = {**{name: (changed, {}) for name, (changed, _) in PROBLEMS.items()}}
    cases |= {name: ({}, settings) for name, (settings, _) in REQUESTS.items()}
    assert len(cases) >= 100
    for name, (changed, settings) in cases.items():
        ledger.note(KIND, **answer(name, changed, settings))
    assert not ledger.wrong(KIND)


def answer(name, changed, settings):
    """Return what is wrong with the answer to one case, as the ledger notes it."""
    try:
        table = hessfig.measure(problem(**changed), **settings)
    except UserError as error:
        complete = error.got is not None and error.allowed and error.remedy
        return {"unclear": "" if complete else f"{name}: {error}"}
    except BaseException as error:
        return {"traceback": f"{name}: {type(error).__name__}: {error}"}
    return {"silent": f"{name}: {len(table)} rows"}
