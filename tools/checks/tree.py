"""The files of the repository, and C++ sources cut into tokens."""
import bisect
import os
import pathlib
import re
import subprocess
from collections import namedtuple
from functools import cached_property

# Lowest first: a folder under src/ may include itself and what stands before it. docs/architecture.md says why.
LAYERS = ("base", "kernels", "tensor", "stats", "solve", "formats", "models", "pipeline", "runtime", "eval", "cli")

# kind: name, number, string, char, op
Token = namedtuple("Token", "kind text line")

LEXER = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<directive>\#(?:\\\n|/\*.*?\*/|[^\n])*)
      | (?P<string>(?:u8|u|U|L)?R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|(?:u8|u|U|L)?"(?:\\.|[^"\\\n])*")
      | (?P<char>(?:u8|u|U|L)?'(?:\\.|[^'\\\n])+')
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
      | (?P<op>::|->|\+\+|--|&&|\|\||<<=|<=>|[-+*/%&|^!=<>]=|<<|\.\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)


class Source:
    """One C++ file. `code` is its text with comments and the contents of strings blanked, line breaks kept."""

    def __init__(self, path, text):
        self.path = path
        self.text = text

    @cached_property
    def _lexed(self):
        tokens, directives, code = [], [], []
        starts = [0] + [match.end() for match in re.finditer("\n", self.text)]
        for match in LEXER.finditer(self.text):
            kind, text = match.lastgroup, match.group()
            if match.group("string") is not None:
                kind = "string"
            line = bisect.bisect_right(starts, match.start())
            if kind == "skip":
                code.append(re.sub(r"[^\n]", " ", text))
            elif kind == "directive":
                directives.append(Token("directive", text, line))
                code.append(text)
            else:
                tokens.append(Token(kind, text, line))
                code.append(re.sub(r"[^\n]", " ", text) if kind in ("string", "char") else text)
        return tokens, directives, "".join(code)

    @property
    def tokens(self):
        return self._lexed[0]

    @property
    def directives(self):
        return self._lexed[1]

    @property
    def code(self):
        return self._lexed[2]

    @cached_property
    def includes(self):
        """(line, name, in angle brackets) of each include."""
        found = []
        for directive in self.directives:
            match = re.match(r'#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', directive.text)
            if match:
                found.append((directive.line, match.group(1) or match.group(2), match.group(2) is not None))
        return found


class Tree:
    """The files that git tracks or would track; outside a git work tree all that is not hidden or built."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.files = sorted(self._list())
        self._texts = {}
        self._sources = {}

    def _list(self):
        if (self.root / ".git").exists():
            command = ["git", "-C", str(self.root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode == 0:
                return {name for name in result.stdout.split("\0") if name and (self.root / name).is_file()}
        files = set()
        for folder, folders, names in os.walk(self.root):
            at_root = pathlib.Path(folder) == self.root
            folders[:] = [name for name in folders if name not in (".git", ".venv", "__pycache__", "demo-out")
                          and not (at_root and name.startswith("build"))]
            files |= {(pathlib.Path(folder) / name).relative_to(self.root).as_posix() for name in names}
        return files

    def text(self, path):
        """The file as text, or None for binary and for large files."""
        if path not in self._texts:
            file = self.root / path
            text = None
            if file.stat().st_size <= 2 << 20:
                data = file.read_bytes()
                if b"\0" not in data[:4096]:
                    text = data.decode("utf-8", errors="replace")
            self._texts[path] = text
        return self._texts[path]

    def source(self, path):
        if path not in self._sources:
            self._sources[path] = Source(path, self.text(path) or "")
        return self._sources[path]

    def sources(self, *folders):
        """The C++ files below the given top folders."""
        for path in self.files:
            if path.split("/")[0] in folders and path.endswith((".cpp", ".h")):
                yield self.source(path)

    def build_files(self):
        for path in self.files:
            name = path.rsplit("/", 1)[-1]
            if name in ("CMakeLists.txt", "CMakePresets.json", "Makefile") or name.endswith(".cmake"):
                yield path


def is_test(path):
    return path.startswith(("tests/", "fuzz/")) or path.endswith(("_test.cpp", "_bench.cpp"))


def layer_of(path):
    """The layer of a file under src/, or None."""
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def matches(text, pattern):
    """(line, match) of each occurrence in `text`."""
    for match in re.finditer(pattern, text):
        yield text.count("\n", 0, match.start()) + 1, match
