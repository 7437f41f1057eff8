"""What a trainer saves, and what it takes to the Hub: the pair, the card, as much of the crowd as may be seen.

Nothing pickled goes up, and no secret. What the card says is in `model_card.py`.
"""

import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers.trainer
from huggingface_hub import create_branch
from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils import logging

from ..data.columns import has_votes
from ..data.describe import Description, describe
from ..judging.annotators import AnnotatorReport
from ..model.modeling_maxmig import CrowdModel
from ..model.version import __version__
from ..model.whole_files import CONFIG, staged, written_whole
from ..sharing.export import save_classifier
from ..sharing.model_card import model_card
from .checkpoints import CheckpointingTrainer, swapped
from .discretion import DiscreetHandler, check_trackers
from .distributed import own_class, whole_parameters
from .training_args import MaxMIGTrainingArguments

logger = logging.get_logger(__name__)

RESULTS = "results.json"
MODEL_FILES = (CONFIG, "generation_config.json")  # beside the weights
# In the output folder, for `hf upload`: the Hub leaves out what such a file names.
IGNORED = ".gitignore"
NOT_FOR_OTHERS = """\
# Reports name people and hold the data, checkpoints have pickles: `hf upload` leaves them out.
/_*
/checkpoint-*/
"""
NOTHING_FOR_OTHERS = """\
# The model here has the annotators' names, which are not to be shared: use the trainer's `push_to_hub`.
*
"""
_LISTED = (
    "learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "gradient_accumulation_steps",
    "num_train_epochs", "world_size", "smoothing", "seed",
)  # fmt: skip


