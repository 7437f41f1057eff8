"""Read the exports of annotation tools and of published crowds, with one function per format.

Each function takes a `Source`, the content of a file with its name for errors, and returns `UncheckedVotes`:
columns of Python values or of Arrow, one vote per row. `files.py` and `tables.py` open the sources, `roles.py`
has the usual names of columns, and `read_annotations.py` chooses the format and names the values.
"""

import csv
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from .cells import Column
from .roles import ROLES, candidates, extra_name, pick
from .source import Asked, Source, UncheckedVotes, shown
from .values import only_answer

_RECORD_IDS = ("id", "external_id", "_server_id")  # of Argilla, the user's own first
_WORKERS_FILE = "side_info_cifar100N.csv"


def label_studio(source: Source, asked: Asked) -> UncheckedVotes:
    """Read the JSON export of Label Studio: tasks with `data` and `annotations`.

    The annotator is the e-mail address in `completed_by`, or its number if there is none. Cancelled
    annotations, annotations without a choice, and predictions are ignored. An annotation with
    `ground_truth` is the task's gold label and not a vote.

    Args:
        source: a list of tasks.
        asked: `item`: a key of `data`, or "id" for the task's number; by default the only key, or
            the one that looks like a name of the item, else "id". `annotation`: the `from_name`
            of the question. `gold`: a key of `data`.

    Returns:
        The votes; other keys of `data` are extra columns.

    Raises:
        ValueError: naming the task, if it is malformed or an answer has several choices.
    """
    tasks = source.records()
    left_out: Counter[str] = Counter()
    answers = []
    for row, task in enumerate(tasks):
        source.part(row, task, "data", dict)
        for one in source.part(row, task, "annotations", list):
            results = source.part(row, one, "result", list)
            if one.get("was_cancelled"):
                left_out["cancelled"] += 1
                continue
            choices = []
            for result in results:
                if not isinstance(result, dict):
                    got = type(result).__name__
                    raise source.wrong(f"a result must be an object with names, got {got}.", row)
                if result.get("type") not in (None, "choices") and "value" not in result:
                    continue  # a relation, which joins two regions
                value = source.part(row, result, "value", dict)
                if "choices" in value:
                    choices.append((result.get("from_name"), value["choices"]))
            left_out["results that are not choices"] += len(results) - len(choices)
            answers.append((row, one, choices))
    question = _one_question(
        source, {str(name) for *_, choices in answers for name, _ in choices}, asked.annotation
    )
    key = asked.item or _data_key([task["data"] for task in tasks])
    rows, places = [], []
    for row, one, choices in answers:
        said = [choice for name, choice in choices if str(name) == question]
        label = _only_label(source, row, said[0] if len(said) == 1 else said)
        if label is None:
            left_out["without a choice"] += 1
            continue
        task = tasks[row]
        data = {k: v for k, v in task["data"].items() if k != key}
        vote = {"item": _item(source, row, task["data"] if key != "id" else task, key)}
        if one.get("ground_truth"):
            vote["gold"] = label
        else:
            vote |= {"annotator": _who(source, row, one.get("completed_by")), "annotation": label}
        rows.append((vote, data))
        places.append(row)
    voted = {row for row, vote in zip(places, rows, strict=True) if "annotator" in vote[0]}
    left_out["tasks without a vote"] = len(tasks) - len(voted)
    found = {"item": key if key == "id" else f"data.{key}", "annotation": question}
    return _votes(source, rows, places, asked.gold, found, left_out)


def _data_key(data: list[dict[str, Any]]) -> str:
    keys = list(dict.fromkeys(key for one in data for key in one))
    if len(keys) == 1:
        return keys[0]
    named = [key for key in keys if candidates("item", [key])]
    return named[0] if len(named) == 1 and all(named[0] in one for one in data) else "id"


def _who(source: Source, row: int, who: Any) -> Any:
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    if who is None or isinstance(who, list):
        raise source.wrong("`completed_by` must say who annotated, got nothing.", row)
    return who


