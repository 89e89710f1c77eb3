"""A ComfyUI that runs, with Pestle's pack in custom_nodes, driven as its page drives it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 500  # a busy machine takes minutes
RUN_SECONDS = 400


@dataclass
class Run:
    """What the websocket said of one workflow."""

    status: str  # execution_success, execution_error, execution_interrupted
    shown: dict[str, dict] = field(default_factory=dict)  # node -> its ui
    error: dict = field(default_factory=dict)
    progress: list[str] = field(default_factory=list)  # nodes that reported any


class Server:
    def __init__(self, comfyui: Path, base: Path, more_packs: tuple[str, ...] = ()):
        """`more_packs`: folders beside this file that go into custom_nodes too."""
        self.base, self.log = base, base / "log.txt"
        for folder in ("custom_nodes", "models/diffusion_models", "models/loras", "output"):
            (base / folder).mkdir(parents=True)
        (base / "custom_nodes/pestle").symlink_to(ROOT / "comfyui")
        for pack in ("pack", *more_packs):
            (base / "custom_nodes" / f"tests_{pack}").symlink_to(Path(__file__).parent / pack)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        command = [
            sys.executable, "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(self.port),
            "--base-directory", base, "--disable-auto-launch", "--use-pytorch-cross-attention",
        ]  # fmt: skip
        # One set of vector instructions: inductor tries each out by compiling otherwise.
        settings = {**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "0"}
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=comfyui, stdout=out, stderr=subprocess.STDOUT, env=settings
            )

    def wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.get("/system_stats")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
        raise AssertionError(f"ComfyUI did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)

    def get(self, path: str):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as reply:
            return json.load(reply)

    def run(self, workflow: dict, interrupt_at: str = "") -> Run:
        """Queues a workflow and waits for its end; interrupts it when the node of that number
        reports its progress."""
        work = self._run(workflow, interrupt_at)
        return asyncio.run(asyncio.wait_for(work, RUN_SECONDS))

    async def _run(self, workflow: dict, interrupt_at: str) -> Run:
        address = f"http://127.0.0.1:{self.port}"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{address}/ws?clientId=tests", max_msg_size=0) as socket,
        ):
            body = {"prompt": workflow, "client_id": "tests"}
            async with session.post(f"{address}/prompt", json=body) as reply:
                answer = await reply.json()
                assert reply.status == 200, answer
            run = Run("")
            async for message in socket:
                if message.type != aiohttp.WSMsgType.TEXT:
                    continue
                kind, data = _of(message.data, answer["prompt_id"])
                if kind == "executed":
                    run.shown[data["node"]] = data["output"]
                elif kind == "progress":
                    run.progress.append(data["node"])
                    if data["node"] == interrupt_at:
                        await session.post(f"{address}/interrupt")
                elif kind.startswith("execution_") and kind.endswith(
                    ("success", "error", "rupted")
                ):
                    run.status, run.error = kind, data
                    return run
        raise AssertionError("the websocket was closed")


def _of(text: str, prompt: str) -> tuple[str, dict]:
    message = json.loads(text)
    data = message.get("data") or {}
    return (message["type"], data) if data.get("prompt_id") == prompt else ("", {})
