"""Compare two lists of classes, and describe how they differ.

Classes are matched by name. A list that only has numbers, `LABEL_0` of transformers or `0` of an
unnamed `ClassLabel`, is matched by number.
"""

import difflib
from collections.abc import Mapping, Sequence

_SHOWN = 5  # how many names an error lists


def in_order(id2label: Mapping[int, str]) -> list[str]:
    """List the names of a config's table by class number.

    Args:
        id2label: name of each class, in any order; a file sorted as text has 10 before 2.

    Returns:
        C names.

    Example:
        >>> in_order({0: "cat", 10: "emu", 2: "dog"})
        ['cat', 'dog', 'emu']
    """
    return [str(id2label[number]) for number in sorted(id2label, key=int)]


def is_numbered(names: Sequence[str]) -> bool:
    """Tell whether names are only the class numbers, in order.

    Args:
        names: C names.

    Returns:
        Whether they are `0`, `1`, ..., or transformers' `LABEL_0`, `LABEL_1`, ...

    Example:
        >>> is_numbered(["LABEL_0", "LABEL_1"]), is_numbered(["0", "1"]), is_numbered(["1", "0"])
        (True, True, False)
    """
    return any(list(names) == [form.format(c) for c in range(len(names))] for form in ("{}", "LABEL_{}"))  # fmt: skip


def by_number(names: Sequence[str], classes: Sequence[str]) -> bool:
    """Tell whether two lists can only be matched by number: one has only numbers, and they share no name.

    Args:
        names: some names.
        classes: C names.

    Returns:
        Whether that is the case.

    Example:
        >>> by_number(["LABEL_0", "LABEL_1"], ["cat", "dog"]), by_number(["0", "1"], ["1", "2"])
        (True, False)
    """
    return (is_numbered(names) or is_numbered(classes)) and not {*names} & {*classes}


def same_names(names: Sequence[str], classes: Sequence[str]) -> bool:
    """Tell whether two lists hold the same names, each once, in any order.

    Args:
        names: some names.
        classes: C names.

    Returns:
        Whether they do.

    Example:
        >>> same_names(["dog", "cat"], ["cat", "dog"]), same_names(["dog", "dog"], ["cat", "dog"])
        (True, False)
    """
    return sorted(names) == sorted(classes) and len({*names}) == len(names)


def differences(names: Sequence[str], classes: Sequence[str]) -> str:
    """Say which names differ.

    Args:
        names: what came.
        classes: what they should be.

    Returns:
        A clause without a full stop.

    Example:
        >>> differences(["dog", "Cat"], ["cat", "dog"])
        "'cat' is missing, and 'Cat' is not among them (did you mean 'cat'?)"
        >>> differences(["dog", "cat"], ["cat", "dog"])
        "the same names in another order: 'dog', 'cat' for 'cat', 'dog'"
    """
    if same_names(names, classes):
        return f"the same names in another order: {listed(names)} for {listed(classes)}"
    missing = [name for name in classes if name not in names]
    unknown = [name for name in names if name not in classes]
    clauses = []
    if missing:
        clauses.append(f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    if unknown:
        clauses.append(
            f"{listed(unknown)} {'is' if len(unknown) == 1 else 'are'} not among them"
            f"{meant(unknown[0], classes)}"
        )
    return ", and ".join(clauses) or f"a name more than once: {listed(names)}"


def meant(name: str, classes: Sequence[str]) -> str:
    """Suggest a class for an unknown name, for an error: ` (did you mean 'cat'?)`, or nothing.

    Args:
        name: the unknown name.
        classes: C names.

    Returns:
        The hint.

    Example:
        >>> meant("Cat", ["cat", "dog"])
        " (did you mean 'cat'?)"
    """
    folded = {known.strip().casefold(): known for known in classes}
    near = folded.get(name.strip().casefold())
    near = near or next(iter(difflib.get_close_matches(name, classes, n=1)), None)
    return f" (did you mean {near!r}?)" if near else ""


def listed(names: Sequence[str]) -> str:
    """List the first few names for an error.

    Args:
        names: the names.

    Returns:
        The names, quoted.

    Example:
        >>> listed(["cat", "dog"])
        "'cat', 'dog'"
    """
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def check_outputs(own: Sequence[str], classes: Sequence[str]) -> None:
    """Check that a classifier has one output per class, and that the classes' names fit its outputs.

    Args:
        own: the classifier's names of its outputs.
        classes: C names.

    Raises:
        ValueError: if there are more or fewer outputs; or if both lists are names, but not the same
            names in the same order.

    Example:
        >>> check_outputs(["LABEL_0", "LABEL_1"], ["cat", "dog"])
    """
    if len(own) != len(classes):
        which = "" if by_number(own, classes) else f" ({differences(own, classes)})"
        raise ValueError(
            f"the classifier must have one output per class = {len(classes)}, got {len(own)}{which}: load it "
            f"with `num_labels={len(classes)}, ignore_mismatched_sizes=True`, or give `add_annotations` its "
            "`classes`."
        )
    if list(own) == list(classes) or by_number(own, classes):
        return
    remedy = (
        "leave `id2label` out, and number the votes so: `add_annotations(..., classes=[...])`"
        if same_names(own, classes)
        else "if its outputs are these classes under other names, or will be trained anew, rename "
        "them first, in `classifier.config.id2label`"
    )
    raise ValueError(
        f"`id2label` must have the names of the classifier's outputs, in their order, got "
        f"{differences(classes, own)}: {remedy}."
    )


def check_inverse(id2label: Mapping[int, str], label2id: Mapping[str, int]) -> None:
    """Check that the two tables of a config agree.

    Args:
        id2label: name of each class.
        label2id: number of each name.

    Raises:
        ValueError: if a name has different numbers in the two tables.

    Example:
        >>> check_inverse({0: "cat", 1: "dog"}, {"cat": 0, "dog": 1})
    """
    for name, number in label2id.items():
        if id2label.get(number) != name:
            raise ValueError(
                f"`label2id` must be the inverse of `id2label`, got {name!r}: {number!r} for "
                f"{number!r}: {id2label.get(number)!r}: give only `id2label`."
            )
