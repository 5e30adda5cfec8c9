"""The memory of a worker that a run states: what it holds itself, not the pages of libraries that all workers share."""

import subprocess
import sys

import pytest

SIZE = 2**26
HELD = f"""
import mmap
from importlib.util import find_spec
from pathlib import Path

from hessfig.sweep.pool import peak_memory

library = max(Path(find_spec("torch").origin).parent.glob("lib/*.so"), key=lambda path: path.stat().st_size)
begin = peak_memory()
with library.open("rb") as file, mmap.mmap(file.fileno(), {SIZE}, access=mmap.ACCESS_READ) as pages:
    sum(pages[::4096])
    print(peak_memory() - begin)
own = b"x" * {4 * SIZE}
print(peak_memory() - begin)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells pages of files")
def test_pages_of_libraries_do_not_count():
    said = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, check=True
    )
    of_library, own = map(int, said.stdout.split())
    assert of_library < SIZE / 8
    # Imports may have freed memory that is taken again.
    assert 3 * SIZE < own - of_library < 4.2 * SIZE
