#!/usr/bin/env bash
# One job on two hosts, which see the same model and output folder: run this on both, as
#   examples/two_hosts.sh 0 FIRST_HOST MODEL TEXT OUTPUT [flags of gramian quantize]      on FIRST_HOST
#   examples/two_hosts.sh 1 FIRST_HOST MODEL TEXT OUTPUT [flags of gramian quantize]      on the other one
# Each rank feeds half of the calibration rows and solves half of the modules; rank 0 writes. Stopped jobs go on with the same command, also
# with another number of hosts or ranks. FIRST_HOST is an address that both reach; a firewall must let the two through to each other
# (docs/python.md).
set -euo pipefail
[ $# -ge 5 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
exec torchrun --nnodes 2 --nproc-per-node 1 --node-rank "$1" --master-addr "$2" --master-port 29500 \
  -m gramian quantize "$3" -o "$5" --calibration "$4" "${@:6}"