def argilla(source: Source, asked: Asked) -> UncheckedVotes:
    """Read records of Argilla, of version 1 or 2, exported as JSON or pushed to the Hub.

    Only submitted responses count. If an export has no `status`, all responses count. Version 2 has
    the columns `<question>.responses`, `.responses.users` and `.responses.status` on the Hub, and
    `responses: {question: [{value, user_id, status}]}` in JSON. Version 1 has
    `<question>: [{user_id, value, status}]` on the Hub, and
    `responses: [{user_id, status, values: {question: {value}}}]` in JSON.

    Args:
        source: records.
        asked: `item`: a key of the record or of its `fields`; by default `id`, `external_id` or
            `_server_id`. `annotation`: the question. `gold`: a field.

    Returns:
        The votes; fields and metadata are extra columns.

    Raises:
        ValueError: naming the record, if it is malformed or an answer has several labels.
    """
    records = source.records()
    answers = [
        (row, *answer)
        for row, record in enumerate(records)
        for answer in _responses(source, row, record)
    ]
    asked_questions = {name for record in records for name in _questions(record)}
    question = _one_question(
        source, asked_questions | {name for _, name, *_ in answers}, asked.annotation
    )
    key = asked.item or next(
        (key for key in _RECORD_IDS if all(r.get(key) is not None for r in records)), None
    )
    if key is None:
        raise source.wrong(
            f"records have no complete {shown(_RECORD_IDS)}: name what identifies them by "
            f"`item`, one of {shown(_fields(records[0], asked_questions))}."
        )
    left_out: Counter[str] = Counter()
    rows, places = [], []
    for row, name, who, value, status in answers:
        if name != question:
            continue
        status = "submitted" if status is None else str(status).rsplit(".", 1)[-1].lower()
        if status != "submitted":
            left_out[status] += 1
            continue
        label = _only_label(source, row, value)
        if label is None:
            left_out["without an answer"] += 1
            continue
        if who is None:
            raise source.wrong("a response must have a `user_id`, got None.", row)
        record = records[row]
        fields = _fields(record, asked_questions)
        item = _item(source, row, record if key in record else fields, key)
        fields.pop(key, None)
        rows.append(({"item": item, "annotator": who, "annotation": label}, fields))
        places.append(row)
    if any(name == question and status is None for _, name, *_, status in answers):
        source = replace(source, note="without status: all responses count")
    left_out["records without a vote"] = len(records) - len(set(places))
    return _votes(source, rows, places, asked.gold, {"item": key, "annotation": question}, left_out)


def _questions(record: Any) -> list[str]:
    """Return the questions that a record has a place for, answered or not."""
    if not isinstance(record, dict):
        return []
    suffix = ".responses"
    on_the_hub = [key.removesuffix(suffix) for key in record if key.endswith(suffix)]
    answers = record.get("responses")
    in_json = [key for key in answers if isinstance(key, str)] if isinstance(answers, dict) else []
    version_1 = [key for key, value in record.items() if _is_version_1(value)]
    return on_the_hub + in_json + version_1


def is_argilla(record: Any) -> bool:
    """Say whether a record has responses as Argilla writes them."""
    return isinstance(record, dict) and ("responses" in record or bool(_questions(record)))


def _is_version_1(value: Any) -> bool:
    one = value[0] if isinstance(value, list) and value else value
    return isinstance(one, dict) and {"user_id", "value"} <= one.keys()


