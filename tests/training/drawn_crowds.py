"""Crowds and features drawn around a known truth, and a comparison of two starts."""

import dataclasses
import math

import torch

from hf_maxmig.training.cross_fit import CrossFitted


def make_world(
    items=500, annotators=6, classes=3, votes=4, right=(0.55, 0.85), classifier=0.8, seed=0
):
    """Return truth, votes, and a calibrated classifier whose errors are independent of the votes."""
    generator = torch.Generator().manual_seed(seed)

    def answers(share, shape):
        truth_ = truth if len(shape) == 1 else truth[:, None]
        hit = torch.rand(shape, generator=generator) < share
        return torch.where(hit, truth_, (truth_ + torch.randint(1, classes, shape, generator=generator)) % classes)  # fmt: skip

    truth = torch.randint(classes, (items,), generator=generator)
    who = torch.rand(items, annotators, generator=generator).argsort(dim=1)[:, :votes].sort(dim=1)
    who = who.values
    said = answers(torch.linspace(*right, annotators)[who], (items, votes))
    log_h = as_sure(answers(classifier, (items,)), classifier, classes)
    return truth, who, said, log_h


def as_sure(answers, right, classes):
    """(N, C) log-probabilities of a calibrated classifier."""
    wrong = (1 - right) / (classes - 1)
    return (wrong + (right - wrong) * torch.eye(classes)[answers]).log()


def uniform(classes):
    """(C,), the log of a uniform prior."""
    return torch.full((classes,), -math.log(classes))


def draw(truth, right, generator, votes=None):
    """Draw votes of annotators who are right with a probability each and else name another class; all or some vote."""
    right = torch.tensor(right)
    order = torch.rand(len(truth), len(right), generator=generator).argsort(dim=1)
    who = order[:, :votes].sort(dim=1).values
    classes = int(truth.max()) + 1
    hit = torch.rand(who.shape, generator=generator) < right[who]
    other = (truth[:, None] + torch.randint(1, classes, who.shape, generator=generator)) % classes
    return who, torch.where(hit, truth[:, None], other)


def features_of(truth, generator, size=6, apart=2.0):
    """Return features (N, size) around a centre for each class."""
    classes = int(truth.max()) + 1
    centres = apart * torch.randn(classes, size, generator=generator)
    return centres[truth] + torch.randn(len(truth), size, generator=generator)


def share_right(scores, truth):
    """Return the accuracy of (N, C) scores."""
    return float((scores.argmax(dim=1) == truth).float().mean())


def same(first, second):
    """Return whether two starts are equal in every field."""
    for field in dataclasses.fields(CrossFitted):
        one, other = getattr(first, field.name), getattr(second, field.name)
        equal = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        if not equal or type(one) is not type(other):
            return False
    return True
