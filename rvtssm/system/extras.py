"""Optional packages: the one sentence that names a package that is not installed, and the extra that brings it."""

from importlib.util import find_spec

from rvtssm.system.user_error import UserError

# What a package is called where its name differs from that of its module.
_NAMES = {
    "distributed": "dask.distributed",
    "neuromorphic_drivers": "neuromorphic-drivers",
    "rerun": "rerun-sdk",
    "hydra_plugins.hydra_joblib_launcher": "hydra-joblib-launcher",
    "hydra_plugins.hydra_submitit_launcher": "hydra-submitit-launcher",
    "hydra_plugins.hydra_optuna_sweeper": "hydra-optuna-sweeper",
}


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that would hold it
        return False


def check_extra(what: str, extra: str, *modules: str) -> None:
    """Raise ValueError if a module is not installed; it names `what`, the package and the extra."""
    missing = [_NAMES.get(module, module) for module in modules if not is_installed(module)]
    if missing:
        packages = f"package {missing[0]}" if len(missing) == 1 else f"packages {', '.join(missing)}"
        raise UserError(f"{what} needs the {packages}; run `pip install -e '.[{extra}]'` in the checkout")
