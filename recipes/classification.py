r"""Your own items and votes: train, evaluate, relabel, report, save, and share if you like; `maxmig train` as a script.

Items are pictures, texts, sounds or rows of a table: a folder, a file with one item per row, or any data set of the
Hub. Votes are a file of any form that `read_annotations` knows. The classifier is any model of the Hub, of timm, or
one of ours by its type. Gold labels, if the items have them, only measure results.

    accelerate launch recipes/classification.py \
        --train_dir photos --votes votes.csv --model_name_or_path timm/resnet50.a1_in1k \
        --output_dir out/photos

The output folder then holds the model and its card, `all_results.json`, and in `_report`, which
`--push_to_hub` leaves out, `report.html` (which annotators to trust, which items to look at again),
`annotators.csv` and `relabelled.parquet`. The report needs matplotlib: `pip install -e ".[plots]"`.

`--freeze_backbone` trains a head on features that are computed once and cached: 1,000 photographs
of LabelMe through a small network take four minutes on two cores (classifier 0.90, `labelme.py`
has the settings). To try it with nothing to download, write the digits out first:

    python recipes/digits.py --output_dir out/digits --write_files out/digits-files
    accelerate launch recipes/classification.py --train_dir out/digits-files/train \
        --test_dir out/digits-files/test --votes out/digits-files/votes.csv \
        --model_name_or_path maxmig_four_layer_cnn --image_size 32 --output_dir out/digits-cnn
"""

from hf_maxmig.command.classification import recipe
from hf_maxmig.command.flags import start
from hf_maxmig.command.runs import run

if __name__ == "__main__":
    start(recipe, run)
