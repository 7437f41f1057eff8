"""Export of the classifier alone: as a checkpoint of transformers, or as an ONNX file.

Neither holds anything about the crowd. The whole model is saved by its own `save_pretrained`.
"""

import copy
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..model.finite import check_finite
from ..model.modeling_maxmig import CrowdModel
from ..model.surgery import answer_in_words, logits_of
from ..model.whole_files import staged, written_whole
from .processors import portable_processor

_NEEDED_FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")


def save_classifier(
    model: CrowdModel, folder: str | os.PathLike, processor: Any = None
) -> PreTrainedModel:
    """Save the classifier of a trained model as a separate checkpoint.

    A classifier of transformers or timm then loads without this package, by
    `AutoModelForImageClassification.from_pretrained(folder)` and
    `pipeline("image-classification", model=folder)`. Our own networks (`FourLayerCNN`, `VGG16`,
    `HeadClassifier`) are saved with the file that defines them: they load with this package, or with
    `trust_remote_code=True`. All files are written completely before they are moved into the folder.

    Args:
        model: a crowd model.
        folder: the target folder, made if absent. It must not be the model's own folder, whose files
            would be replaced.
        processor: the image processor, tokenizer or feature extractor that the model was trained
            with; pipelines need it beside the classifier.

    Returns:
        The classifier that was saved, `model.classifier`, with the class names of the model.

    Raises:
        TypeError: if `model` is not a crowd model.
        ValueError: if the model does not classify by `model.classifier` alone, if the folder holds
            anything but a classifier of this type, or if a weight is not finite.

    Example:
        >>> import tempfile
        >>> from transformers import AutoModelForImageClassification
        >>> from hf_maxmig import FourLayerCNN, FourLayerCNNConfig, MaxMIGModel
        >>> cnn = FourLayerCNN(FourLayerCNNConfig(image_size=16, id2label={0: "cat", 1: "dog"}))
        >>> pair = MaxMIGModel.from_classifier(cnn, annotators=["ann", "bob"])
        >>> folder = tempfile.mkdtemp()
        >>> _ = save_classifier(pair, folder)
        >>> AutoModelForImageClassification.from_pretrained(folder).config.id2label
        {0: 'cat', 1: 'dog'}
    """
    classifier = _classifier_of(model)
    check_finite(classifier)
    target = Path(folder)
    _check_replaceable(target, classifier.config.model_type)
    with written_whole(target) as staging:
        classifier.save_pretrained(staging)
        if processor is not None:
            portable_processor(processor).save_pretrained(staging)
    return classifier


