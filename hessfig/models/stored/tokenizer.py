"""The tokenizer in the folder of a model, built by transformers from the hashed files."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from hessfig.errors import UserError
from hessfig.files import check_pin
from hessfig.models.stored import model_folder

# Keys of tokenizer_config.json that name code or further files.
_LEADING = ("auto_map", "name_or_path", "fast_tokenizer_files")


def encoder(
    place: Path | None, sha256: str | None, *, with_special: bool = False
) -> Callable[[str], Sequence[int]]:
    """Return a function from texts to ids, by the tokenizer in the folder of the model; `with_special` adds tokens.

    Raises UserError as `tokenizer_of` does.
    """
    tokenizer = tokenizer_of(place, sha256)

    def encode(text: str) -> list[int]:
        # No warning for texts longer than the context, which are cut later.
        with alone():
            return list(tokenizer(text, add_special_tokens=with_special)["input_ids"])

    return encode


def tokenizer_of(place: Path | None, sha256: str | None) -> PreTrainedTokenizerBase:
    """Return the tokenizer in the folder of the model.

    transformers builds it in a temporary folder, from the hashed files and without keys
    that name code or other files. Raises UserError if there is no tokenizer, or if its
    hash is not `sha256`.
    """
    files = model_folder.tokenizer_files(place)
    if not files:  # transformers would build an empty tokenizer
        raise _no_tokenizer(place, "no vocabulary")
    check_pin(
        place,
        model_folder.KEY,
        found=model_folder.hash_of_tokenizer(files),
        planned=sha256,
    )
    try:
        with alone(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy:
            for name, content in files.items():
                (Path(copy) / name).write_bytes(content)
            _write_plain(Path(copy) / "tokenizer_config.json")
            return AutoTokenizer.from_pretrained(
                copy, local_files_only=True, trust_remote_code=False
            )
    except UserError:
        raise
    except Exception as error:  # parsers of the library raise plain Exception
        raise _no_tokenizer(place, f"{type(error).__name__}: {error}"[:200]) from error


def _write_plain(path: Path) -> None:
    """Remove keys from tokenizer_config.json that name code or files that were not hashed."""
    if path.exists():
        settings = model_folder.json_of(path)
        kept = {
            key: value
            for key, value in settings.items()
            if not (key in _LEADING or key.startswith("_") or key.endswith("_file"))
        }
        path.write_text(json.dumps(kept), "utf-8")


def _no_tokenizer(place: Path | None, why: str) -> UserError:
    return UserError(
        "task.path: a text needs the tokenizer of the model's folder, and there is none",
        got=f"{place or 'model.path=null'}: {why}",
        allowed="a folder that tokenizer.save_pretrained wrote too; or task.path=FILE.npy of ids",
        remedy="tokenizer.save_pretrained(DIR), or give the ids as .npy",
    )


@contextmanager
def alone() -> Iterator[None]:
    """Keep transformers offline and silent on stderr; misfits are reported as errors."""
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    offline = constants.HF_HUB_OFFLINE
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
