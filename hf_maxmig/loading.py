"""What a saved pair must be to be loaded: whole, free of pickles, and of a version that is known.

`written_whole` is how it is saved so. On loading, what is looked at are files by their names and sizes; reading them is `from_pretrained`, of which
this is the door. Everything else that may fail (no such repository, a revision that is not there, no
access, no connection) transformers says itself.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers.utils import cached_file, has_file

from .version import __version__

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
# Where to look, of all that `from_pretrained` takes.
_PLACE = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")


@contextlib.contextmanager
def written_whole(target: Path) -> Iterator[str]:
    """Write a model to a folder inside the target first, then move it into place file by file.

    An interrupted save leaves the files of the last one, and weights that new ones replace go. The
    name starts as what `push_to_hub` leaves out.

    Args:
        target: the folder, made if absent.

    Yields:
        Where to write.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix="_saving-") as staging:
        yield staging
        written = [path.name for path in Path(staging).iterdir()]
        for name in written:
            os.replace(Path(staging, name), target / name)
    if any(name.endswith(".safetensors") for name in written):
        for stale in target.glob("model*.safetensors*"):
            if stale.name not in written:
                stale.unlink()


def check_weights(
    name: str | os.PathLike[str],
    use_safetensors: bool | None = None,
    variant: str | None = None,
    **kwargs: Any,
) -> None:
    """Check that what is loaded are whole safetensors: by itself transformers also takes a pickle.

    Nothing is asked of the Hub that loading would not ask.

    Args:
        name: a folder, or a repository of the Hub.
        use_safetensors: False asks for pickles.
        variant: a part of the weights' file name.
        **kwargs: as in `PreTrainedModel.from_pretrained`: `revision`, `token`, `cache_dir`, ...

    Raises:
        ValueError: if the only weights are pickled, pickles are asked for, or a file is not whole.
        OSError: by transformers, if the repository cannot be reached or has no such revision.

    Example:
        >>> import tempfile
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
        >>> pair = MaxMIGModel.from_classifier(HeadClassifier(HeadConfig(input_size=4)), 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pair.save_pretrained(folder)
        ...     check_weights(folder)
    """
    if use_safetensors is False:
        raise ValueError(
            f"`use_safetensors` must not be False, got it for {name}: a pickle can run any code as it is read."
        )
    place = {key: kwargs[key] for key in _PLACE if kwargs.get(key) is not None}
    files = _safetensors(name, variant, place)
    for path in files:
        _check_whole(path)
    folder = place.pop("subfolder", "")
    for pickled in () if files else (PICKLED, f"{PICKLED}.index.json"):
        if has_file(name, os.path.join(folder, _named(pickled, variant)), **place):
            raise ValueError(
                f"the weights must be safetensors, got only {_named(pickled, variant)} in {name}: a pickle can run any "
                "code as it is read. If you trust it, read it with `torch.load(..., weights_only=True)` into a new "
                "pair by `load_state_dict`, and save that."
            )


def check_version(saved_by: str | None, unknown: Iterable[str]) -> None:
    """Check that a config has no field from the future, which would be passed over in silence.

    A field that is at its default is not saved: pairs of a newer version load as long as they do not
    use what is new.

    Args:
        saved_by: version that saved the config; None if it does not say.
        unknown: names of fields that this version does not know.

    Raises:
        ValueError: if there are any, and a newer version has saved them.

    Example:
        >>> check_version("0.1.0", ["mine"]), check_version("99.0", [])
        (None, None)
        >>> check_version("99.0", ["temperature"])
        Traceback (most recent call last):
        ...
        ValueError: the pair must be of hf_maxmig ... or older, got one of 99.0 with temperature: `pip install -U hf_maxmig`.
    """
    unknown = sorted(unknown)
    if unknown and saved_by is not None and _numbers(saved_by) > _numbers(__version__):
        raise ValueError(
            f"the pair must be of hf_maxmig {__version__} or older, got one of {saved_by} with {', '.join(unknown)}: "
            "`pip install -U hf_maxmig`."
        )


def _named(file_name: str, variant: str | None) -> str:
    stem, ending = file_name.rsplit(".", 1)
    return file_name if variant is None else f"{stem}.{variant}.{ending}"


def _safetensors(
    name: str | os.PathLike[str], variant: str | None, place: dict[str, Any]
) -> list[Path]:
    """Find the file of weights, or those that its index names, in a folder or on the Hub."""

    def find(file_name: str) -> list[Path]:
        found = cached_file(name, file_name, _raise_exceptions_for_missing_entries=False, **place)
        return [] if found is None else [Path(found)]

    found = find(_named(SAFE, variant))
    index = [] if found else find(_named(f"{SAFE}.index.json", variant))
    for path in index:
        parts = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        found = [file for part in sorted(set(parts)) for file in find(part)]
    return found


def _check_whole(path: Path) -> None:
    """Compare a file's size with what its head announces, as safetensors does, but say which file.

    The head is eight bytes with its length, then JSON that says where each tensor begins and ends.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(min(length, size))
    announced = 8 + length
    if head and len(head) == length:
        tensors = json.loads(head)
        tensors.pop("__metadata__", None)
        announced += max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    if size != announced:
        raise ValueError(
            f"`{path.name}` must have {announced:,} bytes, as it begins, got {size:,}: it was not saved, uploaded or "
            f"downloaded to its end ({path}). Load it with `force_download=True`, or save it again."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
