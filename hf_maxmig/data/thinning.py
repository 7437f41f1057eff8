"""Take votes away from a data set, to see what fewer of them would have been worth."""

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, List

from .columns import (
    check_range,
    lists_of,
    named_annotators,
    numbered_annotators,
    of_each_vote,
    offsets,
    with_columns,
)


def thin_votes(
    dataset: Dataset,
    *,
    votes_per_item: int | None = None,
    annotators: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Keep some of the votes, drawn at random: at most so many per item, or those of so many annotators.

    Train on the result to see how many votes you need. The annotators are drawn first, then each item's votes
    among those that are left. What an annotator said about an item stays together and counts as one vote. With one
    seed, fewer votes are a part of more, so a curve over their number does not jump with the draw. Gold labels
    are not looked at, and stay.

    Args:
        dataset: with crowd columns; the features of `annotators` carry names.
        votes_per_item: the most votes that an item keeps; None keeps all. Items with fewer keep theirs.
        annotators: how many of the annotators who voted to keep, each with the same chance; None keeps all. An
            item on which none of them voted stays, without votes.
        seed: of the draw.

    Returns:
        The same items with fewer votes; votes keep their order. A list column with one value per vote is thinned with
        them. With `annotators`, only those who were drawn keep a name, in the old order.

    Raises:
        TypeError: if `dataset` is not a `datasets.Dataset`.
        ValueError: if the features of the data set do not name the annotators, the lists of `annotators` and
            `annotations` differ in length, a number is out of range, `votes_per_item` is below 1, or `annotators` is
            not in 1..M, M the number of annotators who voted.

    Example:
        >>> from hf_maxmig import crowd_features
        >>> features = crowd_features(["ann", "bob", "cyd"], ["cat", "dog"])
        >>> columns = {"annotators": [[0, 1, 2], [1]], "annotations": [[1, 1, 0], [0]]}
        >>> crowd = Dataset.from_dict(columns, features=features)
        >>> [len(votes) for votes in thin_votes(crowd, votes_per_item=2)["annotations"]]
        [2, 1]
        >>> thin_votes(crowd, annotators=1).features["annotators"].feature.num_classes
        1
    """
    names = named_annotators(dataset)
    who, lengths = numbered_annotators(dataset)
    check_range("annotators", who, lengths, len(names))
    columns = dict(of_each_vote(dataset, lengths))
    item = np.repeat(np.arange(len(lengths)), lengths)
    # Drawn for all votes, whatever is asked for: so that fewer are a part of more.
    rng = np.random.default_rng(seed)
    voters = rng.permutation(np.unique(who[who >= 0]))
    pairs, pair = np.unique(item * (len(names) + 1) + who + 1, return_inverse=True)
    noise = rng.random(len(pairs))

    kept = who >= 0
    features = {}
    if annotators is not None:
        if not 1 <= annotators <= len(voters):
            raise ValueError(
                f"`annotators` must lie in 1..M = 1..{len(voters)}, the annotators who voted, got {annotators}."
            )
        drawn = np.sort(voters[:annotators])
        kept &= np.isin(who, drawn)
        who = np.searchsorted(drawn, who)
        features["annotators"] = List(ClassLabel(names=[names[m] for m in drawn]))
    if votes_per_item is not None:
        if votes_per_item < 1:
            raise ValueError(f"`votes_per_item` must be at least 1, got {votes_per_item}.")
        kept &= _places(pair, pairs // (len(names) + 1), noise, kept) < votes_per_item
    left = np.bincount(item[kept], minlength=len(lengths))
    thinned: dict[str, pa.Array] = {"annotators": lists_of(who[kept], left)}
    for name, lists in columns.items():
        features[name] = List(dataset.features[name].feature)
        thinned[name] = pa.ListArray.from_arrays(offsets(left), lists.flatten().filter(kept))
    return with_columns(dataset, Features(dict(dataset.features) | features), thinned)


def _places(pair: np.ndarray, item: np.ndarray, noise: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Say which place each vote has in the random order of its item's annotators who are kept.

    Args:
        pair: (V,) int, of each vote the number of its item and annotator together.
        item: (P,) int, of each pair; ascending.
        noise: (P,) floats, by which the pairs of an item are put in order.
        kept: (V,) bool.

    Returns:
        (V,) int, from 0.
    """
    here = np.zeros(len(item), bool)
    here[pair[kept]] = True
    order = np.lexsort((noise, ~here, item))
    place = np.empty(len(item), np.int64)
    first = np.searchsorted(item, item)  # of each pair, the first one of its item
    place[order] = np.arange(len(item)) - first
    return place[pair]
