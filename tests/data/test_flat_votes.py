"""Flat votes are the votes of the crowd, at the right items."""

import torch

from hf_maxmig.data.flat_votes import FlatVotes


def test_votes_are_the_same_however_the_crowd_is_cut_into_chunks():
    """Otherwise items of the second chunk would be numbered from zero again."""
    generator = torch.Generator().manual_seed(3)
    who = torch.randint(-1, 7, (23, 5), generator=generator)
    said = torch.where(who < 0, -1, torch.randint(4, (23, 5), generator=generator))
    said[2] = said[-1] = -1  # items without a vote, in the middle and at the end
    whole = FlatVotes.read([(who, said)])
    cut = FlatVotes.read((who[i : i + 9], said[i : i + 9]) for i in range(0, len(who), 9))
    assert len(whole) == ((who >= 0) & (said >= 0)).sum()
    assert whole.num_items == cut.num_items == len(who)
    for name in ("item", "annotator", "annotation"):
        assert torch.equal(getattr(whole, name), getattr(cut, name))


def test_votes_in_a_row_are_those_of_known_annotators_item_by_item():
    """A vote at the wrong item, or by an unknown annotator, would be false evidence."""
    who, said = (
        torch.tensor([[3, 0, -1], [-1, -1, -1], [2, 2, 1]]),
        torch.tensor([[1, -1, 2], [0, 0, 0], [2, 0, 1]]),
    )
    votes = FlatVotes.read(iter([(who[:2], said[:2]), (who[2:], said[2:])]))
    rows = zip(
        votes.item.tolist(), votes.annotator.tolist(), votes.annotation.tolist(), strict=True
    )
    assert [*rows] == [(0, 3, 1), (2, 2, 2), (2, 2, 0), (2, 1, 1)]
    assert votes.num_items == 3
    assert FlatVotes.read([]).num_items == len(FlatVotes.read([])) == 0
