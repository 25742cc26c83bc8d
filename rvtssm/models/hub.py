"""Where weights come from: the Hugging Face Hub, as safetensors only, so that nothing that is downloaded can run code.

`hf://OWNER/NAME` names the file `model.safetensors` of a repository, and `hf://OWNER/NAME@REVISION/FILE.safetensors`
another one. Downloads stay in the cache of the package huggingface_hub (optional), which also knows the user's token.
"""

import re
from pathlib import Path
from typing import Any

from rvtssm.models.named_weights import named_weights
from rvtssm.system.extras import check_extra
from rvtssm.system.file_errors import file_errors
from rvtssm.system.user_error import UserError

WEIGHTS_FILE, CARD_FILE = "model.safetensors", "README.md"
_PREFIX = re.compile("hf:/{1,2}")  # pathlib makes one slash of two
_ADDRESS = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<file>[\w./-]+\.safetensors))?")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def local_weights(path: str | Path) -> str | Path:
    """Return the local file of an address `hf://...`, which is downloaded if needed, or of a name, and other paths as
    they are.

    Names are those of `named_weights`. Raise ValueError if the address or the name is wrong, if the file cannot be had,
    or without the package `huggingface_hub`.
    """
    prefix = _PREFIX.match(str(path))
    if prefix is None:
        return named_weights(path) or path
    address = f"hf://{str(path)[prefix.end() :]}"
    found = _ADDRESS.fullmatch(address.removeprefix("hf://"))
    if found is None:
        raise UserError(
            f"{address} is not of the form hf://OWNER/NAME, hf://OWNER/NAME@REVISION or hf://OWNER/NAME/FILE.safetensors"
            "; other formats are not read from there, because reading them can run code"
        )
    hub = _hub(address)
    with file_errors(address, " cannot be downloaded", "check name, network and token", errors=(Exception,)):
        return Path(hub.hf_hub_download(found["repo"], found["file"] or WEIGHTS_FILE, revision=found["revision"]))


def upload_folder(repo: str, folder: Path, is_private: bool, message: str) -> str:
    """Create the repository OWNER/NAME if it is missing, upload all files of a folder, and return its address.

    A README.md that the repository has is kept, since its owner may have written it. Raise ValueError if that fails,
    which names the repository and the reason, and if `is_private` is set and the repository is public.
    """
    if not _REPO.fullmatch(repo):
        raise UserError(f"{repo!r} is not of the form OWNER/NAME; name the repository to upload to")
    hub = _hub(repo)
    advice = "check the name, and log in by `hf auth login`"
    with file_errors(repo, " cannot be uploaded", advice, errors=(Exception,)):
        hub.create_repo(repo, private=is_private, exist_ok=True)
        if is_private and not hub.repo_info(repo).private:
            raise UserError(f"{repo} exists and is public; choose another name, or make it private on its page")
        kept = [CARD_FILE] if hub.file_exists(repo, CARD_FILE) else None
        hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, ignore_patterns=kept)
    return f"hf://{repo}"


def _hub(what: str) -> Any:
    check_extra(what, "hub", "huggingface_hub")
    from huggingface_hub import HfApi  # an optional package
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # the reason stands in the error that is raised
    return HfApi()
