"""`model.ask`: what to ask next, and whom, by a saved model; items as users have them, people by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from .known_crowd import Limits, known_crowd, weight_of
from .named_votes import numbers_of, votes_in_numbers
from .voted_items import annotators_of, groups_of, read_items


class AsksForVotes:
    """The part of a crowd model that says which votes are worth most."""

    config: Any

    def ask(
        self,
        items: Any,
        budget: float,
        *,
        gain: str = "information",
        costs: Mapping[str, float] | None = None,
        most_per_annotator: int | None = None,
        most_per_item: int | None = None,
        at_least: float | None = None,
        annotators: Sequence[str] | None = None,
        copies: Sequence[Sequence[str]] = (),
        processor: Any = None,
        batch_size: int = 64,
    ) -> list[dict[str, Any]]:
        """Say what to ask next, and whom: the votes that are expected to tell most.

        As `CrowdTrainer.ask`, without a trainer. It neither looks for copies nor replaces the classifier on items that
        it was trained on.

        Args:
            items: with votes, without votes, or with votes on some. A `datasets.Dataset` or a list, as `update`
                takes them; also what the pipeline `crowd-forecast` takes. Votes say how annotators answer, and what
                need not be asked again. People whom the model does not know may have voted too.
            budget: what all questions may cost together; their number, if there are no `costs`.
            gain: `information`, in nats, or `accuracy`, of the forecast.
            costs: of an answer by each annotator, by name; 1 by default.
            most_per_annotator: questions.
            most_per_item: questions.
            at_least: a question with a smaller expected gain is not asked; by default one that is hardly worth
                asking, see `choose_questions`. 0 spends the whole budget.
            annotators: names of those who may be asked; by default everybody whom the model knows or who has voted.
                Others are taken for average annotators.
            copies: groups of names who copy each other, as in `update`.
            processor: as in `update`.
            batch_size: as in `update`.

        Returns:
            One dict per question, the most valuable first: `item`, the number of the item from 0; `annotator`, the
            name; `expected_gain`.

        Raises:
            TypeError: if `items` or `annotators` are something else.
            ValueError: if a class is unknown, an item cannot be read, somebody has no cost, or a number is not of its
                range.

        Example:
            >>> import torch
            >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
            >>> head = HeadClassifier(HeadConfig(input_size=2, id2label={0: "cat", 1: "dog"}))
            >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"])
            >>> model.initialize_crowd([(torch.tensor([[0, 1]] * 9), torch.tensor([[0, 0], [1, 1], [0, 0]] * 3))])
            >>> items = [{"features": [0.0, 0.0], "votes": {"ann": "cat"}}, {"features": [0.0, 0.0]}]
            >>> model.ask(items, budget=1, annotators=["ann"])[0]["item"]
            1
        """
        limits = Limits(
            budget, gain, costs, most_per_annotator, most_per_item, at_least, annotators
        )
        read = read_items(self, items, processor, batch_size, argument="items", every_item=True)
        names = list(dict.fromkeys([*annotators_of(self), *read.voters]))
        number = numbers_of(names)
        crowd = known_crowd(
            read.log_h,
            read.log_forecast,
            weight_of(self),
            votes_in_numbers(read.votes, number, numbers_of(self.config.class_names), 0),
            names,
            limits.new(names),
            groups_of(copies, number),
        )
        found = limits.choose(crowd)
        pairs = zip(found.item.tolist(), found.annotator.tolist(), limits.gains(found), strict=True)
        return [
            {"item": item, "annotator": crowd.annotators[who], "expected_gain": gained}
            for item, who, gained in pairs
        ]


__all__ = ["AsksForVotes"]
