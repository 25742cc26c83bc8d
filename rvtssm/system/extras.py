"""Optional packages: one sentence that names the missing package and the extra that installs it."""

from importlib.util import find_spec

from rvtssm.system.user_error import UserError

# Names of packages whose name differs from that of their module.
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
    except ModuleNotFoundError:  # the package that would contain it is missing
        return False


def check_extra(what: str, extra: str, *modules: str) -> None:
    """Raise UserError if an optional package is not installed. The message names it and the extra that installs it.

    Args:
        what: What needs the packages, for the message.
        extra: Name of the extra.
        modules: Modules that must be importable.
    """
    missing = [_NAMES.get(module, module) for module in modules if not is_installed(module)]
    if missing:
        packages = f"package {missing[0]}" if len(missing) == 1 else f"packages {', '.join(missing)}"
        raise UserError(f"{what} needs the {packages}; run `bash scripts/install.sh {extra}` in the checkout")
