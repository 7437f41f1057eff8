"""The learning rates of the aggregator and of the prior."""

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..model.modeling_maxmig import CrowdModel
from .training_args import AGGREGATOR_RATE_MULTIPLE, MaxMIGTrainingArguments

Groups = list[tuple[list[nn.Parameter], float]]  # parameters and their rate


def aggregator_rate(
    args: MaxMIGTrainingArguments, model: CrowdModel, found: float | None = None
) -> float:
    """Return the rate of W: the given one, the one found, or ten times the classifier's.

    A rival's crowd parameters are trained at the classifier's rate, as its authors do.

    Args:
        args: the training arguments.
        model: the model to train.
        found: the rate found by the search, if there was one.
    """
    if args.aggregator_learning_rate is not None:
        return args.aggregator_learning_rate
    if found is not None:
        return found
    return args.learning_rate * (AGGREGATOR_RATE_MULTIPLE if model.loss_is_minus_gain else 1)


def prior_rate(
    args: MaxMIGTrainingArguments, model: CrowdModel, found: float | None = None
) -> float:
    """Return the rate of a learned prior, at least ten times the classifier's.

    The prior's C numbers cannot memorise items, and may start far from their optimum.

    Args:
        args: the training arguments.
        model: the model to train.
        found: the rate of W found by the search, if there was one.
    """
    if args.aggregator_learning_rate is not None:
        return args.aggregator_learning_rate
    least = AGGREGATOR_RATE_MULTIPLE * args.learning_rate
    return max(aggregator_rate(args, model, found), least)


def own_groups(
    args: MaxMIGTrainingArguments, model: CrowdModel, found: float | None = None
) -> Groups:
    """List the parameters with a rate of their own: those of the aggregator and of the prior.

    Args:
        args: the training arguments.
        model: the model to train.
        found: the rate of W found by the search, if there was one.
    """
    own = [
        (list(model.crowd_parameters()), aggregator_rate(args, model, found)),
        (list(model.prior_parameters()), prior_rate(args, model, found)),
    ]
    return [(parameters, rate) for parameters, rate in own if parameters]


def give_own_rates(optimizer: torch.optim.Optimizer, own: Groups) -> None:
    """Move parameters into groups of their own, with their rate and without weight decay.

    Args:
        optimizer: the optimizer that holds them.
        own: the parameters and their rates.
    """
    taken = {id(parameter) for parameters, _ in own for parameter in parameters}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    for parameters, rate in own:
        optimizer.add_param_group({"params": parameters, "lr": rate, "weight_decay": 0.0})


def let_rise(scheduler: LRScheduler, own: Groups, steps: int) -> None:
    """Warm these rates up from zero with the square of the step, multiplied by the schedule.

    Args:
        scheduler: a scheduler before its first step. One that follows a metric is not changed.
        own: the parameters and their rates.
        steps: the length of the warm-up; 0 for none.
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
