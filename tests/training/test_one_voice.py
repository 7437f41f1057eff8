"""Copies, tools and models whose mistakes hang together count as one voice."""

import pytest
import torch

from hf_maxmig.data.flat_votes import FlatVotes
from hf_maxmig.judging.copies import find_copies, hanging_together
from hf_maxmig.judging.evidence import Evidence
from hf_maxmig.model.functional import vote_share
from hf_maxmig.model.votes import Votes
from hf_maxmig.training.cross_fit import cross_fit
from hf_maxmig.training.fold_networks import Raced
from hf_maxmig.training.left_out import LeftOutVotes
from hf_maxmig.training.one_voice import joined, sharing_votes
from tests.training.drawn_crowds import features_of, share_right, uniform

PEOPLE, TOOLS = 30, 4


def people_and_tools(seed, repeats, items=2_000):
    """Draw five careful people an item, and tools that repeat, on some items, what a bad common source says."""
    generator = torch.Generator().manual_seed(seed)

    def answers(right, shape):
        hit = torch.rand(shape, generator=generator) < right
        return torch.where(hit, truth[:, None], 1 - truth[:, None])

    truth = torch.randint(2, (items,), generator=generator)
    who = torch.rand(items, PEOPLE, generator=generator).argsort(dim=1)[:, :5]
    source = answers(0.62, (items, 1)).expand(-1, TOOLS)
    repeated = torch.rand(items, TOOLS, generator=generator) < repeats
    tools = torch.where(repeated, source, answers(0.65, (items, TOOLS)))
    who = torch.cat([who, PEOPLE + torch.arange(TOOLS).repeat(items, 1)], dim=1)
    said = torch.cat([answers(0.78, (items, 5)), tools], dim=1)
    return truth, Votes(who, said), generator


def beside(truth, right=0.75):
    """Return the W of a crowd whose people are right as drawn, and a classifier that is right as often as it says."""
    generator = torch.Generator().manual_seed(9)
    hit = torch.rand(len(truth), generator=generator) < right
    said = torch.where(hit, truth, 1 - truth)
    log_h = ((1 - right) + (2 * right - 1) * torch.eye(2)[said]).log()
    rates = torch.cat([torch.full((PEOPLE,), 0.78), torch.full((TOOLS,), 0.64)])[:, None, None]
    return log_h, ((1 - rates) + (2 * rates - 1) * torch.eye(2)).log()


@pytest.mark.parametrize("seed", range(3))
def test_tools_whose_mistakes_hang_together_are_found_though_they_are_no_copies(seed):
    """They repeat too little of each other to be accused of anything."""
    truth, crowd, _ = people_and_tools(seed, repeats=0.65)
    log_h, weight = beside(truth)
    evidence = Evidence(log_h, weight, FlatVotes.read([crowd]))
    apart = torch.arange(PEOPLE + TOOLS)
    (members,) = hanging_together(evidence, apart)
    assert members.tolist() == [PEOPLE + tool for tool in range(TOOLS)]
    assert find_copies(log_h, weight, [crowd]) == []
    sure = Votes(*crowd, torch.full(crowd.annotations.shape, 0.9))
    weighted = Evidence(log_h, weight, FlatVotes.read([sure]))
    assert hanging_together(weighted, apart)[0].tolist() == members.tolist()
    # Who is known to copy one of them belongs to all of them.
    groups = torch.where(apart == 3, PEOPLE, apart)
    (members,) = hanging_together(evidence, groups)
    assert members.tolist() == [3, *(PEOPLE + tool for tool in range(TOOLS))]
    assert hanging_together(evidence, torch.zeros_like(apart)) == []


@pytest.mark.parametrize("seed", range(3))
def test_tools_that_err_by_themselves_stay_apart(seed):
    """Four independent tools are four witnesses."""
    truth, crowd, _ = people_and_tools(seed, repeats=0.0)
    log_h, weight = beside(truth)
    evidence = Evidence(log_h, weight, FlatVotes.read([crowd]))
    assert hanging_together(evidence, torch.arange(PEOPLE + TOOLS)) == []


def test_annotators_are_joined_only_where_this_predicts_the_others_clearly_better():
    """The votes of those who are joined cannot judge it: they are left out together, and harder to predict."""
    truth, crowd, _ = people_and_tools(0, repeats=0.65)
    log_h, weight = beside(truth)
    one = Raced(uniform(2), 10.0, log_h, weight)
    votes = LeftOutVotes(crowd, PEOPLE + TOOLS, 2)

    def judge(by):
        return by.best(log_h, uniform(2), vote_share(crowd.annotations, 2)[by.item])

    apart = judge(votes)
    together, judged = joined(votes, apart, one, judge)
    assert together.groups.tolist() == [*range(PEOPLE), *[PEOPLE] * TOOLS]
    tools = together.annotator >= PEOPLE
    assert (together.share[tools] == 1 / TOOLS).all()
    assert (together.share[~tools] == 1).all()
    assert judged.parts[~tools].mean() > apart.parts[~tools].mean()
    assert votes.groups.tolist() == list(range(PEOPLE + TOOLS))  # as it was
    assert (votes.share == 1).all()

    def worse(by):
        found = judge(by)
        moved = torch.where(tools, 9.0, found.parts - 0.5)
        return found if by is votes else found._replace(parts=moved)

    kept, judged = joined(votes, apart, one, worse)
    assert kept is votes
    assert judged is apart


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_tools_do_not_outvote_people(seed):
    """Counted one by one, four tools that share their mistakes cost six points of what the people alone come to."""
    truth, crowd, generator = people_and_tools(seed, repeats=0.65)
    features = features_of(truth, generator, size=8, apart=0.25)
    people = crowd.saying(torch.where(crowd.annotators < PEOPLE, crowd.annotations, -1))
    alone = cross_fit(features, people, PEOPLE + TOOLS, 2, steps=200)
    beside_tools = cross_fit(features, crowd, PEOPLE + TOOLS, 2, steps=200)
    assert share_right(alone.targets, truth) > 0.92
    assert share_right(beside_tools.targets, truth) > share_right(alone.targets, truth) - 0.01


def test_copies_share_a_vote_only_on_items_that_both_voted_on():
    """A copier who is alone on an item says as much as anybody else."""
    crowd = Votes(
        torch.tensor([[0, 1, 2], [1, 2, -1], [0, -1, -1]]),
        torch.tensor([[1, 1, 0], [1, 1, -1], [0, -1, -1]]),
    )
    together = torch.tensor([0, 0, 2])
    shared = sharing_votes(crowd, together).weights
    assert shared.tolist() == [[0.5, 0.5, 1], [1, 1, 0], [1, 0, 0]]
    assert sharing_votes(crowd, torch.arange(3)) is crowd
    unsure = Votes(*crowd, torch.tensor([[0.8, 0.4, 1.0], [0.6, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    each = sharing_votes(unsure, together).weights
    torch.testing.assert_close(each, shared * unsure.weights)


def test_the_parts_of_a_soft_vote_are_one_vote():
    """Probabilities of several classes by one annotator would otherwise count as several copies."""
    soft = Votes(
        torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, 0]]), torch.tensor([[0.7, 0.3, 1.0]])
    )
    each = sharing_votes(soft, torch.tensor([0, 0])).weights
    torch.testing.assert_close(each, torch.tensor([[0.35, 0.15, 0.5]]))
