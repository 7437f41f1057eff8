"""Checks before and after a saved model is loaded: its files are complete, no pickles, of a known version.

`whole_files` saves such models. Before `from_pretrained` reads the files, their names, sizes and, in a folder,
digests are checked; afterwards, that each tensor was there. Transformers itself reports all other failures
(an unknown repository or revision, no access, no connection).
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers.utils import cached_file, has_file

from .version import __version__
from .whole_files import CONFIG, check_model

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
# The arguments of `from_pretrained` that say where to look.
_PLACE = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")


def check_weights(
    name: str | os.PathLike[str],
    use_safetensors: bool | None = None,
    variant: str | None = None,
    **kwargs: Any,
) -> None:
    """Check that the weights are complete safetensors: transformers by itself would also read a pickle.

    The Hub gets no requests beyond those of loading.

    Args:
        name: a folder, or a repository of the Hub.
        use_safetensors: False requests pickles.
        variant: a part of the weights' file name.
        **kwargs: as in `PreTrainedModel.from_pretrained`: `revision`, `token`, `cache_dir`, ...

    Raises:
        ValueError: if the only weights are pickled, pickles are requested, or a file is incomplete.
        OSError: by transformers, if the repository cannot be reached or has no such revision.

    Example:
        >>> import tempfile
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
        >>> model = MaxMIGModel.from_classifier(HeadClassifier(HeadConfig(input_size=4)), 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     check_weights(folder)
    """
    if use_safetensors is False:
        raise ValueError(
            f"`use_safetensors` must not be False, got it for {name}: reading a pickle can run any code."
        )
    place = {key: kwargs[key] for key in _PLACE if kwargs.get(key) is not None}
    local = Path(name, kwargs.get("subfolder") or "")
    held = _check_config(local) if local.is_dir() else None
    files = _safetensors(name, variant, place) if held is None else _parts_of(name, held, place)
    for path in files:
        _check_size(path)
    folder = place.pop("subfolder", "")
    for pickled in () if files else (PICKLED, f"{PICKLED}.index.json"):
        if has_file(name, os.path.join(folder, _named(pickled, variant)), **place):
            raise ValueError(
                f"the weights must be safetensors, got only {_named(pickled, variant)} in {name}: reading a "
                "pickle can run any code. If you trust it, read it with `torch.load(..., weights_only=True)`, load it "
                "into a new model with `load_state_dict`, and save that."
            )
    if local.is_dir() and held is None:
        # The Hub has its own digests, and its files are edited one by one.
        check_model(local)


@contextlib.contextmanager
def damage_named(name: str | os.PathLike[str] | None) -> Iterator[None]:
    """Name the model in the error if safetensors cannot read its weights.

    Args:
        name: a folder, or a repository of the Hub.

    Raises:
        ValueError: in place of safetensors' error.
    """
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # the class cannot be imported
            raise
        raise ValueError(
            f"the weights must be whole safetensors, got a damaged file in {name}: {error}. Save, upload or download it "
            "again."
        ) from error


def check_loaded(
    name: str | os.PathLike[str] | None, found: Mapping[str, Any], sizes_may_differ: bool = False
) -> None:
    """Check that exactly the tensors of a model were read: transformers would draw missing ones at random.

    Args:
        name: where the model was read.
        found: the second result of `from_pretrained(..., output_loading_info=True)`.
        sizes_may_differ: whether the caller set `ignore_mismatched_sizes`.

    Raises:
        ValueError: if a tensor is missing, unexpected, or of another shape.

    Example:
        >>> check_loaded("pair", {"missing_keys": {"aggregator.table"}})
        Traceback (most recent call last):
        ...
        ValueError: the weights must be those of the model that its config describes, got none for aggregator.table in pair: ...
    """
    shapes = [] if sizes_may_differ else [entry[0] for entry in found.get("mismatched_keys", ())]
    for what, keys in (
        ("none for", found.get("missing_keys", ())),
        ("another shape for", shapes),
        ("some too many,", found.get("unexpected_keys", ())),
    ):
        if keys:
            first = ", ".join(sorted(keys)[:3]) + (
                f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            )
            raise ValueError(
                f"the weights must be those of the model that its config describes, got {what} {first} in {name}: the "
                "files belong to two models, or were not saved completely. Save it again."
            )


def check_version(saved_by: str | None, unknown: Iterable[str]) -> None:
    """Check that a config has no field of a newer version, which would be ignored silently.

    A field at its default is not saved, so models of a newer version load unless they use a new
    field.

    Args:
        saved_by: version that saved the config; None if it does not say.
        unknown: names of fields that this version does not know.

    Raises:
        ValueError: if there are any, and a newer version saved them.

    Example:
        >>> check_version("0.1.0", ["mine"]), check_version("99.0", [])
        (None, None)
        >>> check_version("99.0", ["temperature"])
        Traceback (most recent call last):
        ...
        ValueError: the model must be of hf_maxmig ... or older, got one of 99.0 with temperature: `pip install -U hf_maxmig`.
    """
    unknown = sorted(unknown)
    if unknown and saved_by is not None and _numbers(saved_by) > _numbers(__version__):
        raise ValueError(
            f"the model must be of hf_maxmig {__version__} or older, got one of {saved_by} with {', '.join(unknown)}: "
            "`pip install -U hf_maxmig`."
        )


def _named(file_name: str, variant: str | None) -> str:
    stem, ending = file_name.rsplit(".", 1)
    return file_name if variant is None else f"{stem}.{variant}.{ending}"


def _check_config(folder: Path) -> str | None:
    """Check that a folder's config is JSON; return the file of the weights, if it names one."""
    path = folder / CONFIG
    if not path.is_file():
        return None  # transformers reports it
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("transformers_weights")
        return named if named is None else str(named)
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"`{CONFIG}` must be a JSON object, got something else in {folder} ({error}): it was not saved completely, "
            "or was damaged."
        ) from error


