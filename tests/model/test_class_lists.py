"""Tests of `hf_maxmig.model.class_lists`: when two lists of classes mean the same."""

import pytest

from hf_maxmig.model.class_lists import (
    by_number,
    check_inverse,
    check_outputs,
    differences,
    is_numbered,
    same_names,
)

CLASSES = ["cat", "dog", "emu"]


def test_numbers_in_their_order_are_no_names():
    """Taken for names, the default names of transformers and datasets would match nothing."""
    assert is_numbered(["LABEL_0", "LABEL_1", "LABEL_2"])
    assert is_numbered([str(c) for c in range(12)])
    for names in (["1", "0"], ["1", "2", "3"], ["LABEL_1", "LABEL_0"], ["0", "LABEL_1"], ["a"]):
        assert not is_numbered(names), names


def test_names_that_two_lists_share_are_never_matched_by_number():
    """Ratings 1, 2, 3 matched by number with 0, 1, 2 would each be one too low."""
    assert by_number(["LABEL_0", "LABEL_1", "LABEL_2"], CLASSES)
    assert by_number(CLASSES, ["0", "1", "2"])
    assert not by_number(["0", "1", "2"], ["1", "2", "3"])
    assert not by_number(["1", "0"], ["0", "1"])
    assert not by_number(["cat", "fox"], CLASSES)


def test_same_names_need_each_name_once():
    """If a name occurs twice, it is unclear which output is meant."""
    assert same_names(CLASSES[::-1], CLASSES)
    assert not same_names(["cat", "cat", "dog"], ["cat", "cat", "dog"])
    assert not same_names(["cat", "dog"], CLASSES)


@pytest.mark.parametrize(
    ("names", "difference"),
    [
        (["emu", "cat", "dog"], "the same names in another order"),
        (["cat", "dog"], "'emu' is missing"),
        (["cat", "dog", "emu", "fox", "gnu"], "'fox', 'gnu' are not among them"),
        (["cat", "dog", "EMU"], "'emu' is missing, and 'EMU' is not among them (did you mean 'emu'?)"),
    ],
)  # fmt: skip
def test_differences_name_what_differs(names, difference):
    """Without the difference, users would have to compare a hundred names by eye."""
    assert difference in differences(names, CLASSES)


def test_classifier_of_other_names_is_refused():
    """If its names were overwritten, each output would be called by the name of another class."""
    check_outputs(CLASSES, CLASSES)
    check_outputs(["LABEL_0", "LABEL_1", "LABEL_2"], CLASSES)
    for own in (CLASSES[::-1], ["cat", "dog", "Emu"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="must have the names of the classifier's outputs"):
            check_outputs(own, CLASSES)
    with pytest.raises(ValueError, match="another order"):
        check_outputs(["1", "0"], ["0", "1"])
    with pytest.raises(ValueError, match="one output per class = 3, got 2 .'emu' is missing"):
        check_outputs(CLASSES[:2], CLASSES)


def test_tables_that_contradict_each_other_are_refused():
    """With two contradictory tables it is unclear which one is right."""
    check_inverse(dict(enumerate(CLASSES)), {name: c for c, name in enumerate(CLASSES)})
    with pytest.raises(ValueError, match="`label2id` must be the inverse"):
        check_inverse({0: "cat", 1: "dog"}, {"cat": 1, "dog": 0})
