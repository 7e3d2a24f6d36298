"""Drafts of a pool: real `ssd draft` processes, each at an address of its own, that can be struck."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class Drafts:
    def __init__(
        self,
        models: Mapping[str, Path],
        folder: Path,
        *arguments: str,
        cores: Mapping[str, str] | None = None,
    ) -> None:
        """`models`: each by its draft's own name; `arguments`: what each `ssd draft` is told beside."""
        self._models, self._folder, self._arguments = dict(models), folder, arguments
        self._cores = dict(cores or {})
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for name in self._models:
            self._launch(name)
        for name in self._models:
            self._wait(name)

    @property
    def addresses(self) -> str:
        return ",".join(map(self._address, self._models))

    def start(self, name: str, *arguments: str) -> None:
        """At its address, in place of one that has ended."""
        self._launch(name, *arguments)
        self._wait(name)

    def _launch(self, name: str, *arguments: str) -> None:
        what = ["--model", str(self._models[name]), "--name", name, "--listen", self._address(name)]
        what += ["--cores", self._cores[name]] if name in self._cores else []
        program = [sys.executable, "-m", "ssd", "draft", *what, *self._arguments, *arguments]
        self._processes[name] = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    def _wait(self, name: str) -> None:
        """Until it drafts."""
        said = self._processes[name].stdout
        assert said is not None
        assert said.readline().startswith("drafting with")

    def signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def strike(self, name: str, how: int) -> None:
        """Ends one."""
        self.signal(name, how)
        self._processes[name].wait(60)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder}/{name}.sock"