def export_onnx(
    model: CrowdModel,
    path: str | os.PathLike,
    example: Mapping[str, Tensor],
    atol: float = 1e-4,
    opset: int | None = None,
) -> Path:
    """Write the classifier of a trained model as an ONNX file, and check its outputs.

    The file takes the inputs of the example by their names, in batches of any size, and returns
    `logits`, (B, C), in float32; their softmax are the probabilities. Its metadata hold the class
    names: `json.loads(session.get_modelmeta().custom_metadata_map["id2label"])`. Pictures must be
    processed by the image processor first, as for the model. The file is written only if onnxruntime
    computes the same logits from it as torch, on the example and on batches of other sizes.

    Args:
        model: a crowd model; it stays as it is.
        path: of the file, which is written completely or not at all.
        example: inputs of the classifier by name, such as `{"pixel_values": (B, 3, 224, 224)}` or
            `{"features": (B, D)}`; the file keeps all sizes but B. Real inputs make a better check than
            noise.
        atol: largest difference allowed between a logit and torch's.
        opset: version of the ONNX operators, torch's choice by default.

    Returns:
        The path.

    Raises:
        ImportError: if onnx, onnxscript or onnxruntime is not installed.
        TypeError: if `model` is not a crowd model.
        ValueError: if the model does not classify by `model.classifier` alone, if the example has no
            items, or if its tensors have different numbers of items.
        RuntimeError: if the exported classifier computes other logits; nothing is written.
    """
    missing = [name for name in _NEEDED_FOR_ONNX if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"`export_onnx` needs {', '.join(_NEEDED_FOR_ONNX)}, got no {', '.join(missing)}: "
            "install them by `pip install 'hf_maxmig[onnx]'`."
        )
    original = _classifier_of(model)
    batch = _batch(example)
    # A copy: the model may be in training mode, on an accelerator, or in half precision.
    # With several inputs torch would state that their sizes agree in a form that its ONNX exporter cannot read.
    size: Any = torch.export.Dim("batch") if len(batch) == 1 else torch.export.Dim.DYNAMIC
    logits = _Logits(copy.deepcopy(original)).to("cpu", torch.float32).eval()
    with torch.no_grad():
        program: Any = torch.onnx.export(
            logits,
            kwargs=batch,
            input_names=list(batch),
            output_names=["logits"],
            dynamic_shapes={"inputs": {name: {0: size} for name in batch}},
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    for value in (*program.model.graph.inputs, *program.model.graph.outputs):
        value.shape[0] = "batch"
    program.model.metadata_props["id2label"] = json.dumps(model.config.id2label)
    with staged(Path(path)) as place:
        program.save(place, external_data=False)
        _check_file(place, logits, batch, atol)
    return Path(path)


class _Logits(nn.Module):
    """A classifier that returns the bare logits."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier, self.asked = classifier, answer_in_words(classifier)

    def forward(self, **inputs: Tensor) -> Tensor:
        return logits_of(self.classifier, inputs, self.asked)


def _classifier_of(model: CrowdModel) -> PreTrainedModel:
    if not isinstance(model, CrowdModel):
        raise TypeError(
            "`model` must be a classifier with an aggregator, such as MaxMIGModel, got "
            f"{type(model).__name__}: a classifier alone has its own `save_pretrained`."
        )
    return model.classifier_alone()


def _check_replaceable(folder: Path, model_type: str) -> None:
    config = folder / "config.json"
    if config.exists():
        found = json.loads(config.read_text(encoding="utf-8")).get("model_type")
        if found != model_type:
            raise ValueError(
                f"`folder` must be empty or hold a classifier of type {model_type!r}, got one with "
                f"a model of type {found!r} in {folder}: its files would be replaced, choose another folder."
            )


def _batch(example: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring the example to the CPU, in float32 and with at least two items."""
    sizes = {name: tensor.shape[0] if tensor.ndim else 0 for name, tensor in example.items()}
    if not sizes or min(sizes.values()) < 1 or len(set(sizes.values())) > 1:
        raise ValueError(
            "`example` must hold tensors of the same number of items, at least 1, got "
            f"{ {name: tuple(tensor.shape) for name, tensor in example.items()} }."
        )
    batch = {}
    for name, tensor in example.items():
        tensor = tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else None)
        batch[name] = (
            torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor
        )  # 1 is not dynamic
    return batch


@torch.no_grad()
def _check_file(path: Path, logits: nn.Module, batch: dict[str, Tensor], atol: float) -> None:
    """Raise a RuntimeError if onnxruntime and torch disagree, on three sizes of a batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    size = len(next(iter(batch.values())))
    for items in (torch.arange(size), torch.arange(1), torch.arange(size + 1) % size):
        inputs = {name: tensor[items] for name, tensor in batch.items()}
        right = logits(**inputs)
        (found,) = session.run(["logits"], {name: t.numpy() for name, t in inputs.items()})
        away = (torch.from_numpy(found) - right).abs().max() if found.shape == right.shape else None
        if away is None or not away <= atol:
            raise RuntimeError(
                f"the exported classifier must compute torch's logits to {atol}, got "
                f"{'another shape' if away is None else f'a difference of {float(away):.2g}'} on "
                f"{len(items)} items: nothing was written."
            )


__all__ = ["export_onnx", "save_classifier"]
