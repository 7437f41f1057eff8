"""MaxMIGTrainer: a classifier and an aggregator of the votes, trained together by Max-MIG."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer_utils import PredictionOutput

from ..data.describe import describe
from ..judging.annotators import AnnotatorReport, judge_annotators
from ..judging.outlook import Outlook
from ..judging.plots import need_matplotlib
from ..judging.report import write_report
from ..judging.showing import name_column
from ..model.known_crowd import weight_of
from .distributed import whole_parameters
from .trainer import CrowdTrainer
from .training import votes_of
from .training_args import MaxMIGTrainingArguments
from .wrapped import wrap_classifier


class MaxMIGTrainer(CrowdTrainer):
    """Train a classifier and an aggregator together by Max-MIG.

    With `use_gold_labels=True` the gold label of a training item counts as the vote of one more, trusted
    annotator (`hf_maxmig.training.gold`). Results on the training set leave out the items with these gold
    labels; forecasts of the training set include the gold labels. A subset of the training set, or a copy
    in another order, is not recognised as such.

    Args:
        model: a `MaxMIGModel`; or a classifier of transformers or timm, which is wrapped in one:
            annotators and classes are read off the training set's features, divergence, prior and
            aggregator off `args`. It may have adapters of PEFT (`get_peft_model`, LoRA): then only the
            adapters and what is not frozen are trained, and adapters are merged on saving.
        args: the arguments.
        train_dataset: with crowd columns.
        **kwargs: as in `CrowdTrainer`.

    Raises:
        ValueError: if the model is a plain classifier and the training set's features do not name
            annotators and classes; or it is a crowd model and `args` ask for another divergence, prior
            or aggregator than its own.

    Example:
        >>> from datasets import Dataset
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGTrainingArguments
        >>> from hf_maxmig import add_annotations
        >>> items = Dataset.from_dict({"name": ["a", "b"], "features": [[0.0, 1.0], [1.0, 0.0]]})
        >>> votes = {"item": ["a", "b"], "annotator": ["ann", "ann"], "annotation": ["cat", "dog"]}
        >>> trainer = MaxMIGTrainer(
        ...     model=HeadClassifier(HeadConfig(input_size=2, num_labels=2)),
        ...     args=MaxMIGTrainingArguments("out", report_to="none", use_cpu=True),
        ...     train_dataset=add_annotations(items, votes, item_column="name"),
        ... )
        >>> trainer.crowd_model.config.annotators, trainer.crowd_model.config.class_names
        (['ann'], ['cat', 'dog'])
    """

    @staticmethod
    def as_crowd_model(
        model: nn.Module, args: MaxMIGTrainingArguments, dataset: Any
    ) -> PreTrainedModel:
        """Wrap a plain classifier, with the names that the data set's features carry."""
        return wrap_classifier(model, args, dataset)

    def report(
        self,
        dataset: Dataset,
        folder: str | os.PathLike[str] | None = None,
        title: str | None = None,
        metrics: dict[str, float] | None = None,
        show: Sequence[str] | None = None,
    ) -> AnnotatorReport:
        """Report which annotators to trust and which items to check again.

        Writes `report.html`, a single self-contained page, `annotators.csv`, `relabelled.parquet` and
        `relabelled.csv` (see `relabel`).

        Args:
            dataset: items with votes; gold labels, where it has them, only measure results.
            folder: folder of the files. By default `_report` in the output folder, which
                `push_to_hub` does not upload: the files name people and hold the data.
            title: of the page; the output folder's name by default.
            metrics: results on other items, as `evaluate` returns them; shown beside.
            show: columns of `dataset` that the page shows of an item, in this order: pictures, sounds,
                texts, or the columns of a table. None shows all but votes, gold labels and lists of
                numbers.

        Returns:
            What is known of each annotator; its `str` is a short summary.

        Raises:
            ImportError: if matplotlib, which draws the page, is not installed.
            TypeError: if `dataset` is not a `datasets.Dataset`.
            ValueError: if it has no crowd columns, or already has a column of `relabel`; or `show` names
                a column that is absent or cannot be shown.
        """
        need_matplotlib()
        summary = describe(dataset)
        folder = Path(folder or self._report_folder)
        output = self._posteriors(dataset)
        cleaned = self._relabel(dataset, output, folder / "relabelled.parquet")
        judged = self.judged(dataset, output)
        outlook = self._outlook(dataset, output, judged)
        if self.is_world_process_zero():
            judged.save(folder / "annotators.csv")
            write_report(
                folder / "report.html", judged, title=title or Path(self.args.output_dir).resolve().name,
                summary=str(summary), log_history=self.state.log_history,
                relabelled=cleaned.with_format(None), metrics=metrics, show=show,
                gold_labels_used=self.crowd_model.config.gold_labels_used or 0, outlook=outlook,
            )  # fmt: skip
        self._judged = judged
        return judged

    def _outlook(
        self, dataset: Dataset, output: PredictionOutput, judged: AnnotatorReport
    ) -> Outlook:
        """Find what to ask next; copies are those that the report names."""
        groups = torch.arange(len(judged.annotators))
        for voice in judged.voices():
            groups[voice] = voice[0]
        column = name_column(dataset)
        names = {} if column is None else {column: dataset.with_format(None)[column]}
        return Outlook.of(self._crowd(dataset, output, groups=groups), names)

    def judged(self, dataset: Dataset, output: PredictionOutput) -> AnnotatorReport:
        """Judge the annotators as `report` does, and write nothing.

        Args:
            dataset: items with votes.
            output: of `predict`, for these items.

        Returns:
            What is known of each annotator.

        Raises:
            ValueError: if the items have no crowd columns.
        """
        model = self.crowd_model
        with whole_parameters(model):
            return judge_annotators(
                torch.from_numpy(output.predictions[0]),
                cast(torch.Tensor, weight_of(model)),
                votes_of(dataset, model),
                self.annotator_names or [str(m) for m in range(model.config.num_annotators)],
                model.config.class_names,
            )
