"""The verbs of `python -m pipeline`, with the purpose, the function and the arguments of each. No verb is imported to show the help."""

from collections.abc import Mapping
from typing import Any, NamedTuple

NAMES = "a model file, a run, models:/NAME@ALIAS, models:/NAME/VERSION, a DVC experiment or a git revision with a dvc.lock"
KEY_VALUE = "KEY=VALUE"


class Verb(NamedTuple):
    """`function` is `module:function` in `pipeline/tools/`; None for a stage, which `pipeline/tools/stages.py` runs.

    `arguments` are those of argparse. The help does not list verbs that only programs call.
    """

    purpose: str
    function: str | None = None
    arguments: Mapping[str, Mapping[str, Any]] = {}
    listed: bool = True


Argument = tuple[str, Mapping[str, Any]]


def verb(purpose: str, function: str | None = None, *arguments: Argument, listed: bool = True) -> Verb:
    return Verb(purpose, function, dict(arguments), listed)


def flag(name: str, purpose: str, **settings: Any) -> Argument:
    """Return an option without a value."""
    return name, {"action": "store_true", "help": purpose, **settings}


def value(name: str, purpose: str, metavar: str | None = None, **settings: Any) -> Argument:
    """Return an argument, or an option with a value. `metavar` names the value in the help."""
    return name, {"metavar": metavar, "help": purpose, **settings}


def repeated(name: str, purpose: str, metavar: str, **settings: Any) -> Argument:
    """Return an option with a value that may be given several times."""
    return value(name, purpose, metavar, action="append", default=[], **settings)


MODEL = value("subject", f"{NAMES} (default: %(default)s)", "MODEL|RUN", nargs="?", default="models/model.safetensors")
OTHERS = repeated("--with", "average the probabilities with those of this model, too; may be repeated", "MODEL|RUN", dest="others")

