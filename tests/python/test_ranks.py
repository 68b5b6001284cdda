"""Jobs that several ranks share, by torchrun with Gloo on one host. GRAMIAN_SOAK=N kills single ranks of four N times (`make soak`)."""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import unittest

from safetensors_reader import share_of_other_codes
from support import TINYSTORIES, TestCase

KILLS = int(os.environ.get("GRAMIAN_SOAK", 0))
SEED = int(os.environ.get("GRAMIAN_SEED", random.randrange(1 << 30)))
OPTIONS = [TINYSTORIES, "--calibration", TINYSTORIES / "calibration.txt", "--sequence-length", "64", "--batch", "2", "--dtype", "float32", "--quiet"]


def command(ranks, *arguments, samples=16):
    launcher = [sys.executable, "-W", "ignore", "-m"]
    if ranks > 1:
        launcher += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    return [*launcher, "gramian", "quantize", *map(str, [*OPTIONS, "--samples", samples, *arguments])]


def workers(job):
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in children.stdout.split()]


def stop(job):
    """All at once, as a host that fails."""
    for pid in [*workers(job), job.pid]:
        os.kill(pid, signal.SIGKILL)
    job.wait(60)


class Ranks(TestCase):
    def run_job(self, ranks, output, *options):
        process = subprocess.run(command(ranks, "-o", output, *options), capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(process.returncode, 0, process.stderr)
        return json.loads((output / "gramian-report.json").read_text())

    def start(self, ranks, output, *options):
        """A job that is stopped while it runs: returns it when its first layer is finished."""
        process = subprocess.Popen(command(ranks, "-o", output, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        record = pathlib.Path(f"{output}.journal") / "layer-00000.json"
        for _ in range(1200):
            if record.exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        self.assertTrue(record.exists(), "no layer was finished")
        return process

    def test_two_ranks_agree_with_one_and_with_themselves(self):
        alone = self.run_job(1, self.folder / "one", "--sequential", "none")
        shared = self.run_job(2, self.folder / "two", "--sequential", "none")
        self.assertEqual((alone["ranks"], shared["ranks"]), (1, 2))
        self.assertEqual(alone["tokens"], shared["tokens"])
        self.assertEqual([m["name"] for m in alone["modules"]], [m["name"] for m in shared["modules"]])
        self.assertEqual([m["samples"] for m in alone["modules"]], [m["samples"] for m in shared["modules"]])
        # Each rank fed half of the batches.
        self.assertEqual(shared["shared_inputs"]["accumulations"], alone["shared_inputs"]["accumulations"] // 2)
        self.assertLess(share_of_other_codes(self.folder / "one", self.folder / "two"), 0.005)

    def test_two_ranks_give_the_same_bytes_again(self):
        two = self.run_job(2, self.folder / "two", "--held-out", "2")
        again = self.run_job(2, self.folder / "again", "--held-out", "2")
        self.assertEqual(self.weights(self.folder / "two"), self.weights(self.folder / "again"))
        # The rank that writes tries the layers on rows that no rank has calibrated on.
        self.assertEqual((two["rows"], two["held_out"]["rows"], len(two["held_out"]["layers"])), (14, 2, 6))
        self.assertEqual(two["held_out"], again["held_out"])
        self.assertEqual(two["plan"]["ranks"], 2)

    def test_plain_rounding_is_the_same_bytes(self):
        self.run_job(1, self.folder / "one", "--method", "rtn")
        self.run_job(2, self.folder / "two", "--method", "rtn")
        self.assertEqual(self.weights(self.folder / "one"), self.weights(self.folder / "two"))

    def test_a_stopped_job_goes_on_with_another_number_of_ranks(self):
        job = self.start(2, self.folder / "out")
        stop(job)
        self.assertFalse((self.folder / "out").exists())
        report = self.run_job(1, self.folder / "out", "--resume")
        self.assertGreaterEqual(report["resumed_at_layer"], 1)
        job = self.start(1, self.folder / "other")
        stop(job)
        report = self.run_job(2, self.folder / "other", "--resume")
        self.assertGreaterEqual(report["resumed_at_layer"], 1)

    def test_a_dead_rank_ends_the_job(self):
        job = self.start(2, self.folder / "out")
        os.kill(workers(job)[-1], signal.SIGKILL)
        _, said = job.communicate(timeout=120)
        self.assertNotEqual(job.returncode, 0)
        self.assertRegex(said, "another rank does not answer|stopped by signal|SIGKILL|Signal 9")
        self.assertFalse((self.folder / "out").exists())

    @unittest.skipUnless(KILLS, "GRAMIAN_SOAK is not set")
    def test_killed_ranks_at_random_moments(self):
        """A rank of four dies at whatever moment: the job ends with a message, and goes on, also with another number of ranks. Four all
        the way give the bytes of an unbroken run; whatever comes out verifies."""
        source = random.Random(SEED)
        begin = time.monotonic()
        self.run_job(4, self.folder / "unbroken")
        whole = time.monotonic() - begin
        expected = self.weights(self.folder / "unbroken")
        kills = resumed = 0
        for round_ in range(10 * KILLS):
            if kills >= KILLS:
                break
            out = self.folder / f"out{round_}"
            same, stopped = True, False
            while not out.exists():
                ranks = 4 if not stopped or source.random() < 0.5 else source.choice([1, 2, 3])
                same = same and ranks == 4
                if ranks < 4 or (stopped and source.random() < 0.5):
                    report = self.run_job(ranks, out)
                    resumed += report["resumed_at_layer"] is not None
                    break
                job = subprocess.Popen(command(4, "-o", out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                victims, killed = [], False
                moment = time.monotonic() + source.uniform(0.2, 1) * whole
                while time.monotonic() < moment and job.poll() is None:
                    time.sleep(0.01)
                    victims = workers(job) or victims
                try:
                    os.kill(source.choice(victims), signal.SIGKILL)
                    killed = True
                except (ProcessLookupError, IndexError):
                    pass
                _, said = job.communicate(timeout=300)
                kills += killed
                if killed and job.returncode:
                    stopped = True
                    self.assertRegex(said, "another rank does not answer|Signal 9|SIGKILL", f"seed {SEED}")
                else:  # it was through
                    self.assertTrue(out.exists(), f"seed {SEED}: {said}")
            with self.subTest(seed=SEED, round=round_):
                verified = subprocess.run([os.environ["GRAMIAN_BINARY"], "verify", out], capture_output=True, text=True, check=False)
                self.assertEqual(verified.returncode, 0, verified.stderr)
                if same:
                    self.assertEqual(self.weights(out), expected)
        self.assertGreaterEqual(kills, KILLS)
        print(f"{kills} ranks killed, {resumed} jobs went on behind a finished layer", file=sys.stderr)

    def test_more_ranks_than_batches_are_refused(self):
        process = subprocess.run(command(2, "-o", self.folder / "out", samples=2), capture_output=True, text=True, check=False,
                                 timeout=120)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("ranks without rows", process.stderr)


if __name__ == "__main__":
    unittest.main()