def _safetensors(
    name: str | os.PathLike[str], variant: str | None, place: dict[str, Any]
) -> list[Path]:
    """Find the file of weights, or the files in its index, in a folder or on the Hub."""
    found = _parts_of(name, _named(SAFE, variant), place)
    return found or _parts_of(name, _named(f"{SAFE}.index.json", variant), place)


def _parts_of(name: str | os.PathLike[str], file_name: str, place: dict[str, Any]) -> list[Path]:
    """Find one file, or all files that an index names."""

    def find(file_name: str) -> list[Path]:
        found = cached_file(name, file_name, _raise_exceptions_for_missing_entries=False, **place)
        return [] if found is None else [Path(found)]

    found = find(file_name)
    if not found or not file_name.endswith(".index.json"):
        return found
    try:
        index = json.loads(found[0].read_text(encoding="utf-8"))
        parts = sorted({str(part) for part in index["weight_map"].values()})
        index["metadata"].get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"`{file_name}` must name the file of each tensor, got something else in {name}: it was damaged."
        ) from error
    paths = {part: find(part) for part in parts}
    missing = [part for part, path in paths.items() if not path]
    if missing or not parts:
        raise ValueError(
            f"all files that `{file_name}` names must be there, got no {', '.join(missing[:3]) or 'name'} in {name}: the "
            "model was not saved, uploaded or downloaded completely."
        )
    return [path for found in paths.values() for path in found]


def _check_size(path: Path) -> None:
    """Compare a file's size with that in its header, as safetensors does, but name the file.

    The header is eight bytes with its length, then JSON with the beginning and end of each tensor.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(min(length, size))
    announced = 8 + length
    if head and len(head) == length:
        try:
            tensors = json.loads(head)
            tensors.pop("__metadata__", None)
            announced += max((int(t["data_offsets"][1]) for t in tensors.values()), default=0)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            RecursionError,
        ) as error:
            raise ValueError(
                f"`{path.name}` must begin with a list of its tensors, got something else: it was damaged ({path})."
            ) from error
    if size != announced:
        raise ValueError(
            f"`{path.name}` must have {announced:,} bytes, as its header says, got {size:,}: it was not saved, uploaded "
            f"or downloaded completely ({path}). Load it with `force_download=True`, or save it again."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
