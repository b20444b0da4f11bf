"""Several processes are started where they save time, and one that fails is named."""

import pytest

from perennial.contracts.errors import PerennialError
from perennial.engine.evaluation.processes import Machine, score_in_processes
from perennial.select_checkpoint.rescoring import MODULE, Request, choose_num_processes

LONG = 3600.0
MACHINES = {
    "one per GPU, whatever the training had": (Machine(4, 16, 1), 2, LONG, 4),
    "one GPU serves one process": (Machine(1, 64, 1), 8, LONG, 1),
    "as many as trained": (Machine(0, 64, 1), 2, LONG, 2),
    "as many as cores are free": (Machine(0, 3, 1), 8, LONG, 3),
    "threads fill cores, too": (Machine(0, 8, 4), 8, LONG, 2),
    "fewer cores than threads": (Machine(0, 2, 4), 8, LONG, 1),
    "done before others have started": (Machine(4, 16, 1), 4, 10.0, 1),
    "two save half": (Machine(0, 2, 1), 2, 15.9, 1),
    "two save enough": (Machine(0, 2, 1), 2, 16.1, 2),
}


@pytest.mark.parametrize("name", MACHINES)
def test_as_many_processes_as_save_time(name):
    machine, trained_on, seconds, expected = MACHINES[name]
    assert choose_num_processes(machine, trained_on, seconds) == expected


def test_this_machine_has_a_core():
    assert Machine.here().cores >= 1


def test_a_failed_process_is_named_with_its_output(tmp_path):
    request = Request(training=str(tmp_path / "nothing"), snapshot="", work=((1,),), processes=2)
    with pytest.raises(PerennialError, match=r"process [01] of 2 failed while it scored") as caught:
        list(score_in_processes(MODULE, request, 1, tmp_path / "scratch"))
    assert "nothing" in caught.value.evidence
