"""The files of `examples/robot`: settings that are read, a health command that tells the truth, commands that exist."""

import json
import os
import re
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path, PurePath

import pytest
import yaml

FOLDER = Path(__file__).parents[1] / "examples" / "robot"
CONTAINER = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")


def instruction(name: str) -> str:
    """The last instruction of this name in the container."""
    (*_, found) = re.findall(rf"^{name} (.*)$", CONTAINER, re.M)
    return found


def test_the_settings_of_the_robot_are_read(printed_by):
    shown = yaml.safe_load(printed_by("live", f"config={FOLDER / 'robot.yaml'}", "--config"))
    given = yaml.safe_load((FOLDER / "robot.yaml").read_text())
    assert (shown["out"], shown["detection"]["min_score"]) == (given["out"], given["min_score"])


@pytest.mark.parametrize(
    ("age_s", "is_alive", "is_healthy"),
    [(3, True, True), (3, False, False), (45, True, False), (None, True, False)],
)
def test_the_container_is_healthy_while_the_status_is_young_and_its_process_lives(
    tmp_path, age_s, is_alive, is_healthy
):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    command = json.loads(re.search(r"CMD (\[.*\])", instruction("HEALTHCHECK"))[1])
    folder = yaml.safe_load((FOLDER / "robot.yaml").read_text())["out"]
    assert command[0] == "python" and f"{folder}/status.json" in command[-1]
    if age_s is not None:
        status = {"time_s": time.time() - age_s, "pid": os.getpid() if is_alive else ended.pid}
        (tmp_path / "status.json").write_text(json.dumps(status))
    done = subprocess.run([sys.executable, *command[1:-1], command[-1].replace(folder, str(tmp_path))], check=False)
    assert (done.returncode == 0) == is_healthy


def test_the_container_gets_the_files_that_it_installs():
    rules = (FOLDER.parents[1] / ".dockerignore").read_text().split()
    files = re.findall(r" /mnt/(\S+)", CONTAINER)
    assert files == ["constraints.txt", "dist/*.whl"]
    for file in files:
        path = PurePath(file.replace("*", "rvtssm"))
        # The last rule that matches a file or a folder above it decides.
        places = [str(place) for place in (path, *path.parents)]
        matching = [rule for rule in rules if any(fnmatch(place, rule.strip("!")) for place in places)]
        assert not matching or matching[-1].startswith("!")


def test_the_container_and_the_service_run_commands_that_there_are():
    words = [*json.loads(instruction("ENTRYPOINT")), *json.loads(instruction("CMD"))]
    unit = (FOLDER / "rvtssm.service").read_text()
    (service,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    assert words == ["rvtssm", "live", "config=/etc/rvtssm/robot.yaml"]
    assert service.split()[0].endswith("/bin/rvtssm") and service.split()[1:] == [*words[1:], "--json"]
    # not root, and the folder of the results belongs to the user that runs it
    user = instruction("USER")
    assert user != "root" and f"useradd --create-home {user}" in CONTAINER
    assert f"chown {user} /var/lib/rvtssm" in CONTAINER and "DynamicUser=yes" in unit
