"""Rates: how fast the aggregator and the prior learn, beside the classifier."""

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..model.modeling_maxmig import CrowdModel
from .training_args import AGGREGATOR_RATE_MULTIPLE, MaxMIGTrainingArguments

Groups = list[tuple[list[nn.Parameter], float]]  # parameters, and their rate


def aggregator_rate(
    args: MaxMIGTrainingArguments, model: CrowdModel, found: float | None = None
) -> float:
    """Tell the rate of W: the given one, the one found, or ten times the classifier's.

    What a rival has for its crowd is trained as the classifier is, as its authors do.

    Args:
        args: of the training.
        model: what is trained.
        found: by the search.
    """
    if args.aggregator_learning_rate is not None:
        return args.aggregator_learning_rate
    if found is not None:
        return found
    return args.learning_rate * (AGGREGATOR_RATE_MULTIPLE if model.loss_is_minus_gain else 1)


def prior_rate(
    args: MaxMIGTrainingArguments, model: CrowdModel, found: float | None = None
) -> float:
    """Tell the rate of a learned prior: C numbers cannot memorise items, and may have far to go.

    Args:
        args: of the training.
        model: what is trained.
        found: of W, by the search.
    """
    if args.aggregator_learning_rate is not None:
        return args.aggregator_learning_rate
    least = AGGREGATOR_RATE_MULTIPLE * args.learning_rate
    return max(aggregator_rate(args, model, found), least)


def own_groups(
    args: MaxMIGTrainingArguments, model: CrowdModel, found: float | None = None
) -> Groups:
    """List what has a rate of its own: what the aggregator and the prior learn.

    Args:
        args: of the training.
        model: what is trained.
        found: of W, by the search.
    """
    own = [
        (list(model.crowd_parameters()), aggregator_rate(args, model, found)),
        (list(model.prior_parameters()), prior_rate(args, model, found)),
    ]
    return [(parameters, rate) for parameters, rate in own if parameters]


def give_own_rates(optimizer: torch.optim.Optimizer, own: Groups) -> None:
    """Put parameters into groups of their own, with their rate and no decay.

    Args:
        optimizer: has them in its groups.
        own: which, and their rates.
    """
    taken = {id(parameter) for parameters, _ in own for parameter in parameters}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    for parameters, rate in own:
        optimizer.add_param_group({"params": parameters, "lr": rate, "weight_decay": 0.0})


def let_rise(scheduler: LRScheduler, own: Groups, steps: int) -> None:
    """Let the rates of their own rise from zero, as the square of the step; then they follow the schedule.

    Args:
        scheduler: before its first step; one that goes by a metric stays as it is.
        own: which parameters.
        steps: of the rise; none for 0.
    """
    if steps < 1 or not isinstance(scheduler, LambdaLR):
        return
    ids = {id(p) for parameters, _ in own for p in parameters}
    for place, group in enumerate(scheduler.optimizer.param_groups):
        if group["params"] and all(id(p) in ids for p in group["params"]):
            base = scheduler.lr_lambdas[place]
            scheduler.lr_lambdas[place] = functools.partial(_rising, base, steps)
            group["lr"] *= (1 / steps) ** 2
    scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]


def _rising(base: Callable[[int], float], rise: int, step: int) -> float:
    return base(step) * min(1.0, (step + 1) / rise) ** 2
