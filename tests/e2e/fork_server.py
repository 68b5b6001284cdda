"""Commands of the program without starting it anew each time (tests/support/fork_server.cpp)."""
import os
import pathlib
import select
import signal
import subprocess
import tempfile
import threading


class ForkServer:
    """One of each thread, as it runs one command at a time."""
    _of_thread = threading.local()

    def __init__(self, program):
        self.outputs = tempfile.TemporaryDirectory(prefix="gramian-fork-")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    @classmethod
    def here(cls):
        if not hasattr(cls._of_thread, "server"):
            cls._of_thread.server = cls(os.environ["GRAMIAN_FORK_SERVER"])
        return cls._of_thread.server

    def __del__(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.outputs.cleanup()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the fork server ended")
        return int(line)

    def run(self, arguments, timeout):
        """-> (exit code, stdout, stderr)."""
        out, err = (pathlib.Path(self.outputs.name) / name for name in ("stdout", "stderr"))
        words = [os.fsencode(word) for word in (out, err, *arguments)]
        request = memoryview(b"".join(word + b"\0" for word in (str(len(words)).encode(), *words)))
        while request:
            request = request[self.process.stdin.write(request):]
        identifier = self._answer()
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            os.kill(identifier, signal.SIGKILL)
            self._answer()
            raise subprocess.TimeoutExpired(arguments, timeout, out.read_bytes(), err.read_bytes())
        return self._answer(), out.read_bytes(), err.read_bytes()
