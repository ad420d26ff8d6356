"""The verbs of `python -m pipeline`, with the purpose and the arguments of each. No verb is imported to show the help."""

from typing import Any

VERBS = {
    "repro": "run check, `dvc repro` and summary; no other container can use the checkout meanwhile",
    "prepare": "stage: write data/prepared/ from the source",
    "train": "stage: train on data/prepared/ and write models/model.safetensors",
    "evaluate": "stage: evaluate the model file on the test split",
    "predict": "predict images or texts, in files, folders or archives, with a trained model",
    "check": "validate params.yaml, the environment and the machine before anything runs",
    "doctor": "examine machine, checkout and servers in seconds, and name a command that fixes each problem",
    "summary": "print the result, and record its run if it is missing in MLflow",
    "verify": "recompute what a model file or run records, and report the first difference",
    "compare": "print what differs between models, their metrics, and a paired test on the same test split",
    "promote": "register a model in MLflow, and give it an alias if it is no worse than the model that has it now",
    "generate": "continue a text with a language model",
    "export": "write a model for ONNX Runtime, PyTorch or C++, and compare its outputs with those of the model",
    "search": "search for the best hyperparameters: train with many, and rank them",
    "trial": "train one trial of a search, in its folder; search runs this by itself",
    "set": "change parameters in params.yaml, such as preset=cifar10-cnn model=mlp train.epochs=3; comments and order stay",
    "report": "write an HTML page about a model: result, data, curves, errors, cost, provenance; and a model card",
    "ui": "serve the MLflow UI, opened at the comparison of the runs",
    "sync": "send to MLflow all events of the journals that it has not received",
    "tensorboard": "write event files of the runs, and print the command that shows them in TensorBoard",
    "profile": "run some steps of the training, and print how their time is spent, or what would make them faster",
    "schema": "write params.schema.json and docs/parameters.md",
}
HIDDEN = ("summary", "trial")
"""Verbs that programs call: `repro` and `search`. The help does not list them."""
RENAMED = {"preset": "set preset=NAME [KEY=VALUE ...]", "speedup": "profile --speedup", "fit-batch": "profile --fit-batch"}
"""The commands that replace the verbs of earlier versions."""
FUNCTIONS = {
    "repro": "repro:run",
    "predict": "predict.command:run",
    "check": "check.command:run",
    "doctor": "doctor.command:run",
    "summary": "repro:summarize",
    "verify": "verify.command:run",
    "compare": "compare.command:run",
    "promote": "compare.command:run_promote",
    "generate": "predict.generate:run",
    "export": "export.command:run",
    "search": "search.command:run",
    "trial": "search.command:run_trial",
    "set": "params.command:run",
    "report": "report.command:run",
    "ui": "ui:run",
    "sync": "repro:run_sync",
    "tensorboard": "ui:run_tensorboard",
    "profile": "profile.command:run",
    "schema": "params.reference:run",
}
"""The function of each verb, `module:function` in `pipeline/tools/`. The verbs of stages are in `pipeline/core/stage.py`."""
MODEL = {"nargs": "?", "default": "models/model.safetensors", "metavar": "MODEL|RUN"}
KEY_VALUE = "KEY=VALUE"
ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "repro": {
        "-S": {
            "dest": "assignments",
            "action": "append",
            "default": [],
            "metavar": KEY_VALUE,
            "help": "first change this parameter in params.yaml, as `set` does; may be given several times",
        },
    },
    "set": {
        "assignments": {
            "nargs": "*",
            "metavar": KEY_VALUE,
            "help": "train.epochs=3 changes a value; model=mlp replaces the section by the values recommended for mlp; preset=NAME first copies "
            "presets/NAME.yaml to params.yaml, unless uncommitted changes would be lost",
        },
        "--upgrade": {
            "nargs": "*",
            "metavar": "FILE",
            "help": "add the keys that files of earlier versions lack, with the values that keep their results (default: params.yaml)",
        },
    },
    "verify": {
        "subject": {**MODEL, "help": "a model file (default: %(default)s), or a run: the name of its journal folder or its id in MLflow"},
        "--retrain": {"action": "store_true", "help": "also retrain, and compare every byte"},
    },
    "compare": {
        "first": {
            "metavar": "A",
            "help": "a model file, a run, models:/NAME@ALIAS, models:/NAME/VERSION, a DVC experiment or a git revision with a dvc.lock",
        },
        "others": {"nargs": "+", "metavar": "B", "help": "the models to compare with the first, named in the same ways"},
        "--markdown": {"action": "store_true", "help": "print Markdown, for a pull request"},
    },
    "promote": {
        "subject": {
            "metavar": "RUN|MODEL",
            "help": "a run, a model file or another name of a model, as for compare; a run must have trained it",
        },
        "name": {"metavar": "NAME", "help": "the name of the model in MLflow's registry; it is created if it does not exist"},
        "--alias": {"default": "champion", "help": "the alias to give (default: %(default)s)"},
        "--force": {"action": "store_true", "help": "give the alias even if the model is worse or cannot be compared"},
    },
    "generate": {
        "model": {"metavar": "MODEL", "help": "a model file, a run, models:/NAME@ALIAS or models:/NAME/VERSION"},
        "--prompt": {"default": "", "help": "the text to continue (default: none, the model begins a new text)"},
        "--temperature": {
            "type": float,
            "default": 1.0,
            "help": "below 1, probable tokens become more probable; 0 always takes the most probable (default: %(default)s)",
        },
        "--top-k": {"type": int, "help": "draw from this many most probable tokens only"},
        "--top-p": {"type": float, "help": "draw from the most probable tokens only whose probabilities together reach this share"},
        "--seed": {"type": int, "default": 1, "help": "the same seed gives the same text (default: %(default)s)"},
        "--length": {"type": int, "default": 256, "help": "the largest number of tokens to generate (default: %(default)s)"},
    },
    "predict": {
        "model": {"metavar": "MODEL", "help": "a model file, a run, models:/NAME@ALIAS or models:/NAME/VERSION"},
        "inputs": {
            "nargs": "+",
            "metavar": "INPUT",
            "help": "an image, a text file (each line is an input), a folder, a zip or tar archive, an .npy array, or - for standard input",
        },
        "--batch-size": {"type": int, "default": 64, "metavar": "N", "help": "inputs per forward pass (default: %(default)s)"},
        "--top-k": {"type": int, "default": 3, "metavar": "K", "help": "name the K most likely classes (default: %(default)s)"},
    },
    "export": {
        "subject": {**MODEL, "help": "a model file (default: %(default)s), or a run, as for verify"},
        "--format": {"required": True, "choices": ("onnx", "pt2", "aoti"), "help": "ONNX, a program of torch.export, or compiled for C++"},
        "--output": {"metavar": "PATH", "help": "the file to write (default: beside the model file, such as models/model.onnx)"},
    },
    "doctor": {
        "--all": {"action": "store_true", "dest": "complete", "help": "print the checks that are ok, too"},
        "--json": {"action": "store_true", "help": "print all checks as JSON for programs"},
    },
    "report": {
        "subjects": {
            "nargs": "*",
            "metavar": "MODEL|RUN",
            "help": "model files, runs, models:/NAME@ALIAS or models:/NAME/VERSION (default: models/model.safetensors)",
        },
        "--output": {
            "default": "reports/report.html",
            "metavar": "FILE",
            "help": "the page; the model card is written beside it, as report-model-card.md (default: %(default)s)",
        },
    },
    "ui": {
        "--host": {"default": "127.0.0.1", "help": "default: %(default)s; use 0.0.0.0 in a container"},
        "--port": {"type": int, "default": 5000, "help": "default: %(default)s"},
    },
    "tensorboard": {
        "runs": {"nargs": "*", "metavar": "RUN", "help": "a run: the name of its journal folder or its id in MLflow (default: all runs)"},
        "--output": {"metavar": "FOLDER", "help": "the folder to write to (default: .pipeline/tensorboard)"},
    },
    "profile": {
        "--speedup": {"action": "store_true", "help": "instead compare the steps with each option that could make them faster here"},
        "--fit-batch": {"action": "store_true", "help": "instead measure throughput and memory of micro-batch sizes, and propose one"},
        "--steps": {
            "type": int,
            "metavar": "N",
            "help": "steps to time (default: as many as take three seconds), or of a block of --speedup (default: half a second)",
        },
        "--trace": {"metavar": "PATH", "help": "write a trace for https://ui.perfetto.dev, compressed if PATH ends in .gz"},
        "--log-to-run": {"action": "store_true", "help": "add the profile to the run that trained the model file, as artifacts"},
        "--output": {"metavar": "FOLDER", "help": "write speedup.md, speedup.json and speedup.png of --speedup to this folder"},
    },
    "search": {
        "file": {"metavar": "FILE", "help": "the search file, such as presets/search/digits.yaml"},
        "--trials": {"type": int, "metavar": "N", "help": "the number of trials, instead of that in the file"},
        "--apply": {"action": "store_true", "help": "write the parameters of the best trial to params.yaml"},
        "--keep-models": {"action": "store_true", "help": "keep the models of all trials, not only that of the best"},
        "--skip": {"type": int, "metavar": "TRIAL", "help": "list the trial of this number, whose training cannot end, as failed"},
    },
    "trial": {"folder": {"metavar": "FOLDER", "help": "the folder of a trial, such as .pipeline/search/digits/trials/0007"}},
    "sync": {"--follow": {"metavar": "JOURNAL", "help": "send one journal until its stage has ended; every stage starts this by itself"}},
}