VERBS = {
    "repro": verb(
        "run check, `dvc repro` and summary; no other container can use the checkout meanwhile",
        "repro:run",
        repeated(
            "-S", "first change this parameter in params.yaml, as `set` does; may be given several times", KEY_VALUE, dest="assignments"
        ),
    ),
    "prepare": verb("stage: write data/prepared/ from the source"),
    "train": verb("stage: train on data/prepared/ and write models/model.safetensors"),
    "evaluate": verb("stage: evaluate the model file on the test split"),
    "predict": verb(
        "predict images, texts or rows of a table, in files, tables, folders or archives, with a trained model",
        "predict.command:run",
        value("model", NAMES, "MODEL|RUN"),
        value(
            "inputs",
            "an image, a text file (each line is an input), a table (CSV, TSV, JSON, Parquet: each row is an input), a folder, a zip or tar archive, an .npy array, or - for standard input",
            "INPUT",
            nargs="+",
        ),
        value(
            "--column",
            "the column of a table that has the texts, the paths of the images or the images, by its name, or by its number from 1 if the "
            "first line has no names (default: that of the training)",
            "NAME",
        ),
        value("--batch-size", "inputs per forward pass (default: 64, and 1024 for rows of tables)", "N", type=int),
        value("--top-k", "name the K most likely classes (default: %(default)s)", "K", type=int, default=3),
        value("--beam", "write texts by a beam search of this width (default: %(default)s)", "N", type=int, default=1),
        value("--encoding", "the encoding of files of text, such as gbk (default: UTF-8, or that of a byte order mark)", "NAME"),
        OTHERS,
        value("--output", "write a table to this file, which ends in .csv or .parquet, instead of printing", "FILE"),
        repeated("--keep", "a column of the tables to write beside the predictions, such as a key; may be repeated", "COLUMN"),
    ),
    "check": verb("validate params.yaml, the environment and the machine before anything runs", "check.command:run"),
    "doctor": verb(
        "examine machine, tracking store and checkout in seconds, and name a command that fixes each problem",
        "doctor:run",
        flag("--all", "print the checks that are ok, too", dest="complete"),
    ),
    "summary": verb("print the result, and record its run if it is missing in MLflow", "repro:summarize", listed=False),
    "verify": verb(
        "recompute what a model file or run records, and report the first difference",
        "verify.command:run",
        MODEL,
        flag("--retrain", "also retrain, and compare every byte"),
    ),
    "compare": verb(
        "print what differs between models, their metrics, and a paired test on the same test split",
        "compare.comparing:run",
        value("first", NAMES, "A"),
        value("others", "the models to compare with the first, named in the same ways", "B", nargs="+"),
    ),
    "promote": verb(
        "register a model in MLflow, and give it an alias if it is no worse than the model that has it now",
        "compare.promotion:run",
        value("subject", f"{NAMES}; a run must have trained the model", "MODEL|RUN"),
        value("name", "the name of the model in MLflow's registry; it is created if it does not exist", "NAME"),
        value("--alias", "the alias to give (default: %(default)s)", default="champion"),
        flag("--force", "give the alias even if the model is worse or cannot be compared"),
    ),
    "generate": verb(
        "continue a text with a language model",
        "predict.generate:run",
        value("model", NAMES, "MODEL|RUN"),
        value("--prompt", "the text to continue (default: none, the model begins a new text)", default=""),
        value(
            "--temperature",
            "below 1, probable tokens become more probable; 0 always takes the most probable (default: %(default)s)",
            type=float,
            default=1.0,
        ),
        value("--top-k", "draw from this many most probable tokens only", type=int),
        value("--top-p", "draw from the most probable tokens only whose probabilities together reach this share", type=float),
        value("--seed", "the same seed gives the same text (default: %(default)s)", type=int, default=1),
        value("--length", "the largest number of tokens to generate (default: %(default)s)", type=int, default=256),
    ),
    "export": verb(
        "write a model for ONNX Runtime or PyTorch, and compare its outputs with those of the model",
        "export.command:run",
        MODEL,
        value("--format", "ONNX, or a program of torch.export", required=True, choices=("onnx", "pt2")),
        OTHERS,
        value("--output", "the file to write (default: beside the model file, such as models/model.onnx)", "PATH"),
    ),
    "search": verb(
        "search for the best hyperparameters, or repeat a training with several seeds or folds",
        "search.command:run",
        value("file", "the search file, such as presets/search/digits.yaml", "FILE"),
        value("--trials", "the number of trials, instead of that in the file", "N", type=int),
        flag("--apply", "write the parameters of the best trial to params.yaml"),
        flag("--keep-models", "keep the models of all trials, not only that of the best; those of several seeds or folds are always kept"),
    ),
    "trial": verb(
        "train one trial of a search, in its folder; search runs this by itself",
        "search.trial:run",
        value("folder", "the folder of a trial, such as .pipeline/search/digits/trials/0007", "FOLDER"),
        value("stage", "the stage to run (default: train)", nargs="?", default="train", choices=("prepare", "train", "evaluate")),
        listed=False,
    ),
    "set": verb(
        "change parameters in params.yaml, such as preset=cifar10-cnn model=mlp train.epochs=3; comments and order stay",
        "params.command:run",
        value(
            "assignments",
            "train.epochs=3 changes a value; model=mlp replaces the section by the values recommended for mlp; preset=NAME first copies presets/NAME.yaml to params.yaml, and keeps the file that it replaces",
            KEY_VALUE,
            nargs="*",
        ),
        value(
            "--upgrade",
            "add the keys that files of earlier versions lack, with the values that keep their results (default: params.yaml)",
            "FILE",
            nargs="*",
        ),
    ),
    "report": verb(
        "write an HTML page about the model: result, figures, mistakes, data, cost, provenance; and a model card",
        "report.command:run",
        value(
            "--output",
            "the page; the model card is written beside it, as report-model-card.md (default: %(default)s)",
            "FILE",
            default="reports/report.html",
        ),
    ),
    "ui": verb(
        "serve the MLflow UI, opened at the comparison of the runs",
        "ui:run",
        value("--host", "default: %(default)s; use 0.0.0.0 in a container", default="127.0.0.1"),
        value("--port", "default: %(default)s", type=int, default=5000),
    ),
    "sync": verb(
        "send to MLflow all events of the journals that it has not received",
        "sync:run",
        value("--follow", "send one journal until its stage has ended; every stage starts this by itself", "JOURNAL"),
    ),
    "profile": verb(
        "run some steps of the training, and print how their time is spent, or what would make them faster",
        "profile.profile:run",
        flag("--speedup", "instead compare the steps with each option that could make them faster here"),
        value("--trace", "write a trace for https://ui.perfetto.dev, compressed if PATH ends in .gz", "PATH"),
    ),
    "schema": verb("write params.schema.json and docs/parameters.md", "params.reference:run"),
}
