"""The verbs of `python -m pipeline`, with the purpose, the function and the arguments of each. No verb is imported to show the help."""

from collections.abc import Mapping
from typing import Any, NamedTuple

NAMES = "a model file, a run, models:/NAME@ALIAS, models:/NAME/VERSION, a DVC experiment or a git revision with a dvc.lock"
MODEL = {"nargs": "?", "default": "models/model.safetensors", "metavar": "MODEL|RUN", "help": f"{NAMES} (default: %(default)s)"}
KEY_VALUE = "KEY=VALUE"


class Verb(NamedTuple):
    """`function` is `module:function` in `pipeline/tools/`; None for a stage, which `pipeline/tools/stages.py` runs.

    `arguments` are those of argparse. The help does not list verbs that only programs call.
    """

    purpose: str
    function: str | None = None
    arguments: Mapping[str, Mapping[str, Any]] = {}
    listed: bool = True


def flag(purpose: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of an option without a value."""
    return {"action": "store_true", "help": purpose, **settings}


def value(purpose: str, metavar: str | None = None, **settings: Any) -> dict[str, Any]:
    """Return the settings of an argument, or of an option with a value. `metavar` names the value in the help."""
    return {"metavar": metavar, "help": purpose, **settings}


OTHERS = value(
    "average the probabilities with those of this model, too; may be repeated", "MODEL|RUN", action="append", default=[], dest="others"
)

VERBS = {
    "repro": Verb(
        "run check, `dvc repro` and summary; no other container can use the checkout meanwhile",
        "repro:run",
        {
            "-S": value(
                "first change this parameter in params.yaml, as `set` does; may be given several times",
                KEY_VALUE,
                action="append",
                dest="assignments",
                default=[],
            )
        },
    ),
    "prepare": Verb("stage: write data/prepared/ from the source"),
    "train": Verb("stage: train on data/prepared/ and write models/model.safetensors"),
    "evaluate": Verb("stage: evaluate the model file on the test split"),
    "predict": Verb(
        "predict images or texts, in files, tables, folders or archives, with a trained model",
        "predict.command:run",
        {
            "model": value(NAMES, "MODEL|RUN"),
            "inputs": value(
                "an image, a text file (each line is an input), a table (CSV, TSV, JSON, Parquet: each row is an input), a folder, a zip or tar archive, an .npy array, or - for standard input",
                "INPUT",
                nargs="+",
            ),
            "--column": value(
                "the column of a table that has the texts, the paths of the images or the images, by its name, or by its number from 1 if the "
                "first line has no names (default: that of the training)",
                "NAME",
            ),
            "--batch-size": value("inputs per forward pass (default: %(default)s)", "N", type=int, default=64),
            "--top-k": value("name the K most likely classes (default: %(default)s)", "K", type=int, default=3),
            "--beam": value("write texts by a beam search of this width (default: %(default)s)", "N", type=int, default=1),
            "--encoding": value("the encoding of files of text, such as gbk (default: UTF-8, or that of a byte order mark)", "NAME"),
            "--with": OTHERS,
            "--output": value("write a table to this file, which ends in .csv or .parquet, instead of printing", "FILE"),
        },
    ),
    "check": Verb("validate params.yaml, the environment and the machine before anything runs", "check.command:run"),
    "doctor": Verb(
        "examine machine, checkout and servers in seconds, and name a command that fixes each problem",
        "doctor.command:run",
        {"--all": flag("print the checks that are ok, too", dest="complete"), "--json": flag("print all checks as JSON for programs")},
    ),
    "summary": Verb("print the result, and record its run if it is missing in MLflow", "repro:summarize", listed=False),
    "verify": Verb(
        "recompute what a model file or run records, and report the first difference",
        "verify.command:run",
        {
            "subject": MODEL,
            "--retrain": flag("also retrain, and compare every byte"),
        },
    ),
    "compare": Verb(
        "print what differs between models, their metrics, and a paired test on the same test split",
        "compare.command:run",
        {
            "first": value(f"{NAMES}; or a search over seeds or folds", "A"),
            "others": value("the models or searches to compare with the first, named in the same ways", "B", nargs="+"),
            "--markdown": flag("print Markdown, for a pull request"),
            "--ensemble": flag("also test all models as one, by the mean of their probabilities"),
        },
    ),
    "promote": Verb(
        "register a model in MLflow, and give it an alias if it is no worse than the model that has it now",
        "compare.command:run_promote",
        {
            "subject": value(f"{NAMES}; a run must have trained the model", "MODEL|RUN"),
            "name": value("the name of the model in MLflow's registry; it is created if it does not exist", "NAME"),
            "--alias": value("the alias to give (default: %(default)s)", default="champion"),
            "--force": flag("give the alias even if the model is worse or cannot be compared"),
        },
    ),
    "generate": Verb(
        "continue a text with a language model",
        "predict.generate:run",
        {
            "model": value(NAMES, "MODEL|RUN"),
            "--prompt": value("the text to continue (default: none, the model begins a new text)", default=""),
            "--temperature": value(
                "below 1, probable tokens become more probable; 0 always takes the most probable (default: %(default)s)",
                type=float,
                default=1.0,
            ),
            "--top-k": value("draw from this many most probable tokens only", type=int),
            "--top-p": value("draw from the most probable tokens only whose probabilities together reach this share", type=float),
            "--seed": value("the same seed gives the same text (default: %(default)s)", type=int, default=1),
            "--length": value("the largest number of tokens to generate (default: %(default)s)", type=int, default=256),
        },
    ),
    "export": Verb(
        "write a model for ONNX Runtime, PyTorch or C++, and compare its outputs with those of the model",
        "export.command:run",
        {
            "subject": MODEL,
            "--format": value("ONNX, a program of torch.export, or compiled for C++", required=True, choices=("onnx", "pt2", "aoti")),
            "--with": OTHERS,
            "--output": value("the file to write (default: beside the model file, such as models/model.onnx)", "PATH"),
        },
    ),
    "search": Verb(
        "search for the best hyperparameters, or repeat a training with several seeds or folds",
        "search.command:run",
        {
            "file": value("the search file, such as presets/search/digits.yaml", "FILE"),
            "--trials": value("the number of trials, instead of that in the file", "N", type=int),
            "--apply": flag("write the parameters of the best trial to params.yaml"),
            "--keep-models": flag(
                "keep the models of all trials, not only that of the best; those of several seeds or folds are always kept"
            ),
            "--skip": value("list the trial of this number, whose training cannot end, as failed", "TRIAL", type=int),
        },
    ),
    "trial": Verb(
        "train one trial of a search, in its folder; search runs this by itself",
        "search.trial:run",
        {
            "folder": value("the folder of a trial, such as .pipeline/search/digits/trials/0007", "FOLDER"),
            "stage": value("the stage to run (default: train)", nargs="?", default="train", choices=("prepare", "train", "evaluate")),
        },
        listed=False,
    ),
    "set": Verb(
        "change parameters in params.yaml, such as preset=cifar10-cnn model=mlp train.epochs=3; comments and order stay",
        "params.command:run",
        {
            "assignments": value(
                "train.epochs=3 changes a value; model=mlp replaces the section by the values recommended for mlp; preset=NAME first copies presets/NAME.yaml to params.yaml, and keeps the file that it replaces",
                KEY_VALUE,
                nargs="*",
            ),
            "--upgrade": value(
                "add the keys that files of earlier versions lack, with the values that keep their results (default: params.yaml)",
                "FILE",
                nargs="*",
            ),
        },
    ),
    "report": Verb(
        "write an HTML page about a model: result, data, curves, errors, cost, provenance; and a model card",
        "report.command:run",
        {
            "subjects": value(f"models, each {NAMES} (default: models/model.safetensors)", "MODEL|RUN", nargs="*"),
            "--output": value(
                "the page; the model card is written beside it, as report-model-card.md (default: %(default)s)",
                "FILE",
                default="reports/report.html",
            ),
        },
    ),
    "ui": Verb(
        "serve the MLflow UI, opened at the comparison of the runs",
        "ui:run",
        {
            "--host": value("default: %(default)s; use 0.0.0.0 in a container", default="127.0.0.1"),
            "--port": value("default: %(default)s", type=int, default=5000),
        },
    ),
    "sync": Verb(
        "send to MLflow all events of the journals that it has not received",
        "sync:run",
        {"--follow": value("send one journal until its stage has ended; every stage starts this by itself", "JOURNAL")},
    ),
    "tensorboard": Verb(
        "write event files of the runs, and print the command that shows them in TensorBoard",
        "ui:run_tensorboard",
        {
            "runs": value("a run: the name of its journal folder or its id in MLflow (default: all runs)", "RUN", nargs="*"),
            "--output": value("the folder to write to (default: .pipeline/tensorboard)", "FOLDER"),
        },
    ),
    "profile": Verb(
        "run some steps of the training, and print how their time is spent, or what would make them faster",
        "profile.command:run",
        {
            "--speedup": flag("instead compare the steps with each option that could make them faster here"),
            "--steps": value(
                "steps to time (default: as many as take three seconds), or of a block of --speedup (default: half a second)", "N", type=int
            ),
            "--trace": value("write a trace for https://ui.perfetto.dev, compressed if PATH ends in .gz", "PATH"),
        },
    ),
    "schema": Verb("write params.schema.json and docs/parameters.md", "params.reference:run"),
}
