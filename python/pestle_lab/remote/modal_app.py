"""What `pestle-lab run --on modal:GPU` gives to `modal run`: one function, which runs the command
in a container and returns how it ended and what it wrote. Modal shows its output as it comes.

It is loaded twice: here, where PESTLE_LAB_MODAL_JOB names the job, and in the container, where the
image and the GPU are settled already."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import modal

TREE = "/pestle-lab/tree"
BASE = "nvidia/cuda:13.0.1-devel-ubuntu24.04"  # with nvcc, for kernels in CUDA C++
_path = os.environ.get("PESTLE_LAB_MODAL_JOB")
job = json.loads(Path(_path).read_text()) if _path else {}

image = modal.Image.from_registry(BASE, add_python="3.12")
if job:
    there = f"/pestle-lab/{Path(job['wheel']).name}"
    image = image.add_local_file(job["wheel"], there, copy=True)
    image = image.run_commands(f"pip install '{there}[lab]'")
    image = image.add_local_dir(job["staged"], TREE)
app = modal.App("pestle-lab", image=image)


@app.function(gpu=job.get("gpu"), timeout=job.get("timeout", 3600))
def run(argv: list, manifest: dict, env: dict) -> dict:
    from pestle_lab.remote import agent

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        # A copy, since what is mounted need not be writable.
        shutil.copytree(os.environ.get("PESTLE_LAB_MODAL_TREE", TREE), tree)
        for name, entry in manifest.items():
            (tree / name).chmod(0o755 if entry["executable"] else 0o644)
        environment = dict(os.environ, PYTHONUNBUFFERED="1", **env)
        done = subprocess.run([sys.executable, *argv], cwd=tree, env=environment)
        files = agent.written(tree, manifest)
        contents = {entry["path"]: (tree / entry["path"]).read_bytes() for entry in files}
    return {"code": done.returncode, "files": files, "contents": contents}


@app.local_entrypoint()
def main():
    made = run.remote(job["argv"], job["manifest"], job["env"])
    result = Path(job["result"])
    for entry in made["files"]:
        # By content: names come from another machine, and are checked by who reads them.
        (result / entry["sha256"]).write_bytes(made["contents"][entry["path"]])
    (result / "exit.json").write_text(json.dumps({"code": made["code"], "files": made["files"]}))
