"""A job that two hosts share: two network namespaces joined by a pair of virtual links, one process of torchrun in each."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from support import TINYSTORIES, TestCase
from test_ranks import OPTIONS, command, workers

SCRIPT = TINYSTORIES.parents[1] / "examples" / "two_hosts.sh"


def ip(*arguments):
    return subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=True)


class Network:
    """Two hosts that see each other and nothing else, not even by name."""

    def __init__(self):
        self.names = [f"gramian-{os.getpid()}-{side}" for side in "ab"]
        self.links = [f"gram{os.getpid() % 100000}{side}" for side in "ab"]
        self.addresses = ["10.231.77.1", "10.231.77.2"]

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.links[0], "netns", self.names[0], "type", "veth", "peer", "name", self.links[1], "netns", self.names[1])
        for name, link, address in zip(self.names, self.links, self.addresses):
            ip("-n", name, "address", "add", f"{address}/30", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def cut(self):
        ip("-n", self.names[1], "link", "set", self.links[1], "down")


class TwoHosts(TestCase):
    def setUp(self):
        super().setUp()
        if shutil.which("ip") is None:
            self.skipTest("there is no `ip` (tools/setup.sh installs Debian's iproute2)")
        self.network = Network()
        self.addCleanup(self.network.remove)
        try:
            self.network.make()
        except subprocess.CalledProcessError as error:
            self.skipTest(f"network namespaces cannot be made here, which takes root: {error.stderr.strip()}")

    def start(self, output, *options, **environment):
        """The example's launcher on each host."""
        model, _, text, *flags = OPTIONS
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        jobs = []
        for rank, host in enumerate(self.network.names):
            line = ["ip", "netns", "exec", host, SCRIPT, rank, self.network.addresses[0], model, text, output, *flags, "--samples", 16,
                    "--threads", 1, *options]
            job = subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "PATH": path, "PYTHONWARNINGS": "ignore", **environment})
            self.addCleanup(self.stop, job)
            jobs.append(job)
        return jobs

    @staticmethod
    def stop(job):
        for pid in [*workers(job), job.pid] if job.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=60)

    def finish(self, jobs):
        said = [job.communicate(timeout=300)[1] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], said)

    def await_layer(self, output, jobs):
        record = pathlib.Path(f"{output}.journal") / "layer-00000.json"
        for _ in range(2400):
            if record.exists() or any(job.poll() is not None for job in jobs):
                break
            time.sleep(0.05)
        self.assertTrue(record.exists(), "no layer was finished")

    def one_host(self, output):
        process = subprocess.run(command(2, "-o", output, "--threads", 1), capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(process.returncode, 0, process.stderr)
        return self.weights(output)

    def test_the_bytes_are_those_of_one_host(self):
        self.finish(self.start(self.folder / "two"))
        self.assertEqual(self.weights(self.folder / "two"), self.one_host(self.folder / "one"))

    def test_a_killed_process_ends_the_other_host_and_the_job_goes_on(self):
        for dead, alive in ((1, 0), (0, 1)):
            out = self.folder / f"out{dead}"
            jobs = self.start(out)
            self.await_layer(out, jobs)
            os.kill(workers(jobs[dead])[0], signal.SIGKILL)
            said = [job.communicate(timeout=120)[1] for job in jobs]
            self.assertNotIn(0, [job.returncode for job in jobs])
            self.assertIn("another rank does not answer", said[alive])
            self.assertFalse(out.exists())
            self.finish(self.start(out, "--resume"))
            self.assertEqual(self.weights(out), self.one_host(self.folder / f"one{dead}"))

    def test_hosts_that_listen_where_no_other_is(self):
        """What Gloo does by itself where a host's own name is a loopback address."""
        jobs = self.start(self.folder / "out", GLOO_SOCKET_IFNAME="lo", GRAMIAN_RANK_TIMEOUT="30")
        for _ in range(3600):
            ended = [job for job in jobs if job.poll() is not None]
            if ended:
                break
            time.sleep(0.05)
        self.assertRegex(ended[0].communicate()[1], "does not reach the others.*127.0.0.1.*GLOO_SOCKET_IFNAME")

    def test_a_host_that_falls_silent(self):
        out = self.folder / "out"
        jobs = self.start(out, GRAMIAN_RANK_TIMEOUT="30")
        self.await_layer(out, jobs)
        self.network.cut()
        said = jobs[0].communicate(timeout=180)[1]
        self.assertNotEqual(jobs[0].returncode, 0)
        self.assertIn("another rank does not answer", said)


if __name__ == "__main__":
    unittest.main()
