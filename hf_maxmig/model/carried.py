"""The code saved with a model: the class that each Auto class builds, and the pipeline."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files

from .wrapping import AUTO_CLASSES

PIPELINE = {"impl": "pipelines.ForecastPipeline", "pt": ["AutoModel"], "type": "multimodal"}


@contextlib.contextmanager
def carrying_code(model: Any, folder: Path) -> Iterator[None]:
    """Register, in the config of a model saved with its code, its class for the Auto class and its pipeline.

    Transformers itself copies the model's code. This adds the class for the Auto class of the model's task
    and, while the model is saved, the pipeline, whose code is copied into the folder. A model saved without
    code stays as it is.

    Args:
        model: a crowd model.
        folder: where it is saved.
    """
    if not model.is_remote_code():
        yield
        return
    own, config = type(model), model.config
    reference = f"{own.__module__.rsplit('.', 1)[-1]}.{own.__name__}"
    auto_class = AUTO_CLASSES[config.classifier_task].__name__
    config.auto_map = {**(getattr(config, "auto_map", None) or {}), auto_class: reference}
    source = Path(__file__).with_name("pipelines.py")
    if not source.is_file():
        yield
        return
    for file in (source, *map(Path, get_relative_import_files(source))):
        shutil.copyfile(file, folder / file.name)
    before = vars(config).get("custom_pipelines")
    config.custom_pipelines = {"crowd-forecast": dict(PIPELINE)}
    try:
        yield
    finally:
        if before is None:
            del config.custom_pipelines
        else:
            config.custom_pipelines = before
