"""The checkpoints of a training: each is complete, belongs to one step, and to one training.

Each has a manifest (`whole_files`), which is written last and names the step and the training. Checkpoints
without a manifest, or with files that do not match it, are skipped or refused. Only one training at a time
may use an output folder.
"""

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy
from transformers.utils import logging

from ..model.modeling_maxmig import CrowdModel
from ..model.surgery import adapter_layers
from ..model.whole_files import (
    CONFIG,
    MANIFEST,
    already_checked,
    check_whole,
    read_manifest,
    staged,
    write_manifest,
)
from .training_args import MaxMIGTrainingArguments

logger = logging.get_logger(__name__)

ADAPTED = "adapted.safetensors"  # in a checkpoint: the trained part of a model with adapters
RUN, LOCK = "_run.json", "_training.lock"  # in the output folder
LOCK_PATIENCE = 10.0  # seconds: the workers of a killed training keep its lock until they notice
# Endings of files that `Trainer` would read.
_READ = (".safetensors", ".index.json", ".bin", ".pt", ".pth")
_ours: set[Path] = set()  # folders in which this process trains

Found = TypeVar("Found")


@dataclass(frozen=True)
class Run:
    """The identity of a training in its checkpoints.

    Args:
        id: of the training.
        before: the trainings that it continues, each with the last step whose checkpoint is also its own.
        start: the checkpoint that it was resumed from, if another training wrote it.
    """

    id: str
    before: tuple[tuple[str, int], ...] = ()
    start: str | None = None

    def owns(self, manifest: dict[str, Any]) -> bool:
        """Whether a checkpoint belongs to this training."""
        run, step = manifest.get("run"), manifest.get("step", -1)
        return run == self.id or any(run == other and step <= last for other, last in self.before)


def check_checkpoint(folder: Path) -> dict[str, Any]:
    """Check that a training can be resumed from a folder as if it had never stopped.

    Args:
        folder: of the checkpoint.

    Returns:
        Its manifest.

    Raises:
        ValueError: if it is incomplete or damaged, has files of another step, or lacks what is needed to
            resume.
    """
    manifest = check_whole(folder)
    step = manifest.get("step")
    if step is None:
        kind = "of a saved model" if manifest else "none"
        raise ValueError(
            f"a checkpoint must have a manifest ({MANIFEST}), got {kind} in {folder}: it was not written to its end, or "
            "by an older version. Name an earlier one, or train anew; `from_pretrained` loads its model."
        )
    if manifest["only_model"]:
        raise ValueError(
            f"a checkpoint must hold optimizer, schedule and random states, got only a model in {folder}: it was saved "
            "with `save_only_model=True`. Load the model by `from_pretrained` and train it anew."
        )
    named = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", folder.resolve().name)
    if named and int(named[1]) != step:
        raise ValueError(
            f"a checkpoint must be of the step in its name, got step {step} in {folder}: it was renamed, or copied over "
            "another. Give it the name of its step."
        )
    names = (path.name for path in folder.iterdir() if path.is_file())
    more = [name for name in names if name.endswith(_READ) and name not in manifest["files"]]
    if more:
        raise ValueError(
            f"a checkpoint must have the files of its manifest only, got {more[0]} too in {folder}: that file is of "
            "another save. Delete it."
        )
    return manifest


def checkpoints_in(folder: Path) -> list[Path]:
    """List the folders that are named as checkpoints, by step."""
    found = (
        p
        for p in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if p.name.split("-")[-1].isdigit() and p.is_dir()
    )
    return sorted(found, key=lambda path: int(path.name.split("-")[-1]))


def last_whole_checkpoint(folder: Path, run: Run | None) -> tuple[Path, dict[str, Any]]:
    """Find the newest complete checkpoint of a training.

    Args:
        folder: the output folder.
        run: the training; if it is unknown, all checkpoints must belong to one training.

    Returns:
        The checkpoint and its manifest.

    Raises:
        ValueError: if there is no such checkpoint, or they belong to several trainings.
    """
    broken = 0
    others: list[str] = []
    whole: list[tuple[Path, dict[str, Any]]] = []
    for path in reversed(checkpoints_in(folder)):
        try:
            manifest = read_manifest(path)
            if run is not None and manifest and "step" in manifest and not run.owns(manifest):
                others.append(path.name)
                continue
            if whole:  # only for the comparison below
                whole += [(path, manifest)] if manifest and "step" in manifest else []
                continue
            whole.append((path, check_checkpoint(path)))
            if run is not None:
                break
        except (OSError, ValueError) as error:
            broken += 1
            logger.warning("%s is passed over: %s", path, error)
    if not whole and run is not None and run.start is not None:
        return Path(run.start), check_checkpoint(Path(run.start))
    if not whole:
        raise ValueError(
            f"`resume_from_checkpoint=True` needs a whole checkpoint of this training in {folder}, got {broken} incomplete "
            f"and {len(others)} of other trainings{_listed(others)}: pass the path of one to go on from it, or train anew "
            "without `resume_from_checkpoint`."
        )
    newest = _run_of(whole[0][1])
    others = [path.name for path, manifest in whole if not newest.owns(manifest)]
    if others:
        raise ValueError(
            f"`resume_from_checkpoint=True` needs checkpoints of one training in {folder}, got those of several "
            f"({whole[0][0].name} and {', '.join(others[:3])}): pass the path of the one to go on from."
        )
    return whole[0]


