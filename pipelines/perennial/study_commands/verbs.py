"""Verbs of `perennial study` that train nothing."""

from perennial.arguments import AsJson, HomeFolder, ModelPlace, open_home, print_json, print_lines


def status(model: ModelPlace = "", home: HomeFolder = None, *, json: AsJson = False) -> int:
    """Print how far the studies are: of a model, or of all."""
    from perennial.study_commands.status import study_states

    place = open_home(home)
    states = study_states(place, model)
    if json:
        return print_json([state.record() for state in states])
    if not states:
        return print_lines([f"no studies in {place.path}"])
    return print_lines(line for state in states for line in state.lines())
