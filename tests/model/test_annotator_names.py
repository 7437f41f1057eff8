"""Names of annotators: how they are hashed, and which of them are shared."""

import pytest

from hf_maxmig.model.annotator_names import check_shared_as, hashed_names

SALT = "a salt for the tests of names"


def test_name_that_is_no_text_is_hashed():
    """A byte that was not valid UTF-8 is read as a lone surrogate, which cannot be encoded."""
    assert len(hashed_names(["ann\udcff", "ann"], SALT)) == 2
    with pytest.raises(TypeError, match="`salt` must be a string, got bytes"):
        hashed_names(["ann"], SALT.encode())


@pytest.mark.parametrize(
    ("annotators", "salt", "message"),
    [
        ("initials", None, "`annotators` must be one of names, hashed, dropped, got 'initials'"),
        ("hashed", None, "`salt` must be given with .*, got none with 'hashed'"),
        ("dropped", SALT, "`salt` must be given with .*, got one with 'dropped'"),
    ],
)
def test_what_is_to_be_seen_must_be_clear(annotators, salt, message):
    """A missing salt, or one that would be ignored, means that the user wanted something else."""
    with pytest.raises(ValueError, match=message):
        check_shared_as(annotators, salt)
