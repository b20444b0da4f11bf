"""What happens to a text on its way into a pod: the rules of Kubernetes, Argo and Kubeflow.

Each is written after its program's documentation and source, apart from the code under test.
"""

import json
import re

WORKFLOW = {"workflow.name": "continuous-training-x7k", "workflow.namespace": "kubeflow"}
SCHEDULE = {"[[RunUUID]]": "0b7c", "[[ScheduledTime]]": "20261101000000", "[[Index]]": "1"}


def expand(text, variables):
    """A container's argument as the kubelet passes it on.

    `$(NAME)` becomes the variable's value and stays when there is none; `$$` becomes `$`, so that
    `$$(NAME)` is `$(NAME)`; what is not closed stays.
    """
    done, rest = [], text
    while "$" in rest:
        before, _, rest = rest.partition("$")
        done.append(before)
        if rest.startswith("$"):
            done.append("$")
            rest = rest[1:]
        elif rest.startswith("(") and ")" in rest:
            name, _, rest = rest[1:].partition(")")
            done.append(variables.get(name, f"$({name})"))
        else:
            done.append("$")
    return "".join([*done, rest])


def evaluate(text):
    """A parameter or output after Argo: `{{=…}}` computed, `{{…}}` replaced, else an error."""

    def value(found):
        inner = found[1].strip()
        if inner.startswith("="):
            left, _, right = inner[1:].partition("+")
            return str(int(left) + int(right))
        if inner in WORKFLOW:
            return WORKFLOW[inner]
        raise ValueError(f"failed to resolve {{{{{inner}}}}}")

    return re.sub(r"\{\{(.*?)\}\}", value, text, flags=re.DOTALL)


def schedule(text):
    """A parameter of a recurring run, whose macros Kubeflow replaces."""
    for macro, value in SCHEDULE.items():
        text = text.replace(macro, value)
    return text


def arguments_of(container, parameters, variables):
    """A step's arguments as its process gets them, from a placed pipeline's container.

    Args:
        container: Of an executor, with KFP's placeholder of all inputs among its arguments.
        parameters: The task's input parameters.
        variables: All that the container's environment holds.
    """
    inputs = json.dumps({"inputs": {"parameterValues": parameters}})
    written = [text.replace("{{$}}", inputs) for text in container.get("args", ())]
    return [expand(evaluate(schedule(text)), variables) for text in written]


def parameters_in(arguments):
    """The input parameters that a step's process reads from its arguments."""
    (inputs,) = (text for text in arguments if text.startswith('{"inputs"'))
    return json.loads(inputs)["inputs"]["parameterValues"]
