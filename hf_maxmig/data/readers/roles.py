"""Find the column of each role, by the usual names or by the user's argument."""

import re
from collections.abc import Iterable

from .source import Source, shown

ROLES = ("item", "annotator", "annotation", "gold")
WEIGHT = "weight"  # how much a vote counts: a number, where the others are names


def extra_name(name: str) -> str:
    """Name an extra column, so that it differs from ours."""
    return f"original_{name}" if name in (*ROLES, WEIGHT) else name


# The usual names of each role, written as `_plain` returns them, likeliest first. A later group counts
# only if no name of an earlier one occurs.
_USUAL = {
    "item": (
        "item item_id item_name task task_id question question_id image image_id image_name "
        "image_url image_path image_file img img_id picture picture_id photo photo_id file file_name filename file_path path url song "
        "audio audio_id audio_file recording recording_id sound sound_id clip clip_id text_id sentence_id review_id comment_id "
        "example example_id sample sample_id instance instance_id object object_id datapoint "
        "document document_id doc_id record_id unit_id",
        "id hitid hit_id assignment_task_id index idx external_id",
        "text sentence content",
    ),
    "annotator": (
        "annotator annotator_id annotator_name annotators worker worker_id workerid user user_id "
        "userid user_name username labeler labeler_id labeller labeller_id rater rater_id coder "
        "expert expert_id judge judge_id performer contributor contributor_id participant "
        "participant_id reviewer assignee completed_by labeled_by annotated_by "
        "assignment_worker_id crowd_worker",
        "email",
    ),
    "annotation": (
        "annotation label labels answer response vote rating choice class class_name category "
        "judgment judgement decision annotation_value",
        "value",
    ),
    "gold": (
        "gold gold_label gold_answer golden golden_label truth true_label true_class true_answer "
        "ground_truth groundtruth ground_truth_label gt correct_label correct_answer clean_label "
        "y_true",
    ),
    WEIGHT: ("confidence weight vote_weight annotation_weight probability prob certainty",),
}
_PREFIXES = {
    "item": ("input.", "input:"),
    "annotation": ("output:", "answer."),
    "gold": ("golden:",),
}  # of MTurk and Toloka


def candidates(role: str, names: Iterable[str]) -> list[str]:
    """Return the columns that fit a role by a usual name, or by a prefix of MTurk and Toloka.

    Example:
        >>> candidates("item", ["id", "File Name", "WorkerId"])
        ['File Name']
        >>> candidates("annotation", ["INPUT:image", "OUTPUT:result", "GOLDEN:result"])
        ['OUTPUT:result']
    """
    names = list(names)
    first, *later = [set(group.split()) for group in _USUAL[role]]
    prefixes = _PREFIXES.get(role, ())
    found = [n for n in names if _plain(n) in first or n.lower().startswith(prefixes)]
    for group in later:
        found = found or [name for name in names if _plain(name) in group]
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def pick(
    source: Source, role: str, names: Iterable[str], asked: str | None, required: bool = True
) -> str | None:
    """Return the column of a role: the user's, or the only one with a usual name."""
    names = list(names)
    if asked is not None:
        if asked not in names:
            raise source.wrong(f"`{role}` must be one of {shown(names)}, got {asked!r}.")
        return asked
    found = candidates(role, names)
    if len(found) == 1:
        return found[0]
    if found:
        raise source.wrong(f"{shown(found)} could each be the {role}: name it by `{role}=...`.")
    if required:
        raise source.wrong(
            f"no column looks like the {role} among {shown(names)}: name it by `{role}=...`."
        )
    return None
