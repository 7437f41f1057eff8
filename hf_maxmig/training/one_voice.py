"""Annotators who count as one voice: copies, and tools or models whose mistakes hang together.

Counted one by one, they would confirm each other, and outvote others who look at the item.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers.utils import logging

from ..data.flat_votes import FlatVotes
from ..judging.copies import copies_among, hanging_together
from ..judging.evidence import Evidence, voices
from ..model.votes import Votes
from .fold_networks import Raced
from .left_out import Judged, LeftOutVotes, shares

logger = logging.get_logger(__name__)


def copies_by(raced: Sequence[Raced], crowd: Votes) -> Tensor:
    """Group annotators who copy each other, by the setting that finds most copies: (M,) group numbers.

    Args:
        raced: the settings, with `log_h` of these items.
        crowd: the votes on these items.
    """
    found, votes = [], FlatVotes.read([crowd])
    for one in raced:
        _, groups, _ = copies_among(Evidence(one.log_h, one.weight, votes))
        found.append(groups)
    return min(found, key=lambda groups: len(groups.unique()))


def sharing_votes(crowd: Votes, groups: Tensor) -> Votes:
    """Let the votes of a group on an item weigh as much as one together.

    Args:
        crowd: the votes.
        groups: (M,) int64, group numbers below M.

    Returns:
        The votes with weights; `crowd` itself if nobody shares a group.

    Example:
        >>> crowd = Votes(torch.tensor([[0, 1, 2], [0, 2, -1]]), torch.tensor([[1, 1, 0], [1, 1, -1]]))
        >>> sharing_votes(crowd, torch.tensor([0, 0, 2])).weights
        tensor([[0.5000, 0.5000, 1.0000],
                [1.0000, 1.0000, 0.0000]])
    """
    if len(groups.unique()) == len(groups):
        return crowd
    weights = torch.zeros(crowd.annotations.shape)
    votes = FlatVotes.read([crowd])
    weights[crowd.given] = shares(votes, voices(votes, groups)[1])
    return Votes(crowd.annotators, crowd.annotations, weights)


def joined(
    votes: LeftOutVotes,
    judged: Judged,
    one: Raced,
    judge: Callable[[LeftOutVotes], Judged],
) -> tuple[LeftOutVotes, Judged]:
    """Count annotators whose mistakes hang together as one voice, where this predicts everybody else's votes clearly better.

    Annotators on whose items nobody else votes stay apart: nothing could show that they are wrong together.

    Args:
        votes: the votes, with copies in groups.
        judged: what they came to.
        one: the setting, with `log_h` of these items.
        judge: judges the setting by other votes.

    Returns:
        The votes, in larger groups if that is better, and what they come to.
    """
    for members in hanging_together(Evidence(one.log_h, one.weight, votes.flat), votes.groups):
        together = votes.groups.clone()
        together[members] = members[0]
        other = votes.grouped(together)
        found = judge(other)
        outside = ~torch.isin(votes.annotator, members)
        if votes.clearly_better(found, judged, of=outside):
            votes, judged = other, found
            logger.info(
                "The mistakes of %d annotators hang together: they share one vote on each item.",
                len(members),
            )
    return votes, judged
