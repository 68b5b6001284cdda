"""Every rule of tools/check.py fires on a small tree that breaks it, and stays silent on one that does not."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = ROOT / "tools" / "check.py"

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import check  # noqa: E402


def findings(files, objects=None):
    """(path, line, rule) of each finding in a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        build = pathlib.Path(folder) / objects if objects else None
        return [(path, line, rule) for path, line, rule, _ in check.findings(folder, build)]


class RuleTest(unittest.TestCase):
    def expect(self, files, expected):
        self.assertEqual(sorted(findings(files)), sorted(expected))

    def fires(self, path, text, rule, line=1):
        """`text` as `path` breaks `rule` in `line`, and nothing else anywhere."""
        with self.subTest(path=path, text=text):
            self.expect({path: text}, [(path, line, rule)])

    def silent(self, path, text):
        with self.subTest(path=path, text=text):
            self.expect({path: text}, [])


class Layering(RuleTest):
    HEADERS = {"src/base/error.h": "", "src/kernels/gram.h": "", "src/tensor/ops.h": "", "src/solve/factor.h": "",
               "src/formats/qqq.h": ""}

    def include(self, path, *names):
        return findings({**self.HEADERS, path: "".join(f"#include {name}\n" for name in names)})

    def test_own_and_lower_layers(self):
        self.assertEqual(self.include("src/solve/factor.cpp", '"solve/factor.h"', '"kernels/gram.h"', '"base/error.h"',
                                      "<vector>", "<ATen/core/Tensor.h>"), [])

    def test_higher_layer(self):
        path = "src/solve/factor.cpp"
        self.assertEqual(self.include(path, '"base/error.h"', '"formats/qqq.h"'), [(path, 2, "layering")])

    def test_kernels_have_no_libtorch(self):
        path = "src/kernels/gram.cpp"
        for name in ('"tensor/ops.h"', "<ATen/core/Tensor.h>", "<c10/util/BFloat16.h>", '"torch/types.h"'):
            self.assertEqual(self.include(path, name), [(path, 1, "layering")], name)

    def test_only_tensor_includes_functions_of_libtorch(self):
        for path, name, count in (("src/tensor/ops.cpp", "<ATen/ops/cat.h>", 0), ("src/solve/a.cpp", "<ATen/ops/cat.h>", 1),
                                  ("src/models/a.cpp", "<ATen/TensorOperators.h>", 0),
                                  ("src/stats/a.cpp", "<ATen/TensorOperators.h>", 1)):
            self.assertEqual(self.include(path, name), [(path, 1, "layering")] * count, (path, name))

    def test_spelling_and_existence(self):
        path = "src/formats/qqq.cpp"
        self.assertEqual(self.include(path, '"qqq.h"', '"formats/gone.h"', '"../base/error.h"'),
                         [(path, 1, "layering"), (path, 2, "layering"), (path, 3, "layering")])

    def test_tests_include_anything(self):
        self.assertEqual(self.include("tests/base/a_test.cpp", '"formats/qqq.h"', '"support/golden.h"'), [])
        self.assertEqual(self.include("src/kernels/gram/gram_test.cpp", '"solve/factor.h"', "<ATen/core/Tensor.h>"), [])

    def test_folders(self):
        self.fires("src/misc/a.cpp", "", "layering")
        self.fires("src/a.cpp", "", "layering")


