"""One process's share of rows: `python -m perennial.select_checkpoint.share_of_rows`."""

import sys
from pathlib import Path

from perennial.clients.outages import waiting_out_outages
from perennial.contracts.artifact import write_atomically
from perennial.contracts.user_code import no_silent_exit, user_code
from perennial.engine.evaluation.scoring import Share
from perennial.select_checkpoint.processes import Request, found_file
from perennial.select_checkpoint.rescoring import Rescoring
from perennial.steps.lease import follow_lease


def main() -> None:
    """Score this process's rows with all weights of the request."""
    follow_lease()
    path, rank = Path(sys.argv[1]), int(sys.argv[2])
    request = Request.from_json(path.read_text())
    rescoring = Rescoring(Path(request.training), Path(request.snapshot), path.parent)
    for number, steps in enumerate(request.work):
        file = found_file(path.parent, rank, number)
        found = rescoring.share(steps, Share(rank, request.processes), file.with_suffix(""))
        write_atomically(file, found.to_json().encode())


if __name__ == "__main__":
    with waiting_out_outages(), no_silent_exit(), user_code("the scoring of checkpoints"):
        main()