def _run_of(manifest: dict[str, Any]) -> Run:
    return Run(manifest["run"], tuple((run, step) for run, step in manifest["before"]))


def _listed(names: list[str]) -> str:
    return f" ({', '.join(names[:3])})" if names else ""


def _recorded(folder: Path) -> Run | None:
    """Read which training was the last one in a folder; None if that is not recorded."""
    path = folder / RUN
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        before = tuple((str(run), int(step)) for run, step in content["before"])
        return Run(str(content["id"]), before, content["start"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`{RUN}` must say which training was the last one in {folder}, got something else: it was damaged. Delete "
            "it, or pass the path of the checkpoint to go on from."
        ) from error


def _record(folder: Path, run: Run) -> None:
    try:
        with staged(folder / RUN) as place:
            place.write_text(json.dumps(asdict(run)) + "\n", encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"`output_dir` must have room for checkpoints, got {folder} ({error}): make some, or choose another."
        ) from error


def find_start(resume: Any, folder: Path, keeps: bool) -> tuple[Run, str | None, dict[str, Any]]:
    """Find the checkpoint that a training resumes from, and the training's identity.

    Args:
        resume: as given to `train`.
        folder: the output folder.
        keeps: whether the training writes checkpoints.

    Returns:
        The training; the checkpoint, None for a fresh start; the checkpoint's manifest.

    Raises:
        FileNotFoundError: if the checkpoint does not exist.
        TypeError: if `resume` is neither a path nor a bool.
        ValueError: if the checkpoint is incomplete, or there is none of this training.
    """
    if isinstance(resume, str) and resume.lower() in ("true", "false"):
        resume = resume.lower() == "true" if not Path(resume).exists() else resume  # command lines
    if resume is None or resume is False:
        run = Run(uuid.uuid4().hex)
        if keeps:
            left = [path.name for path in checkpoints_in(folder)]
            if left:
                logger.warning(
                    "%s has checkpoints of an earlier training%s: this training does not use them, and overwrites those of "
                    "the same steps.", folder, _listed(left),
                )  # fmt: skip
            _record(folder, run)
        return run, None, {}
    if not isinstance(resume, (bool, str, os.PathLike)):
        raise TypeError(
            f"`resume_from_checkpoint` must be a path, True, False or None, got {type(resume).__name__}."
        )
    if isinstance(resume, bool):
        known = _recorded(folder)
        path, manifest = last_whole_checkpoint(folder, known)
        if known is not None:
            return known, str(path), manifest
        run = _run_of(manifest)
    else:
        path = Path(resume)
        if not str(resume) or not path.is_dir():
            there = [p.name for p in checkpoints_in(path.parent) or checkpoints_in(folder)]
            raise FileNotFoundError(
                f"`resume_from_checkpoint` must be the folder of a checkpoint, got {str(resume)!r}, which is not there"
                f"{'; there are: ' + ', '.join(there[-3:]) if there else ''}. True takes the last whole one."
            )
        manifest = check_checkpoint(path)
        run = _run_of(manifest)
        later = [p for p in checkpoints_in(folder) if int(p.name.split("-")[-1]) > manifest["step"]]
        if path.resolve().parent != folder.resolve() or later:
            # A branch: checkpoints that the other training wrote after this step are not its own.
            before = (*run.before, (run.id, manifest["step"]))
            run = Run(uuid.uuid4().hex, before, str(path.absolute()))
    if keeps:
        _record(folder, run)
    return run, str(path), manifest


@contextlib.contextmanager
def sole_training(folder: Path) -> Iterator[None]:
    """Reserve a folder for one training; the folder of a killed process is free again.

    Args:
        folder: the output folder, made if absent.

    Raises:
        OSError: if it cannot be written.
        ValueError: if another training is using it.
    """
    place = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0 if place in _ours else LOCK_PATIENCE)
    except Timeout as error:
        raise ValueError(
            f"`output_dir` must be of one training at a time, got {folder}, where another one is at work: give this one "
            "a folder of its own."
        ) from error
    except NotImplementedError:
        logger.warning_once(
            "%s is on a file system without locks: let no other training use it.", folder
        )
        yield
        return
    except OSError as error:
        raise OSError(
            f"`output_dir` must be a folder that may be written, got {folder} ({error}): checkpoints go there. Choose "
            "another, or set `save_strategy='no'`."
        ) from error
    _ours.add(place)
    try:
        yield
    finally:
        _ours.discard(place)
        lock.release()


