"""Weights from the Hugging Face Hub, as safetensors only, so that nothing that is downloaded can run code.

`hf://OWNER/NAME` means the file `model.safetensors` of a repository, `hf://OWNER/NAME@REVISION/FILE.safetensors`
another file. The optional package huggingface_hub caches downloads and provides the user's token.
"""

import re
from pathlib import Path
from typing import Any

from rvtssm.models.named_weights import named_weights
from rvtssm.system.extras import check_extra
from rvtssm.system.files import file_errors
from rvtssm.system.user_error import UserError

WEIGHTS_FILE, CARD_FILE = "model.safetensors", "README.md"
_PREFIX = re.compile("hf:/{1,2}")  # pathlib collapses two slashes into one
_ADDRESS = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<file>[\w./-]+\.safetensors))?")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def local_weights(path: str | Path) -> str | Path:
    """Return the local file of weights.

    Args:
        path: An address `hf://...`, which is downloaded if it is not in the cache; a name from `named_weights`; or a
            path, which is returned unchanged.

    Raises:
        UserError: If the address or name is wrong, if the download fails, or if huggingface_hub is not installed.
    """
    prefix = _PREFIX.match(str(path))
    if prefix is None:
        return named_weights(path) or path
    address = f"hf://{str(path)[prefix.end() :]}"
    found = _ADDRESS.fullmatch(address.removeprefix("hf://"))
    if found is None:
        raise UserError(
            "hub.address",
            f"{address} is not of the form hf://OWNER/NAME, hf://OWNER/NAME@REVISION or "
            "hf://OWNER/NAME/FILE.safetensors; other formats are not downloaded, because reading them can run code",
        )
    hub = _hub(address)
    with file_errors(address, " cannot be downloaded", "check name, network and token", errors=(Exception,)):
        return Path(hub.hf_hub_download(found["repo"], found["file"] or WEIGHTS_FILE, revision=found["revision"]))


def upload_folder(repo: str, folder: Path, is_private: bool, message: str) -> str:
    """Create a repository if it is missing, upload all files of a folder, and return its address.

    If the repository has a README.md, it is kept, because its owner may have written it.

    Args:
        repo: The repository, OWNER/NAME.
        folder: The folder to upload.
        is_private: Whether the repository must be private.
        message: The commit message.

    Raises:
        UserError: If the upload fails, or if `is_private` is set and the repository exists and is public.
    """
    if not _REPO.fullmatch(repo):
        raise UserError("hub.repository", f"{repo!r} is not of the form OWNER/NAME; name the repository to upload to")
    hub = _hub(repo)
    advice = "check the name, and log in by `hf auth login`"
    with file_errors(repo, " cannot be uploaded", advice, errors=(Exception,)):
        hub.create_repo(repo, private=is_private, exist_ok=True)
        if is_private and not hub.repo_info(repo).private:
            raise UserError(
                "hub.is_public", f"{repo} exists and is public; choose another name, or make it private on its page"
            )
        kept = [CARD_FILE] if hub.file_exists(repo, CARD_FILE) else None
        hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, ignore_patterns=kept)
    return f"hf://{repo}"


def _hub(what: str) -> Any:
    check_extra(what, "hub", "huggingface_hub")
    from huggingface_hub import HfApi  # an optional package
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # the error that is raised gives the reason
    return HfApi()
