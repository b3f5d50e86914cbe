#!/usr/bin/env python3
"""The dosa command from outside: what it prints, writes and returns. DOSA_BIN names the executable."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tensors import load, pack, tiny_trace  # noqa: E402

DOSA = os.environ["DOSA_BIN"]
SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "data" / "sample_en_l03_h32.safetensors"
SUCCESS, FAILURE, USAGE, BAD_INPUT, MISMATCH, NOT_AVAILABLE = range(6)
PATHS = ("auto", "dense", "dosa")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dosa-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def dosa(self, *arguments, code=SUCCESS, says=(), environment=None):
        """Runs the command, checks its exit code and that standard output or error says something."""
        done = subprocess.run([DOSA, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=240, env={**os.environ, **(environment or {})})
        shown = f"dosa {' '.join(map(str, arguments))}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.assertEqual(done.returncode, code, shown)
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, done.stdout if code in (SUCCESS, MISMATCH) else done.stderr, shown)
        if code not in (SUCCESS, MISMATCH):
            self.assertEqual(done.stdout, "", shown)
            self.assertRegex(done.stderr, r"\Adosa: [^\n]+\n\Z", "an error is one line")
        else:
            self.assertEqual(done.stderr, "", f"progress or noise in a pipe\n{shown}")
        return done

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def info(self):
        return json.loads(self.dosa("info", "--json", "-").stdout)

    def available_isas(self):
        return [isa["name"] for isa in self.info()["isas"] if isa["available"]]


class General(Case):
    def test_version_and_help(self):
        self.assertRegex(self.dosa("--version").stdout, r"^dosa \d+\.\d+\.\d+\n$")
        self.dosa("--help", says=("select", "explain", "Exit codes", "Examples"))
        for command in ("info", "select", "score", "verify", "explain", "synth", "bench"):
            self.dosa(command, "--help", says=("--json", "Usage"))
        for command in ((), ("info",), ("select",), ("score",), ("verify",), ("explain",), ("synth",), ("bench",)):
            for line in self.dosa(*command, "--help").stdout.splitlines():
                if "Usage: " not in line:  # it holds the path of the executable
                    self.assertLessEqual(len(line), 100, line)

    def test_usage_errors(self):
        self.dosa(code=USAGE, says="subcommand")
        self.dosa("selct", code=USAGE, says=("'selct'", "did you mean select?", "verify"))
        self.dosa("frobnicate", code=USAGE, says=("'frobnicate'", "select", "bench"))
        self.dosa("select", SAMPLE, "--topk", 256, code=USAGE, says=("'--topk'", "did you mean --top-k?"))
        self.dosa("select", SAMPLE, "--top-k", 4, "more", code=USAGE, says="'more'")
        self.dosa("select", code=USAGE, says="found no IN, wanted one (dosa select --help)")
        self.dosa("select", SAMPLE, code=USAGE, says="found no --top-k, wanted one")
        self.dosa("select", SAMPLE, "--top-k", code=USAGE, says="--top-k: found no K, wanted one (dosa select --help)")
        for command in (("select", SAMPLE, "--top-k", 4, "--out"), ("score", SAMPLE, "--out"),
                        ("synth", "narrow_band", "--out"), ("explain", SAMPLE, "--top-k", 4, "--svg")):
            self.dosa(*command, "-", code=USAGE, says=("found - as output", "wanted the name of a file"))
        self.dosa("select", SAMPLE, "--top-k", "many", code=USAGE, says="many")
        self.dosa("select", SAMPLE, "--top-k", 0, code=USAGE, says=("found 0", "wanted 1"))
        self.dosa("select", SAMPLE, "--top-k", 4, "--frobnicate", code=USAGE, says="frobnicate")
        for option, accepted in (("--model", "f64, sm90"), ("--backend", "reference"), ("--path", "dense"),
                                 ("--order", "score"), ("--index-base", "window"), ("--isa", "avx2"),
                                 ("--without", "joint-residual")):
            self.dosa("select", SAMPLE, "--top-k", 4, option, "nonsense", code=USAGE, says=("nonsense", accepted))
        for option in ("--threads", "--r", "--always-first", "--always-last"):
            self.dosa("select", SAMPLE, "--top-k", 4, option, -1, code=USAGE, says="-1")
        for command in (("select", SAMPLE, "--top-k", 4), ("bench", SAMPLE, "--top-k", 4)):
            message = self.dosa(*command, "--path", "fast", code=USAGE).stderr
            self.assertRegex(message, r"^dosa: --path: found 'fast', wanted one of auto, dense, dosa \(.*\)\n$")

    def test_the_heading_repeats_the_command(self):
        out = self.folder / "a name's file"
        for command in (("select", SAMPLE, "--top-k", "4", "--path", "dosa", "--isa", "portable", "--out", out),
                        ("score", SAMPLE, "--rows", "0:2", "--threads", "1", "--out", out),
                        ("verify", SAMPLE, "--top-k", "4", "--rows", "0:2", "--model", "sm90"),
                        ("explain", SAMPLE, "--top-k", "4", "--row", "3", "--without", "seeds"),
                        ("synth", "narrow_band", "--rows", "2", "--out", out),
                        ("bench", SAMPLE, "--top-k", "4", "--rows", "0:2", "--repeat", "1")):
            heading = self.dosa(*command).stdout.splitlines()[0]
            self.assertEqual(shlex.split(heading), [DOSA, *map(str, command)])

    def test_info(self):
        text = self.dosa("info", says=("backends", "instruction sets", "portable")).stdout
        found = self.info()
        self.assertIn(found["isa"], self.available_isas())
        self.assertIn("portable", self.available_isas())
        self.assertGreaterEqual(found["threads"], 1)
        for entry in found["backends"] + found["isas"]:
            self.assertTrue(entry["why"], entry)
            self.assertIn(entry["name"], text)

    def test_isa_from_the_environment(self):
        report = json.loads(self.dosa("select", SAMPLE, "--top-k", 4, "--json", "-", environment={"DOSA_ISA": "portable"}).stdout)
        self.assertEqual(report["engine"]["isa"], "portable")
        self.dosa("info", code=USAGE, says=("DOSA_ISA", "sse9", "avx2"), environment={"DOSA_ISA": "sse9"})

    def test_absent_backends_are_errors(self):
        found = self.info()
        for backend in found["backends"]:
            if not backend["available"]:
                self.dosa("select", SAMPLE, "--top-k", 4, "--backend", backend["name"], code=NOT_AVAILABLE, says=backend["name"])
        for isa in found["isas"]:
            if not isa["available"]:
                self.dosa("select", SAMPLE, "--top-k", 4, "--isa", isa["name"], code=NOT_AVAILABLE, says=isa["name"])
                self.dosa("info", code=NOT_AVAILABLE, says=isa["name"], environment={"DOSA_ISA": isa["name"]})

    def test_standard_output_that_is_full(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([DOSA, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, FAILURE, done.stderr)


class Select(Case):
    def select(self, *arguments, top_k=256):
        out = self.folder / "out.safetensors"
        self.dosa("select", SAMPLE, "--top-k", top_k, "--out", out, *arguments)
        return out

    def test_result_file(self):
        out = self.select("--scores")
        tensors, metadata = load(out)
        self.assertEqual(list(tensors), ["indices", "lengths", "scores"])
        self.assertEqual(tensors["indices"][:2], ("I32", [32, 256]))
        self.assertEqual(tensors["lengths"], ("I32", [32], (256,) * 32))
        self.assertEqual(tensors["scores"][:2], ("F32", [32, 256]))
        for row in range(32):
            indices = tensors["indices"][2][row * 256 : row * 256 + 256]
            self.assertEqual(list(indices), sorted(set(indices)))
        self.assertEqual(metadata["model"], "f64")
        self.assertEqual(metadata["top_k"], "256")
        self.assertNotIn("scores", load(self.select())[0])

    def test_same_bytes_whoever_computes(self):
        for model in ("f64", "sm90"):
            for layout in ((), ("--scores", "--order", "score", "--index-base", "window", "--always-first", 3, "--always-last", 5)):
                common = ("--rows", "0:32:5", "--model", model, *layout)
                wanted = self.select("--backend", "reference", *common).read_bytes()
                for path in PATHS:
                    for isa in self.available_isas():
                        for threads in (1, 2, 7):
                            found = self.select("--isa", isa, "--path", path, "--threads", threads, *common).read_bytes()
                            self.assertEqual(found, wanted, (model, layout, path, isa, threads))

    def test_ablation_changes_no_byte(self):
        wanted = self.select("--path", "dosa").read_bytes()
        for piece in ("projection", "joint-residual", "centred", "aggregate", "second-aggregate", "seeds", "best-first", "half-linear", "narrow",
                      "projection,aggregate,seeds"):
            self.assertEqual(self.select("--path", "dosa", "--without", piece).read_bytes(), wanted, piece)
        self.assertEqual(self.select("--path", "dosa", "--absolute-form").read_bytes(), wanted)
        for retained in (1, 8, 32):
            self.assertEqual(self.select("--path", "dosa", "--r", retained).read_bytes(), wanted, retained)

    def test_rows(self):
        whole = load(self.select())[0]["indices"][2]
        for text, rows in (("5", [5]), ("0:3", [0, 1, 2]), ("30:", [30, 31]), (":2", [0, 1]), ("1:9:4", [1, 5]),
                           ("7,3,7,20:22", [7, 3, 7, 20, 21])):
            tensors, metadata = load(self.select("--rows", text))
            self.assertEqual(tensors["indices"][1], [len(rows), 256])
            self.assertEqual(metadata["rows"], text)
            for place, row in enumerate(rows):
                self.assertEqual(tensors["indices"][2][place * 256 : place * 256 + 256], whole[row * 256 : row * 256 + 256])
        for text in ("32", "-1", "3:3", "5:2", "0:33", "x", "", "1:2:3:4", "0:8:0", "1,,2"):
            self.dosa("select", SAMPLE, "--top-k", 4, "--rows", text, code=USAGE, says="--rows")

    def test_a_result_of_other_rows_is_not_compared(self):
        out = self.folder / "rows.safetensors"
        self.dosa("select", SAMPLE, "--top-k", 4, "--rows", "0:3", "--out", out)
        self.dosa("verify", SAMPLE, "--result", out, "--rows", "0,1,2")
        for rows in (("--rows", "1:4"), ()):
            self.dosa("verify", SAMPLE, "--result", out, *rows, code=USAGE,
                      says=("--rows: found ", "wanted --rows 0:3, which the result is of"))
        self.dosa("explain", SAMPLE, "--top-k", 4, "--row", -1, code=USAGE, says="--row: found -1")

    def test_short_rows(self):
        trace = self.file("t.safetensors", pack(tiny_trace()))
        out = self.folder / "o.safetensors"
        self.dosa("select", trace, "--top-k", 64, "--out", out, "--scores")
        tensors, _ = load(out)
        self.assertEqual(tensors["lengths"][2], (40, 40))
        self.assertEqual(tensors["indices"][2][:64], (*range(40), *[-1] * 24))
        self.assertEqual(set(tensors["scores"][2][40:64]), {0xFF800000})

    def test_a_trace_without_rows_or_keys(self):
        for rows, keys in ((0, 40), (2, 0), (0, 0)):
            trace = self.file("t.safetensors", pack(tiny_trace(rows, keys)))
            out = self.folder / "o.safetensors"
            self.dosa("select", trace, "--top-k", 4, "--out", out)
            self.assertEqual(load(out)[0]["indices"], ("I32", [rows, 4], (-1,) * (4 * rows)))
            self.dosa("verify", trace, "--top-k", 4, says="EQUAL")
            self.dosa("score", trace, "--model", "f64", "--out", out)
            self.dosa("explain", trace, "--top-k", 4, "--svg", self.folder / "o.svg")
            ElementTree.parse(self.folder / "o.svg")
            self.dosa("bench", trace, "--top-k", 4, "--repeat", 1)

    def test_table_and_json_say_the_same(self):
        path = self.folder / "report.json"
        text = self.dosa("select", SAMPLE, "--top-k", 256, "--path", "dosa", "--json", path,
                         says=("survivors", "tau gap", "slack", "dot products", "rows", "time", "workspace")).stdout
        report = json.loads(path.read_text())
        self.assertEqual(report["command"], "select")
        self.assertEqual(report["input"]["keys"], 8192)
        self.assertEqual(report["options"]["top_k"], 256)
        self.assertEqual(report["rows"]["dosa"] + report["rows"]["dense"] + report["rows"]["model"], 32)
        self.assertEqual(sum(entry["rows"] for entry in report["rows"]["why"]), 32)
        self.assertIn(f"{report['survivors']:,} of {report['visible']:,} visible keys", text)
        self.assertIn(f"{report['dot_products_vs_dense']:.3f} of dense", text)
        self.assertGreaterEqual(report["slack"]["min"], 0)
        self.assertGreaterEqual(report["tau_gap"]["min"], 0)
        self.assertLess(report["dot_products_vs_dense"], 1)
        self.assertGreater(report["workspace_bytes"], 0)
        on_stdout = self.dosa("select", SAMPLE, "--top-k", 256, "--path", "dosa", "--json", "-").stdout
        self.assertEqual(json.loads(on_stdout)["survivors"], report["survivors"])

    def test_outputs_that_cannot_be_written(self):
        for target in (self.folder / "no" / "such", self.folder):
            self.dosa("select", SAMPLE, "--top-k", 4, "--out", target, code=FAILURE, says=str(target))
            self.dosa("select", SAMPLE, "--top-k", 4, "--json", target, code=FAILURE, says=str(target))
        self.dosa("select", SAMPLE, "--top-k", 4, "--out", "/dev/full", code=FAILURE, says=("/dev/full", "No space"))
        same = self.folder / "same"
        self.dosa("select", SAMPLE, "--top-k", 4, "--out", same, "--json", same, code=USAGE, says="twice")
        copy = self.file("copy.safetensors", SAMPLE.read_bytes())
        (self.folder / "link.safetensors").symlink_to(copy)
        for target in (copy, self.folder / "link.safetensors"):
            self.dosa("select", copy, "--top-k", 4, "--out", target, code=USAGE, says="input and output")
        self.assertEqual(copy.read_bytes(), SAMPLE.read_bytes())
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["copy.safetensors", "link.safetensors"])
        self.dosa("select", SAMPLE, "--top-k", 4, "--out", "/dev/null")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_results_beyond_memory_are_refused(self):
        self.dosa("select", SAMPLE, "--top-k", 2**62, code=USAGE, says="this machine has")
        self.dosa("select", SAMPLE, "--top-k", 10**12, code=USAGE, says="this machine has")


class HostileFiles(Case):
    def refused(self, content, *says):
        path = self.file("hostile.safetensors", content)
        for command in (("select", path, "--top-k", 4), ("explain", path, "--top-k", 4), ("verify", path, "--top-k", 4),
                        ("bench", path, "--top-k", 4), ("score", path, "--model", "f64", "--out", self.folder / "o")):
            self.dosa(*command, code=BAD_INPUT, says=(str(path), *says))
        self.assertFalse((self.folder / "o").exists())

    def test_files_that_are_not_there(self):
        self.dosa("select", self.folder / "missing", "--top-k", 4, code=FAILURE, says=("missing", "No such file"))
        self.dosa("select", self.folder, "--top-k", 4, code=FAILURE, says="regular file")
        os.mkfifo(self.folder / "fifo")
        self.dosa("select", self.folder / "fifo", "--top-k", 4, code=FAILURE, says="regular file")

    def test_not_safetensors(self):
        self.refused(b"", "found 0 bytes")
        self.refused(b"\xff" * 64, "header length")
        self.refused(b"\x02" + bytes(7) + b"[]", "JSON object")
        self.refused((1 << 20).to_bytes(8, "little") + b"{}", "truncated")
        self.refused((200_000).to_bytes(8, "little") + b'{"a":' + b"[" * 199_995, "wanted an object")
        self.refused(b"PK\x03\x04 a zip archive, say of pickles", "header length")

    def test_truncation(self):
        whole = pack(tiny_trace())
        for keep in (7, 8, 40, len(whole) - 1):
            self.refused(whole[:keep])
        self.refused(whole + b"\0", "data bytes")

    def test_tensors(self):
        def spoiled(name, dtype=None, shape=None, raw=None):
            tensors = tiny_trace()
            old = tensors[name]
            tensors[name] = (dtype or old[0], old[1] if shape is None else shape, old[2] if raw is None else raw)
            return pack(tensors)

        for name in ("q", "k", "k_scale", "weights", "ks", "ke"):
            tensors = tiny_trace()
            del tensors[name]
            self.refused(pack(tensors), f'"{name}": missing')
        self.refused(spoiled("k", dtype="U8"), '"k": found U8 [40,32], wanted F8_E4M3')
        self.refused(spoiled("k_scale", dtype="I32"), '"k_scale": found I32 [40], wanted F32')
        self.refused(spoiled("weights", shape=[4, 2]), '"weights": found F32 [4,2]', "Q = 2, H = 4")
        self.refused(spoiled("q", shape=[2, 128]), '"q": found F8_E4M3 [2,128]')
        self.refused(spoiled("q", shape=[2, 8, 16]), "multiple of 32")
        self.refused(spoiled("ks", shape=[2**62, 4]), '"ks"', "size in bytes")
        self.refused(spoiled("ke", raw=bytes(4)), '"ke": found 4 bytes')

    def test_overlap(self):
        whole = pack(tiny_trace())
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])
        header["ke"]["data_offsets"] = header["ks"]["data_offsets"]
        text = json.dumps(header).encode()
        self.refused(len(text).to_bytes(8, "little") + text + whole[8 + length :], "overlap")

    def test_poison_outside_windows_is_not_read(self):
        tensors = tiny_trace()
        tensors["ke"] = ("I32", [2], struct.pack("<2i", 20, 20))
        first = self.file("clean.safetensors", pack(tensors))
        tensors["k"] = (*tensors["k"][:2], tensors["k"][2][: 20 * 32] + b"\x7f" * (20 * 32))
        tensors["k_scale"] = (*tensors["k_scale"][:2], tensors["k_scale"][2][:80] + b"\xff" * 80)
        second = self.file("poisoned.safetensors", pack(tensors))
        results = []
        for path in (first, second):
            out = self.folder / "o"
            self.dosa("select", path, "--top-k", 7, "--scores", "--out", out)
            results.append(out.read_bytes())
        self.assertEqual(*results)


class Score(Case):
    def test_scores_agree_with_select(self):
        scores, best = self.folder / "scores", self.folder / "best"
        for model in ("f64", "sm90"):
            self.dosa("score", SAMPLE, "--model", model, "--rows", "0:2", "--out", scores)
            tensors, metadata = load(scores)
            self.assertEqual(tensors["scores"][:2], ("F32", [2, 8192]))
            self.assertEqual(metadata["model"], model)
            bits = tensors["scores"][2]
            self.assertEqual(set(bits[6145:8192]), {0xFF800000}, "-inf outside the window")
            self.dosa("select", SAMPLE, "--top-k", 8192, "--model", model, "--rows", "0:2", "--scores", "--out", best)
            selected = load(best)[0]
            for row, length in enumerate(selected["lengths"][2]):
                for slot in range(length):
                    at = row * 8192 + selected["indices"][2][row * 8192 + slot]
                    self.assertEqual(bits[at], selected["scores"][2][row * 8192 + slot])

    def test_backends_agree(self):
        wanted = self.folder / "wanted"
        self.dosa("score", SAMPLE, "--model", "sm90", "--rows", "3", "--backend", "reference", "--out", wanted)
        for isa in self.available_isas():
            found = self.folder / isa
            self.dosa("score", SAMPLE, "--model", "sm90", "--rows", "3", "--isa", isa, "--threads", 7, "--out", found)
            self.assertEqual(found.read_bytes(), wanted.read_bytes(), isa)

    def test_the_model_is_f64_where_none_is_named(self):
        named, unnamed = self.folder / "named", self.folder / "unnamed"
        self.dosa("score", SAMPLE, "--rows", "5", "--model", "f64", "--out", named)
        self.dosa("score", SAMPLE, "--rows", "5", "--out", unnamed)
        self.assertEqual(named.read_bytes(), unnamed.read_bytes())

    def test_more_than_four_gib_asks(self):
        # 32 heads of rows without keys cost nothing to store: Q large, N small is refused by size alone.
        rows, keys = 40_000, 30_000
        tensors = {
            "k_scale": ("F32", [keys], bytes(4 * keys)),
            "weights": ("F32", [rows, 1], bytes(4 * rows)),
            "ks": ("I32", [rows], bytes(4 * rows)),
            "ke": ("I32", [rows], bytes(4 * rows)),
            "k": ("F8_E4M3", [keys, 32], bytes(32 * keys)),
            "q": ("F8_E4M3", [rows, 1, 32], bytes(32 * rows)),
        }
        trace = self.file("wide.safetensors", pack(tensors))
        self.dosa("score", trace, "--model", "f64", "--out", self.folder / "o", code=USAGE, says=("--yes", "GiB"))
        self.assertFalse((self.folder / "o").exists())
        self.dosa("score", trace, "--model", "f64", "--rows", "0:3", "--out", self.folder / "o")


class Verify(Case):
    def test_every_path_and_isa(self):
        for model in ("f64", "sm90"):
            for isa in self.available_isas():
                self.dosa("verify", SAMPLE, "--top-k", 256, "--model", model, "--isa", isa, "--path", "dosa", "--rows", "0:32:8",
                          says="EQUAL: 4 rows")

    def test_result_files(self):
        out = self.folder / "out.safetensors"
        for extra in ((), ("--scores", "--order", "score"), ("--model", "sm90", "--index-base", "window", "--always-last", 2)):
            self.dosa("select", SAMPLE, "--top-k", 20, "--rows", "0:6", "--out", out, *extra)
            self.dosa("verify", SAMPLE, "--rows", "0:6", "--result", out, says="EQUAL: 6 rows")
        self.dosa("verify", SAMPLE, "--rows", "0:5", "--result", out, code=USAGE, says=("--rows 0:5", "0:6"))
        self.dosa("verify", SAMPLE, "--top-k", 20, "--result", out, code=USAGE, says="--result")
        self.dosa("verify", SAMPLE, "--result", SAMPLE, code=BAD_INPUT, says='"indices": missing')
        self.dosa("verify", SAMPLE, code=USAGE, says="--top-k")

    def test_a_forged_result_is_a_mismatch(self):
        out = self.folder / "out.safetensors"
        self.dosa("select", SAMPLE, "--top-k", 20, "--rows", "0:6", "--scores", "--order", "score", "--out", out)
        tensors, metadata = load(out)

        def forge(name, at, value):
            spoiled = {}
            for key, (dtype, shape, values) in tensors.items():
                values = list(values)
                if key == name:
                    values[at] = value
                spoiled[key] = (dtype, shape, struct.pack(f"<{len(values)}{'I' if dtype == 'F32' else 'i'}", *values))
            return self.file("forged.safetensors", pack(spoiled, metadata))

        index = tensors["indices"][2][3 * 20 + 7]
        forged = forge("indices", 3 * 20 + 7, index + 1)
        self.dosa("verify", SAMPLE, "--rows", "0:6", "--result", forged, "--json", self.folder / "j", code=MISMATCH,
                  says=("DIFFERENT in 1 of 6 rows", f"row 3, slot 7: found index {index + 1}", f"wanted index {index} "))
        report = json.loads((self.folder / "j").read_text())
        self.assertFalse(report["equal"])
        self.assertEqual(report["first_difference"]["row"], 3)
        self.assertEqual(report["first_difference"]["slot"], 7)
        bits = tensors["scores"][2][5]
        self.dosa("verify", SAMPLE, "--rows", "0:6", "--result", forge("scores", 5, bits ^ 1), code=MISMATCH,
                  says=("row 0, slot 5", f"0x{bits ^ 1:08x}", f"0x{bits:08x}"))
        self.dosa("verify", SAMPLE, "--rows", "0:6", "--result", forge("lengths", 2, 19), code=MISMATCH,
                  says="row 2: found length 19, wanted 20")


class Explain(Case):
    def test_a_row_and_all_rows(self):
        for extra in ((), ("--row", 20), ("--path", "dense"), ("--rows", "0:4", "--row", 3, "--model", "sm90")):
            svg, report = self.folder / "x.svg", self.folder / "x.json"
            self.dosa("explain", SAMPLE, "--top-k", 256, "--svg", svg, "--json", report, *extra,
                      says=("signs", "activation", "tau gap", "slack", "survivors", "dot products"))
            root = ElementTree.parse(svg).getroot()
            texts = " ".join(root.itertext())
            for part in ("What happened", "Score against upper bound", "Slack", "Tau gap", "Dot products"):
                self.assertIn(part, texts)
            found = json.loads(report.read_text())
            if "dense" not in extra:
                self.assertGreaterEqual(found["slack"]["min"], 0)
                self.assertEqual(sum(found["slack"]["histogram"]["counts"]), found["slack"]["count"])
                self.assertGreaterEqual(found["survivors"], found["selected"])
                dots = found["dot_products_vs_dense"]
                self.assertAlmostEqual(dots["total"], dots["heads"] + dots["aggregates"] + dots["survivors_and_sample"], 9)

    def test_what_was_not_certified_is_not_explained(self):
        rule = "a key survives where"
        self.dosa("explain", SAMPLE, "--top-k", 256, "--path", "dosa", "--row", 1, says=rule)
        self.assertNotIn(rule, self.dosa("explain", SAMPLE, "--top-k", 256, "--path", "dense").stdout)
        one = self.dosa("explain", SAMPLE, "--top-k", 4, "--rows", "0:1", "--threads", 1, says="1 row, ").stdout
        self.assertNotRegex(one, r"\b1 (rows|threads|keys|heads)\b")

    def test_captions_and_marks_of_the_picture(self):
        """Captions stay in their columns, and above the threshold line is what was scored for its bound, nothing else."""
        trace, svg = self.folder / "t.safetensors", self.folder / "x.svg"
        self.dosa("synth", "narrow_band", "--keys", 65536, "--rows", 20, "--top-k", 2048, "--out", trace)
        self.dosa("explain", trace, "--top-k", 2048, "--path", "dosa", "--svg", svg)
        captions = [(float(e.get("x")), e.text or "") for e in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")
                    if e.get("class") == "caption"]
        self.assertEqual(len(captions), 8)
        name = "{http://www.w3.org/2000/svg}"
        plane = ElementTree.parse(svg).find(f"{name}g")
        limit = next(float(e.get("y1")) for e in plane.iter(f"{name}line") if e.get("class") == "limit")
        tops = {cls: [float(y) for e in plane.iter(f"{name}path") if e.get("class") == cls
                      for y in re.findall(r"M\S+ (\S+?)h", e.get("d"))] for cls in ("rejected", "survivor")}
        self.assertLess(max(tops["survivor"]), limit - 3)
        self.assertGreater(min(tops["rejected"]), limit - 1)
        columns = sorted({x for x, _ in captions})
        self.assertEqual(len(columns), 4)
        for x, text in captions:
            end = min([other for other in columns if other > x], default=1180)
            self.assertLess(x + 7 * len(text), end, text)

    def test_it_shows_the_run_itself(self):
        selected = json.loads(self.dosa("select", SAMPLE, "--top-k", 256, "--path", "dosa", "--json", "-").stdout)
        explained = json.loads(self.dosa("explain", SAMPLE, "--top-k", 256, "--path", "dosa", "--json", "-").stdout)
        self.assertEqual(explained["survivors"], selected["survivors"])
        self.assertAlmostEqual(explained["dot_products_vs_dense"]["total"], selected["dot_products_vs_dense"], 9)

    def test_the_device_tells_its_counters_or_is_an_error_as_for_select(self):
        svg, arguments = self.folder / "x.svg", (SAMPLE, "--top-k", 256, "--backend", "cuda")
        self.dosa("explain", *arguments[:3], "--backend", "reference", code=USAGE, says="wanted cpu or cuda")
        cuda = next(backend for backend in self.info()["backends"] if backend["name"] == "cuda")
        if not cuda["available"]:
            wanted = self.dosa("select", *arguments, code=NOT_AVAILABLE, says="cuda").stderr
            found = self.dosa("explain", *arguments, "--svg", svg, code=NOT_AVAILABLE, says="cuda").stderr
            self.assertEqual(found, wanted)
            self.assertFalse(svg.exists())
            return
        found = json.loads(self.dosa("explain", *arguments, "--svg", svg, "--json", "-").stdout)
        self.assertEqual(found["selected"], 32 * 256)
        self.assertGreaterEqual(found["device"]["candidates"], found["selected"])
        self.assertEqual(found["device"]["status"], 0)
        self.assertIn("No certificate", " ".join(ElementTree.parse(svg).getroot().itertext()))
        self.dosa("explain", *arguments, "--row", 20, says=("20: ", "candidates", "none on this backend yet"))

    def test_rows_that_are_not_there(self):
        for row in (32, -2):
            self.dosa("explain", SAMPLE, "--top-k", 4, "--row", row, code=USAGE, says="0 <= T < 32")
        self.dosa("explain", SAMPLE, "--top-k", 4, "--svg", self.folder / "no" / "x.svg", code=FAILURE, says="x.svg")


class Synth(Case):
    def kinds(self):
        return json.loads(self.dosa("synth", "--list", "--json", "-").stdout)["kinds"]

    def test_every_kind_is_selected_exactly_and_drawn(self):
        kinds = self.kinds()
        self.assertGreater(len(kinds), 30)
        trace, svg = self.folder / "t.safetensors", self.folder / "t.svg"
        for kind in kinds:
            with self.subTest(kind["name"]):
                made = json.loads(self.dosa("synth", kind["name"], "--out", trace, "--rows", 4, "--json", "-").stdout)
                self.dosa("verify", trace, "--top-k", made["top_k"], "--path", "dosa", says="EQUAL")
                self.dosa("explain", trace, "--top-k", made["top_k"], "--path", "dosa", "--svg", svg)
                ElementTree.parse(svg)

    def test_seeds_and_sizes(self):
        name = self.kinds()[0]["name"]
        files = []
        for seed in (1, 1, 2):
            files.append(self.folder / f"{len(files)}")
            self.dosa("synth", "narrow_band", "--seed", seed, "--keys", 5000, "--rows", 3, "--heads", 8, "--head-dim", 64,
                      "--top-k", 100, "--out", files[-1])
        first, again, other = (path.read_bytes() for path in files)
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual(load(files[0])[0]["q"][1], [3, 8, 64])
        self.assertEqual(load(files[0])[1]["kind"], "narrow_band")
        self.dosa("synth", name, "--heads", 129, "--out", files[0], code=USAGE, says="129")
        self.dosa("synth", name, "--head-dim", 48, "--out", files[0], code=USAGE, says="48")
        message = self.dosa("synth", "no_such_kind", "--out", files[0], code=USAGE, says=("no_such_kind", "--list")).stderr
        self.assertLess(len(message), 200)
        self.dosa("synth", "narow_band", "--out", files[0], code=USAGE, says="did you mean narrow_band")
        self.dosa("synth", "--list", "narrow_band", code=USAGE, says=("--list", "KIND"))
        self.dosa("synth", name, "--keys", 5000, "--out", self.folder / "large", says="5,000 keys")
        self.dosa("synth", name, code=USAGE, says="--out")
        self.dosa("synth", code=USAGE, says="KIND")
        self.assertEqual(files[0].read_bytes(), first, "a refused command must not touch its output")


class Bench(Case):
    def test_report(self):
        path = self.folder / "bench.json"
        text = self.dosa("bench", SAMPLE, "--top-k", 256, "--repeat", 3, "--threads", 2, "--json", path,
                         says=("dense", "dosa", "auto", "reference", "certified speedup", "scaled")).stdout
        report = json.loads(path.read_text())
        self.assertIn(report["isa"], self.available_isas())
        self.assertEqual(report["threads"], 2)
        for name in PATHS:
            seconds = report["seconds"][name]
            self.assertEqual(seconds["repeats"], 3)
            self.assertTrue(0 < seconds["min"] <= seconds["q1"] <= seconds["median"] <= seconds["q3"] <= seconds["max"])
        self.assertTrue(report["seconds"]["reference"]["scaled"])
        self.assertAlmostEqual(report["certified_speedup"], report["seconds"]["dense"]["median"] / report["seconds"]["dosa"]["median"])
        self.assertIn(f"certified speedup: {report['certified_speedup']:.2f}", text)
        paths = report["inputs"][0]["paths"]
        self.assertEqual(paths["dense"]["survival"], 1)
        self.assertLess(paths["dosa"]["dot_products_vs_dense"], 1)

    def test_choices(self):
        both = json.loads(self.dosa("bench", SAMPLE, SAMPLE, "--top-k", 64, "--repeat", 1, "--path", "dense,dosa", "--rows", "0:8",
                                    "--reference-rows", 0, "--isa", "portable", "--json", "-").stdout)
        self.assertEqual(both["isa"], "portable")
        self.assertEqual(len(both["inputs"]), 2)
        self.assertEqual(list(both["inputs"][0]["seconds"]), ["dense", "dosa"])
        self.dosa("bench", "--top-k", 4, "--repeat", 1, "--rows", 0, "--without", "seeds", "--path", "dosa", SAMPLE)
        self.dosa("bench", SAMPLE, "--top-k", 4, "--path", "sparse", code=USAGE, says="sparse")
        self.dosa("bench", SAMPLE, "--top-k", 4, "--repeat", 0, code=USAGE, says="--repeat")


class Terminal(Case):
    def test_progress_on_a_terminal_only(self):
        trace = self.folder / "t.safetensors"
        self.dosa("synth", "narrow_band", "--keys", 60000, "--rows", 8, "--heads", 32, "--head-dim", 128, "--out", trace)
        arguments = ("verify", trace, "--top-k", 64, "--backend", "reference", "--threads", 1)
        master, slave = pty.openpty()
        with subprocess.Popen([DOSA, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave) as process:
            os.close(slave)
            shown = b""
            while select.select([master], [], [], 240)[0]:
                try:
                    piece = os.read(master, 4096)
                except OSError:  # Linux: the other end is closed
                    break
                if not piece:
                    break
                shown += piece
            output = process.stdout.read().decode()
        os.close(master)
        self.assertEqual(process.returncode, SUCCESS)
        self.assertRegex(shown.decode(), re.compile(r"verify: \d+ of 8 \(\d+ %, about \d+ s left\)"))
        self.assertTrue(shown.endswith(b"\r\x1b[K"), "the line is wiped in the end")
        self.assertIn("EQUAL", output)
        self.assertNotIn("\x1b", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
