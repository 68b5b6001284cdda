"""Jobs that stop half-way: killed, interrupted, out of disk. GRAMIAN_SOAK=N kills N times instead of 24 (`make soak`)."""
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import BINARY, REPORT, TinyMixture, TinyModel, digests, random_rows, write_rows
from tiny_streams import TinyStreams

LAYERS = 5
KILLS = int(os.environ.get("GRAMIAN_SOAK", 24))
SEED = int(os.environ.get("GRAMIAN_SEED", random.randrange(1 << 30)))


def content(folder):
    """Digests of all that does not tell of times."""
    return {name: value for name, value in digests(folder).items() if name != REPORT}


class Interrupted(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel(vocab=64, layers=LAYERS).write(cls.top / "model")
        cls.mixture = TinyMixture(layers=4, vocab=64).write(cls.top / "mixture")
        # Its last layer takes over the keys that the second one picks.
        cls.streams = TinyStreams("glm5_next").write(cls.top / "streams")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(24, 120, vocab=64))

    def command(self, out, *flags, model=None, calibration=None):
        return ["quantize", model or self.model, "-o", out, "--calibration", calibration or self.rows, "--batch", "3", *flags]

    def journal(self, out):
        return out.with_name(out.name + ".journal")

    def start(self, *arguments):
        return subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def stop(self, out, *flags, layers=2, number=signal.SIGKILL, **what):
        """A job that is sent a signal once `layers` layers are finished; returns its messages."""
        process = self.start(*self.command(out, *flags, **what))
        last = self.journal(out) / f"layer-{layers - 1:05d}.json"
        while not last.exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(number)
        _, messages = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130 if number != signal.SIGKILL else -9, messages)
        self.assertFalse(out.exists())
        return messages.decode()

    def unbroken(self, *flags, name="unbroken", **what):
        out = self.path(name)
        report = self.report(*self.command(out, *flags, **what))
        self.assertIsNone(report["resumed_at_layer"])
        return out, report

    def go_on(self, out, *flags, **what):
        result = self.ok(*self.command(out, *flags, "--json", **what))
        self.assertFalse(self.journal(out).exists())
        return result.json(), result.err

    def refuse(self, out, *flags, says, **what):
        before = digests(self.journal(out))
        self.refused(*self.command(out, *flags, **what), says=says)
        self.assertEqual(digests(self.journal(out)), before)
        self.assertFalse(out.exists())

    def test_killed_before_the_head(self):
        """The head is one more step: its input is kept like a layer's."""
        model = TinyModel(vocab=4096, tied=False, layers=2).write(self.path("wide"))
        flags = ("--method", "gptq", "--lm-head-bits", 8)
        expected, _ = self.unbroken(*flags, model=model)
        for layers in (1, 2):
            out = self.path(f"out{layers}")
            process = self.start(*self.command(out, *flags, model=model))
            while not (self.journal(out) / f"layer-{layers - 1:05d}.json").exists() and process.poll() is None:
                time.sleep(0.002)
            process.kill()
            process.communicate(timeout=60)
            if not out.exists():
                report, _ = self.go_on(out, *flags, model=model)
                self.assertIn(report["resumed_at_layer"], (layers, layers + 1))
            self.assertEqual(content(out), content(expected))

    def test_killed_at_random_moments(self):
        """Whatever the moment, the same command ends with the bytes of an unbroken run."""
        source = random.Random(SEED)
        expected, _ = self.unbroken("--telemetry", self.path("events"))
        lines = len(self.path("events").read_text().splitlines())
        kills, round_ = 0, 0
        while kills < KILLS:
            out, telemetry = self.path(f"out{round_}"), self.path(f"events{round_}")
            round_ += 1
            while True:
                written = len(telemetry.read_bytes().splitlines()) if telemetry.exists() else 0
                moment = written + source.randrange(lines)
                process = self.start(*self.command(out, "--telemetry", telemetry))
                while process.poll() is None and (not telemetry.exists() or telemetry.read_bytes().count(b"\n") < moment):
                    time.sleep(0.001)
                time.sleep(source.random() * 0.02)
                process.kill()
                process.communicate()
                if process.returncode == 0:
                    break
                self.assertEqual(process.returncode, -9, f"seed {SEED}")
                kills += 1
                if out.exists():  # killed behind the last step
                    break
            self.assertEqual(content(out), content(expected), f"seed {SEED}")
            shutil.rmtree(out)
            shutil.rmtree(self.journal(out), ignore_errors=True)

    def test_every_kind_of_job(self):
        for name, flags, model in (("subset", (), self.model), ("rtn", ("--method", "rtn"), self.model),
                                   ("layer", ("--sequential", "layer"), self.model),
                                   ("none", ("--sequential", "none"), self.model),
                                   ("compat", ("--compat", "gptqmodel", "--held-out", "2"), self.model),
                                   ("spill", ("--activations", "spill"), self.model),
                                   ("mixture", ("--held-out", "2"), self.mixture),
                                   ("streams", ("--held-out", "2"), self.streams),
                                   ("bf16", ("--dtype", "bfloat16"), self.mixture),
                                   ("nvfp4", ("--method", "local_hessian"), self.mixture)):
            with self.subTest(name):
                expected, base = self.unbroken(*flags, name=name, model=model)
                for keep in (True, False):
                    out = self.path(f"{name}-{keep}")
                    self.stop(out, *flags, model=model)
                    if not keep:
                        for folder in self.journal(out).glob("input-*"):
                            shutil.rmtree(folder)
                    report, messages = self.go_on(out, *flags, model=model)
                    self.assertEqual(content(out), content(expected))
                    self.assertEqual(report["held_out"], base["held_out"])
                    # Compat's forward does not follow from what is stored: without activations it begins again.
                    if name == "compat" and not keep:
                        self.assertIsNone(report["resumed_at_layer"])
                    else:
                        self.assertGreaterEqual(report["resumed_at_layer"], 2)
                        self.assertEqual("are run again" in messages, not keep and name != "rtn")
                    for key in ("modules", "linear_multiplications", "fallbacks", "tokens", "batches", "weight_bytes"):
                        self.assertEqual(report[key], base[key], key)

    def test_statistics_are_kept(self):
        flags = ("--sequential", "none", "--statistics")
        expected, _ = self.unbroken(*flags, self.path("s0"))
        out = self.path("out")
        self.stop(out, *flags, self.path("s1"))
        report, _ = self.go_on(out, *flags, self.path("s1"))
        self.assertGreaterEqual(report["resumed_at_layer"], 2)
        self.assertEqual(content(out), content(expected))
        self.assertEqual(self.path("s1").read_bytes(), self.path("s0").read_bytes())
        # Those of finished layers are not taken again.
        out = self.path("lost")
        self.stop(out, *flags, self.path("s2"))
        shutil.rmtree(self.path("s2.partial"))
        _, messages = self.go_on(out, *flags, self.path("s2"))
        self.assertIn("s2 is not written", messages)
        self.assertFalse(self.path("s2").exists())

    def test_signals(self):
        expected, _ = self.unbroken()
        for number in (signal.SIGINT, signal.SIGTERM):
            out = self.path(f"out{number}")
            messages = self.stop(out, number=number)
            self.assertRegex(messages, r"warning: \d finished layers are kept in .*\.journal: the same command with --resume")
            self.assertRegex(messages, r"(?m)^error: stopped")
            self.go_on(out, "--resume")
            self.assertEqual(content(out), content(expected))

    def test_what_changes_no_byte_may_change(self):
        expected, _ = self.unbroken()
        out = self.path("out")
        self.stop(out, "--threads", 1)
        report, _ = self.go_on(out, "--threads", 3, "--activations", "replay", "--memory", "4GiB")
        self.assertGreaterEqual(report["resumed_at_layer"], 2)
        self.assertEqual(content(out), content(expected))

    def test_another_job_is_refused(self):
        out = self.path("out")
        self.stop(out)
        other_rows = write_rows(self.path("rows.safetensors"), random_rows(24, 120, vocab=64, seed=6))
        other_model = TinyModel(vocab=64, layers=LAYERS, seed=9).write(self.path("m"))
        config = self.path("c")
        shutil.copytree(self.model, config)
        text = (config / "config.json").read_text()
        (config / "config.json").write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
        self.assertNotEqual((config / "config.json").read_text(), text)
        for resume in ((), ("--resume",)):
            self.refuse(out, "--group-size", "-1", *resume, says=("out.journal", "group-size was 128 and is -1", "--force"))
            self.refuse(out, "--mse", "2", "--damp-percent", "0.02", *resume, says=("mse was 2.4 and is 2.0", "damp-percent"))
            self.refuse(out, *resume, calibration=other_rows, says=("rows: content changed",))
            self.refuse(out, *resume, model=other_model, says=("weights: model.embed_tokens.weight changed", "more"))
            self.refuse(out, *resume, model=config, says=("config: config.json changed",))
            self.refuse(out, "--skip-scan", *resume, says=("skip-scan was false and is true",))
        # Discarded, and of the other job now.
        self.ok(*self.command(out, "--group-size", "-1", "--force"))
        self.assertFalse(self.journal(out).exists())
        expected, _ = self.unbroken("--group-size", "-1")
        self.assertEqual(content(out), content(expected))

    def test_source_known_by_its_files_alone(self):
        model, out = self.path("m"), self.path("out")
        shutil.copytree(self.model, model)
        self.stop(out, "--skip-scan", model=model)
        os.utime(model / "model.safetensors", (1, 1))
        self.refuse(out, "--skip-scan", model=model, says=("weights: model.safetensors changed",))

    def test_force(self):
        """With --resume it replaces the output and keeps the journal."""
        out = self.path("out")
        self.ok(*self.command(out, "--method", "rtn"))
        before = digests(out)
        process = self.start(*self.command(out, "--force"))
        while not (self.journal(out) / "layer-00001.json").exists() and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.communicate()
        self.assertEqual(digests(out), before)
        self.refused(*self.command(out), says=("exists", "--force"))
        report, _ = self.go_on(out, "--force", "--resume")
        self.assertGreaterEqual(report["resumed_at_layer"], 2)
        self.assertEqual(content(out), content(self.unbroken()[0]))

    def test_resume_without_a_journal(self):
        out = self.path("out")
        report = self.report(*self.command(out, "--resume"))
        self.assertIsNone(report["resumed_at_layer"])

    def test_two_jobs_into_one_output(self):
        out = self.path("out")
        process = self.start(*self.command(out))
        while not (self.journal(out) / "layer-00000.json").exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)
        try:
            for flags in ((), ("--force",), ("--resume",)):
                self.refused(*self.command(out, *flags), says=(out, "another job is writing this output"))
        finally:
            process.send_signal(signal.SIGCONT)
        _, messages = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, messages)
        self.assertEqual(content(out), content(self.unbroken()[0]))

    def test_a_damaged_journal(self):
        expected, _ = self.unbroken()

        def flip(path, place=-100):
            data = bytearray(path.read_bytes())
            data[place] ^= 1
            path.write_bytes(data)
        # The newest activations: those before are taken. All of them: layers are run again.
        for count in (1, 2):
            out = self.path(f"activations{count}")
            self.stop(out, layers=3)
            for folder in sorted(self.journal(out).glob("input-?????"))[-count:]:
                flip(folder / "model.safetensors")
            _, messages = self.go_on(out)
            self.assertIn("are run again", messages)
            self.assertEqual(content(out), content(expected))
        # A tensor of a finished layer.
        out = self.path("weights")
        self.stop(out, layers=3)
        staged = self.journal(out) / "output" / "model.safetensors"
        data = staged.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = e2e.json.loads(data[8:8 + length])
        flip(staged, 8 + length + header["model.layers.1.mlp.up_proj.B"]["data_offsets"][0])
        report, messages = self.go_on(out)
        self.assertEqual(report["resumed_at_layer"], 1)
        self.assertIn("layer 1 of the unfinished job is damaged", messages)
        self.assertEqual(content(out), content(expected))
        # Its records.
        for name, text in (("layer-00001.json", "{}"), ("layer-00001.json", "[1,"), ("job.json", "{")):
            out = self.path(name + text[0])
            self.stop(out)
            (self.journal(out) / name).write_text(text)
            self.refused(*self.command(out), says=(out.name,))
            self.go_on(out, "--force")

    def test_no_room(self):
        """A disk that is too small is refused at once; one that others fill while the job runs costs activations at most."""
        disk = self.path("disk")
        disk.mkdir()
        # Room for the output, and less than the 64 MiB that activations leave free.
        small = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", disk], capture_output=True, check=False)
        if small.returncode != 0:
            self.skipTest("no right to mount: " + small.stderr.decode())
        try:
            filler = disk / "filler"
            filler.write_bytes(bytes((64 << 20) - (200 << 10)))
            self.refused(*self.command(disk / "out"), says=("there is no room for its", "No space left"), code=1)
            self.assertEqual([path.name for path in disk.iterdir()], ["filler"])
            filler.unlink()
            report = self.ok(*self.command(disk / "out"))
            self.assertIn("no room for the activations", report.err)
            self.assertEqual(content(disk / "out"), content(self.unbroken()[0]))
            shutil.rmtree(disk / "out")
            self.stop(disk / "out")
            self.assertEqual(list(self.journal(disk / "out").glob("input-*")), [])
            report, messages = self.go_on(disk / "out")
            self.assertIn("are run again", messages)
            self.assertEqual(content(disk / "out"), content(self.unbroken(name="again")[0]))
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_model_folders_may_hold_outputs(self):
        """What an unfinished job leaves inside the model's folder is not copied."""
        model = self.path("m")
        shutil.copytree(self.model, model)
        self.stop(model / "out", model=model)
        self.ok(*self.command(self.path("other"), "--method", "rtn", model=model))
        self.assertEqual(list(self.path("other").glob("*.journal")), [])


if __name__ == "__main__":
    unittest.main()
