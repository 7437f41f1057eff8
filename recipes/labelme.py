r"""LabelMe: a real crowd of 59 workers on 1,000 photographs of 8 kinds of scene.

Data: Rodrigues & Pereira, "Deep learning from crowds", AAAI 2018,
https://fprodrigues.com/deep_LabelMe.tar.gz (for research). 1,000 training images with 2,547 labels,
500 for validation, 1,188 for the test. `--data_dir` is the archive or its folder; without it the
archive is downloaded.

    accelerate launch recipes/labelme.py --data_dir DIR --output_dir out/labelme

From given VGG-16 features: expect a classifier accuracy of 0.893 and a forecaster accuracy of 0.898
in half a minute on two cores (the paper's classifier: 0.864, best of its test epochs; trained on
the majority vote 0.80, on gold labels 0.936). With `--init information --num_train_epochs 10` classifier
and W maximise the gain together: 0.896 and 0.887. `--preset paper_labelme` runs the paper's protocol.

    accelerate launch recipes/labelme.py --data_dir DIR --output_dir out/labelme-images \
        --backbone timm/resnet50.a1_in1k

From the images: any frozen backbone of the Hub or a folder; its features are computed once (three
minutes for a small one on two cores) and cached, and the saved model takes pictures.
"""

from dataclasses import dataclass, field

from recipe import RealCrowdTrainingArguments, keep_back, number_kept_back
from transformers import AutoImageProcessor, set_seed

from hf_maxmig import HeadClassifier, HeadConfig, frozen_features, labelme
from hf_maxmig.command.flags import start
from hf_maxmig.command.runs import Recipe, run
from hf_maxmig.sharing.processors import portable_processor


@dataclass
class LabelMeArguments:
    """Where the data is and what reads the pictures."""

    data_dir: str | None = field(
        default=None, metadata={"help": "Folder or archive of LabelMe; downloaded if not given."}
    )
    archive_sha256: str | None = field(
        default=None,
        metadata={"help": "What the archive must have; the log tells it when it is not given."},
    )
    backbone: str | None = field(
        default=None,
        metadata={
            "help": "Frozen backbone: a Hub name or a folder. Default: the given VGG-16 features."
        },
    )
    held_out_items: int = number_kept_back()


def recipe(arguments: LabelMeArguments, training: RealCrowdTrainingArguments) -> Recipe:
    set_seed(training.seed)
    content = "features" if arguments.backbone is None else "images"
    data = labelme(arguments.data_dir, content=content, sha256=arguments.archive_sha256)
    names = dict(enumerate(data["train"].features["label"].names))
    processor = None
    if arguments.backbone is None:
        size = data["train"].features["features"].length
        classifier = HeadClassifier(HeadConfig(input_size=size, id2label=names))
    else:
        processor = portable_processor(AutoImageProcessor.from_pretrained(arguments.backbone))
        with training.main_process_first(desc="features"):
            data, encoder = frozen_features(data, arguments.backbone, processor)
        size = len(data["train"][0]["features"])
        classifier = HeadClassifier.from_encoder(encoder, input_size=size, id2label=names)
    train, held_out = keep_back(data["train"], arguments.held_out_items)
    return Recipe(
        classifier=classifier,
        training=training,
        train=train,
        test=data["test"],
        processor=processor,
        held_out=held_out,
        setting={
            "dataset": "labelme",
            "backbone": arguments.backbone or "vgg16 features",
            "held_out_items": arguments.held_out_items,
        },
    )


def main(arguments: LabelMeArguments, training: RealCrowdTrainingArguments) -> dict[str, float]:
    return run(recipe(arguments, training))


if __name__ == "__main__":
    start(recipe, run)
