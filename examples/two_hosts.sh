#!/usr/bin/env bash
# One job on two hosts, which see the same model and output folder: run this on both, as
#   examples/two_hosts.sh 0 FIRST_HOST MODEL TEXT OUTPUT      on FIRST_HOST
#   examples/two_hosts.sh 1 FIRST_HOST MODEL TEXT OUTPUT      on the other one
# Each rank feeds half of the calibration rows and solves half of the modules; rank 0 writes. Stopped jobs go on with the same command, also
# with another number of hosts or ranks.
set -euo pipefail
[ $# -eq 5 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
exec torchrun --nnodes 2 --nproc-per-node 1 --node-rank "$1" --master-addr "$2" --master-port 29500 \
  -m gramian quantize "$3" -o "$5" --calibration "$4" --method qqq
