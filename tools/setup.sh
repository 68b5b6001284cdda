#!/usr/bin/env bash
# Everything the build needs: system packages, and a virtual environment .venv with the torch wheel (its C++ libraries
# and headers are the LibTorch that Gramian links). Idempotent and resumable: the record of a finished set-up,
# .venv/gramian-setup, is written last, and while it is current this script returns at once.
#
# transformers, at a fixed version, comes too: tests of the Python package hold its models to our own forward. Without a network for it
# they are skipped.
#
#   GRAMIAN_TORCH_VERSION  another torch version than the default below
#   GRAMIAN_TORCH_INDEX    URL of another package index to take torch from, e.g. one with CPU-only or CUDA wheels
#   PYTHON                 the interpreter that makes .venv (default python3)
#   CXX                    the C++ compiler (default c++)
#
# A version or index that was asked for once stays chosen until another one is asked for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

default_torch=2.13.0
transformers=5.23.0
record=.venv/gramian-setup
compiler=${CXX:-c++}
python=${PYTHON:-python3}
venv_python=.venv/bin/python

say() { printf 'set-up: %s\n' "$*" >&2; }
# die MESSAGE [LINE...]
die() {
  printf 'set-up: error: %s\n' "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  exit 1
}

# ---- what is wanted, and whether it is there already -----------------------------------------------------------------

recorded() { if [ -f "$record" ]; then sed -n "s/^$1=//p" "$record"; fi; }

torch_version=${GRAMIAN_TORCH_VERSION:-}
version_from=chosen
if [ -z "$torch_version" ]; then
  if [ "$(recorded version_from)" = chosen ]; then
    torch_version=$(recorded torch)
  else
    torch_version=$default_torch
    version_from=default
  fi
fi
torch_index=${GRAMIAN_TORCH_INDEX:-$(recorded index)}

wanted_record() {
  printf 'script=%s\ntorch=%s\nversion_from=%s\nindex=%s\n' \
    "$(sha256sum <tools/setup.sh | cut -c1-16)" "$torch_version" "$version_from" "$torch_index"
}
if [ -f "$record" ] && [ -x "$venv_python" ] && [ "$(<"$record")" = "$(wanted_record)" ]; then
  exit 0
fi

# ---- system packages -------------------------------------------------------------------------------------------------

has() { command -v "$1" >/dev/null 2>&1; }

