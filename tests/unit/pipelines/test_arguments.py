"""Whatever stands behind `perennial`, the answer is an exit code and words, never a traceback."""

import pytest

from perennial.cli import main

pytestmark = pytest.mark.hostile
CONTRACT = """[model]
name = "clicks"
task = "perennial.tasks.tabular:TabularClassification"
[data]
uri = "nowhere"
label = "y"
ids = ["i"]
"""
# A command line of words; HOME is a new home, FILE a file where a folder is meant.
LINES = """
check missing.toml
check .
check c.toml
check bad.json
run c.toml --home FILE
run c.toml --home /proc/nowhere
run c.toml --home HOME --replay --first 0
run c.toml --home HOME --replay --until -1
run c.toml --home HOME --from nothing
monitor missing.toml --home HOME
sanity c.toml --home HOME
sanity c.toml --home FILE
sanity c.toml --home HOME --only nothing
probe lr c.toml
probe batch-size c.toml --max -3
probe batch-size c.toml --max 99999999999999999999
probe batch-size c.toml --max many
probe nothing c.toml
report nothing --no-open --home HOME
report ../x --no-open --home HOME
report --no-open --home FILE
status nobody --home HOME
status nobody@2 --json --home HOME
status m@2 --profile c.toml
runs nobody@champion --home HOME
runs @1 --home HOME
report nobody@2 --no-open --home HOME
report x --all --home HOME
promote nobody --reason x --home HOME
rollback nobody@ --reason x --home HOME
trigger m@2 --profile c.toml --reason x
models nobody --home HOME
models nobody@7 --home HOME
models a/b --home HOME
compare a b --home HOME
compare a@ b@1 --home HOME
compare @ @@ --home HOME
compare a@99999999999999999999 b@1 --home HOME
explain nobody --home HOME
explain x@champion@champion --home HOME
explain x@-1 --home HOME
explain é@1 --home HOME
promote nobody 1 --reason x --home HOME
promote nobody -1 --reason x --home HOME
promote nobody one --reason x --home HOME
promote nobody 1 --home HOME
rollback nobody --reason x --home HOME
rollback nobody --reason -x --home HOME
reproduce nobody 1 --home HOME
options nothing
options training.nothing
options ...
compile --out FILE
deploy c.toml
deploy c.toml --profile missing.toml
deploy c.toml --profile bad.json
deploy c.toml --profile c.toml
submit c.toml --profile c.toml --reason x
trigger m --profile missing --reason x
cancel x --profile c.toml
logs x --profile bad.json
undeploy m --profile c.toml
schedule m --profile c.toml --pause
watch c.toml --profile c.toml
exporter --profile c.toml
exporter --profile c.toml --port -1
status --profile c.toml
reap --grace-hours nan
reap --grace-hours inf
reap --grace-hours -1
reap --grace-hours many
policy s3 c.toml
nothing
"""


@pytest.mark.parametrize("line", LINES.strip().splitlines())
# MLflow's sqlite store leaves connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_command_line_is_answered_in_words(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(CONTRACT)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "file").write_text("")
    words = {"HOME": str(tmp_path / "home"), "FILE": str(tmp_path / "file")}
    assert main([words.get(word, word) for word in line.split()]) in (1, 2)
    printed = capsys.readouterr().err
    assert printed.strip()
    assert "Traceback" not in printed


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
def test_path_that_cannot_be_one_is_refused(path, capsys):
    assert main(["check", path]) == 2
    assert "Traceback" not in capsys.readouterr().err
