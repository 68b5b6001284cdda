"""Documents that name missing files or show old text of a file, unfinished work, and paths of one machine."""
import re

from .tree import LAYERS, matches

# Spelt in parts: this file does not report itself.
UNFINISHED = r"\b(?:FIX" + r"ME|TO" + r"DO|X" + r"XX)\b"
MACHINE_PATHS = r"(?<![\w.~$}>])/(?:work|root|home)/"
DATA = ("models/", "tests/golden/", "fuzz/corpus/")


def check(tree):
    for path in tree.files:
        text = tree.text(path)
        if text is None:
            continue
        for line, match in matches(text, MACHINE_PATHS):
            yield path, line, "leftover", f"a path of one machine ({match.group()}...): make it relative or an argument"
        if path.startswith(DATA):
            continue
        for line, match in matches(text, UNFINISHED):
            yield path, line, "leftover", f"{match.group()}: do it now, or open an issue"
        if path.endswith(".md"):
            yield from _check_document(tree, path, text)


def _check_document(tree, path, text):
    # A block that opens with its file's name, ```cpp src/models/family.h, shows that file.
    for line, match in matches(text, r"(?ms)^```\w+ ([\w./-]+)\n(.*?)^```"):
        name, shown = match.groups()
        if name not in tree.files or tree.text(name) != shown:
            yield path, line, "document", f"shows another text than {name} has"
    text = re.sub(r"(?ms)^```.*?^```", lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    known = {name.split("/")[0] for name in tree.files}
    for line, match in matches(text, r"`([\w.-]+(?:/[\w.-]+)+\.\w+)`"):
        name = match.group(1)
        first = name.split("/")[0]
        # `kernels/gram/gram.h` is how sources spell src/kernels/gram/gram.h. Names below other folders are not ours.
        if first in known | set(LAYERS) and not _exists(tree, name) and not _exists(tree, f"src/{name}"):
            yield path, line, "document", f"names {name}, which does not exist"
    for line, match in matches(text, r"\]\(([^)#\s]+)(?:#[^)]*)?\)"):
        target = match.group(1)
        if re.match(r"[a-z]+:", target):
            continue
        folder = path.rsplit("/", 1)[0] if "/" in path else ""
        if not _exists(tree, _normal(f"{folder}/{target}")):
            yield path, line, "document", f"links to {target}, which does not exist"


def _normal(name):
    parts = []
    for part in name.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _exists(tree, name):
    name = name.rstrip("/")
    return name in tree.files or any(file.startswith(name + "/") for file in tree.files)