class SharingTrainer(CheckpointingTrainer):
    """`Trainer`, as far as it saves and shares crowd models."""

    callback_handler: DiscreetHandler

    def __init__(self, **kwargs: Any) -> None:
        # Before `Trainer` makes a repository.
        self._check_sharing(kwargs["args"], kwargs.get("model"))
        with swapped(transformers.trainer, "CallbackHandler", DiscreetHandler):
            super().__init__(**kwargs)
        self._check_sharing(self.args, self.crowd_model)
        self._results: dict[str, float] = {}
        self._counted: dict[str, int] = {}  # on how many items each of them was measured
        self._items: dict[str, int] = {}  # the same of the evaluation at work
        self._description: Description | None = None  # of the training set
        self._judged: AnnotatorReport | None = None
        self._shared_as = "names"

    def _check_sharing(self, args: MaxMIGTrainingArguments, model: CrowdModel | None) -> None:
        args.check_sharing()
        if (
            args.hub_annotators == "hashed"
            and model is not None
            and model.config.annotators is None
        ):
            raise ValueError(
                "`hub_annotators` must be 'names' or 'dropped' for a model whose annotators have no names, got 'hashed'."
            )
        if args.hub_annotators != "names" and hasattr(self, "callback_handler"):
            check_trackers(self.callback_handler.callbacks)

    def add_callback(self, callback: Any) -> None:
        """Add a callback as `Trainer` does; it sees no names if the Hub does not, and uploads none."""
        super().add_callback(callback)
        if self.args.hub_annotators != "names":
            check_trackers(self.callback_handler.callbacks)

    @property
    def annotator_names(self) -> list[str] | None:
        """The names of the model's annotators, also while a callback sees none."""
        names = self.callback_handler.hidden or self.crowd_model.config.annotators
        return None if names is None else list(names)

    def listed_arguments(self) -> dict[str, Any]:
        """Tell what the card says of the training."""
        values = {name: getattr(self.args, name) for name in _LISTED}
        return {name: getattr(value, "value", value) for name, value in values.items()}

    # Saving

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        model, folder = self.crowd_model, Path(output_dir or self.args.output_dir)
        with arguments_in_json(self.args, folder), self.callback_handler.showing():
            if self._shared_as == "dropped":
                save_classifier(model, folder, self.processing_class)
                return
            with own_class(model):
                if not self.args.should_save or folder.name.startswith(PREFIX_CHECKPOINT_DIR):
                    super()._save(output_dir, state_dict)  # a checkpoint has its own manifest
                    return
                with written_whole(folder) as staging:  # with the processor
                    super()._save(staging, state_dict)
        self._keep_from_uploads()

    def _keep_from_uploads(self) -> None:
        """Have `hf upload` of the output folder leave out what does not go up: it knows nothing of ours."""
        if not self.args.should_save or self._shared_as != "names":
            return  # what is shared has a folder of its own
        path = Path(self.args.output_dir, IGNORED)
        lines = NOT_FOR_OTHERS if self.args.hub_annotators == "names" else NOTHING_FOR_OTHERS
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(lines, encoding="utf-8")
        elif path.read_text(encoding="utf-8", errors="replace") != lines:
            logger.warning_once(
                f"{path} is another than this training would write, and stays: `hf upload` may take the reports "
                "along, which name people and hold the data."
            )

    # Sharing

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.args.hub_annotators != "names":
            return  # a checkpoint has the names; what may be seen is pushed at the end
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        pushing = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if pushing and not self.args.hub_always_push:
            return  # as `Trainer` does; it reads what is there
        # `Trainer` copies the files of the model one by one, over those of an earlier one.
        checkpoint = Path(checkpoint_folder)
        with written_whole(Path(self.args.output_dir)) as staging:
            for path in checkpoint.iterdir():
                if path.name in MODEL_FILES or path.match("model*.safetensors*"):
                    shutil.copyfile(path, Path(staging, path.name))
        with (
            arguments_in_json(self.args, self.args.output_dir),
            swapped(transformers.trainer, "shutil", _ShutilWithoutCopies()),
        ):
            super()._push_from_checkpoint(checkpoint_folder)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        annotators: str | None = None,
        salt: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Upload as `Trainer` does; a branch that is not there yet is made, as models do.

        The names of the annotators may be personal data. With hashes for them, or without the
        aggregator, only what `Trainer` would write is uploaded, from a folder of its own: the output
        folder keeps the whole pair.

        Args:
            commit_message: as in `Trainer`.
            blocking: as in `Trainer`; where names are not shared it always waits.
            token: as in `Trainer`.
            revision: the branch.
            private: as in `Trainer`.
            annotators: `names`, `hashed` or `dropped`; that of the arguments by default,
                `hub_annotators`.
            salt: of the hashes; that of the arguments by default, `hub_salt`.
            **kwargs: go to `create_model_card`.

        Returns:
            As `Trainer.push_to_hub`.

        Raises:
            ValueError: as `CrowdModel.shared_as`.
        """
        token, revision = token or self.args.hub_token, revision or self.args.hub_revision
        annotators = annotators or self.args.hub_annotators
        if salt is None and annotators == "hashed":
            salt = self.args.hub_salt
        with self._sharing(annotators, salt):
            if revision is not None and self.is_world_process_zero():
                if self.hub_model_id is None:
                    self.init_hf_repo(token=token, private=private)
                create_branch(self.hub_model_id, branch=revision, token=token, exist_ok=True)
            blocking = blocking or annotators != "names"
            return super().push_to_hub(commit_message, blocking, token, revision, private, **kwargs)

    @contextlib.contextmanager
    def _sharing(self, annotators: str, salt: str | None) -> Iterator[None]:
        """Be, for a while, a trainer of what may be seen, with an output folder of its own."""
        whole = functools.partial(whole_parameters, self.model)
        with (
            self.callback_handler.showing(),
            self.crowd_model.shared_as(annotators, salt, whole),
        ):
            if annotators == "names":
                yield
                return
            if annotators == "dropped" and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
                raise ValueError(
                    "`annotators` must not be 'dropped' where the weights are spread over devices: load the saved pair "
                    "and use `save_classifier`."
                )
            name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
            with (
                tempfile.TemporaryDirectory() as folder,
                swapped(self.args, "hub_model_id", name),
                swapped(self.args, "output_dir", folder),
                swapped(self, "_shared_as", annotators),
            ):
                yield

    def create_model_card(self, **metadata: Any) -> None:
        """Write `README.md`: what the pair is, what was measured, how to use it; and `results.json`.

        Args:
            **metadata: `model_name`, `license`, `language`, `dataset` and the like, as in
                `Trainer`.
        """
        if not self.is_world_process_zero():
            return
        known = {
            "license": "license",
            "language": "language",
            "dataset": "datasets",
            "finetuned_from": "base_model",
        }
        header = {known[k]: v for k, v in metadata.items() if k in known and v}
        repo_id = self.hub_model_id or self.args.hub_model_id
        name = (
            metadata.get("model_name")
            or (repo_id or Path(self.args.output_dir).name).split("/")[-1]
        )
        if self._description is None and has_votes(self.train_dataset):
            self._description = describe(self.train_dataset)
        arguments = self.listed_arguments()
        card = model_card(
            self.crowd_model, self._results, arguments, name, repo_id=repo_id, shared_as=self._shared_as,
            processor=self.processing_class, counted=self._counted, data=self._description, judged=self._judged, **header,
        )  # fmt: skip
        folder = Path(self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        card.save(folder / "README.md")
        told = {"results": self._results, "arguments": arguments, "hf_maxmig": __version__}
        with staged(folder / RESULTS) as place:
            place.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def arguments_in_json(
    args: MaxMIGTrainingArguments, folder: str | os.PathLike[str]
) -> Iterator[None]:
    """Have the arguments written as JSON, never pickled: a pickle runs code when it is read."""
    if args.should_save:
        path = Path(folder, "training_args.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(args.to_json_string() + "\n", encoding="utf-8")
        Path(folder, "training_args.bin").unlink(missing_ok=True)  # of an earlier version
    with swapped(transformers.trainer, "torch", _TorchWithoutArguments()):
        yield


class _ShutilWithoutCopies:
    """shutil as `Trainer` sees it while it pushes: what it would copy is there already."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def copy(self, source: Any, target: Any) -> None:
        """Copy nothing."""


class _TorchWithoutArguments:
    """torch as `Trainer` sees it while it saves: it pickles the arguments on its way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def save(self, what: Any, *args: Any, **kwargs: Any) -> None:
        """Save, but not arguments."""
        if not isinstance(what, TrainingArguments):
            torch.save(what, *args, **kwargs)