cmake_is_new_enough() {
  local version
  has cmake || return 1
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p')
  [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

installed_by_dpkg() {
  has dpkg-query && [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# header_exists HEADER: whether the compiler finds it.
header_exists() {
  has "$compiler" &&
    printf '#if !__has_include(<%s>)\n#error missing\n#endif\n' "$1" | "$compiler" -E -x c++ - >/dev/null 2>&1
}

# Prints the Debian names of what is missing. Tools and headers count wherever they come from, so that other
# distributions and hand-made installations work.
missing_packages() {
  has "$compiler" || echo g++
  cmake_is_new_enough || echo cmake
  has ninja || echo ninja-build
  has pkg-config || echo pkg-config
  # A test joins two network namespaces, where it may.
  [ "$(id -u)" -ne 0 ] || has ip || echo iproute2
  while read -r package header; do
    installed_by_dpkg "$package" || header_exists "$header" || echo "$package"
  done <<'HEADERS'
libcli11-dev CLI/CLI.hpp
nlohmann-json3-dev nlohmann/json.hpp
libpcre2-dev pcre2.h
libutf8proc-dev utf8proc.h
libxxhash-dev xxhash.h
libyaml-cpp-dev yaml-cpp/yaml.h
libgtest-dev gtest/gtest.h
libbenchmark-dev benchmark/benchmark.h
HEADERS
  if ! has "$python"; then
    echo python3
    echo python3-venv
  elif [ ! -x "$venv_python" ] && ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    echo python3-venv
  fi
  # Of the system's own interpreter; others bring theirs.
  if has "$python" && ! "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
    if installed_by_dpkg python3; then echo python3-dev; fi
  fi
}

install_system_packages() {
  local packages log
  mapfile -t packages < <(missing_packages)
  [ ${#packages[@]} -gt 0 ] || return 0
  has apt-get ||
    die "missing here: ${packages[*]} (Debian's names); install what your system calls them, then run this again"
  if [ "$(id -u)" -ne 0 ]; then
    die "missing system packages; install them with" \
      "sudo apt-get update && sudo apt-get install -y --no-install-recommends ${packages[*]}"
  fi
  say "installing system packages: ${packages[*]}"
  log=$(mktemp)
  local apt=(apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  if ! { DEBIAN_FRONTEND=noninteractive "${apt[@]}" update &&
    DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "apt-get could not install ${packages[*]} (its last lines are above; is there a network, and disk space?)"
  fi
  rm -f "$log"
  hash -r
  mapfile -t packages < <(missing_packages)
  [ ${#packages[@]} -eq 0 ] ||
    die "still missing or too old after installation: ${packages[*]} (cmake must be 3.25 or newer; an older one may stand earlier in PATH)"
}

# ---- the virtual environment -----------------------------------------------------------------------------------------

python_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

make_venv() {
  if [ -x "$venv_python" ] && python_is_new_enough "$venv_python" && "$venv_python" -m pip --version >/dev/null 2>&1; then
    return
  fi
  python_is_new_enough "$python" ||
    die "$python is $("$python" -V 2>&1), but 3.11 or newer is needed; name another one with PYTHON=..."
  say "making .venv with $("$python" -V)"
  "$python" -m venv --clear .venv >&2 ||
    die "could not make .venv (on Debian the python3-venv package is needed; is the disk full?)"
}

# Prints the version of the torch that works in .venv, or nothing.
working_torch() {
  [ -f "$("$venv_python" -c 'import importlib.util as u; s = u.find_spec("torch")
print(s.submodule_search_locations[0] if s else "")')/lib/libtorch_cpu.so" ] || return 0
  "$venv_python" -W ignore -c 'import torch; print(torch.__version__)' 2>/dev/null || true
}

torch_is_right() {
  local have
  have=$(working_torch)
  [ -n "$have" ] && { [ "$have" = "$torch_version" ] || [ "${have%%+*}" = "$torch_version" ]; }
}

require_gigabytes() {
  local free
  free=$(($(df -Pk .venv | awk 'NR == 2 {print $4}') / 1048576))
  [ "$free" -ge "$1" ] || die "torch $torch_version needs about $1 GB of disk space under .venv, free are $free GB"
}

explain_pip_failure() {
  if grep -qi 'no space left' "$1"; then
    die "the disk is full: torch $torch_version could not be installed"
  elif grep -qi 'from versions: none' "$1"; then
    die "found no torch at all for $("$venv_python" -V) on $(uname -m): is there a network?" \
      "otherwise choose another index with GRAMIAN_TORCH_INDEX, or another interpreter with PYTHON"
  elif grep -qiE 'no matching distribution|could not find a version|resolutionimpossible' "$1"; then
    die "no torch $torch_version for $("$venv_python" -V) on $(uname -m) (pip's words are above)" \
      "choose another one with GRAMIAN_TORCH_VERSION, another index with GRAMIAN_TORCH_INDEX, or another interpreter with PYTHON"
  fi
  die "pip could not install torch $torch_version (its words are above; is there a network?)"
}

# Sets `huge` to the packages that come with accelerator builds only. pip resolves from metadata alone, which releases
# before 23.2 cannot: they would fetch all the wheels just to answer.
find_huge_packages() {
  local report=.venv/gramian-resolved.json
  huge=unknown
  if ! "$venv_python" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (23, 2))'; then
    "$venv_python" -m pip install -q --disable-pip-version-check --no-input --upgrade pip >/dev/null 2>&1 || return 0
  fi
  if ! "$venv_python" -m pip install -q --dry-run --ignore-installed --report "$report" "$@" >&2 2>"$pip_log"; then
    cat "$pip_log" >&2
    explain_pip_failure "$pip_log"
  fi
  huge=$("$venv_python" - "$report" <<'PYTHON'
import json, re, sys
names = [item["metadata"]["name"].lower() for item in json.load(open(sys.argv[1]))["install"]]
print(" ".join(sorted(name for name in names if re.match(r"(nvidia|cuda|triton|pytorch-triton|rocm|intel-)", name))))
PYTHON
  )
  rm -f "$report"
}

install_torch() {
  local arguments=("torch==$torch_version") huge pip_log=.venv/gramian-pip.log
  if [ -n "$torch_index" ]; then arguments+=(--index-url "$torch_index"); fi
  find_huge_packages "${arguments[@]}"
  if [ -n "$huge" ]; then
    if [ "$huge" = unknown ]; then
      say "note: torch $torch_version may bring GPU libraries: a download of up to several GB"
    else
      say "note: torch $torch_version from this index is a GPU build: a download of several GB (with $huge)"
    fi
    say "note: to avoid it, stop now and set GRAMIAN_TORCH_INDEX to the URL of an index with CPU-only wheels (about 0.2 GB)"
    if [ -t 2 ]; then sleep 5; fi
    require_gigabytes 12
  else
    require_gigabytes 2
  fi
  say "installing torch $torch_version into .venv"
  if [ -f "$record" ]; then echo unfinished >>"$record"; fi
  # A torch that is there but broken, or from another index, would count as installed.
  if "$venv_python" -m pip show -q torch >/dev/null 2>&1; then arguments+=(--force-reinstall); fi
  # Progress for people, silence for logs.
  if [ ! -t 2 ]; then arguments+=(--quiet); fi
  if ! "$venv_python" -m pip install --disable-pip-version-check --no-input "${arguments[@]}" >&2 2> >(tee "$pip_log" >&2); then
    sleep 0.2 # lets tee finish the log
    explain_pip_failure "$pip_log"
  fi
  rm -f "$pip_log"
  torch_is_right || die "torch $torch_version was installed but cannot be imported:" \
    "$("$venv_python" -W ignore -c 'import torch; print("found version", torch.__version__)' 2>&1 | tail -n 1)"
}

install_transformers() {
  if "$venv_python" -W ignore -c "import transformers, sys; sys.exit(transformers.__version__ != '$transformers')" 2>/dev/null; then
    return
  fi
  say "installing transformers $transformers into .venv (about 0.25 GB)"
  "$venv_python" -m pip install -q --disable-pip-version-check --no-input "transformers==$transformers" >&2 ||
    say "note: transformers $transformers could not be installed: the tests that need it will be skipped"
}

# ----------------------------------------------------------------------------------------------------------------------

install_system_packages
make_venv
if ! torch_is_right || { [ -n "${GRAMIAN_TORCH_INDEX:-}" ] && [ "$GRAMIAN_TORCH_INDEX" != "$(recorded index)" ]; }; then
  install_torch
fi
install_transformers
wanted_record >"$record.tmp"
mv "$record.tmp" "$record"
say "complete (torch $(working_torch))"