def _responses(source: Source, row: int, record: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield question, user, value and status of each response to a record."""
    if not isinstance(record, dict):
        raise source.wrong(f"must be an object with names, got {type(record).__name__}.", row)
    for question in _questions(record):
        name = f"{question}.responses"
        if record.get(name) is not None:
            values = source.part(row, record, name, list)
            users, status = record.get(f"{name}.users"), record.get(f"{name}.status")
            users = source.part(row, record, f"{name}.users", list) if users is not None else []
            if status is not None:
                status = source.part(row, record, f"{name}.status", list)
            status = status or [None] * len(values)
            if not len(values) == len(users) == len(status):
                raise source.wrong(
                    f"`{name}`, `.users` and `.status` must be of one length, got "
                    f"{len(values)}, {len(users)} and {len(status)}.", row
                )  # fmt: skip
            yield from ((question, *one) for one in zip(users, values, status, strict=True))
        if _is_version_1(value := record.get(question)):
            if isinstance(value, dict):  # a list of records as `datasets` once stored it
                lists = {key: source.part(row, value, key, list) for key in value}
                if len({len(of) for of in lists.values()}) > 1:
                    raise source.wrong(f"lists in `{question}` must be of one length.", row)
                value = [
                    {key: of[i] for key, of in lists.items()} for i in range(len(lists["value"]))
                ]
            yield from _each(source, row, question, value or [])
    answers = record.get("responses")
    if isinstance(answers, dict):
        source.part(row, record, "responses", dict)
        for question in answers:
            yield from _each(source, row, question, source.part(row, answers, question, list))
    elif isinstance(answers, list):
        for one in answers:
            if not isinstance(one, dict):
                got = type(one).__name__
                raise source.wrong(f"a response must be an object with names, got {got}.", row)
            values = {} if one.get("values") is None else source.part(row, one, "values", dict)
            for question, value in values.items():
                value = source.part(row, {question: value}, question, dict).get("value")
                yield question, one.get("user_id"), value, one.get("status")
            if not values:  # discarded before anything was answered
                source.part(row, one, "status", str)
    elif answers is not None:
        raise source.wrong(
            f"`responses` must be a list or dict, got {type(answers).__name__}.", row
        )


def _each(
    source: Source, row: int, question: str, answers: list[Any]
) -> Iterator[tuple[str, Any, Any, Any]]:
    for one in answers:
        if not isinstance(one, dict) or "value" not in one:
            raise source.wrong(f"responses to `{question}` must have a `value`, got {one!r}.", row)
        yield question, one.get("user_id"), one["value"], one.get("status")


def _fields(record: dict[str, Any], questions: set[str]) -> dict[str, Any]:
    """Return a record's fields about the item."""
    own = {
        key: value
        for key, value in record.items()
        if key.split(".")[0] not in questions
        and not key.endswith("-suggestion")
        and not isinstance(value, dict | list | bytes)
    }
    fields, metadata = record.get("fields"), record.get("metadata")
    if isinstance(fields, dict):
        own |= fields
    if isinstance(metadata, dict):
        own |= {f"metadata.{key}": value for key, value in metadata.items()}
    return own


def annotator_files(source: Source, asked: Asked) -> UncheckedVotes:
    """Read one file per annotator, as doccano exports a project. The file's name is the annotator.

    Args:
        source: a list of sources, each a table or a list of records.
        asked: `item`, `annotation`, `gold`: columns or keys, by default the usual names.

    Returns:
        The votes, with the other columns. An empty list of labels is no vote and is counted.

    Raises:
        ValueError: if an answer has several labels, naming file and line; if two files have the same
            name, or a file has a column of annotators.
    """
    files = source.content
    if not files:
        raise source.wrong("holds no file of votes.")
    twice = [name for name, n in Counter(f.path.stem for f in files).items() if n > 1]
    if twice:
        raise source.wrong(f"two files belong to the same annotator, {twice[0]}.")
    rows, places, open_ends = [], [], []
    found: dict[str, str | None] = {}
    for file in files:
        records = file.records()
        for row, record in enumerate(records):
            if not isinstance(record, dict):
                got = type(record).__name__
                raise file.wrong(f"must be an object with names, got {got}.", row)
        keys = list(dict.fromkeys(key for record in records[:1] for key in record))
        if who := candidates("annotator", keys):
            raise file.wrong(
                f"must hold the votes of one annotator, got a column of annotators, {shown(who)}: read the files one by one and "
                "join them by `datasets.concatenate_datasets`."
            )
        for role in ("item", "annotation", "gold"):
            named = pick(file, role, keys, getattr(asked, role), role != "gold")
            if found.setdefault(role, named) != named:
                raise file.wrong(
                    f"{role} must have the same name in all files, got {named} and {found[role]}."
                )
        for row, record in enumerate(records):
            item = _item(file, row, record, str(found["item"]))
            label = _only_label(file, row, record.get(found["annotation"]))
            vote = {"item": item}
            if label is not None:
                vote |= {"annotator": file.path.stem, "annotation": label}
            if found["gold"]:
                vote["gold"] = record.get(found["gold"])
            extras = {k: v for k, v in record.items() if k not in found.values()}
            rows.append((vote, extras))
            places.append(f"{file.name}, {file.place(row)}")
        at = {name: role for role, name in found.items() if name}.get(file.open_end or "")
        if at in vote:
            open_ends.append((at, len(rows) - 1))
    where = {role: name for role, name in found.items() if name} | {"annotator": "file name"}
    known = frozenset().union(*(file.known for file in files))
    notes = ", ".join(f"{file.name}: {file.note}" for file in files if file.note)
    place = replace(source, place=lambda row: places[row], known=known, note=notes)
    votes = _votes(place, rows, range(len(rows)), None, where, Counter())
    votes.open_ends = open_ends
    return votes


def peerannot(source: Source, asked: Asked) -> UncheckedVotes:
    """Read `answers.json` of peerannot, {task: {worker: label}}.

    Args:
        source: such a dict. Its keys are text; labels keep their type.
        asked: not used.

    Returns:
        The votes.

    Raises:
        ValueError: naming the task, if it is not a dict of labels.
    """
    rows: list[Any] = []
    places = []
    for task in source.content:
        answers = source.content[task]
        if not isinstance(answers, dict):
            raise source.wrong(
                f"task {task!r} must be a dict of workers' labels, got {type(answers).__name__}."
            )
        for worker, label in answers.items():
            if _only_label(source, 0, label, f"task {task!r}, worker {worker!r}") is None:
                raise source.wrong(f"task {task!r}: worker {worker!r} must have a label, got None.")
            rows.append(({"item": task, "annotator": worker, "annotation": label}, {}))
            places.append(task)
    left_out = Counter({"tasks without a vote": len(source.content) - len(set(places))})
    place = replace(source, place=lambda row: f"task {places[row]!r}")
    return _votes(place, rows, range(len(rows)), None, {}, left_out)


def cifar_n(source: Source, asked: Asked) -> UncheckedVotes:
    """Read the human labels of CIFAR-10N and CIFAR-100N; items are numbers of training images.

    CIFAR-10N has three labels per image. Their three places are taken as three annotators, because the
    published worker ids do not belong to the labels. CIFAR-100N has one label per image, by the worker
    who labelled its batch of five.

    Args:
        source: arrays by name.
        asked: `annotation`: one array, such as "worse_label", in place of the three. `annotator`:
            for CIFAR-100N, the path of `side_info_cifar100N.csv`, by default beside the file.

    Returns:
        The votes; `clean_label` is the gold label.

    Raises:
        FileNotFoundError: if the worker ids are absent.
        ValueError: if arrays are not whole numbers of one length.
    """
    arrays = source.content
    places = ["random_label1", "random_label2", "random_label3"]
    names = places if any(name in arrays for name in places) else ["noisy_label"]
    names = [asked.annotation] if asked.annotation else names
    if missing := [name for name in [*names, "clean_label"] if name not in arrays]:
        raise source.wrong(f"must hold `{missing[0]}`, got {shown(arrays)}.")
    for name in ["clean_label", *names]:
        array, clean = arrays[name], arrays["clean_label"]
        if getattr(array, "ndim", 0) != 1 or array.dtype.kind not in "iu":
            raise source.wrong(f"`{name}` must be a row of whole numbers.")
        if len(array) != len(clean):
            raise source.wrong(f"`{name}` must have N = {len(clean)} labels, got {len(array)}.")
        classes = 100 if "noisy_label" in arrays else 10
        if (wrong := (array < 0) | (array >= classes)).any():
            row = int(wrong.argmax())
            raise source.wrong(
                f"`{name}` must lie in 0..{classes - 1}, got {array[row]} at item {row}."
            )
    number = len(arrays["clean_label"])
    votes = UncheckedVotes(
        {
            "item": pa.array(np.tile(np.arange(number), len(names))),
            "annotation": pa.array(np.concatenate([arrays[name] for name in names])),
            "gold": pa.array(np.tile(arrays["clean_label"], len(names))),
        },
        source,
        found={"annotation": "+".join(names), "gold": "clean_label"},
    )
    if names == ["noisy_label"]:
        beside = source.path.with_name(_WORKERS_FILE) if source.path else Path(_WORKERS_FILE)
        path = Path(asked.annotator or beside)
        votes.columns["annotator"] = pa.array(_workers(path, number))
        votes.found["annotator"] = path.name
    elif asked.annotator is not None:
        raise source.wrong("worker ids do not belong to these labels; leave `annotator` out.")
    else:
        votes.columns["annotator"] = pa.array(np.repeat(names, number))
        votes.found["annotator"] = "place of the label"
        if "noisy_label" not in arrays:
            votes.source = replace(source, note="its worker ids do not belong to its labels")
    return votes


def load_arrays(path: Path) -> Source:
    """Load numpy arrays with torch and nothing else: unpickling could run code from the file."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise ValueError(f"{path.name}: must be a file of `torch.save`, got another.")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()  # of the checksums, which torch writes and does not check
    except Exception as error:  # a broken archive raises many kinds
        raise ValueError(f"{path.name}: must be a whole file of `torch.save`: {error}.") from error
    if broken is not None:
        raise ValueError(
            f"{path.name}: must be a whole file of `torch.save`, got another checksum for "
            f"{broken!a}: load it down again."
        )
    rebuild = np.empty(0).__reduce__()[0]
    kinds = {type(np.dtype(code)) for code in "bhilqBHILQfd"}
    allowed: list[Any] = [
        (rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")
    ]
    try:
        with torch.serialization.safe_globals([*allowed, np.ndarray, np.dtype, *kinds]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        got = f"{found[1]}, which is not loaded" if found else str(error).splitlines()[0]
        raise ValueError(f"{path.name}: must hold numpy arrays only, got {got}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name}: must hold arrays by name, got {type(content).__name__}.")
    return Source(path.name, "arrays", content, path)


def _workers(path: Path, number: int) -> np.ndarray:
    """Return the (N,) worker of each image from batches such as `0--4,514,113`."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must hold the worker of each batch of images, got no such file: pass its path "
            "as `annotator`."
        )
    worker = np.full(number, -1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for line in (reader := csv.reader(file)):
            if reader.line_num == 1:
                continue
            batch = re.fullmatch(r"(\d+)--(\d+)", line[0]) if len(line) > 1 else None
            if batch is None or not line[1].isdecimal():
                raise ValueError(
                    f"{path.name}, line {reader.line_num}: must be first--last image, worker, "
                    f"seconds, got {','.join(line)!r}."
                )
            worker[int(batch[1]) : int(batch[2]) + 1] = int(line[1])
    if (worker < 0).any():
        raise ValueError(
            f"{path.name} must name the worker of all N = {number} images, got none for image "
            f"{int((worker < 0).argmax())}."
        )
    return worker


# What the formats share


def _one_question(source: Source, found: set[str], asked: str | None) -> str:
    if not found:
        raise source.wrong("holds no answer to a question of classes.")
    if asked is None and len(found) > 1:
        raise source.wrong(
            f"holds answers to several questions, {shown(sorted(found))}: name one by "
            "`annotation=...`."
        )
    if asked is not None and asked not in found:
        raise source.wrong(f"`annotation` must be one of {shown(sorted(found))}, got {asked!r}.")
    return asked or min(found)


def _only_label(source: Source, row: int, label: Any, where: str = "") -> Any:
    """Return the one label in an answer, None if there is none."""
    try:
        return only_answer(label)
    except ValueError as error:
        raise source.wrong(f"{where or 'an answer'} {error}", row) from None


def _item(source: Source, row: int, record: dict[str, Any], key: str) -> Any:
    item = record.get(key)
    if item is None or item == "" or isinstance(item, dict | list):
        got = repr(item) if key in record else f"only {shown(record)}"
        raise source.wrong(f"`{key}` must identify the item, got {got}.", row)
    return item


def _votes(
    source: Source,
    rows: list[tuple[dict[str, Any], dict[str, Any]]],
    places: Any,
    gold: str | None,
    found: dict[str, str],
    left_out: Counter[str],
) -> UncheckedVotes:
    """Turn pairs of roles and extras, one per vote, into columns."""
    names = dict.fromkeys(name for _, extras in rows for name in extras)
    if gold is not None:
        if gold not in names:
            raise source.wrong(f"`gold` must be one of {shown(names)}, got {gold!r}.")
        if any("gold" in vote for vote, _ in rows):
            raise source.wrong(f"has gold labels of its own: leave out `gold={gold!r}`.")
        del names[gold]
        rows = [(vote | {"gold": extras.get(gold)}, extras) for vote, extras in rows]
        found = found | {"gold": gold}
    roles = ROLES if any("gold" in vote for vote, _ in rows) else ROLES[:3]
    columns: dict[str, Column] = {role: [vote.get(role) for vote, _ in rows] for role in roles}
    for name in names:
        columns[extra_name(name)] = [extras.get(name) for _, extras in rows]
    return UncheckedVotes(columns, source, places, found, left_out)
