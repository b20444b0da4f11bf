"""KFP wiring of `clean_up`: the exit task of every pipeline that trains."""

from kfp import dsl


@dsl.component(base_image="perennial-control", install_kfp_package=False)
def clean_up() -> None:
    """Is anything of this run left on the cluster?"""
    from perennial.clean_up.step import clean_up_step

    clean_up_step()