@contextlib.contextmanager
def swapped(target: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute temporarily."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


class CheckpointingTrainer(Trainer):
    """The part of the trainer that writes checkpoints of crowd models and resumes from them."""

    args: MaxMIGTrainingArguments
    _wrapped: Any = None  # the model, and the one inside it: accelerate is slow to unwrap it
    _inside: CrowdModel
    _run = Run("")
    _resumed: dict[str, Any]  # the manifest of the checkpoint that the training was resumed from

    @property
    def crowd_model(self) -> CrowdModel:
        """The crowd model, without the wrappers of accelerate and compile."""
        if self._wrapped is not self.model:
            self._inside = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
            self._wrapped = self.model
        return self._inside

    @property
    def _spread(self) -> bool:
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def _agreed(self, find: Callable[[], Found]) -> Found:
        """Compute something on one process; all others get the result, or the same error."""
        outcome: list[Any] = [None, None]
        if self.is_world_process_zero():
            try:
                outcome[0] = find()
            except (OSError, TypeError, ValueError) as error:
                outcome[1] = error
        broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    @contextlib.contextmanager
    def _one_training(self, resume: Any, trial: Any) -> Iterator[str | None]:
        """Reserve the output folder for this training, and find the checkpoint to resume from.

        Yields:
            The checkpoint, None for a fresh start.
        """
        folder = Path(self._get_output_dir(trial))
        keeps = self.args.save_strategy != SaveStrategy.NO
        with contextlib.ExitStack() as stack:
            if keeps:
                self._agreed(lambda: stack.enter_context(sole_training(folder)))
            self._run, checkpoint, self._resumed = self._agreed(
                lambda: find_start(resume, folder, keeps)
            )
            processes = self._resumed.get("processes", self.args.world_size)
            if processes != self.args.world_size:
                logger.warning(
                    "%s is of a training on %d process(es), this one has %d: its random numbers differ.",
                    checkpoint, processes, self.args.world_size,
                )  # fmt: skip
            stack.enter_context(already_checked(checkpoint))
            yield checkpoint

    # Writing

    def _manifest_facts(self) -> dict[str, Any]:
        """Return further entries of a manifest beside step and training."""
        return {}

    def _save_beside(self, folder: Path) -> None:
        """Write what else a training needs to be resumed; nothing here."""

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint, its manifest last; only then push it and delete older ones."""
        args, run_dir = self.args, Path(self._get_output_dir(trial))
        folder = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if args.should_save and folder.is_dir():
            shutil.rmtree(folder)  # of an earlier save, which may have had other files
        self.accelerator.wait_for_everyone()
        best, problem = self.state.best_global_step, None
        of_best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{best}"
        if of_best != folder and of_best.is_dir() and not self._owned(of_best):
            best = None  # it belongs to another training
        try:
            with (
                swapped(args, "push_to_hub", False),
                swapped(args, "save_total_limit", None),
                swapped(self.state, "best_global_step", best),
            ):
                super()._save_checkpoint(model, trial)
                if args.should_save and adapter_layers(self.crowd_model):
                    self._save_adapted(folder)
                if args.should_save:
                    self._save_beside(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            if isinstance(error, RuntimeError) and not _is_of_writing(error):
                raise
            problem = error
        problems = [one for one in gather_object([problem and str(problem)]) if one]
        if not problems and args.should_save:
            try:
                write_manifest(
                    folder, known=(read_manifest(folder) or {}).get("files"), step=self.state.global_step,
                    run=self._run.id, before=self._run.before, processes=args.world_size,
                    only_model=args.save_only_model, **self._manifest_facts(),
                )  # fmt: skip
            except OSError as error:
                problem, problems = error, [str(error)]
        if problems:
            if args.should_save:
                shutil.rmtree(folder, ignore_errors=True)
            raise OSError(
                f"a checkpoint must be written whole, got an error at step {self.state.global_step} in {run_dir}: "
                f"{problems[0]}. Earlier checkpoints are unharmed: make room and go on with `resume_from_checkpoint=True`."
            ) from problem
        if args.push_to_hub:
            self._push_from_checkpoint(str(folder))
        if args.should_save:
            self._rotate(run_dir, last=folder)

    def _owned(self, checkpoint: Path) -> bool:
        try:
            return self._run.owns(read_manifest(checkpoint) or {})
        except ValueError:
            return False

    def _rotate(self, run_dir: Path, last: Path | None = None) -> None:
        """Delete this training's checkpoints beyond `save_total_limit`, and none of another training."""
        limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
        if limit is None or limit <= 0:
            return
        kept = {p.absolute() for p in (last, best and Path(best)) if p}
        own = []
        for path in checkpoints_in(run_dir):
            with contextlib.suppress(ValueError):
                manifest = read_manifest(path)
                if manifest is None or self._run.owns(manifest):
                    own.append((manifest is not None, path))  # those without go first
        surplus = len(own) - max(limit, len(kept))
        for _, path in sorted(own, key=lambda pair: pair[0]):
            if surplus > 0 and path.absolute() not in kept:
                shutil.rmtree(path, ignore_errors=True)
                surplus -= 1

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        with swapped(self.args, "save_total_limit", None):
            output = super()._finalize_training(trial, num_train_samples, start_time)
        # If only one may stay, keep the best.
        best = self.state.best_model_checkpoint
        if self.args.should_save and best is not None and self.args.save_total_limit == 1:
            self._rotate(Path(self._get_output_dir(trial)))
        return output

    def _save_adapted(self, folder: Path) -> None:
        # The saved model has its adapters merged; resuming needs them as they are.
        save_file(self._adapted(), folder / ADAPTED)

    def _adapted(self) -> dict[str, torch.Tensor]:
        model = self.crowd_model
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        return {n: t.contiguous() for n, t in model.state_dict().items() if n not in frozen}

    # Reading

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        pair, folder = self.crowd_model, Path(resume_from_checkpoint)
        self._check_fits(folder)
        if self._spread:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        elif adapter_layers(pair):
            path = folder / ADAPTED
            if not path.is_file():
                raise ValueError(
                    f"a checkpoint of a classifier with adapters must have {ADAPTED}, got none in "
                    f"{resume_from_checkpoint}: it is of a training without them."
                )
            check_whole(folder, [ADAPTED])
            found, expected = load_file(path), self._adapted()
            _check_tensors(found, expected, path)
            pair.load_state_dict(found, strict=False)
        else:
            # `Trainer` would load by the names in the file, those of the layers when the model was
            # published; layers with another name now (ViT's) would not be loaded.
            found = type(pair).from_pretrained(resume_from_checkpoint).state_dict()
            _check_tensors(found, pair.state_dict(), folder)
            pair.load_state_dict(found)

    def _check_fits(self, folder: Path) -> None:
        """Raise if the annotators or classes of the weights are not the model's, in its order."""
        own = self.crowd_model.config
        check_whole(folder, [CONFIG])
        found = type(own).from_pretrained(folder)
        for what, mine, other in (
            ("annotators", own.annotators and list(own.annotators), found.annotators),
            ("classes", own.class_names, found.class_names),
        ):
            if mine is not None and other is not None and mine != list(other):
                differ = [str(name) for name in other if name not in mine] or ["in another order"]
                raise ValueError(
                    f"a checkpoint must be of the {len(mine)} {what} of this training, in their order, got {len(other)}"
                    f"{_listed(differ)} in {folder}: it is of another crowd."
                )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        inner: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        expected = [{*group} - {"initial_lr"} for group in getattr(inner, "param_groups", ())]
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
            found = [{*group} - {"initial_lr"} for group in getattr(inner, "param_groups", ())]
            if checkpoint is not None and found != expected:
                raise KeyError(*sorted(set.union(*found) ^ set.union(*expected))[:1])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"a checkpoint must be of a training with the same optimizer and schedule, got others in {checkpoint} "
                f"({error}): train with the arguments that it was written with, or anew."
            ) from error

    def _load_best_model(self) -> None:
        checkpoint = self.state.best_model_checkpoint
        if not os.path.isdir(checkpoint):
            super()._load_best_model()  # it handles a node without the checkpoint
            return
        if not self._owned(Path(checkpoint)):
            raise ValueError(
                f"the best checkpoint must be of this training, got one of another in {checkpoint}: it was replaced "
                "during the training."
            )
        if self._spread:
            self._agreed(lambda: check_whole(Path(checkpoint)))
            super()._load_best_model()
        else:
            self._load_from_checkpoint(checkpoint)


def _check_tensors(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], path: Path
) -> None:
    """Raise a ValueError unless names and shapes of the tensors are as expected."""
    for name in (*expected, *found):
        shapes = [tuple(each[name].shape) if name in each else None for each in (expected, found)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"a checkpoint must be of this model, whose {name} has shape {shapes[0]}, got {shapes[1]} in {path}: it "
                "is of another model."
            )


def _is_of_writing(error: RuntimeError) -> bool:
    """Whether a RuntimeError of torch means that a file could not be written."""
    return any(
        word in str(error) for word in ("PytorchStreamWriter", "inline_container", "unexpected pos")
    )