class Coroutines(RuleTest):
    def body(self, statement):
        return f"Task run(X x) {{\n  {statement}\n}}\n"

    def test_allowed_forms(self):
        for statement in (
                "auto y = co_await linears(std::move(x), q, k, v);",
                "auto&& y = co_await linears(x);",
                "Tensor&& y = co_await linears(x);",
                "const std::vector<Tensor> y = co_await ops.linears(attend(std::move(x), 0, -1), *q, &k);",
                "auto [a, b] = co_await pair(x);",
                "y = co_await x;",
                "y[i] = co_await self->run(std::get<0>(x));",
                "co_await x;",
                "co_return co_await attention(std::move(x));",
                "if (a && b) co_await x;",
                "if (a) { co_await x; } else { y = co_await x; }",
                "for (int i = 0; i < n; ++i) { y = co_await step(x, i); }",
                "switch (k) { case 1: y = co_await x; break; default: co_await x; }",
                'log("co_await x ? a : b");  // co_await f({1})',
                "auto task = [](X x) -> Task { co_await x; };",
        ):
            self.silent("src/models/a.cpp", self.body(statement))

    def test_forbidden_forms(self):
        for statement in (
                "auto y = c ? co_await a : b;",
                "auto y = c ? b : co_await a;",
                "if (co_await x) return;",
                "if (auto y = co_await x) run(y);",
                "if constexpr (co_await x) run(y);",
                "while (co_await x) {}",
                "for (auto y = co_await x; y < n; ++y) {}",
                "for (; co_await x; ++y) {}",
                "for (;; y = co_await x) {}",
                "for (auto y : co_await x) {}",
                "switch (co_await x) {}",
                "bool y = a && co_await x;",
                "bool y = co_await x || a;",
                "f(co_await x);",
                "auto y = f(co_await x, b);",
                "auto y = 1 + co_await x;",
                "auto y = co_await x + 1;",
                "y += co_await x;",
                "y = z = co_await x;",
                "auto y = (co_await x).first;",
                "Y y{co_await x};",
                "Y y = {co_await x, 1};",
                "Y y(co_await x);",
                "auto y = co_await f({x, 1});",
                "auto y = co_await f(X{x});",
                "auto y = co_await f([&] { return x; });",
                "auto y = co_await f(a ? x : b);",
                "auto y = co_await f(a && b);",
                "auto y = co_await f(x + 1);",
                "auto y = co_await f(x == z);",
                'auto y = co_await f(x, "name");',
                'y["name"] = co_await f(x);',
                "co_return f(co_await x);",
                "co_return co_await x + 1;",
                "throw co_await x;",
                "auto y = co_await co_await x;",
                "auto f = [y = co_await x] { return y; };",
                "co_await a, b;",
        ):
            self.fires("src/models/a.cpp", self.body(statement), "coroutine", line=2)

    def test_tests_and_macros_too(self):
        self.fires("tests/models/a_test.cpp", self.body("f(co_await x);"), "coroutine", line=2)
        self.fires("src/models/a.cpp", "\n#define AWAIT(x) \\\n  co_await x\n", "coroutine", line=2)

    def test_definition_of_the_operator(self):
        self.silent("src/models/a.h", "struct X { Awaiter operator co_await() const; };\n")


class Banned(RuleTest):
    def test_calls(self):
        for code in ("using namespace std;", "void f() { assert(x); }", "int x = rand();", "int x = std::rand();",
                     'void f() { std::system("ls"); }', 'auto x = torch::jit::load("a.pt");', "void f() { std::cout << 1; }",
                     'void f() { std::printf("x"); }', "void f() { fprintf(stdout, x); }", "#include <iostream>",
                     "#include <cassert>", '#pragma GCC target("avx2")', "void f() { at::parallel_for(0, n, 1, g); }"):
            self.fires("src/solve/a.cpp", code + "\n", "banned")

    def test_allowed(self):
        for code in ("static_assert(sizeof(int) == 4);", "// std::cout, assert(x)", 'auto x = "std::system(";',
                     "void f() { std::fprintf(stderr, x); std::snprintf(b, 3, x); }", "auto x = t.rand();"):
            self.silent("src/solve/a.cpp", code + "\n")
        self.silent("src/cli/demo.cpp", "#include <iostream>\nvoid f() { std::cout << 1; std::printf(x); }\n")
        self.silent("tests/solve/a_test.cpp", "#include <iostream>\nvoid f() { std::printf(x); }\n")

    def test_headers_of_libtorch_in_tests(self):
        for name in ("ATen/ATen.h", "torch/torch.h", "torch/extension.h"):
            self.fires("tests/solve/a_test.cpp", f"#include <{name}>\n", "banned")

    def test_build_files(self):
        for path, text in (("CMakeLists.txt", "find_package(Torch REQUIRED)"), ("cmake/A.cmake", "set(F -ffast-math)"),
                           ("src/kernels/CMakeLists.txt", "set_source_files_properties(a.cpp PROPERTIES COMPILE_OPTIONS -mavx2)"),
                           ("Makefile", "CXXFLAGS := -march=native")):
            self.fires(path, text + "\n", "banned")
        self.silent("CMakeLists.txt", "# no find_package(Torch), no -mavx2\nset(F -Wall -ffp-contract=off)\n")

    def test_flags_really_used(self):
        def commands(flags):
            return json.dumps([{"file": "src/base/a.cpp", "command": f"c++ {flags} -c a.cpp"}])
        found = findings({"build/compile_commands.json": commands("-O2 -mavx512f")}, "build")
        self.assertEqual([rule for _, _, rule in found], ["banned"])
        self.assertEqual(findings({"build/compile_commands.json": commands("-O2 -Wall")}, "build"), [])
        self.assertEqual([rule for _, _, rule in findings({"README.md": ""}, "build")], ["banned"])


class Lengths(RuleTest):
    def function(self, lines, head="int f(int x)"):
        return f"{head} {{\n" + "  ++x;\n" * (lines - 2) + "}\n"

    def test_files(self):
        self.silent("src/base/a.cpp", "\n" * 500)
        self.fires("src/base/a.cpp", "\n" * 501, "length", line=501)
        self.silent("tests/base/a_test.cpp", "\n" * 700)
        self.fires("tests/base/a_test.cpp", "\n" * 701, "length", line=701)
        self.silent("src/base/a.cpp", "// Generated by tools/tables.py\n" + "\n" * 900)

    def test_functions(self):
        self.silent("src/base/a.cpp", self.function(100))
        for head in ("int f(int x)", "template <class T>\nvoid f(T x) const noexcept", "namespace a {\nstruct B {\nvoid f()",
                     "TEST(A, B)", "A& A::operator=(const A& a)", "A::A(int x) : a_(x), b_{x}", "auto A::f(struct B b) -> int"):
            self.fires("src/base/a.cpp", self.function(101, head), "length", line=1 + head.count("\n"))

    def test_what_is_no_function(self):
        for head in ("namespace a", "struct A", "class alignas(64) A", "constexpr int kTable[f(3)] =", "enum class A"):
            self.silent("src/base/a.cpp", self.function(200, head))


