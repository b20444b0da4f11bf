"""A text arrives at a step as it was written, whatever the programs on its way replace."""

import json
import random

import pytest
from kfp.local.subprocess_task_handler import replace_python_executable

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.steps.parameters import (
    CARRIED_BYTES,
    LargeParameter,
    decode_parameter,
    encode_parameter,
    resolve,
    shown_parameter,
    shown_text,
)
from text_expansion import evaluate, expand, schedule

SECRETS = {"AWS_SECRET_ACCESS_KEY": "the-key", "A": "a"}
TEXTS = [
    "$(AWS_SECRET_ACCESS_KEY)", "$$(AWS_SECRET_ACCESS_KEY)", "$$$(A)", "US$$5", "^\\d{2}$",
    "$(A", "$", "$$", "\\$(A)", "\\\\$(A)", "\\u0024(A)", "$(A)$(A))", "$((A))", '"$(A)"',
    "{{=1+1}}", "{{workflow.name}}", "{{workflow.foo}}", "{{{=1+1}}}", "{{ {{=1+1}} }}", "{{", "}}",
    "\\{{=1+1}}", "{{$}}", "{{$.inputs.parameters['contract']}}", "\n{{=\n1+1}}",
    "[[RunUUID]]", "[[[Index]]]", "python3", "/usr/bin/python3.11", "\0", "ü$(A)\u2028😀",
]  # fmt: skip


def travelled(value):
    """A parameter behind every program that replaces parts of it, as part of KFP's inputs."""
    carried = json.dumps({"contract": value})
    changed = expand(evaluate(schedule(carried)), SECRETS)
    (changed,) = replace_python_executable([changed], "/opt/venv/bin/python")
    return json.loads(changed)["contract"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("place", ["value", "key", "nested"])
def test_every_text_arrives_as_it_was_written(text, place):
    contract = {"value": {"a": text}, "key": {text: 1}, "nested": [[text], [[1, {"b": [text]}]]]}
    sent = canonical_json({"gate": contract[place]})
    assert decode_parameter(travelled(encode_parameter(sent))) == sent
    assert json.loads(travelled(encode_parameter(sent)))["gate"] == contract[place]


@pytest.mark.parametrize("text", ["$(AWS_SECRET_ACCESS_KEY)", "US$$5", "{{=1+1}}", "python3"])
def test_without_the_encoding_the_same_texts_do_not_arrive(text):
    assert travelled(canonical_json([text])) != canonical_json([text])


def test_texts_made_of_the_dangerous_characters_at_random_arrive():
    chance = random.Random(0)
    pieces = ["$", "(", ")", "{", "}", "[", "]", "\\", "A", '"', "u0024", "python3", "=1+1", "\n"]
    for _ in range(3000):
        text = "".join(chance.choices(pieces, k=chance.randint(1, 12)))
        sent = canonical_json({text: [text]})
        encoded = encode_parameter(sent)
        assert json.loads(encoded) == json.loads(sent)
        assert decode_parameter(encoded) == sent
        assert travelled(encoded) == encoded


def test_a_text_without_such_characters_is_not_changed():
    sent = canonical_json({"a": [[1, 2], {"b": {"c": "plain (text) {x} 5"}}]})
    assert encode_parameter(sent) == sent
    assert encode_parameter("plain") == "plain"


@pytest.mark.parametrize("text", ["costs $5", "{{x}}", "[[Index]]"])
def test_a_text_that_is_not_json_and_would_be_changed_is_refused(text):
    with pytest.raises(PerennialError, match="would be changed on the way"):
        encode_parameter(text)


def test_the_limit_of_a_parameter_counts_what_is_sent(tmp_path):
    text = canonical_json({"a": "$" * (CARRIED_BYTES // 2)})
    parameter = LargeParameter(text, str(tmp_path))
    assert not parameter.exists_in_store
    assert "/parcels/" in parameter.store()
    assert resolve(parameter.value) == text


@pytest.mark.parametrize(
    "text",
    ['"weekly" retraining', '"', '"all of it"', 'the "weekly" one', "costs $(A)", '"{{a}}" b'],
)
def test_a_text_for_people_is_read_as_it_was_written(text):
    assert shown_text(shown_parameter(text)) == text
    assert shown_text(travelled(shown_parameter(text))) == text


def test_a_text_that_was_typed_into_the_dashboard_is_shown_as_it_is():
    assert shown_text('"weekly" retraining') == '"weekly" retraining'
