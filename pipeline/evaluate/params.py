"""The section `evaluate`: how the test split is scored."""

import json
from collections.abc import Container
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pipeline.core.refusal import Refusal
from pipeline.core.registry import Registry
from pipeline.core.section import Count, Section
from pipeline.inference.params import MetricNames

if TYPE_CHECKING:
    from pipeline.core.spec import Inputs

EVALUATIONS = Registry("pipeline.tasks", "task", "evaluate")
WIDEST = 64
"""Upper bound for the width of a beam that writes texts."""
Views = Literal["none", "mirror", "mirror_translate"]


class EvaluateSettings(Section):
    """The settings of the section `evaluate` that every task has. Each task adds settings in `pipeline/tasks/TASK/evaluate.py`."""

    name: str
    """The task of the dataset: a folder of `pipeline/tasks/`."""
    batch_size: Count
    """Samples per forward pass."""
    test_time_augmentation: Views
    """Report a second accuracy (such as `test/accuracy_mirror`) from logits averaged over views of each image. `mirror`: the image and
    its mirror image; `mirror_translate`: also both shifted by one pixel in two directions; `none`: no such metric. All other metrics use
    the unmodified image."""

    metrics: MetricNames
    """Further scores of the test split, such as `[cohen_kappa, auroc]`, those of classes with an interval: modules of
    `pipeline/inference/metrics/`; `[]` for none."""

    RECOMMENDED: ClassVar = {"batch_size": 256, "test_time_augmentation": "none", "metrics": []}
    ADDED: ClassVar = {"metrics": ()}

    def refuse_other_task(self, task: str) -> None:
        """Raise Refusal if `task`, the task of the dataset, differs from `evaluate.name`, the task of these settings."""
        if self.name != task:
            raise Refusal(
                f"evaluate.name: this dataset belongs to the task {task}: add `evaluate={task}` to the same `set` command, or write `name: {task}` and its keys"
            )

    def refuse_misfit(self, num_outputs: int) -> None:
        """Raise Refusal if a setting does not fit a model with `num_outputs` outputs. A classification has one output for each class.

        This base class checks nothing. A task with such a setting overrides this function.
        """

    def refuse_impossible_views(self, inputs: "type[Inputs] | Inputs", metrics: Container[str]) -> None:
        """Raise Refusal if test-time augmentation is set, but the inputs are not images or the task has no metric `accuracy`.

        `metrics` are the names of the task's metrics.
        """
        if self.test_time_augmentation != "none" and (inputs.augmented != "pixels" or "accuracy" not in metrics):
            raise Refusal("evaluate.test_time_augmentation: needs images as inputs, and a task with the metric accuracy: write `none`")


class EvaluateParams(Section):
    evaluate: Annotated[EvaluateSettings, EVALUATIONS]
    """How the test split is scored; the keys depend on the task."""

    def for_task(self, task: str) -> Self:
        """Return these parameters, or the recommended ones of `task` if these are of another task."""
        if self.evaluate.name == task:
            return self
        settings = EVALUATIONS.settings(task)
        recommended = {"name": task, **settings.recommended(name=task, task=task)}
        return self.model_copy(update={"evaluate": settings.model_validate_json(json.dumps(recommended))})