class Orphans(RuleTest):
    def test_units(self):
        self.silent("tests/solve/a_test.cpp", "")
        self.silent("tests/support/a.cpp", "")
        for path in ("tests/a_test.cpp", "tests/misc/a_test.cpp", "tests/solve/a.cpp", "tests/golden_sets/a.cpp",
                     "src/solve/a_test.cpp", "tools/a_bench.cpp"):
            self.fires(path, "tiny", "orphan")

    def test_kernels(self):
        self.fires("src/kernels/gram/gram.cpp", "", "orphan")
        self.expect({"src/kernels/gram/gram.cpp": "", "src/kernels/gram/gram_test.cpp": ""}, [])

    def test_benchmarks(self):
        self.fires("bench/a_bench.cpp", "BENCHMARK(f);\n", "orphan")
        self.silent("bench/a_bench.cpp", 'BENCHMARK(f)->Name("f/tiny");\n')

    def test_goldens(self):
        golden = {"tests/golden/qqq/a.json": "{}", "tests/golden/qqq/b/c.json": "{}"}
        self.expect(golden, [("tests/golden/qqq/a.json", 1, "orphan")])
        self.expect({**golden, "tests/golden_sets/qqq/qqq.cpp": ""}, [])
        self.fires("tests/golden_sets/qqq/note.md", "", "orphan")

    def test_end_to_end(self):
        test = "import unittest\nimport helper\nclass A(unittest.TestCase):\n    pass\n"
        self.expect({"tests/e2e/test_a.py": test, "tests/e2e/helper.py": ""}, [])
        self.fires("tests/e2e/test_a.py", "print(1)\n", "orphan")
        self.fires("tests/e2e/helper.py", "", "orphan")
        self.fires("tests/e2e/more/test_a.py", test, "orphan")


class Documents(RuleTest):
    def test_names(self):
        files = {"src/base/error.h": "", "docs/a.md": "see `base/error.h`, `src/base/error.h`, `OUT/report.json`, "
                 "[it](../src/base/error.h), [folder](../src/), [part](#part), [web](https://example.org)\n"
                 "```\n`src/base/gone.h`\n```\n"}
        self.expect(files, [])
        for text in ("`src/base/gone.h`", "`base/gone.h`", "[it](src/base/error.h)", "[it](../gone.md#part)"):
            self.expect({"src/base/error.h": "", "docs/a.md": "\n" + text + "\n"}, [("docs/a.md", 2, "document")])

    def test_a_block_shows_its_file(self):
        source = "int a;\n\nint b;\n"
        for shown, findings in ((source, []), ("int a;\n", [("docs/a.md", 2, "document")])):
            self.expect({"src/base/a.h": source, "docs/a.md": f"\n```cpp src/base/a.h\n{shown}```\n"}, findings)
        self.expect({"docs/a.md": "\n```cpp src/base/a.h\n```\n"}, [("docs/a.md", 2, "document")])

    def test_leftovers(self):
        for word in ("FIX" "ME", "TO" "DO", "X" "XX"):
            self.fires("src/base/a.cpp", f"// {word}: later\n", "leftover")
        self.silent("src/base/a.cpp", "// TODOS, XXXL\n")
        self.silent("models/tiny/text.txt", "TO" "DO\n")

    def test_machine_paths(self):
        for folder in ("work", "root", "home"):
            self.fires("tools/a.py", f'open("/{folder}/me/file")\n', "leftover")
        self.silent("tools/a.py", 'open("out/work/file", "~/work/x", "../root/")\n')


class Program(unittest.TestCase):
    def test_exit_code_and_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(CHECK), "--root", folder]
            clean = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual((clean.returncode, clean.stdout), (0, "tools/check.py: 0 findings\n"))
            source = pathlib.Path(folder) / "src" / "base" / "a.cpp"
            source.parent.mkdir(parents=True)
            source.write_text("\nusing namespace std;\n", encoding="utf-8")
            before = sorted(pathlib.Path(folder).rglob("*"))
            broken = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(broken.returncode, 1)
            self.assertIn("src/base/a.cpp:2: [banned] using namespace std: write std::\n", broken.stdout)
            self.assertEqual(sorted(pathlib.Path(folder).rglob("*")), before)


if __name__ == "__main__":
    unittest.main()
