"""What a trainer saves and pushes to the Hub: the model, its card, and the part of the crowd that may be shared.

Nothing pickled is uploaded, and no secret. The text of the card is in `model_card.py`.
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
from ..sharing.space import push_space
from .checkpoints import CheckpointingTrainer, swapped
from .discretion import DiscreetHandler, check_trackers
from .distributed import own_class, whole_parameters
from .training_args import MaxMIGTrainingArguments

logger = logging.get_logger(__name__)

RESULTS = "results.json"
MODEL_FILES = (CONFIG, "generation_config.json")  # beside the weights
# In the output folder, for `hf upload`, which leaves out what this file names.
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
    """The part of the trainer that saves and shares crowd models."""

    callback_handler: DiscreetHandler

    def __init__(self, **kwargs: Any) -> None:
        # Before `Trainer` makes a repository.
        self._check_sharing(kwargs["args"], kwargs.get("model"))
        with swapped(transformers.trainer, "CallbackHandler", DiscreetHandler):
            super().__init__(**kwargs)
        self._check_sharing(self.args, self.crowd_model)
        self._results: dict[str, float] = {}
        self._counted: dict[str, int] = {}  # how many items each of them was measured on
        self._items: dict[str, int] = {}  # the same for the evaluation in progress
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
        """Add a callback as `Trainer` does; if the Hub gets no names, the callback sees and uploads none."""
        super().add_callback(callback)
        if self.args.hub_annotators != "names":
            check_trackers(self.callback_handler.callbacks)

    @property
    def annotator_names(self) -> list[str] | None:
        """The names of the model's annotators, even while they are hidden from a callback."""
        names = self.callback_handler.hidden or self.crowd_model.config.annotators
        return None if names is None else list(names)

    def listed_arguments(self) -> dict[str, Any]:
        """List the training arguments for the model card."""
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
        """Write the file that tells `hf upload` which parts of the output folder to leave out."""
        if not self.args.should_save or self._shared_as != "names":
            return  # the shared files have a folder of their own
        path = Path(self.args.output_dir, IGNORED)
        lines = NOT_FOR_OTHERS if self.args.hub_annotators == "names" else NOTHING_FOR_OTHERS
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(lines, encoding="utf-8")
        elif path.read_text(encoding="utf-8", errors="replace") != lines:
            logger.warning_once(
                f"{path} differs from the file that this training would write, and is kept: `hf upload` may upload "
                "the reports, which name people and hold the data."
            )

    # Sharing

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.args.hub_annotators != "names":
            return  # a checkpoint has the names; the part that may be shared is pushed at the end
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        pushing = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if pushing and not self.args.hub_always_push:
            return  # as `Trainer` does: the upload in progress reads these files
        # `Trainer` copies the model's files one by one over those of an earlier model.
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
        space: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Upload as `Trainer` does; create the branch if it does not exist, as models do.

        The names of the annotators may be personal data. With `hashed` and `dropped`, the upload comes
        from a separate folder and holds only what `Trainer` itself would write; the output folder keeps
        the whole model.

        Args:
            commit_message: as in `Trainer`.
            blocking: as in `Trainer`; always waits if the names are not shared.
            token: as in `Trainer`.
            revision: the branch.
            private: as in `Trainer`.
            annotators: `names`, `hashed` or `dropped`; by default `hub_annotators` of the arguments.
            salt: of the hashes; by default `hub_salt` of the arguments.
            space: also push a Space of the same name, on which people try the model. It shows the annotators as
                they are shared, and no data.
            **kwargs: go to `create_model_card`.

        Returns:
            As `Trainer.push_to_hub`.

        Raises:
            ValueError: as `CrowdModel.shared_as`; or if there is to be a Space of a classifier alone.
        """
        token, revision = token or self.args.hub_token, revision or self.args.hub_revision
        annotators = annotators or self.args.hub_annotators
        if space and annotators == "dropped":
            raise ValueError(
                "`space` must be False with `annotators='dropped'`, got True: the page shows how votes move an answer."
            )
        if salt is None and annotators == "hashed":
            salt = self.args.hub_salt
        with self._sharing(annotators, salt):
            if revision is not None and self.is_world_process_zero():
                if self.hub_model_id is None:
                    self.init_hf_repo(token=token, private=private)
                create_branch(self.hub_model_id, branch=revision, token=token, exist_ok=True)
            blocking = blocking or annotators != "names"
            pushed = super().push_to_hub(
                commit_message, blocking, token, revision, private, **kwargs
            )
            if space and self.is_world_process_zero():
                audio = self.crowd_model.config.classifier_task == "audio-classification"
                push_space(
                    self.hub_model_id, revision=revision, audio=audio, token=token, private=private
                )
            return pushed

    @contextlib.contextmanager
    def _sharing(self, annotators: str, salt: str | None) -> Iterator[None]:
        """Work temporarily on the part that may be shared, with a separate output folder."""
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
                    "`annotators` must not be 'dropped' where the weights are spread over devices: load the saved model "
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
        """Write the model card, `README.md`, and `results.json`.

        The card describes the model, its results and its use.

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
        content = {"results": self._results, "arguments": arguments, "hf_maxmig": __version__}
        with staged(folder / RESULTS) as place:
            place.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def arguments_in_json(
    args: MaxMIGTrainingArguments, folder: str | os.PathLike[str]
) -> Iterator[None]:
    """Write the arguments as JSON instead of a pickle, which can run code when it is loaded."""
    if args.should_save:
        path = Path(folder, "training_args.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(args.to_json_string() + "\n", encoding="utf-8")
        Path(folder, "training_args.bin").unlink(missing_ok=True)  # of an earlier version
    with swapped(transformers.trainer, "torch", _TorchWithoutArguments()):
        yield


class _ShutilWithoutCopies:
    """Stands in for shutil while `Trainer` pushes: the files are in place already."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def copy(self, source: Any, target: Any) -> None:
        """Copy nothing."""


class _TorchWithoutArguments:
    """Stands in for torch while `Trainer` saves, so that it does not pickle the arguments."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def save(self, what: Any, *args: Any, **kwargs: Any) -> None:
        """Save anything but training arguments."""
        if not isinstance(what, TrainingArguments):
            torch.save(what, *args, **kwargs)
